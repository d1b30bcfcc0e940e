"""Progress bars on stderr with the time left; silent when stderr is not a terminal."""

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager

#: Called with (work done, work in all, what was last seen).
ProgressReport = Callable[[int, int, str], None]
#: Called with (stage, work done, work in all, what was last seen).
StageReport = Callable[[str, int, int, str], None]


@contextmanager
def progress_bar(label: str, *, quiet: bool = False) -> Generator[ProgressReport]:
    """Yield a function that moves one bar labelled ``label``.

    Args:
        label: What is being done, e.g. ``"training"``.
        quiet: Draw nothing, as when stderr is not a terminal.
    """
    with stage_bars(quiet=quiet) as report:
        yield lambda done, total, detail: report(label, done, total, detail)


@contextmanager
def stage_bars(*, quiet: bool = False) -> Generator[StageReport]:
    """Yield a function that moves one bar per stage, a new bar for a new stage.

    Args:
        quiet: Draw nothing, as when stderr is not a terminal.
    """
    if quiet or not sys.stderr.isatty():
        yield _ignore
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TaskID,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description:<12}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[detail]}", style="dim"),
    )
    bars: dict[str, TaskID] = {}
    with Progress(*columns, console=Console(stderr=True)) as display:

        def report(stage: str, done: int, total: int, detail: str) -> None:
            if stage not in bars:
                bars[stage] = display.add_task(stage, total=total, detail="")
            display.update(bars[stage], completed=done, total=total, detail=detail)

        yield report


def _ignore(stage: str, done: int, total: int, detail: str) -> None:
    """Take a report and draw nothing."""
