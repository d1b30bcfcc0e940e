"""`cadenza loop status --watch`: runs at work on one screen, newest first, until they end.

What a screen has no room for is left out, the past before the present: a run at work is never
pushed off it by those that have ended.
"""

import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cadenza.cli.loop_status import (
    controller_lines,
    cycle_columns,
    cycle_rows,
    headline,
    may_change,
    past_lines,
    present_lines,
    sum_lines,
)
from cadenza.cli.loop_store import command

if TYPE_CHECKING:
    from rich.console import Console, Group, RenderableType

    from cadenza.loop.status_records import RunStatus

#: Pause between two looks, s.
_PAUSE_S: Final = 2.0
#: Cycles of a run by how much is left out: all, some, the newest, none.
_CYCLES: Final = (None, 4, 1, 0)


def looks(
    look: "Callable[[], Sequence[RunStatus]]", *, pause_s: float = _PAUSE_S
) -> "Generator[Sequence[RunStatus]]":
    """Look at runs again and again until none of them may change any more.

    Args:
        look: Returns how the runs stand.
        pause_s: Pause between two looks, s.
    """
    while True:
        statuses = look()
        yield statuses
        if not any(may_change(one) for one in statuses):
            return
        time.sleep(pause_s)


def watch(
    look: "Callable[[], Sequence[RunStatus]]",
    workdir: Path,
    store: str | None,
    *,
    console: "Console | None" = None,
    pause_s: float = _PAUSE_S,
) -> "Sequence[RunStatus]":
    """Show runs until none of them may change any more, and leave the screen as it was.

    Args:
        look: Returns how the runs stand, oldest first.
        workdir: Folder of all runs, for commands to copy.
        store: URL of the store, for the same.
        console: Screen to show them on; None for stdout.
        pause_s: Pause between two looks, s.

    Returns:
        How those stand that were at work meanwhile; all of them if none was.
    """
    from rich.console import Console
    from rich.live import Live

    console = Console() if console is None else console
    worked: set[str] = set()
    statuses: Sequence[RunStatus] = ()
    with Live(console=console, auto_refresh=False) as live:
        for statuses in looks(look, pause_s=pause_s):
            worked.update(one.run_id for one in statuses if may_change(one))
            live.update(screen(statuses, workdir, store, console=console), refresh=True)
        live.transient = True  # what is stopped half-way stays; the end is told in full
    return [one for one in statuses if one.run_id in worked] or statuses


def screen(
    statuses: "Sequence[RunStatus]", workdir: Path, store: str | None, *, console: "Console"
) -> "Group":
    """Return what fits on the screen; arguments as `watch`."""
    newest_first = list(reversed(statuses))
    live = [one for one in newest_first if may_change(one)]
    others = [one for one in newest_first if not may_change(one)]
    frame = _frame(live, others, workdir, store, level=0)
    for level in range(1, len(_CYCLES)):
        if len(console.render_lines(frame)) < console.height:
            break
        frame = _frame(live, others, workdir, store, level=level)
    return frame


def _frame(
    live: "Sequence[RunStatus]",
    others: "Sequence[RunStatus]",
    workdir: Path,
    store: str | None,
    *,
    level: int,
) -> "Group":
    """Return all runs; the higher the level, the less of them."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = []
    for one in live:
        if parts and level < len(_CYCLES) - 1:
            parts.append(Text(""))
        parts += _run(one, workdir, store, level=level)
    if level == 0:
        parts += [Text(headline(one), style="dim") for one in others]
    else:
        more = f"{len(others)} more runs; " if others else ""
        all_of_it = command("status", None, workdir, store)
        parts.append(Text(f"{more}shortened to this screen, all of it: {all_of_it}", style="dim"))
    return Group(*parts)


def _run(
    status: "RunStatus", workdir: Path, store: str | None, *, level: int
) -> "list[RenderableType]":
    from rich.box import SIMPLE_HEAD
    from rich.markup import escape
    from rich.table import Table
    from rich.text import Text

    parts: list[RenderableType] = [
        Text(headline(status), style="bold"),
        *(Text(line) for line in present_lines(status, workdir, store)),
        *(Text(line) for line in controller_lines(status, workdir, store)),
    ]
    rows, kept = cycle_rows(status), _CYCLES[level]
    rows = rows if kept is None else rows[max(0, len(rows) - kept) :]
    if rows:
        table = Table(*cycle_columns(status), box=SIMPLE_HEAD, pad_edge=False)
        for row in rows:
            table.add_row(*(escape(cell) for cell in row))
        parts.append(table)
    if level == 0:
        parts += [Text(line) for line in (*past_lines(status), *sum_lines(status))]
    return parts
