"""`cadenza loop run`, `resume` and `demo`: the commands that work on a run until it ends.

A person sees one line per event, and a bar for the job at work; where stderr is no terminal there
is no bar, instead a line says now and then how the job stands.
"""

import logging
import os
import re
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from cadenza.cli.configuration import Settings
from cadenza.cli.loop_status import (
    RUNS,
    By,
    Config,
    Quiet,
    Reason,
    RunId,
    StoreUrl,
    Workdir,
    approval_command,
    beyond_budget,
    blessed_line,
    command,
    event_line,
    login_name,
    no_output,
    open_store,
    plain,
    print_status,
    rules_line,
    time_left,
)
from cadenza.cli.output import AsJson, ExitCode, print_json, print_text, typed_exits
from cadenza.core.errors import ConfigurationError
from cadenza.core.timing import duration

if TYPE_CHECKING:
    from rich.progress import Progress

    from cadenza.loop.config import LoopConfig
    from cadenza.loop.contracts.records import JobKey
    from cadenza.loop.events import Event
    from cadenza.loop.jobs.outcomes import JobProgress
    from cadenza.loop.orchestrator.assembly import LoopAssembly
    from cadenza.loop.status_report import Outlook, RunStatus


#: Pause between two lines about a job where there is no bar, s.
_LINE_EVERY_S: Final = 30.0
#: Events after which no job is at work.
_JOB_ENDS: Final = ("job_finished", "constitution_denied", "run_finished", "run_failed")


class LoopDisplay:
    """Subscriber to events and to progress; prints to stderr."""

    _loop: "LoopAssembly"  # what it follows

    def __init__(self, *, quiet: bool = False) -> None:
        """Show messages, or nothing if ``quiet``."""
        self._quiet = quiet
        self._bar: Progress | None = None
        self._task: Any = None
        self._next_line = 0.0
        self._told_of_disk = False

    @contextmanager
    def following(self, loop: "LoopAssembly") -> Generator[None]:
        """Show what ``loop`` tells during the block, and warnings of the package."""
        self._loop = loop
        self._next_line = time.monotonic() + _LINE_EVERY_S
        loop.bus.subscribe(self.on_event)
        if not self._quiet and sys.stderr.isatty():
            self._bar = _new_bar()
            self._task = self._bar.add_task("", detail="", visible=False)
            self._bar.start()
        warnings, logger = _Warnings(self._write), logging.getLogger("cadenza")
        logger.addHandler(warnings)
        try:
            yield
        finally:
            logger.removeHandler(warnings)
            if self._bar is not None:
                with suppress(OSError):  # the terminal is gone
                    self._bar.update(self._task, visible=False)
                    self._bar.stop()

    def on_event(self, event: "Event") -> None:
        """Print an event."""
        if event.kind in _JOB_ENDS and self._bar is not None:
            self._bar.update(self._task, visible=False)
        self._say(event_line(event.cycle, event.stage, event.kind, event.payload))
        if event.kind == "job_started":
            self._next_line = time.monotonic() + _LINE_EVERY_S
            self._look_at_disk()
        if event.kind == "approval_requested":
            config = self._loop.config
            how = approval_command(event.run_id, config.workdir, config.store)
            self._say(f"waits for approval; answer with: {how}")

    def on_progress(self, progress: "JobProgress") -> None:
        """Show how a job stands."""
        if self._quiet:
            return
        if self._bar is not None:
            with suppress(OSError, ValueError):  # the terminal is gone
                self._move_bar(self._bar, progress)
        elif time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + _LINE_EVERY_S
            outlook = self._outlook(progress.key, progress.attempt_s)
            self._say(f"[cycle {progress.key.cycle}] {_standing(progress, outlook)}")

    def _look_at_disk(self) -> None:
        """Warn of a disk that is nearly full, once until there is room again."""
        from cadenza.loop.retention import disk_space, shortage

        config = self._loop.config
        told = shortage(disk_space(config.workdir, config.backend), config.workdir)
        if told and not self._told_of_disk:
            self._write(f"warning: {told}")
        self._told_of_disk = bool(told)

    def _outlook(self, key: "JobKey", elapsed_s: float) -> "Outlook":
        """Return the progress of the job, as far as it is known."""
        from cadenza.loop.status_report import JobEstimates
        from cadenza.loop.store.overview import NEWEST

        jobs = self._loop.store.jobs.of_run(key.run_id, since=key.cycle - NEWEST)
        return JobEstimates(jobs, folder=self._loop.folder).outlook(key, elapsed_s)

    def _move_bar(self, bar: "Progress", progress: "JobProgress") -> None:
        outlook = self._outlook(progress.key, progress.attempt_s)
        done = outlook.done
        if done is None and outlook.left_s is not None:
            done = progress.attempt_s / max(progress.attempt_s + outlook.left_s, 1e-9)
        bar.update(
            self._task,
            description=f"cycle {progress.key.cycle} {progress.key.stage}",
            total=None if done is None else 1.0,
            completed=done or 0.0,
            detail=_times(progress, outlook.left_s),
            visible=True,
            refresh=True,
        )

    def _say(self, line: str) -> None:
        if not self._quiet:
            self._write(line)

    def _write(self, line: str) -> None:
        """Show a line; that nobody can see it, as a terminal is gone, ends nothing."""
        with suppress(OSError):
            if self._bar is None:
                _tell(plain(line))
            else:
                self._bar.console.print(plain(line), markup=False, highlight=False, soft_wrap=True)


