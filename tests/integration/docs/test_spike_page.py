"""The page on spikes: every command runs as printed, at a small size, and its block is accepted."""

import yaml

from cadenza.benchmark.cells import ConditionEntry
from tests.campaigns import size
from tests.integration.docs.pages import begin_study, blocks, run_line, text

PAGE = "how-to/run-a-spike.md"
#: Less to play, no worker processes; the sources need not be those of a commit here.
SMALLER = {
    "prereg new CM": size("prereg new CM 'seeds=[0, 1]' episodes_per_seed=1", "prereg new CM"),
    "spike run --axis": "spike run --workers 1 --quiet --allow-dirty --axis",
    "summarise": "summarise --allow-dirty",
    "next-stage": "next-stage --allow-dirty",
}


def test_commands_of_the_page_run_as_printed(tmp_path, monkeypatch):
    begin_study(tmp_path, monkeypatch)
    ended = {}
    for line in "".join(blocks(PAGE, "console")).splitlines():
        ended[line] = run_line(line, SMALLER)
    gate = "cadenza spike next-stage runs/cm --prior-stage 2"
    failed = {line: told for line, told in ended.items() if told[0] != 0}
    assert set(failed) == size({gate}, set()), failed  # two pairs show nothing
    assert ended[gate][0] == size(5, 0)
    printed = next(line for line in text(PAGE).splitlines() if line.startswith("| CM | 2 | Mea"))
    summary = (tmp_path / "study/runs/cm/summary.md").read_text("utf-8")
    assert size("| CM | 2 | Measured | 2 | 4 |", printed) in summary
    assert (tmp_path / "study/runs/cm/report.html").is_file()


def test_conditions_of_the_page_are_accepted():
    (block,) = blocks(PAGE, "yaml")
    conditions = [ConditionEntry.model_validate(c) for c in yaml.safe_load(block)["conditions"]]
    assert [c.wrapper and c.wrapper.class_name for c in conditions] == [
        None,
        "varied_body",
        "swapped",
    ]
