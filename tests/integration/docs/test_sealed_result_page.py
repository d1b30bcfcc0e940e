"""The page on registered results: every command runs as printed, and its blocks are accepted."""

import os

import pytest

from cadenza.evaluation.admission import thresholds_in
from cadenza.evaluation.prereg import LockedRegistration, PreregistrationSpec, parse_prereg
from tests.campaigns import size
from tests.integration.docs.pages import begin_study, blocks, execute, run_line

PAGE = "how-to/register-and-seal-a-result.md"
#: Less to play, no worker processes; the sources need not be those of a commit here.
SMALLER = {
    "episodes_per_seed=20": size("episodes_per_seed=1 'seeds=[0, 1]'", "episodes_per_seed=20"),
    "eval run": "eval run --workers 1 --quiet",
    "eval sign": "eval sign --allow-dirty",
    "eval verify": "eval verify --allow-dirty",
}


@pytest.fixture
def walked(tmp_path, monkeypatch):
    """The folder in which all commands of the page have run, and what the last one printed."""
    pytest.importorskip("cryptography")
    begin_study(tmp_path, monkeypatch)
    told = ""
    for block in blocks(PAGE, "console"):
        for line in block.replace("\\\n", "").splitlines():
            code, told = run_line(line, SMALLER)
            assert code == 0, f"{line}\n{told}"
    return tmp_path, told


def test_result_is_registered_run_signed_and_verified_elsewhere(walked, capsys):
    folder, told = walked
    assert "PASS  signature:signer" in told
    assert told.count("PASS  replay:") == 3
    assert "PASS  prereg:conforms" in told
    assert told.rstrip().splitlines()[-1].startswith("verify: PASS")
    execute(PAGE)  # in ../elsewhere, as the page left it
    assert capsys.readouterr().out == "True []\n"
    code, told = run_line("cadenza eval verify ../bundle --require-signature", SMALLER)
    assert code == 1  # who has no repository knows no key
    assert "FAIL  signature:signer" in told
    os.chdir(folder / "study")
    again = "cadenza eval run crossing 'policies=[goal_pd]' 'seeds=[7]' --prereg protocol.yaml"
    code, told = run_line(f"{again} --out runs/other", SMALLER)
    assert (code, "not measured" in told, (folder / "study/runs/other").exists()) == (
        4,
        False,
        False,
    )
    protocol = folder / "study/protocol.yaml"
    protocol.write_text(protocol.read_text("utf-8").replace("below 5 %", "below 50 %"), "utf-8")
    assert run_line("cadenza prereg verify protocol.yaml", SMALLER)[0] == 4


def test_other_registrations_of_the_page_are_accepted():
    admission, axis = (block.encode() for block in blocks(PAGE, "yaml"))
    limits = thresholds_in(LockedRegistration(content=admission, git_tag="x"), "cocarry_mj")
    assert limits.c_min_ego == 0.75
    assert isinstance(parse_prereg(axis, source=PAGE), PreregistrationSpec)
