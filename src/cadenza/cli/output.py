"""What a command prints: a payload for machines or a rendering of it for people.

Results go to stdout, everything else to stderr. With ``--json`` stdout holds exactly one JSON
object, also when the command fails. What a stream cannot show, a name in another script for
example, is escaped; a stdout that refuses is an error like any other.

Exit codes are one number per kind of outcome, shared by every command.
"""

import errno
import json
import os
import signal
import sys
import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from enum import IntEnum, unique
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TextIO, TypeAlias

import click
import typer

from cadenza.core.errors import (
    CadenzaError,
    CheckpointError,
    ConfigurationError,
    InputError,
    IntegrityError,
    MissingExtraError,
    NotReadyError,
    PreregistrationError,
    StorageError,
    UnknownNameError,
)
from cadenza.core.extras import hint_at_extra
from cadenza.loop.errors import (
    JobFailedError,
    JobHostError,
    LeaseHeldError,
    RefusedError,
    StageError,
    StaleLeaseError,
    StopRequestedError,
    StoreCorruptError,
    StoreNotFoundError,
    StoreUnavailableError,
    StoreVersionError,
)

if TYPE_CHECKING:
    from rich.table import Table


@unique
class ExitCode(IntEnum):
    """What the number a command ends with means."""

    OK = 0
    #: A verification or comparison ran and found a failing check, or there is no store of runs.
    CHECK_FAILED = 1
    #: Wrong arguments, missing file, unknown name, unreadable configuration.
    USAGE = 2
    #: Training finished but the learning check did not pass, or a log holds no final safety record.
    LEARNING_CHECK = 3
    #: A registered protocol was edited, its tag is missing, or a run is not the registered one.
    PREREG_MISMATCH = 4
    #: No axis of a spike's stage passes its gate.
    GATE_NOT_MET = 5
    #: The working tree has changes that the command refuses to work from.
    DIRTY_TREE = 7
    #: Safety audit: the conformal margin sits at its limit.
    AUDIT_SATURATED = 8
    #: Safety audit: the conformal margin never adapted.
    AUDIT_STUCK = 9
    #: A checkpoint or result file is missing, damaged or was tampered with.
    DAMAGED_DATA = 10
    #: The file system refused: disk full, no permission, path outside its root.
    STORAGE = 11
    #: Input numbers are malformed: wrong shape, not finite.
    BAD_INPUT = 12
    #: Something else must be done first; the message says what.
    NOT_READY = 13
    #: An optional dependency is not installed; the message names the extra.
    MISSING_EXTRA = 14
    #: Some cells of an evaluation failed; the others are kept.
    INCOMPLETE = 15
    #: The job does not fit into memory; the message says what to lower.
    OUT_OF_MEMORY = 16
    #: A job of a loop failed in every attempt; the run can be resumed.
    JOB_FAILED = 17
    #: The constitution refuses a command; the message names the rule.
    REFUSED = 18
    #: A comparison shows that a candidate is worse.
    WORSE = 20
    #: A comparison shows neither that a candidate is better nor that it is not worse.
    UNDECIDED = 21
    #: The sides of a comparison were not played under the same rules.
    NOT_COMPARABLE = 22
    #: Stopped as its terminal was closed (SIGHUP); as INTERRUPTED.
    HUNG_UP = 129
    #: Stopped by the user; run again with --resume, or resume the loop, to go on.
    INTERRUPTED = 130
    #: The reader of the output has left, as `| head` does; what was asked for is done.
    OUTPUT_CLOSED = 141
    #: Stopped by SIGTERM; as INTERRUPTED.
    TERMINATED = 143


#: Options of most commands.
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Quiet: TypeAlias = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")]
#: Columns of a table that goes to a file or a pipe.
_PLAIN_WIDTH = 120
#: Columns at which the last one wraps there, if the others leave no more.
_FOLDED_WIDTH: Final = 24
#: How PyTorch reports that memory ran out; it has no type of its own for it on the CPU.
_OUT_OF_MEMORY_MARKS: Final = ("can't allocate memory", "not enough memory", "out of memory")
#: How to go on after a stop, unless the command says otherwise.
_RESUME_HINT: Final = "finished work is kept, run the same command with --resume to continue"


class OutputClosedError(CadenzaError, BrokenPipeError):
    """The reader of the output has left, as `| head` does; not a failure of the command."""


class TerminationError(BaseException):
    """The process was asked to end (SIGTERM)."""


