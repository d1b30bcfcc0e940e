"""Native jobs in this process: a whole loop without starting another program.

Jobs are the same commands with the same flags, files and results; a loop that is killed takes its
job with it, and does it again. Use: ``build_loop(config, run_id, open_jobs=in_process_jobs)``.

Limits:  one loop at a time: the standard streams are the process's own; back end `native` alone; no
         time limit, and budgets are checked between jobs.
"""

import time
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Final

from cadenza.cli.output import ExitCode
from cadenza.core.errors import UnknownNameError
from cadenza.loop.agents.base import CallableRunner, RunResult
from cadenza.loop.contracts.records import JobRunner
from cadenza.loop.jobs.terms import StopCheck
from cadenza.loop.orchestrator.steps import RunSession

_STOPPED: Final = (ExitCode.INTERRUPTED, ExitCode.TERMINATED)


def run_in_process(cmd: Sequence[str], log_path: Path) -> RunResult:
    """Run a ``cadenza job`` command here; its output goes to ``log_path``, which is replaced.

    Raises:
        UnknownNameError: It is another command.
        KeyboardInterrupt: It was stopped, by Ctrl-C or SIGTERM.
    """
    from typer.main import get_command

    from cadenza.cli.main import app

    if tuple(cmd[:2]) != ("cadenza", "job"):
        raise UnknownNameError(
            f"command {' '.join(cmd[:2])!r}: expected 'cadenza job' in this process; run others as "
            "processes of their own."
        )
    log_path.parent.mkdir(parents=True, exist_ok=True)
    began, code = time.monotonic(), 0
    with (
        log_path.open("w", encoding="utf-8") as log,
        redirect_stdout(log),
        redirect_stderr(log),
    ):
        try:
            get_command(app).main(list(cmd[1:]), prog_name="cadenza")
        except SystemExit as end:
            code = int(end.code) if isinstance(end.code, int) else 0
    if code in _STOPPED:
        raise KeyboardInterrupt
    return RunResult(list(cmd), code, time.monotonic() - began, log_path)


def in_process_jobs(session: RunSession, _stop: StopCheck) -> JobRunner:
    """Return a runner of jobs in this process, for `build_loop` and `LoopController`."""
    return CallableRunner(session.store, session.lease, run_in_process)