class _Warnings(logging.Handler):
    """Prints warnings as lines, so that they do not break the bar."""

    def __init__(self, write: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._write_line = write

    def emit(self, record: logging.LogRecord) -> None:
        """Print a warning, of a job with the job's name."""
        what, job = record.levelname.lower(), getattr(record, "job", None)
        if job is not None:
            what = f"[cycle {job['cycle']}] {job['stage']}, attempt {job['attempt']}"
        self._write_line(f"{what}: {record.getMessage()}")


def _new_bar() -> "Progress":
    from rich.console import Console
    from rich.progress import BarColumn, Progress

    columns = ("{task.description}", BarColumn(), "[dim]{task.fields[detail]}")
    return Progress(*columns, console=Console(stderr=True), transient=True, refresh_per_second=2)


def _times(progress: "JobProgress", left_s: float | None) -> str:
    if progress.waits_for is not None:
        return f"waits for room: {progress.waits_for}"
    attempt = f", attempt {progress.attempt}" if progress.attempt > 1 else ""
    times = f"{duration(progress.attempt_s)}, {time_left(left_s)}"
    return f"{times}{attempt}{no_output(progress.quiet_s)}"


def _standing(progress: "JobProgress", outlook: "Outlook") -> str:
    if progress.waits_for is not None:
        return f"{progress.key.stage} {_times(progress, None)}"
    share = "" if outlook.done is None else f" {outlook.done:.0%} done,"
    return f"{progress.key.stage} at work:{share} {_times(progress, outlook.left_s)}"


_DEMO: Final = Path("runs/loop-demo")
_STOPPING: Final = (
    b"\nstopping: what is at work is ended first; Ctrl-C again kills it\n",
    b"\nstopping: what is at work is killed\n",
)

_ConfigFile = Annotated[
    Path,
    typer.Option(
        "--config", "-c", help="YAML file, or the name of a shipped one, e.g. native_crossing."
    ),
]


def run(
    config: _ConfigFile,
    settings: Settings = None,
    run_id: Annotated[
        str | None,
        typer.Option("--run-id", help="Id of the run; default: the time (UTC) and run_name."),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Show the commands that would run, without running or keeping any."
        ),
    ] = False,
    again: Annotated[
        bool, typer.Option("--resume", help="Continue the run of --run-id if there is one.")
    ] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Improve a policy, cycle by cycle, until the budget or the ladder ends."""
    with typed_exits(as_json=as_json, keep_lines=True):
        from cadenza.core.shipped_configs import find_config
        from cadenza.loop.config import NAME_PATTERN, LoopConfig
        from cadenza.loop.errors import DuplicateRunError, StoreNotFoundError, StoreOutdatedError
        from cadenza.loop.events.bus import require_free_log
        from cadenza.loop.orchestrator.assembly import EVENTS_FILE, new_run_id, run_folder
        from cadenza.loop.resuming import anchored

        read = LoopConfig.from_yaml(find_config(config, "loop"), settings or ())
        loop = anchored(read)
        name = new_run_id(loop) if run_id is None else run_id
        if re.fullmatch(NAME_PATTERN, name) is None:
            raise ConfigurationError(
                f"--run-id: expected letters, digits, '.', '_' and '-', at most 100, got {name!r}; "
                "it names a folder."
            )
        known = False
        with (
            suppress(StoreNotFoundError, StoreOutdatedError),  # the latter only for a dry run
            open_store(loop.workdir, loop.store, upgrade=not dry_run) as store,
        ):
            known = store.has_run(name)
            if known and not again:
                begun = command("resume", name, loop.workdir, loop.store)
                raise DuplicateRunError(
                    f"run {name!r}: expected a new id, got one that the store has; choose another, "
                    f"or go on with: {begun}"
                )
        if not known:
            require_free_log(run_folder(loop, name) / EVENTS_FILE, name)
        if dry_run:
            _dry_run(loop, name, as_json=as_json, quiet=quiet)
            return
        if not (quiet or as_json):
            _tell_advice(loop)
    work_on(loop, name, as_json=as_json, quiet=quiet)


def resume(
    run_id: RunId,
    workdir: Workdir = RUNS,
    store: StoreUrl = None,
    config: Config = None,
    by: By = None,
    reason: Reason = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Continue a run; --config may have other budgets, gates or job settings than it began with."""
    with typed_exits(as_json=as_json, keep_lines=True):
        from cadenza.core.shipped_configs import find_config
        from cadenza.loop.config import LoopConfig
        from cadenza.loop.requests import note_request
        from cadenza.loop.resuming import anchored, stored_config

        given = None
        if config is not None:
            given = anchored(LoopConfig.from_yaml(find_config(config, "loop")))
            store = store or given.store
        with open_store(workdir, store, upgrade=True) as opened:
            opened.get_run(run_id)
            settings = given or stored_config(opened, run_id)
        by = login_name() if by is None else by  # empty: who asked is noted already
        note_request(workdir / run_id, "resume_asked", reason, by)
        settings = settings.model_copy(update={"workdir": workdir, "store": store})
    work_on(settings, run_id, as_json=as_json, quiet=quiet)


def demo(
    workdir: Workdir = _DEMO,
    knowledge: Annotated[
        Path | None,
        typer.Option("--knowledge", "-k", help="Folder of the pages; default: WORKDIR/knowledge."),
    ] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Run a small loop from nothing to a good policy; run it again and it continues."""
    with typed_exits(as_json=as_json, keep_lines=True):
        from cadenza.loop.orchestrator.assembly import RUN_ID, write_demo_config
        from cadenza.loop.resuming import anchored

        settings = anchored(write_demo_config(workdir, knowledge or workdir / "knowledge"))
    work_on(settings, RUN_ID, as_json=as_json, quiet=quiet, with_status=True)


def work_on(
    settings: "LoopConfig",
    run_id: str,
    *,
    as_json: bool,
    quiet: bool,
    with_status: bool = False,
) -> None:
    """Work on a run until it ends and print its outcome, ``with_status`` also its status.

    Raises:
        typer.Exit: It did not come to its end; the code says why.
    """
    again = command("resume", run_id, settings.workdir, settings.store)
    try:
        with typed_exits(as_json=as_json, go_on=_go_on(again), keep_lines=True):
            code, summary, status = _work(settings, run_id, quiet=quiet or as_json)
            # a closed terminal shows nothing, a file or a pipe gets it all the same
            with suppress(OSError) if code is ExitCode.HUNG_UP else nullcontext():
                if as_json:
                    more = {"run": status.model_dump(mode="json")} if with_status else {}
                    print_json({**summary, **more})
                elif with_status:
                    print_status(status, settings.workdir, settings.store)
                else:
                    why = plain(summary["stop_reason"])
                    print_text(f"run {run_id}: {status.status} ({why})")
                    print_text(f"decisions: {', '.join(summary['decisions']) or 'none yet'}")
                    print_text(blessed_line(status))
    except typer.Exit as ended:
        _show_log(ended)
        if ended.exit_code in (ExitCode.JOB_FAILED, ExitCode.STORAGE, ExitCode.OUT_OF_MEMORY):
            _tell(f"after correcting that, continue with: {again}")
        raise
    if code is not ExitCode.OK:
        if status.pending:
            approve = approval_command(run_id, settings.workdir, settings.store)
            _tell(f"answer first with: {approve}")
        _tell(f"stopped; {_go_on(again)}")
        raise typer.Exit(code)
    hint = beyond_budget(summary["stop_reason"], again)
    if hint and not (with_status or as_json):
        _tell(hint)


def _show_log(ended: typer.Exit) -> None:
    """Write the last lines of the log of the job that failed, if one did."""
    from cadenza.loop.errors import JobFailedError
    from cadenza.loop.jobs.outcomes import last_lines

    error: BaseException | None = ended
    while error is not None and not isinstance(error, JobFailedError):
        error = error.__cause__
    if error is None or error.log_path is None:
        return
    lines = last_lines(error.log_path)
    _tell(f"{error.log_path} ends with:\n{lines}" if lines else f"{error.log_path} is empty")


def _go_on(again: str) -> str:
    return f"finished work is kept, continue with: {again}"


def _work(
    settings: "LoopConfig", run_id: str, *, quiet: bool
) -> "tuple[ExitCode, dict[str, Any], RunStatus]":
    """Return how the run ended, its summary, and how it stands."""
    from cadenza.loop.jobs.terms import StopSignals
    from cadenza.loop.orchestrator.assembly import build_loop
    from cadenza.loop.status_report import run_status

    # Called inside the signal's handler, so nothing is buffered.
    with StopSignals(lambda level: os.write(2, _STOPPING[level - 1])) as stop:
        display = LoopDisplay(quiet=quiet)
        with build_loop(settings, run_id, stop=stop, on_progress=display.on_progress) as loop:
            if not quiet:
                _tell(f"run {run_id}; events: {loop.bus.log_path}")
                _tell(rules_line(*_rules_of(loop).values()))
            with display.following(loop):
                summary = loop.run().to_dict()
            status = run_status(loop.store, run_id, workdir=settings.workdir)
            summary |= {"status": status.status, "folder": str(loop.folder)}
            summary |= {"metric": status.metric, **_rules_of(loop)}
    if status.status != "stopped":
        return ExitCode.OK, summary, status
    codes = {"SIGTERM": ExitCode.TERMINATED, "SIGHUP": ExitCode.HUNG_UP}
    signal_name = "" if stop.first is None else stop.first.name
    return codes.get(signal_name, ExitCode.INTERRUPTED), summary, status


def _dry_run(settings: "LoopConfig", run_id: str, *, as_json: bool, quiet: bool) -> None:
    from cadenza.loop.doctor import notes
    from cadenza.loop.dry_run import DryBackend, commands_of, dry_jobs, throw_away
    from cadenza.loop.orchestrator.assembly import build_loop
    from cadenza.loop.orchestrator.comparison import comparison_costs
    from cadenza.loop.orchestrator.preflight import require_ready

    _, stack = require_ready(settings, run_id, data_may_come=True)
    with throw_away(settings) as dry:
        backend = DryBackend(stack, settings)
        with build_loop(dry, run_id, backend=backend, open_jobs=dry_jobs) as loop:
            display = LoopDisplay(quiet=quiet or as_json)
            with display.following(loop):
                summary = {**loop.run().to_dict(), **_rules_of(loop)}
            commands = commands_of(loop.store, run_id, below=dry.workdir, shown_as=settings.workdir)
    for note in notes(settings):
        _tell(f"note: {note}")
    if as_json:
        print_json({**summary, "dry_run": True, "commands": commands})
        return
    rules = rules_line(summary["constitution"], summary["constitution_sha256"])
    for line in (*map(plain, commands), rules, *comparison_costs(settings)):
        print_text(line)
    print_text(
        f"dry run: {len(commands)} commands in {summary['cycles_run']} cycles, none of them run; "
        "it assumes that policies of cycle 0 solve half of the episodes and later ones all; "
        "nothing was kept"
    )


def _tell_advice(settings: "LoopConfig") -> None:
    """Say what of a configuration is likely to be meant otherwise."""
    from cadenza.loop.doctor import advice

    for check in advice(settings):
        _tell(f"note: {check.detail}; {check.fix}")


def _rules_of(loop: "LoopAssembly") -> dict[str, str | None]:
    """Return which rules a run obeys: their file, None for the shipped ones, and their digest."""
    from cadenza.loop.resuming import rules_file

    file = rules_file(loop.config)
    return {
        "constitution": None if file is None else str(file),
        "constitution_sha256": loop.rules.sha256,
    }


def _tell(line: str) -> None:
    with suppress(OSError):  # the terminal is gone
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()
