"""Progress bars on stderr with the time left; silent when stderr is not a terminal."""

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager

#: Called with (work done, work in all, what was last seen).
ProgressReport = Callable[[int, int, str], None]


@contextmanager
def progress_bar(label: str, *, quiet: bool = False) -> Generator[ProgressReport]:
    """Yield a function that moves a bar labelled ``label``.

    Args:
        label: What is being done, e.g. ``"training"``.
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
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(label, total=None, detail="")

        def report(done: int, total: int, detail: str) -> None:
            bar.update(task, completed=done, total=total, detail=detail)

        yield report


def _ignore(done: int, total: int, detail: str) -> None:
    """Take a report and draw nothing."""
