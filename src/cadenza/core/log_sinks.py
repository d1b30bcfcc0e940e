"""Where run-log events go: the JSONL file, Weights & Biases, TensorBoard.

Adding one:  a class with `write` and `close`, passed to `cadenza.core.runlog.bind_run_logger`.
"""

import logging
import os
import sys
import time
import warnings
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any, Final, Protocol

from cadenza.core.errors import MissingExtraError, SinkError, StorageError
from cadenza.core.extras import load_extra
from cadenza.core.files import append_at, fsync_folder, lock_file, make_folder
from cadenza.core.provenance import RunContext
from cadenza.core.strict_json import json_line, parse_json_object

_logger = logging.getLogger(__name__)

#: Fields that say which run an event belongs to; metric stores keep them once per run.
CONTEXT_KEYS: Final = ("run_id", "seed", "git_sha", "pyproject_hash", "run_kind")

#: What a sink may raise to report failure; anything else is a bug and goes on.
SINK_ERRORS: Final = (
    ArithmeticError,
    AttributeError,
    ImportError,
    LookupError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)


#: Start of an event file's name; then come the second of its making, host, process and a number.
_EVENT_FILE: Final = "events.out.tfevents."
#: How often a sink that must not begin in this second looks at the clock, s.
_POLL_S: Final = 0.01


class LogSink(Protocol):
    """A copy of the event stream; its failures never stop a run."""

    @property
    def name(self) -> str:
        """How warnings and failure counts call the sink."""
        ...

    def write(self, event: Mapping[str, Any]) -> None:
        """Take one event of strict JSON values."""
        ...

    def close(self) -> None:
        """Hand over what is still buffered and let go of all resources."""
        ...


class WandbSink(Protocol):
    """The part of a Weights & Biases run that logging needs."""

    def log(self, data: Mapping[str, object], *, step: int | None = None) -> None:
        """Take one event."""
        ...

    def set_config(self, config: Mapping[str, object]) -> None:
        """Store facts about the run as a whole."""
        ...

    def add_tags(self, tags: Sequence[str]) -> None:
        """Add tags; those already there stay once."""
        ...

    def close(self) -> None:
        """Finish the run."""
        ...


class JsonlSink:
    """The run's record: one line of JSON per event, in the file before `write` returns.

    A line is written whole or not at all, even on a full disk. One process at a time owns the file.
    A file that is already there is moved aside to ``<name>.1``, ``<name>.2``, ... unless the log
    is resumed.
    """

    name = "jsonl"

    def __init__(self, path: Path, *, resume_offset: int | None = None) -> None:
        """Open the log; of one that is resumed, the bytes behind ``resume_offset`` are cut.

        Raises:
            StorageError: The file system refused, another process owns the log, or the log is
                shorter than ``resume_offset`` or has no line end there.
        """
        self._path = path
        self.discarded_bytes: int = 0
        self._length = resume_offset or 0
        try:
            make_folder(path.parent)
            if resume_offset is None:
                _move_old_log_aside(path)
            self._descriptor = _open_owned(path)
            try:
                if resume_offset is not None:
                    self._cut(resume_offset)
                fsync_folder(path.parent)
            except BaseException:
                os.close(self._descriptor)  # a log that did not open must not stay locked
                raise
        except StorageError:
            raise
        except OSError as error:
            raise self._failure("open the run log", error) from error

    def write(self, event: Mapping[str, Any]) -> None:
        """Append one event.

        Raises:
            StorageError: The file system refused; the lines before stay intact.
        """
        line = json_line(event)
        try:
            append_at(self._descriptor, line, end=self._length, sync=False)
        except OSError as error:
            raise self._failure("append an event", error) from error
        self._length += len(line)

    def offset(self) -> int:
        """Make all lines durable and return the length of the file in bytes.

        Raises:
            StorageError: The file system refused.
        """
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            raise self._failure("make the run log durable", error) from error
        return self._length

    def close(self) -> None:
        """Make all lines durable and give the file free."""
        try:
            self.offset()
        finally:
            os.close(self._descriptor)

    def _cut(self, offset: int) -> None:
        size = os.fstat(self._descriptor).st_size
        last = os.pread(self._descriptor, 1, offset - 1) if 0 < offset <= size else b"\n"
        if not 0 <= offset <= size or last != b"\n":
            raise StorageError(
                f"{self._path}: expected a line end at byte {offset} to resume behind it, got a "
                f"log of {size} bytes without one there; restore the log, or start the run again."
            )
        os.ftruncate(self._descriptor, offset)
        os.fsync(self._descriptor)
        self.discarded_bytes = size - offset

    def _failure(self, wish: str, error: OSError) -> StorageError:
        return StorageError(
            error.errno,
            f"{self._path}: expected to {wish}, got '{error.strerror}'; free space or choose "
            "another folder and run again (earlier lines are intact)",
        )


