"""The code of the page on collecting runs as it stands there, and does what the text says."""

import re
from contextlib import chdir
from pathlib import Path

import torch

from cadenza.learn.collectors import ThreadedGymCollector

PAGE = (Path(__file__).parents[3] / "docs" / "how-to" / "collect-from-gymnasium.md").read_text(
    encoding="utf-8"
)


def run_page(folder, *, steps=200):
    folder.mkdir(exist_ok=True)
    program = "\n".join(re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL))
    names: dict[str, object] = {}
    program = program.replace("state = train(200)", f"state = train({steps})")
    with chdir(folder):
        exec(compile(program, "docs/how-to/collect-from-gymnasium.md", "exec"), names)  # noqa: S102
    return names


def test_page_trains_and_counts_transitions(tmp_path):
    names = run_page(tmp_path)
    # 100 calls of warm-up and one in every fourth step, each with 4 environments.
    assert names["state"]["inf_step"] == 4 * 100 + 4 * 200 // 4
    assert names["state"]["bp_step"] == 200
    assert names["table"].size() > 0
    assert isinstance(names["threaded"], ThreadedGymCollector)


def test_page_run_twice_goes_on_as_the_unbroken_run(tmp_path):
    unbroken = run_page(tmp_path / "unbroken")
    run_page(tmp_path / "broken", steps=120)  # its last checkpoint is that of step 100
    resumed = run_page(tmp_path / "broken")
    assert resumed["state"]["inf_step"] == unbroken["state"]["inf_step"]
    for ours, theirs in zip(
        resumed["q_net"].parameters(), unbroken["q_net"].parameters(), strict=True
    ):
        assert torch.equal(ours, theirs)
    fresh = run_page(tmp_path / "other", steps=199)
    assert not torch.equal(next(fresh["q_net"].parameters()), next(unbroken["q_net"].parameters()))
