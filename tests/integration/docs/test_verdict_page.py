"""The page from nothing to a verdict: every command runs as printed, at small size."""

from pathlib import Path

from tests.integration.docs.pages import blocks, run_line

PAGE = "how-to/from-nothing-to-a-verdict.md"
TINY = "num_envs=8 ppo.rollout_length=50 snapshots=2 episodes=5 -j 1 --quiet"
SMALLER = {
    "zoo train fcp": f"zoo train fcp population=1 steps=800 {TINY}",
    "zoo train behavior": f"zoo train behavior population=1 steps=800 {TINY}",
    "zoo best-response runs/judges": f"zoo best-response runs/judges steps=800 {TINY}",
    "--seeds 3": "--seeds 2 -j 1 --quiet total_frames=256 checkpoint_every=256 env.num_envs=8 "
    "ppo.rollout_length=16 evaluation.every_frames=0 evaluation.episodes=1",
    "zoo matrix": "zoo matrix --episodes 5 -j 1 --quiet",
    "--encounters 8": "--encounters 2",
}


def test_page_goes_from_nothing_to_a_verdict(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for block in blocks(PAGE, "console"):
        for line in block.splitlines():
            code, told = run_line(line, SMALLER)
            assert code == 0, f"{line}\n{told}"
    page = Path("verdict.html").read_text("utf-8")
    assert "What it loses beside strangers" in page
    assert "behavior-s0-0" in page
    # the ego's files say with whom, its run behind which filter it trained
    assert "By its policy files, ppo trained with fcp." in page
    assert "Condition as_trained: everybody acts behind the safety filter that ppo" in page