def length_until(path: Path, step: int) -> int:
    """Return the bytes of a log before its first line of a later ``step``; 0 without a log.

    Raises:
        IntegrityError: A line is no JSON object.
    """
    length = 0
    with suppress(FileNotFoundError), path.open("rb") as file:
        for line in file:
            if parse_json_object(line, source=str(path)).get("step", 0) > step:
                break
            length += len(line)
    return length


def _open_owned(path: Path) -> int:
    """Open ``path`` for writing and lock it for this process."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    if not lock_file(descriptor, wait_s=0.0):
        os.close(descriptor)
        raise StorageError(
            f"{path}: expected to own the run log, got a lock held by another writer; "
            "wait for the other run or give this one another log folder."
        )
    return descriptor


def _move_old_log_aside(path: Path) -> None:
    """Rename a log that is already there to the first free ``<name>.<number>``."""
    if not path.exists() or path.stat().st_size == 0:
        return
    descriptor = _open_owned(path)
    try:
        names = (path.with_name(f"{path.name}.{number}") for number in count(1))
        path.rename(next(name for name in names if not name.exists()))
    finally:
        os.close(descriptor)


class WandbForwarder:
    """Hands events to a `WandbSink`; the run's identity goes to its configuration, once."""

    name = "wandb"

    def __init__(self, sink: WandbSink) -> None:
        self._sink = sink

    def set_config(self, config: Mapping[str, object]) -> None:
        """Store facts about the run as a whole.

        Raises:
            SinkError: Weights & Biases refused.
        """
        with _wandb_errors_as_sink_errors():
            self._sink.set_config(config)

    def write(self, event: Mapping[str, Any]) -> None:
        """Forward one event; ``step`` counts only if it is an integer.

        Raises:
            SinkError: Weights & Biases refused.
        """
        step = event.get("step")
        hidden = (*CONTEXT_KEYS, "schema_version", "origin")
        data = {key: value for key, value in event.items() if key not in hidden}
        with _wandb_errors_as_sink_errors():
            self._sink.log(data, step=step if type(step) is int else None)

    def close(self) -> None:
        """Finish the run.

        Raises:
            SinkError: Weights & Biases refused.
        """
        with _wandb_errors_as_sink_errors():
            self._sink.close()


@contextmanager
def _wandb_errors_as_sink_errors() -> Generator[None]:
    """Turn Weights & Biases' own error type, which has no built-in base, into `SinkError`."""
    wandb: Any = sys.modules.get("wandb")
    own_errors: tuple[type[Exception], ...] = () if wandb is None else (wandb.Error,)
    try:
        yield
    except own_errors as error:
        raise SinkError(f"wandb: {error}") from error


class TensorboardSink:
    """Writes the numbers of every event that has an integer ``step`` as TensorBoard scalars.

    Tags are ``<metric_namespace>/<field>``, ``eval/<condition>/<field>`` for evaluations and
    ``<event>/<field>`` for events without a namespace; a field with a slash is its own tag.
    """

    name = "tensorboard"

    def __init__(self, folder: Path, *, resume_step: int | None = None) -> None:
        """Open an event file; hide what an earlier, killed writer wrote from ``resume_step`` on.

        Raises:
            MissingExtraError: TensorBoard is not installed.
        """
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise MissingExtraError(
                "TensorboardSink: expected the tensorboard package, got none; "
                "install it with: pip install 'cadenza[tensorboard]'"
            ) from error
        if resume_step is not None:
            _wait_out_the_second_of_the_newest_file(folder)
        self._writer: Any = SummaryWriter(log_dir=str(folder), purge_step=resume_step)

    def write(self, event: Mapping[str, Any]) -> None:
        """Write the numbers of one event."""
        step = event.get("step")
        if type(step) is not int:
            return
        tag = str(event.get("metric_namespace", event.get("event")))
        if "condition" in event:
            tag = f"{tag}/{event['condition']}"
        for key, value in event.items():
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if is_number and key not in (*CONTEXT_KEYS, "step", "schema_version"):
                self._writer.add_scalar(key if "/" in key else f"{tag}/{key}", value, step)

    def close(self) -> None:
        """Write what is buffered and close the event file."""
        self._writer.close()


