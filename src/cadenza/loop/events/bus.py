"""Events, the log that holds them, and who writes it: a journal for a run, a bus without a store.

Line:  an ASCII JSON object with the keys that LeAgents writes (`run_id, stage, kind, cycle,
       payload, ts`) and three more: `seq` counts the log's events from 1, `schema` is the version
       of this layout, `mono` is the emitting machine's monotonic clock, s.
Log:   one writer at a time; finished lines survive a kill or power cut. Others may read it.
Table: a run's events go into the store first, then into the log, then to the subscribers. After a
       kill at any point the log gets what it lacks from the table; subscribers are told at least
       once. A repeated step takes the events that it recorded before for its own, in order, as long
       as stage, kind and cycle agree; what it emits beyond them is appended.
"""

import json
import logging
import math
import mmap
import os
import threading
import time
import weakref
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias, cast

from cadenza.core.errors import InputError, IntegrityError, NotReadyError
from cadenza.core.files import append_at, fsync_folder, lock_file, make_folder
from cadenza.core.strict_json import parse_json_object
from cadenza.loop.errors import EventLogError, EventLogHeldError, StoreError
from cadenza.loop.store.rows import Lease, StoredEvent

if TYPE_CHECKING:
    from cadenza.loop.store.jobstore import JobStore

