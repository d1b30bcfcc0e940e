"""What a person sees while a loop runs: one line per event, and a bar for the job at work.

Where stderr is no terminal there is no bar; instead a line says now and then how the job stands.
"""

import logging
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from cadenza.cli.loop_store import command
from cadenza.cli.loop_words import duration, event_line, plain, time_left

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from cadenza.loop.events import Event
    from cadenza.loop.job_estimates import Outlook
    from cadenza.loop.jobs.reports import JobProgress
    from cadenza.loop.jobs.spec import JobKey
    from cadenza.loop.orchestrator.assembly import LoopAssembly

#: Pause between two lines about a job where there is no bar, s.
_LINE_EVERY_S: Final = 30.0
#: Time without output of a job that is worth a word, s.
_QUIET_S: Final = 60.0
#: Events after which no job is at work.
_JOB_ENDS: Final = ("job_finished", "constitution_denied", "run_finished", "run_failed")


class LoopDisplay:
    """Subscriber to events and to progress; prints to stderr."""

    def __init__(self, *, quiet: bool = False) -> None:
        """Show what is told, or nothing if ``quiet``."""
        self._quiet = quiet
        self._loop: LoopAssembly | None = None
        self._bar: Progress | None = None
        self._task: TaskID | None = None
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
            self._bar.start()
        warnings, logger = _Warnings(self._write), logging.getLogger("cadenza")
        logger.addHandler(warnings)
        try:
            yield
        finally:
            logger.removeHandler(warnings)
            if self._bar is not None:
                with suppress(OSError):  # the terminal is gone
                    self._remove_task(self._bar)
                    self._bar.stop()

    def on_event(self, event: "Event") -> None:
        """Print an event."""
        if event.kind in _JOB_ENDS and self._bar is not None:
            self._remove_task(self._bar)
        self._say(event_line(event.cycle, event.stage, event.kind, event.payload))
        if event.kind == "job_started":
            self._next_line = time.monotonic() + _LINE_EVERY_S
            self._look_at_disk()
        if event.kind == "approval_requested" and self._loop is not None:
            config = self._loop.config
            more = ("--by NAME", "--reason TEXT", "[--reject]")
            how = command("approve", event.run_id, config.workdir, config.store, *more)
            self._say(f"waits for approval; answer with: {how}")

    def on_progress(self, progress: "JobProgress") -> None:
        """Show how a job stands."""
        if self._quiet:
            return
        if self._bar is not None:
            self._move_bar(self._bar, progress)
        elif time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + _LINE_EVERY_S
            outlook = self._outlook(progress.key, progress.attempt_s)
            self._say(f"[cycle {progress.key.cycle}] {_standing(progress, outlook)}")

    def _look_at_disk(self) -> None:
        """Warn of a disk that is nearly full, once until there is room again."""
        from cadenza.loop.disk_space import disk_space, shortage

        if self._loop is None:
            return
        config = self._loop.config
        told = shortage(disk_space(config.workdir, config.backend), config.workdir)
        if told and not self._told_of_disk:
            self._write(f"warning: {told}")
        self._told_of_disk = bool(told)

    def _outlook(self, key: "JobKey", elapsed_s: float) -> "Outlook":
        """Return how the job goes on, as far as that can be told."""
        from cadenza.loop.job_estimates import JobEstimates, Outlook

        if self._loop is None:
            return Outlook()
        jobs = self._loop.store.jobs.of_run(key.run_id)
        return JobEstimates(jobs, folder=self._loop.folder).outlook(key, elapsed_s)

    def _move_bar(self, bar: "Progress", progress: "JobProgress") -> None:
        outlook = self._outlook(progress.key, progress.attempt_s)
        done = outlook.done
        if done is None and outlook.left_s is not None:
            done = progress.attempt_s / max(progress.attempt_s + outlook.left_s, 1e-9)
        description = f"cycle {progress.key.cycle} {progress.key.stage}"
        total = None if done is None else 1.0
        completed, detail = done or 0.0, _times(progress, outlook.left_s)
        if self._task is None:
            self._task = bar.add_task(description, total=total, completed=0, detail=detail)
        bar.update(
            self._task, description=description, total=total, completed=completed, detail=detail
        )

    def _remove_task(self, bar: "Progress") -> None:
        if self._task is not None:
            bar.remove_task(self._task)
            self._task = None

    def _say(self, line: str) -> None:
        if not self._quiet:
            self._write(line)

    def _write(self, line: str) -> None:
        """Show a line; that nobody can see it, as a terminal is gone, ends nothing."""
        with suppress(OSError):
            self._print(line)

    def _print(self, line: str) -> None:
        if self._bar is not None:
            self._bar.console.print(plain(line), markup=False, highlight=False, soft_wrap=True)
        else:
            sys.stderr.write(f"{plain(line)}\n")
            sys.stderr.flush()


class _Warnings(logging.Handler):
    """Prints warnings as lines, so that they do not break the bar."""

    def __init__(self, write: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._write_line = write

    def emit(self, record: logging.LogRecord) -> None:
        """Print a warning, of a job with the job's name."""
        incident: dict[str, Any] | None = getattr(record, "incident", None)
        what = record.levelname.lower()
        if incident is not None:
            key = incident["key"]
            what = f"[cycle {key['cycle']}] {key['stage']}, attempt {incident['attempt']}"
        self._write_line(f"{what}: {record.getMessage()}")


def _new_bar() -> "Progress":
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[detail]}", style="dim"),
    )
    return Progress(*columns, console=Console(stderr=True), transient=True, refresh_per_second=2)


def _times(progress: "JobProgress", left_s: float | None) -> str:
    if progress.waits_for is not None:
        return f"waits for room: {progress.waits_for}"
    attempt = f", attempt {progress.attempt}" if progress.attempt > 1 else ""
    quiet = f", no output for {duration(progress.quiet_s)}" if progress.quiet_s >= _QUIET_S else ""
    return f"{duration(progress.attempt_s)}, {time_left(left_s)}{attempt}{quiet}"


def _standing(progress: "JobProgress", outlook: "Outlook") -> str:
    if progress.waits_for is not None:
        return f"{progress.key.stage} {_times(progress, None)}"
    share = "" if outlook.done is None else f" {outlook.done:.0%} done,"
    return f"{progress.key.stage} at work:{share} {_times(progress, outlook.left_s)}"
