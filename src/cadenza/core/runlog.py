"""The log of one run: every event a JSON line that says which run it belongs to.

The JSONL file is the record: an event that cannot be written there raises. Other sinks are copies:
they get every event too, and when one fails the run goes on, with one warning and a count.

Line format:  keys sorted; ``event``, ``level``, ``schema_version``, the run's identity and its
              extra facts, then the event's own fields. The first line also has ``origin``. Numbers
              that are not finite are null and listed in ``non_finite``.
"""

import logging
import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, Protocol, get_args

import structlog

from cadenza.core.errors import InputError, NotReadyError, StorageError
from cadenza.core.log_sinks import SINK_ERRORS, JsonlSink, LogSink, WandbForwarder, WandbSink
from cadenza.core.provenance import RESERVED_LOG_FIELDS, RunContext
from cadenza.core.strict_json import strict_event

_logger = logging.getLogger(__name__)

#: Version of the line format above.
EVENT_SCHEMA_VERSION: Final = 1

LogNamespace = Literal["train", "eval", "safety", "hardware", "rollout"]
#: Groups of scalars that readers know.
LOG_NAMESPACES: Final = frozenset(get_args(LogNamespace))


class EventLogger(Protocol):
    """Takes named events with fields."""

    def info(self, event: str, **fields: Any) -> Any:
        """Log one event."""
        ...


class RunLogger(structlog.BoundLoggerBase):
    """Logs events of one run; made by `bind_run_logger`.

    As a context manager it closes the log at the end, and writes ``training_failed`` first if an
    exception ends the block. Loggers made with `bind` share the log.
    """

    _logger: "_RunLog"

    def debug(self, event: str, **fields: Any) -> None:
        """Log an event that only a search for errors needs."""
        self._proxy_to_logger("debug", event, **fields)

    def info(self, event: str, **fields: Any) -> None:
        """Log an event."""
        self._proxy_to_logger("info", event, **fields)

    def warning(self, event: str, **fields: Any) -> None:
        """Log an event that someone should look at."""
        self._proxy_to_logger("warning", event, **fields)

    def error(self, event: str, **fields: Any) -> None:
        """Log a failure."""
        self._proxy_to_logger("error", event, **fields)

    @property
    def sink_failures(self) -> dict[str, int]:
        """Events each sink has lost so far, by sink name; empty when all is well."""
        return self._logger.sink_failures()

    def offset(self) -> int:
        """Make all lines durable and return the log's length in bytes, for a later resume.

        Raises:
            StorageError: The file system refused.
        """
        return self._logger.offset()

    def close(self) -> None:
        """Close all sinks; closing twice does nothing.

        Raises:
            StorageError: The file system refused.
        """
        self._logger.close()

    def __enter__(self) -> "RunLogger":
        """Return itself."""
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Log the exception that ends the block, if one does, and close."""
        if exc is None:
            self.close()
            return
        with _errors_only_warned():
            fields = {"error_type": type(exc).__name__, "message": str(exc), "wall_time": _now()}
            self.error("training_failed", **fields)
        with _errors_only_warned():
            self.close()


@contextmanager
def _errors_only_warned() -> Generator[None]:
    """Let the exception that ends a run reach the user, not one of its log."""
    try:
        yield
    except (StorageError, NotReadyError) as error:
        _logger.warning("The run log could not record the failure: %s", error)


def bind_run_logger(
    ctx: RunContext,
    *,
    jsonl_path: Path,
    wandb_sink: WandbSink | None = None,
    sinks: Sequence[LogSink] = (),
    resume_offset: int | None = None,
) -> RunLogger:
    """Open the log of a run; use it as a context manager, or close it.

    Args:
        ctx: Origin of the run; its identity and extra facts go on every line.
        jsonl_path: The record. An older one is moved aside to ``<name>.1``, ``<name>.2``, ...
        wandb_sink: Weights & Biases run, if any.
        sinks: Further copies.
        resume_offset: Go on with the record behind this many bytes, as `RunLogger.offset` gave
            them; what follows is cut and a ``run_resumed`` event says so.

    Raises:
        StorageError: The record cannot be opened, or not be resumed at ``resume_offset``.
    """
    record = JsonlSink(jsonl_path, resume_offset=resume_offset)
    copies = list(sinks)
    forwarder = None if wandb_sink is None else WandbForwarder(wandb_sink)
    if forwarder is not None:
        copies.append(forwarder)
    log = _RunLog(ctx, record, copies, is_new=not resume_offset)
    if forwarder is not None:
        log.configure(forwarder)
    logger = RunLogger(log, [structlog.processors.add_log_level], ctx.log_fields())
    if resume_offset is not None:
        logger.info(
            "run_resumed",
            offset=resume_offset,
            discarded_bytes=record.discarded_bytes,
            wall_time=_now(),
        )
    return logger


def log_scalars(
    logger: EventLogger, *, step: int, namespace: LogNamespace, **scalars: object
) -> None:
    """Log numbers of one training step, in environment frames, as a ``scalar`` event.

    None and numbers that are not finite become null.

    Raises:
        InputError: Unknown namespace, or a name that the log itself uses.
    """
    if namespace not in LOG_NAMESPACES:
        raise InputError(
            f"log_scalars: namespace={namespace!r} not in allow-list {sorted(LOG_NAMESPACES)}; "
            "use one of these."
        )
    _refuse_reserved("log_scalars", scalars)
    logger.info("scalar", step=step, metric_namespace=namespace, wall_time=_now(), **scalars)


def log_eval(logger: EventLogger, *, step: int, condition: str, **results: object) -> None:
    """Log the results of an evaluation under a condition, e.g. a partner, as an ``eval`` event.

    Raises:
        InputError: A name that the log itself uses.
    """
    _refuse_reserved("log_eval", results)
    logger.info(
        "eval",
        step=step,
        condition=condition,
        metric_namespace="eval",
        wall_time=_now(),
        **results,
    )


def _refuse_reserved(caller: str, fields: Mapping[str, object]) -> None:
    taken = sorted(fields.keys() & (RESERVED_LOG_FIELDS | {"metric_namespace", "wall_time"}))
    if taken:
        raise InputError(
            f"{caller}: expected names that the log does not use itself, got {taken}; rename them."
        )


def _now() -> str:
    """Return the time in UTC, always of the same length."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