#: Version of the layout of a line.
SCHEMA: Final = 1
#: Longest payload, bytes of JSON: a command that lists 100 000 episodes has a tenth of it.
MAX_PAYLOAD_BYTES: Final = 1 << 23
#: Deepest nesting of a payload; what contains itself is deeper.
_MAX_DEPTH: Final = 32


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened in a run, at ``ts`` (Unix seconds; now unless given).

    The payload holds only what JSON can express; paths in it become text, tuples become lists.
    """

    run_id: str
    stage: str
    kind: str
    cycle: int | None = None
    payload: Mapping[str, Any] = field(default_factory=dict[str, Any])
    ts: float = field(default_factory=time.time)

    def __post_init__(self) -> None:
        for name in ("run_id", "stage", "kind"):
            value = getattr(self, name)
            if not (isinstance(value, str) and value.isprintable() and value):
                raise InputError(f"Event.{name}: expected printable text, got {value!r}.")
        if not math.isfinite(self.ts):
            raise InputError(f"Event.ts: expected finite Unix seconds, got {self.ts}.")
        payload = cast("object", self.payload)  # of whatever type a caller gave
        if not isinstance(payload, Mapping):
            raise InputError(f"Event.payload: expected a mapping, got {type(payload).__name__}.")
        object.__setattr__(self, "ts", float(self.ts))
        object.__setattr__(self, "payload", _strict(self.payload, "payload", 0))

    def payload_json(self) -> str:
        """Return the payload as ASCII JSON; an `InputError` beyond `MAX_PAYLOAD_BYTES`."""
        text = json.dumps(self.payload, allow_nan=False)
        if len(text) > MAX_PAYLOAD_BYTES:
            raise InputError(
                f"Event.payload of {self.stage}/{self.kind}: expected at most {MAX_PAYLOAD_BYTES} "
                f"bytes of JSON, got {len(text)}; write large results to a file and name it."
            )
        return text


def event_line(event: Event, *, seq: int, mono: float) -> bytes:
    """Return the event's line, or raise `InputError` if it is too long.

    It is numbered ``seq`` from 1; ``mono`` is the monotonic clock when it was emitted, s.
    """
    event.payload_json()
    fields: dict[str, Any] = {name: getattr(event, name) for name in Event.__slots__}
    fields |= {"seq": seq, "schema": SCHEMA, "mono": mono}
    return json.dumps(fields, allow_nan=False).encode("ascii") + b"\n"


def _strict(value: object, place: str, depth: int) -> Any:
    """Return ``value`` with plain JSON types, or refuse it by its ``place``."""
    if depth > _MAX_DEPTH:
        raise InputError(f"Event.{place}: expected at most {_MAX_DEPTH} levels of nesting.")
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            if not math.isfinite(value):
                raise InputError(f"Event.{place}: expected a finite number, got {value}.")
            return float(value)
        case os.PathLike():
            return os.fsdecode(cast("os.PathLike[str]", value))
        case Mapping():
            entries = cast("Mapping[object, object]", value)
            strange = [key for key in entries if not isinstance(key, str)]
            if strange:
                raise InputError(f"Event.{place}: expected text as keys, got {strange[0]!r}.")
            return {str(k): _strict(v, f"{place}.{k}", depth + 1) for k, v in entries.items()}
        case list() | tuple():
            items = enumerate(cast("list[object]", value))
            return [_strict(item, f"{place}[{index}]", depth + 1) for index, item in items]
        case _:
            raise InputError(
                f"Event.{place}: expected text, numbers, lists and mappings, got "
                f"{type(value).__name__}; convert it first."
            )


#: Seconds we wait for another writer: a killed one needs a moment to let go.
LOCK_WAIT_S: Final = 5.0


class LogFile:
    """Appends whole lines; a line that a killed writer left half is cut off at opening."""

    def __init__(self, path: Path) -> None:
        """Open or create the file and own it until `close`.

        Raises:
            EventLogHeldError: Another writer owns it.
            EventLogError: The file system refused.
        """
        self._path = path
        try:
            make_folder(path.parent)
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            self.close: Callable[[], None] = weakref.finalize(self, os.close, self._descriptor)
            if not lock_file(self._descriptor, wait_s=LOCK_WAIT_S):
                self.close()
                raise EventLogHeldError(
                    f"{path}: expected to own this log, got a lock held by another writer; see "
                    "that no other process works on the run, and close other event buses of this "
                    "log."
                )
            size = os.fstat(self._descriptor).st_size
            self._length = self._line_end_before(size)
            if self._length < size:
                os.ftruncate(self._descriptor, self._length)
                os.fsync(self._descriptor)
            fsync_folder(path.parent)
        except EventLogError:
            raise
        except OSError as error:
            raise self._failure("open this log", error) from error

    def last_line(self) -> bytes | None:
        """Return the last line with its line end; None if the file is empty."""
        if self._length == 0:
            return None
        start = self._line_end_before(self._length - 1)
        return os.pread(self._descriptor, self._length - start, start)

    def last_seq(self) -> int:
        """Return the number of the last event, 0 for an empty log, or raise `EventLogError`."""
        line = self.last_line()
        if line is None:
            return 0
        try:
            seq = parse_json_object(line, source=str(self._path)).get("seq")
        except IntegrityError as error:
            raise EventLogError(
                f"{self._path}: expected an event in the last line, {error}"
            ) from error
        if not isinstance(seq, int) or seq < 1:
            raise EventLogError(
                f"{self._path}: expected a seq >= 1 in the last line, got {seq!r}; this log is of "
                "another program: move it away."
            )
        return seq

    def append(self, lines: bytes) -> None:
        """Append finished lines; they are durable when this returns.

        Raises:
            EventLogError: The file system refused; the lines before stay intact.
        """
        try:
            append_at(self._descriptor, lines, end=self._length, sync=True)
        except OSError as error:
            raise self._failure("append an event", error) from error
        self._length += len(lines)

    def _line_end_before(self, end: int) -> int:
        """Return the offset behind the last line end before byte ``end``; 0 if there is none."""
        if end == 0:  # nothing to map
            return 0
        with mmap.mmap(self._descriptor, end, access=mmap.ACCESS_READ) as content:
            return content.rfind(b"\n") + 1

    def _failure(self, wish: str, error: OSError) -> EventLogError:
        return EventLogError(
            error.errno,
            f"{self._path}: expected to {wish}, got '{error.strerror}'; free space or choose "
            "another folder, then resume (earlier lines are intact)",
        )


_logger = logging.getLogger(__name__)

#: A subscriber, called with every event.
Subscriber: TypeAlias = Callable[["Event"], object]


class EventBus:
    """Where workers emit events: appends them to a log and tells its subscribers.

    During a run, the run's `EventJournal` does so in its place. One bus at a time owns a log, from
    its first event on, until it is closed.
    """

    def __init__(self, log_path: Path | str) -> None:
        """Create the log's folder."""
        self._path = Path(log_path)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self.subscribers: list[Subscriber] = []
        self.lock: threading.RLock = threading.RLock()
        self.journal: EventJournal | None = None
        self._log: LogFile | None = None
        self._seq = 0

    @property
    def log_path(self) -> Path:
        """The log file."""
        return self._path

    def subscribe(self, subscriber: Subscriber) -> None:
        """Tell ``subscriber`` every event from now on, after those who subscribed before."""
        self.subscribers.append(subscriber)

    def emit(self, event: Event) -> None:
        """Append the event, durably, then tell the subscribers in turn.

        Raises:
            EventLogError: Another writer owns the log, or the file system refused.
            InputError: The payload is too long.
        """
        with self.lock:
            if self.journal is not None:
                self.journal.emit(event)
                return
            if self._log is None:
                log = LogFile(self.log_path)
                self._seq, self._log = log.last_seq(), log
            self._log.append(event_line(event, seq=self._seq + 1, mono=time.monotonic()))
            self._seq += 1
            _tell(self.subscribers, event)

    def close(self) -> None:
        """Give the log free; the next event opens it again."""
        with self.lock:
            if self._log is not None:
                self._log.close()
            self._log = None


