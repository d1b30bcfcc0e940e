"""The reference page must know every command and every exit code."""

from pathlib import Path

import typer.main

from cadenza.cli.main import app
from cadenza.cli.output import ExitCode

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")


def _commands(group, prefix="cadenza"):
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command, f"{prefix} {name}")
        else:
            yield f"{prefix} {name}"


def test_reference_page_lists_every_command():
    missing = [name for name in _commands(typer.main.get_command(app)) if f"`{name}" not in PAGE]
    assert missing == []


def test_reference_page_lists_every_exit_code():
    table = PAGE.partition("## Exit codes")[2]
    cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("| ")]
    listed = {
        int(word) for cell in cells for word in cell.replace(",", " ").split() if word.isdigit()
    }
    assert listed == {int(code) for code in ExitCode}
