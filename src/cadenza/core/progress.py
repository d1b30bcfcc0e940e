"""Progress on stderr: bars with the time left, or a plain line now and then without a terminal."""

import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Final

#: Called with (work done, work in all, what was last seen).
ProgressReport = Callable[[int, int, str], None]
#: Called with (stage, work done, work in all, what was last seen).
StageReport = Callable[[str, int, int, str], None]

#: Time between two lines where there is no terminal, s.
LINE_EVERY_S: Final = 30.0


@contextmanager
def progress_bar(label: str, *, quiet: bool = False) -> Generator[ProgressReport]:
    """Yield a function that moves one bar labelled ``label``, or shows nothing if ``quiet``."""
    with stage_bars(quiet=quiet) as report:
        yield lambda done, total, detail: report(label, done, total, detail)


def progress_note(text: str) -> None:
    """Write a line to stderr, before a bar."""
    sys.stderr.write(f"{text}\n")


@contextmanager
def stage_bars(*, quiet: bool = False) -> Generator[StageReport]:
    """Yield a function that moves one bar per stage; nothing is shown if ``quiet``."""
    if quiet:
        yield _ignore
        return
    if not sys.stderr.isatty():
        with _plain_lines() as report_plainly:
            yield report_plainly
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


@contextmanager
def _plain_lines() -> Generator[StageReport]:
    """Yield a function whose last report goes to stderr as a line every `LINE_EVERY_S`."""
    last = "started"
    began, ended, stream = time.monotonic(), threading.Event(), sys.stderr
    firsts: dict[str, tuple[float, int]] = {}  # when a stage began, and with how much done

    def report(stage: str, done: int, total: int, detail: str) -> None:
        nonlocal last
        last = f"{stage}: {done} of {total}" + (f", {detail}" if detail else "")
        start, before = firsts.setdefault(stage, (time.monotonic(), done))
        if before < done < total:
            left = (time.monotonic() - start) * (total - done) / (done - before)
            last += f", about {left:.0f} s left"

    def write() -> None:
        while not ended.wait(LINE_EVERY_S):
            print(f"{last} ({time.monotonic() - began:.0f} s)", file=stream, flush=True)

    writer = threading.Thread(target=write, name="cadenza-progress", daemon=True)
    writer.start()
    try:
        yield report
    finally:
        ended.set()
        writer.join()


def _ignore(stage: str, done: int, total: int, detail: str) -> None:
    """Take a report and draw nothing."""