def _tell(subscribers: Sequence[Subscriber], event: Event) -> None:
    """Call all subscribers; one that fails is logged and does not stop the others."""
    for subscriber in tuple(subscribers):
        try:
            subscriber(event)
        except Exception:  # a subscriber may fail in any way, and must not stop the run
            _logger.exception("subscriber %r failed on %s/%s", subscriber, event.stage, event.kind)


def require_free_log(path: Path, run_id: str) -> None:
    """Raise `EventLogError` if a log has another writer, or events of an unknown run."""
    if not path.exists():
        return
    log = LogFile(path)
    try:
        seq = log.last_seq()
    finally:
        log.close()
    if seq:
        raise EventLogError(
            f"{path}: expected a log without a run, got the {seq} events of a run that the "
            f"store does not know; give the new run another id than {run_id!r}, or name the "
            "store that the old one was begun with."
        )


#: Events read from the table at once.
_PAGE: Final = 1_000


class EventJournal:
    """Records the events of one run, which a bus is given, under the lease of its controller."""

    def __init__(self, store: "JobStore", lease: Lease, bus: EventBus) -> None:
        """Take the bus's log and events until `close`; append what the log lacks.

        Raises:
            NotReadyError: Another run takes the events of the bus.
            EventLogError: Another writer owns the log, it is another run's, or the file system
                refused.
        """
        self._bus = bus
        self._lock = bus.lock
        self._own_subscribers: list[Subscriber] = []
        self._table = store.events
        self._run_id = lease.run_id
        self._lease = lease
        self._step_key: str | None = None
        self._ordinal = 0
        self._recorded: dict[int, StoredEvent] = {}
        with self._lock:
            if bus.journal is not None:
                raise NotReadyError(
                    f"event bus of {bus.log_path}: expected a bus of no run, got one whose events "
                    "a run takes; make a bus for each run."
                )
            bus.close()
            self._log = LogFile(bus.log_path)
            try:
                self._written = self._check_log()
                self._told = self._marked = self._table.published_up_to(self._run_id)
                while events := self._table.find(self._run_id, after=self._written, limit=_PAGE):
                    self._write(events)
            except BaseException:
                self._log.close()
                raise
            bus.journal = self

    def subscribe(self, subscriber: Subscriber) -> None:
        """Tell ``subscriber`` every event of the run, after the subscribers of the bus."""
        self._own_subscribers.append(subscriber)

    @contextmanager
    def step(self, step_key: str) -> Generator[Self]:
        """Say which step of the run emits inside the block; a `NotReadyError` if another is open.

        ``step_key`` is unique within the run, and equal whenever the step is repeated.
        """
        with self._lock:
            if self._step_key is not None:
                raise NotReadyError(
                    f"step {step_key!r}: expected no open step, got {self._step_key!r}; steps do "
                    "not nest."
                )
            recorded = self._table.find(self._run_id, step_key=step_key)
            self._recorded = {event.ordinal: event for event in recorded}
            self._step_key, self._ordinal = step_key, 0
        try:
            yield self
        finally:
            self._step_key = None

    def emit(self, event: Event) -> None:
        """Record the event, unless this step recorded it before, and publish it; errors as `draft`.

        Raises:
            StaleLeaseError: Another controller took the run over; nothing is recorded.
            EventLogError: The file system refused; the event is recorded, and published later.
        """
        with self._lock:
            stored = self.draft(event)
            if stored.seq == 0:
                told = range(self._marked + 1, self._told + 1)
                self._table.append(self._lease, [stored], published=told)
                self._marked = self._told
            self.publish()

    def draft(self, event: Event) -> StoredEvent:
        """Return the event with its place, to be committed by the store; then call `publish`.

        Raises:
            NotReadyError: No step is open.
            InputError: The event is of another run, or too long.
        """
        if event.run_id != self._run_id:
            raise InputError(
                f"event {event.stage}/{event.kind}: expected run {self._run_id!r}, got "
                f"{event.run_id!r}; a journal records its own run."
            )
        with self._lock:
            if self._step_key is None:
                raise NotReadyError(
                    f"event {event.stage}/{event.kind}: expected an open step, got none; emit "
                    "inside `with journal.step(key)`."
                )
            what = (event.stage, event.kind, event.cycle)
            while (recorded := self._recorded.get(self._ordinal)) is not None:
                self._ordinal += 1
                if (recorded.stage, recorded.kind, recorded.cycle) == what:
                    return recorded
            stored = StoredEvent(
                step_key=self._step_key,
                ordinal=self._ordinal,
                stage=event.stage,
                kind=event.kind,
                cycle=event.cycle,
                payload=event.payload_json(),
                ts=event.ts,
                mono=time.monotonic(),
            )
            self._ordinal += 1
            return stored

    def publish(self) -> None:
        """Write missing events to the log, then tell those that subscribers have not heard.

        After an `EventLogError` the next call tries again.
        """
        with self._lock:
            full = True
            while full:
                start = min(self._written, self._told)
                events = self._table.find(self._run_id, after=start, limit=_PAGE)
                full = len(events) == _PAGE
                self._write([stored for stored in events if stored.seq > self._written])
                for stored in events:
                    if stored.seq > self._told:  # a subscriber that emits gets here before us
                        self._told = stored.seq
                        everybody = (*self._bus.subscribers, *self._own_subscribers)
                        _tell(everybody, _event_of(self._run_id, stored))

    def close(self) -> None:
        """Record what was published, and give log and bus free."""
        with self._lock:
            self._bus.journal = None
            try:
                if self._told > self._marked:
                    told = range(self._marked + 1, self._told + 1)
                    self._table.append(self._lease, [], published=told)
                    self._marked = self._told
            except StoreError as error:  # the run's next controller tells them again
                _logger.info("the record of published events was not written: %s", error)
            finally:
                self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, events: Sequence[StoredEvent]) -> None:
        if events:
            self._log.append(b"".join(_line_of(self._run_id, stored) for stored in events))
            self._written = events[-1].seq

    def _check_log(self) -> int:
        """Return the number of the log's last event, which must be the table's too."""
        seq = self._log.last_seq()
        if seq == 0:
            return 0
        stored = self._table.find(self._run_id, after=seq - 1, limit=1)
        if not stored or _line_of(self._run_id, stored[0]) != self._log.last_line():
            raise EventLogError(
                f"{self._bus.log_path}: expected event {seq} as the store has it in the last line, "
                "got another; log and store are of different runs: move the log away and resume, "
                "and it is written anew."
            )
        return seq


def _event_of(run_id: str, stored: StoredEvent) -> Event:
    payload = json.loads(stored.payload)
    return Event(run_id, stored.stage, stored.kind, stored.cycle, payload, stored.ts)


def _line_of(run_id: str, stored: StoredEvent) -> bytes:
    return event_line(_event_of(run_id, stored), seq=stored.seq, mono=stored.mono)
