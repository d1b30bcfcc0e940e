"""The page on a paper's workflow: every command runs as printed, at small size."""

import json
from pathlib import Path

import pytest

from tests.integration.docs.pages import begin_study, blocks, run_line

PAGE = "how-to/from-training-to-table.md"
#: Less to train and to play; the sources need not be those of a commit here.
SMALLER = {
    "cadenza train crossing": "cadenza train crossing total_frames=256 checkpoint_every=256 "
    "env.num_envs=4 happo.rollout_length=16 evaluation.every_frames=0 evaluation.episodes=1 "
    "--workers 1 --quiet",
    "cadenza prereg new evaluation.yaml": "cadenza prereg new evaluation.yaml episodes_per_seed=1 "
    "'seeds=[100]'",
    "cadenza eval run evaluation.yaml": "cadenza eval run evaluation.yaml episodes_per_seed=1 "
    "'seeds=[100]' --workers 1 --quiet",
    "eval sign": "eval sign --allow-dirty",
    "eval verify": "eval verify --allow-dirty",
}


def test_page_goes_from_registration_to_a_table_over_training_seeds(tmp_path, monkeypatch):
    pytest.importorskip("cryptography")
    begin_study(tmp_path, monkeypatch)
    (evaluation,) = blocks(PAGE, "yaml")
    verified = 0
    for block in blocks(PAGE, "console"):
        for line in block.replace("\\\n", "").splitlines():
            code, told = run_line(line, SMALLER)
            if "sources changed" in told and "leaderboard" in line:
                pytest.skip("a leaderboard takes results of committed sources only")
            assert code == 0, f"{line}\n{told}"
            verified += told.count("PASS  signature:signer")
            if line == "cd study":
                Path("evaluation.yaml").write_text(evaluation, encoding="utf-8")
    assert verified == 3
    table = Path("table.tex").read_text("utf-8")
    assert r"\toprule" in table
    assert "& Training seeds &" in table
    (row,) = (line for line in table.splitlines() if line.startswith("ego"))
    assert row.split(" & ")[-2] == "3"
    code, told = run_line("cadenza report ../given --repo-root . --out report.json", SMALLER)
    assert code == 0, told
    result = json.loads(Path("report.json").read_text("utf-8"))
    clusters = {e["n_clusters"] for e in result["estimates"] if e["statistic"] == "success"}
    assert (result["clusters"], clusters) == ("training seed", {3})
    assert any(
        "The filter keeps the ego safe if" in text for text in result["statements"]["measured"]
    )
