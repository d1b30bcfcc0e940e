"""The page on comparing two policies: its commands print what stands below them."""

import shlex

import pytest
from typer.testing import CliRunner

from cadenza.cli.main import app
from cadenza.cli.output import ExitCode
from tests.foreign_results import lerobot
from tests.integration.docs.pages import blocks, text

PAGE = "how-to/compare-two-policies.md"


@pytest.fixture(autouse=True)
def _two_results(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # 29 and 41 of 50
    before = [True] * 29 + [False] * 21
    after = [True] * 26 + [False] * 3 + [True] * 15 + [False] * 6
    for name, successes in (("before", before), ("after", after)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "eval_info.json").write_text(lerobot([successes], counts=True))


def test_commands_print_what_the_page_shows():
    commands = [command for command in blocks(PAGE, "console") if "eval compare" in command]
    printed = [CliRunner().invoke(app, shlex.split(command)[1:]) for command in commands]
    assert [result.exit_code for result in printed] == [0, 0, 0]
    unpaired, paired = blocks(PAGE, "text")
    assert printed[0].stdout == unpaired
    assert paired in printed[1].stdout
    assert printed[2].stdout.startswith("after/eval_info.json: **better**")


def test_page_lists_the_codes_of_a_comparison():
    table = text(PAGE).partition("| code |")[2].partition("\n\n")[0]
    codes = (ExitCode.WORSE, ExitCode.UNDECIDED, ExitCode.NOT_COMPARABLE, ExitCode.USAGE)
    assert all(f"| {int(code)} |" in table for code in codes)
