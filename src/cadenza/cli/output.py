"""What a command prints: a payload for machines or a rendering of it for people.

Results go to stdout, everything else to stderr. With ``--json`` stdout holds exactly one JSON
object, also when the command fails.
"""

import json
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import typer

from cadenza.cli.exit_codes import ExitCode
from cadenza.core.errors import (
    CadenzaError,
    CheckpointError,
    ConfigurationError,
    InputError,
    IntegrityError,
    MissingExtraError,
    NotReadyError,
    StorageError,
    UnknownNameError,
)

#: Columns of a table that goes to a file or a pipe.
_PLAIN_WIDTH = 120
#: First match wins, so the special cases stand before the general ones.
_EXIT_CODES: tuple[tuple[type[BaseException], ExitCode], ...] = (
    (CheckpointError, ExitCode.DAMAGED_DATA),
    (IntegrityError, ExitCode.DAMAGED_DATA),
    (StorageError, ExitCode.STORAGE),
    (MissingExtraError, ExitCode.MISSING_EXTRA),
    (NotReadyError, ExitCode.NOT_READY),
    (ConfigurationError, ExitCode.USAGE),
    (UnknownNameError, ExitCode.USAGE),
    (InputError, ExitCode.BAD_INPUT),
    (FileNotFoundError, ExitCode.USAGE),
    (FileExistsError, ExitCode.USAGE),
    (CadenzaError, ExitCode.USAGE),
    (OSError, ExitCode.STORAGE),
    (KeyboardInterrupt, ExitCode.INTERRUPTED),
)


def print_json(payload: Mapping[str, Any]) -> None:
    """Write ``payload`` to stdout as one line of strict JSON."""
    sys.stdout.write(json.dumps(payload, allow_nan=False, ensure_ascii=False) + "\n")


def print_table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *, note: str = ""
) -> None:
    """Write a table for people to stdout; the last column wraps if the terminal is narrow.

    Args:
        title: Line above the table.
        columns: Column headings, length C.
        rows: Cells, R rows of length C.
        note: Line below the table.
    """
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        header_style="bold",
        box=SIMPLE_HEAD,
        pad_edge=False,
        caption=note or None,
        caption_justify="left",
    )
    for column in columns[:-1]:
        table.add_column(column, no_wrap=True)
    table.add_column(columns[-1], overflow="fold")
    for row in rows:
        table.add_row(*(escape(cell) for cell in row))
    width = None if sys.stdout.isatty() else _PLAIN_WIDTH
    Console(width=width, highlight=False).print(table)


def exit_code_of(error: BaseException) -> ExitCode | None:
    """Return the exit code of an expected error, None for one that is our own bug."""
    for kind, code in _EXIT_CODES:
        if isinstance(error, kind):
            return code
    return None


@contextmanager
def typed_exits(*, as_json: bool = False) -> Generator[None]:
    """Turn every expected error of the body into one message and its exit code.

    Args:
        as_json: Also write ``{"error": ...}`` to stdout.

    Raises:
        typer.Exit: An expected error occurred; unexpected ones pass through with their traceback.
    """
    try:
        yield
    except tuple(kind for kind, _ in _EXIT_CODES) as error:
        code = exit_code_of(error) or ExitCode.USAGE
        message = _message_of(error)
        sys.stderr.write(f"error: {message}\n")
        if as_json:
            print_json({"error": {"kind": type(error).__name__, "message": message}})
        raise typer.Exit(code) from error


def _message_of(error: BaseException) -> str:
    if isinstance(error, KeyboardInterrupt):
        return "stopped; finished work is kept, run the same command with --resume to go on"
    return str(error) or type(error).__name__