class _Rendering(StringIO):
    """Text for ``stream``, with its encoding and kind, before it is written there."""

    def __init__(self, stream: TextIO | None) -> None:
        super().__init__()
        self._stream = stream

    @property
    def encoding(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Encoding of the stream."""
        return "utf-8" if self._stream is None else self._stream.encoding or "utf-8"

    def isatty(self) -> bool:
        """Return whether a person reads the stream."""
        return self._stream is not None and self._stream.isatty()


#: First match wins, so the special cases stand before the general ones.
_EXIT_CODES: tuple[tuple[type[BaseException], ExitCode], ...] = (
    (OutputClosedError, ExitCode.OUTPUT_CLOSED),
    (CheckpointError, ExitCode.DAMAGED_DATA),
    (IntegrityError, ExitCode.DAMAGED_DATA),
    (PreregistrationError, ExitCode.PREREG_MISMATCH),
    (StorageError, ExitCode.STORAGE),
    (MissingExtraError, ExitCode.MISSING_EXTRA),
    (NotReadyError, ExitCode.NOT_READY),
    (StoreNotFoundError, ExitCode.CHECK_FAILED),
    (StoreUnavailableError, ExitCode.STORAGE),
    (StoreCorruptError, ExitCode.DAMAGED_DATA),
    (StoreVersionError, ExitCode.NOT_READY),
    (LeaseHeldError, ExitCode.NOT_READY),
    (StaleLeaseError, ExitCode.NOT_READY),
    (JobFailedError, ExitCode.JOB_FAILED),
    (JobHostError, ExitCode.JOB_FAILED),
    (StageError, ExitCode.JOB_FAILED),
    (RefusedError, ExitCode.REFUSED),
    (StopRequestedError, ExitCode.INTERRUPTED),
    (ConfigurationError, ExitCode.USAGE),
    (UnknownNameError, ExitCode.USAGE),
    (InputError, ExitCode.BAD_INPUT),
    (FileNotFoundError, ExitCode.USAGE),
    (FileExistsError, ExitCode.USAGE),
    (CadenzaError, ExitCode.USAGE),
    (OSError, ExitCode.STORAGE),
    (MemoryError, ExitCode.OUT_OF_MEMORY),
    (KeyboardInterrupt, ExitCode.INTERRUPTED),
    (TerminationError, ExitCode.TERMINATED),
)


def print_text(text: str) -> None:
    """Write ``text`` to stdout as a line, at once.

    Raises:
        OutputClosedError: The reader of stdout has closed it.
        StorageError: Stdout refused: disk full, closed.
    """
    _write_stdout(text + "\n")


def print_json(payload: Mapping[str, Any]) -> None:
    """Write ``payload`` to stdout as one line of strict JSON; errors as `print_text`."""
    print_text(json.dumps(payload, allow_nan=False))


def make_table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *, note: str = ""
) -> "Table":
    """Return a table for people, a note below it; its last column wraps, the others do not."""
    from rich.box import SIMPLE_HEAD
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
    return table


def print_table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *, note: str = ""
) -> None:
    """Write a table for people to stdout, see `make_table`."""
    from rich.console import Console

    stream: TextIO | None = sys.stdout
    width = None if stream is not None and stream.isatty() else _plain_width(columns, rows)
    rendered = _Rendering(stream)
    table = make_table(title, columns, rows, note=note)
    Console(file=rendered, width=width, highlight=False).print(table)
    _write_stdout(rendered.getvalue())


def _plain_width(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """Return the columns of a file or pipe: as many as no heading or cell is cut short with."""
    from rich.cells import cell_len

    widest = [max(cell_len(text) for text in texts) for texts in zip(columns, *rows, strict=True)]
    folded = min(widest[-1], _FOLDED_WIDTH)
    return max(_PLAIN_WIDTH, sum(widest[:-1]) + folded + 3 * len(widest))


def exit_code_of(error: BaseException) -> ExitCode | None:
    """Return the exit code of an expected error, None for one that is our own bug."""
    for kind, code in _EXIT_CODES:
        if isinstance(error, kind):
            return code
    if isinstance(error, RuntimeError) and any(mark in str(error) for mark in _OUT_OF_MEMORY_MARKS):
        return ExitCode.OUT_OF_MEMORY
    return None


@contextmanager
def typed_exits(
    *, as_json: bool = False, go_on: str | None = None, keep_lines: bool = False
) -> Generator[None]:
    """Turn every expected error of the body into one message and its exit code.

    SIGTERM ends the body the way Ctrl-C does, so that locks, logs and workers are let go of. With
    ``as_json`` stdout gets ``{"error": ...}``; ``go_on`` is what to do after a stop, by default to
    resume, where the command can; the lines of a message become one unless ``keep_lines``.

    Raises:
        typer.Exit: An expected error occurred; unexpected ones pass through with their traceback.
    """
    try:
        with _termination_raises():
            _require_current_folder()
            yield
    except typer.Exit:
        raise
    except BaseException as raised:
        hint = hint_at_extra(raised) if isinstance(raised, ModuleNotFoundError) else None
        error = hint or raised
        code = exit_code_of(error)
        if code is None:
            raise
        if code is not ExitCode.OUTPUT_CLOSED:
            message = _message_of(error, code, _hint_to_go_on() if go_on is None else go_on)
            message = message.strip() if keep_lines else " ".join(message.split())
            report_error(type(error).__name__, message, as_json=as_json)
        raise typer.Exit(code) from raised


def _hint_to_go_on() -> str:
    """Return what to do after a stop of the command that runs."""
    context = click.get_current_context(silent=True)
    if context is None or any("--resume" in each.opts for each in context.command.params):
        return _RESUME_HINT
    return "run the same command again"


def report_error(kind: str, message: str, *, as_json: bool) -> None:
    """Write one error to stderr and, if asked for, to stdout."""
    _write_stderr(f"error: {message}\n")
    if as_json:
        try:
            print_json({"error": {"kind": kind, "message": message}})
        except OutputClosedError:
            return  # stderr has it, and nobody reads stdout
        except StorageError as refused:
            _write_stderr(f"error: {_message_of(refused, ExitCode.STORAGE, '')}\n")


def _message_of(error: BaseException, code: ExitCode, go_on: str) -> str:
    """Return what was expected, what came, what to do."""
    if code in (ExitCode.INTERRUPTED, ExitCode.TERMINATED):
        text = f"stopped; {go_on}"
    elif code is ExitCode.OUT_OF_MEMORY:
        text = (
            f"expected the job to fit into memory, got: {error}; lower the sizes of the "
            "configuration (environments, rollout length, network) or the number of workers"
        )
    elif isinstance(error, CadenzaError) and isinstance(error, OSError) and error.strerror:
        text = error.strerror  # without the number, which says nothing to people
    elif isinstance(error, OSError) and error.strerror:
        where = "" if error.filename is None else f"{os.fsdecode(error.filename)}: "
        text = f"{where}the file system refused with '{error.strerror}'; check path and permissions"
    else:
        text = str(error) or type(error).__name__
    return text


def _require_current_folder() -> None:
    """Raise if the current folder was deleted: numeric libraries then end the process at import."""
    try:
        Path.cwd()
    except OSError as error:
        raise StorageError(
            error.errno or errno.ENOENT,
            "current folder: expected one that exists, got a deleted one; change to another folder",
        ) from error


@contextmanager
def _termination_raises() -> Generator[None]:
    """Let SIGTERM raise `TerminationError` in the body; only the main thread may ask for that."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: object) -> None:
        raise TerminationError("SIGTERM")

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


def _write_stdout(text: str) -> None:
    """Write ``text`` to stdout and flush it, so that a refusal shows here and not at the exit."""
    stream: TextIO | None = sys.stdout
    if stream is None or stream.closed:
        raise _refused_output(errno.EBADF, "it is closed")
    encoding = stream.encoding or "utf-8"
    text = text.encode(encoding, errors="backslashreplace").decode(encoding)
    try:
        stream.write(text)
        stream.flush()
    except BrokenPipeError as error:
        _drop_unwritten_output()
        raise OutputClosedError("stdout: its reader has closed it") from error
    except OSError as error:
        _drop_unwritten_output()
        raise _refused_output(error.errno or errno.EIO, error.strerror or str(error)) from error


def _refused_output(number: int, reason: str) -> StorageError:
    return StorageError(
        number,
        f"stdout: expected to write the result, got '{reason}'; what the command stored is kept, "
        "send its output elsewhere",
    )


def _write_stderr(text: str) -> None:
    """Write ``text`` to stderr; where there is none, the exit code has to say it."""
    stream: TextIO | None = sys.stderr
    if stream is not None and not stream.closed:
        stream.write(text)


def _drop_unwritten_output() -> None:
    """Point stdout to nowhere: the interpreter would write its buffer once more at the exit."""
    stream: TextIO | None = sys.stdout
    try:
        descriptor = -1 if stream is None else stream.fileno()
    except (OSError, ValueError):  # no file behind it
        return
    if descriptor >= 0:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, descriptor)
        os.close(nowhere)
