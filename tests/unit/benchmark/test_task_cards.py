"""Cards of tasks: the documentation shows those of the code."""

from importlib.util import find_spec
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cadenza.benchmark.task_cards import task_card
from cadenza.benchmark.tasks import COCARRY_MJ, CROSSING, get_task
from cadenza.cli.main import app

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "task-cards.md"
#: With one of them the cards of its tasks say more than the page.
OPTIONAL = ("mani_skill", "overcooked")

pytest.importorskip("mjbatch", reason="needs the extra mujoco")
pytest.importorskip("lbforaging", reason="needs the extra foraging")


@pytest.mark.skipif(
    any(map(find_spec, OPTIONAL)), reason="with ManiSkill or Overcooked cards say more"
)
def test_page_is_what_the_command_prints():
    done = CliRunner().invoke(app, ["tasks", "show"])
    assert done.exit_code == 0, done.output
    assert done.stdout == PAGE.read_text("utf-8"), f"run: cadenza tasks show > {PAGE.name}"


def test_card_has_sizes_of_both_seats_and_every_option():
    card = task_card(get_task("handover_mj"))
    assert "| State | 31 numbers, the partner's 18 numbers |" in card
    assert "| Step | 0.05 s |" in card
    assert "| Action | 2 numbers |" in task_card(CROSSING)
    assert all(f"| `{name}` | " in task_card(COCARRY_MJ) for name in COCARRY_MJ.options or ())


def test_card_of_a_task_that_is_not_installed_says_what_installs_it():
    card = task_card(get_task("stage0_smoke"))
    assert "pip install 'cadenza[maniskill]'" in card
    assert ("| State |" in card) == bool(find_spec("mani_skill"))
