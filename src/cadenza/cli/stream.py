"""`cadenza stream top`."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from cadenza.cli.output import make_table, print_json, print_table, typed_exits
from cadenza.stream.status import (
    ENDED,
    PRODUCER_COLUMNS,
    headline,
    producer_errors,
    producer_rows,
    read_status,
    summary_rows,
)

if TYPE_CHECKING:
    from rich.console import Group

#: Time between two looks, s.
_PAUSE_S: Final = 1.0


def top(
    file: Annotated[Path, typer.Argument(help="The engine's status file (status_path).")],
    once: Annotated[bool, typer.Option("--once", help="Show the status once and end.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the status as one JSON object and end.")
    ] = False,
) -> None:
    """Show a running stream: what is produced and drawn, how old the data is, who waits.

    Ends when the stream does, or with Ctrl-C.
    """
    with typed_exits(as_json=as_json, go_on="the stream continues"):
        status = read_status(file)
        if as_json:
            print_json(status)
        elif once:
            print_table(headline(status), ("what", "value"), summary_rows(status))
            errors = "\n".join(producer_errors(status))
            print_table("Producers", PRODUCER_COLUMNS, producer_rows(status), note=errors)
        else:
            from rich.live import Live

            with Live(_tables(status), auto_refresh=False) as live:
                while status["state"] not in ENDED:
                    time.sleep(_PAUSE_S)
                    status = read_status(file)
                    live.update(_tables(status), refresh=True)


def _tables(status: Mapping[str, Any]) -> "Group":
    from rich.console import Group

    errors = "\n".join(producer_errors(status))
    return Group(
        make_table(headline(status), ("what", "value"), summary_rows(status)),
        make_table("Producers", PRODUCER_COLUMNS, producer_rows(status), note=errors),
    )