class _RunLog:
    """Hands every event to the record and its copies."""

    def __init__(
        self, ctx: RunContext, record: JsonlSink, copies: Sequence[LogSink], *, is_new: bool
    ) -> None:
        self._identity = ctx.log_fields()
        self._origin = ctx.origin_fields() if is_new else None
        self._record = record
        self._copies = copies
        self._failures: dict[str, int] = {}
        self._is_closed = False
        self._lock = threading.RLock()

    def deliver(self, /, **event: Any) -> None:
        """Deliver one event.

        Raises:
            InputError: A field would change the run's identity or the line format.
            NotReadyError: The log is closed.
            StorageError: The record could not be written; the copies have the event.
        """
        wrong = [key for key, value in self._identity.items() if event.get(key) != value]
        wrong += [key for key in ("schema_version", "non_finite", "origin") if key in event]
        if wrong:
            raise InputError(
                f"run log: expected event {event.get('event')!r} to leave {wrong} to the log; "
                "rename the fields."
            )
        with self._lock:
            if self._is_closed:
                raise NotReadyError(
                    f"run log: expected an open log for event {event.get('event')!r}, got a "
                    "closed one; log inside the 'with' block."
                )
            self._write(event)

    debug = info = warning = error = deliver  # structlog calls the method of the event's level

    def configure(self, forwarder: WandbForwarder) -> None:
        """Store the run's identity in the Weights & Biases run."""
        try:
            forwarder.set_config(self._identity)
        except SINK_ERRORS as error:
            self._count(forwarder, error)

    def sink_failures(self) -> dict[str, int]:
        """Return the failures so far by sink name."""
        with self._lock:
            return dict(self._failures)

    def offset(self) -> int:
        """Make the record durable and return its length in bytes."""
        with self._lock:
            return self._record.offset()

    def close(self) -> None:
        """Close everything; the last line counts lost events if there are any."""
        with self._lock:
            if self._is_closed:
                return
            for sink in self._copies:
                try:
                    sink.close()
                except SINK_ERRORS as error:
                    self._count(sink, error)
            self._is_closed = True
            try:
                if self._failures:
                    counts = {"event": "sink_failures", "level": "warning", **self._identity}
                    self._write_record({**counts, "failures": dict(self._failures)})
            finally:
                self._record.close()

    def _write(self, event: Mapping[str, Any]) -> None:
        """Write the event everywhere; only a failure of the record is raised, last."""
        strict = strict_event(event)
        refused: StorageError | None = None
        try:
            self._write_record(strict)
        except StorageError as error:
            refused = error
        for sink in self._copies:
            try:
                sink.write(strict)
            except SINK_ERRORS as error:
                self._count(sink, error)
        if refused is not None:
            raise refused

    def _write_record(self, strict: Mapping[str, Any]) -> None:
        """Write one line; the first one of a log also says where the run comes from."""
        line = {**strict, "schema_version": EVENT_SCHEMA_VERSION}
        if self._origin is not None:
            line["origin"] = self._origin
        self._record.write(line)
        self._origin = None

    def _count(self, sink: LogSink, error: Exception) -> None:
        """Count a sink's failure and warn about its first one."""
        self._failures[sink.name] = self._failures.get(sink.name, 0) + 1
        if self._failures[sink.name] == 1:
            _logger.warning(
                "Log sink %r failed (%s: %s); the run continues; further failures are counted.",
                sink.name,
                type(error).__name__,
                error,
            )