def _wait_out_the_second_of_the_newest_file(folder: Path) -> None:
    """Wait until a new event file gets another second than those in ``folder``.

    TensorBoard reads files by name, and those of one second in no order that can be relied on.
    """
    names = (path.name.removeprefix(_EVENT_FILE) for path in folder.glob(f"{_EVENT_FILE}*"))
    seconds = [int(second) for name in names if (second := name.partition(".")[0]).isdecimal()]
    while int(time.time()) in seconds:
        time.sleep(_POLL_S)


class WandbSettings(Protocol):
    """What a configuration says about Weights & Biases."""

    @property
    def enabled(self) -> bool:
        """Whether to log there at all."""
        ...

    @property
    def project(self) -> str:
        """Project that the run goes to."""
        ...


def make_wandb_run_sink(
    cfg: WandbSettings,
    ctx: RunContext,
    *,
    tags: Sequence[str] = (),
    config_extras: Mapping[str, object] | None = None,
    resume: bool = False,
) -> WandbSink | None:
    """Start a Weights & Biases run for ``ctx``, or continue it with ``resume``.

    Returns:
        The sink; None if switched off, or, with one `UserWarning`, if it cannot start.
    """
    if not cfg.enabled:
        return None
    if not os.environ.get("WANDB_API_KEY") and os.environ.get("WANDB_MODE", "online") != "offline":
        return _without("WANDB_API_KEY missing; set it, or set WANDB_MODE=offline")
    try:
        return start_wandb_run(
            ctx.run_id,
            project=cfg.project,
            config={**ctx.log_fields(), **(config_extras or {})},
            resume=resume,
            tags=tags,
        )
    except MissingExtraError as error:
        return _without(f"import failed ({error})")
    except SINK_ERRORS as error:
        return _without(f"wandb.init failed ({error}); check key, project and network")


def start_wandb_run(
    run_id: str,
    *,
    project: str | None,
    config: Mapping[str, object],
    resume: bool,
    tags: Sequence[str] = (),
    folder: Path | None = None,
) -> WandbSink:
    """Start a Weights & Biases run, or with ``resume`` go on with the one of this id.

    Its files go below ``folder``; None leaves that to Weights & Biases, as None does with the
    project.

    Raises:
        MissingExtraError: Weights & Biases is not installed.
        SinkError: It refused.
    """
    wandb = load_extra("wandb")
    with _wandb_errors_as_sink_errors():
        run = wandb.init(
            id=run_id,
            name=run_id,
            project=project,
            tags=tuple(tags) or None,
            config=dict(config),
            resume="allow" if resume else "never",
            reinit="finish_previous",
            **({} if folder is None else {"dir": str(folder)}),
        )
    return _WandbRunSink(run, (wandb.Error, *SINK_ERRORS))


def _without(reason: str) -> None:
    """Warn that the run goes on without Weights & Biases."""
    warnings.warn(f"Logging without Weights & Biases: {reason}.", UserWarning, stacklevel=3)


class _WandbRunSink:
    """Adapts a started run to `WandbSink`."""

    def __init__(self, run: Any, close_errors: tuple[type[Exception], ...]) -> None:
        self._run = run
        self._close_errors = close_errors

    def log(self, data: Mapping[str, object], *, step: int | None = None) -> None:
        """Take one event."""
        self._run.log(dict(data), step=step)

    def set_config(self, config: Mapping[str, object]) -> None:
        """Store facts about the run as a whole."""
        self._run.config.update(dict(config), allow_val_change=True)

    def add_tags(self, tags: Sequence[str]) -> None:
        """Add tags; those already there stay once, in their order."""
        self._run.tags = tuple(dict.fromkeys((*(self._run.tags or ()), *tags)))

    def close(self) -> None:
        """Finish the run; a failure is only warned about."""
        try:
            self._run.finish()
        except self._close_errors as error:
            _logger.warning("Weights & Biases could not finish the run: %s", error)
