"""Run `cadenza` commands in the process of the tests, without the imports of a new one."""

from contextlib import chdir
from pathlib import Path

from typer.testing import CliRunner

from cadenza.cli.main import app
from tests.e2e.commands import Outcome


def here(*words: str | Path, cwd: Path) -> Outcome:
    """Run ``cadenza <words>`` in ``cwd``, at the same width as commands with a process."""
    with chdir(cwd):
        done = CliRunner(env={"COLUMNS": "120", "TERM": "dumb"}).invoke(app, list(map(str, words)))
    return Outcome(done.exit_code, done.stdout, done.stderr)
