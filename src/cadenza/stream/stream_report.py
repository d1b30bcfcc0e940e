"""What a running engine tells: a status file that is rewritten each second, and a log of events.

Both may be missing, and neither can stop the stream: a write that fails is warned about once.

Events (JSON lines): ``engine_state``, ``producer_started``, ``producer_died``,
``producer_healthy``, ``policy_published``, ``refill_requested``, ``stream_frozen`` when draws have
waited for `FROZEN_S` while all producers pause, ``stream_goes_on`` when that is over, and, every
`COUNTERS_S`, ``stream_counters`` with all counters; each has ``time_ns``, ns since 1970.
"""

import logging
import threading
import time
from pathlib import Path
from typing import Any, Final

from cadenza.core.errors import StorageError
from cadenza.core.files import atomic_write_json
from cadenza.core.log_sinks import JsonlSink
from cadenza.core.strict_json import strict_event
from cadenza.stream.back_pressure import fills_asked, is_frozen
from cadenza.stream.counters import read_counters
from cadenza.stream.error_envelope import read_envelope
from cadenza.stream.slots import ProducerState, SlotStore, StreamWords, engine_state

_logger = logging.getLogger(__name__)

#: Version of the status document.
STATUS_VERSION: Final = 1
#: Time between two status files, s.
STATUS_S: Final = 1.0
#: Time between two events with all counters, s.
COUNTERS_S: Final = 10.0
#: Time that draws wait while all producers pause until it counts as a standstill, s: producers look
#: every few milliseconds whether they may go on.
FROZEN_S: Final = 2.0


def status_document(store: SlotStore) -> dict[str, Any]:
    """Return state, counters and the last error of every producer as JSON values."""
    counters = read_counters(store)
    for row in counters["producers"]:
        number = int(row["producer"])
        envelope = read_envelope(store, number)
        row["state"] = ProducerState(int(store.producers["state"][number])).name
        row["error"] = None if envelope is None else f"{envelope.kind}: {envelope.message}"
    return {
        "schema_version": STATUS_VERSION,
        "state": engine_state(store).name,
        "owner_pid": int(store.words[StreamWords.OWNER_PID]),
        "frozen_s": frozen_s(store),
        "fills_requested": fills_asked(store).requests,
        **counters,
    }


def frozen_s(store: SlotStore) -> float:
    """Return how long draws have waited while all producers pause, s; 0 below `FROZEN_S`."""
    since = int(store.words[StreamWords.FROZEN_SINCE_NS])
    if not since or not engine_state(store).is_serving:
        return 0.0
    duration = (time.monotonic_ns() - since) / 1e9
    return duration if duration >= FROZEN_S else 0.0


class StreamReport:
    """Writes status file and log of one engine, in the owner's process."""

    def __init__(self, store: SlotStore, *, log_path: str | None, status_path: str | None) -> None:
        """Open the log, moving an older one aside; a path that is None is not written.

        Raises:
            StorageError: The log cannot be opened.
        """
        self._store = store
        self._sink = None if log_path is None else JsonlSink(Path(log_path))
        self._status_path = None if status_path is None else Path(status_path)
        self._lock = threading.Lock()
        self._status_due = self._counters_due = 0.0
        self._last = (0, 0, 0.0)
        self._warned: set[str] = set()
        self._requests = 0
        self._is_frozen = False

    def log(self, event: str, **fields: Any) -> None:
        """Add an event to the log."""
        line = strict_event({"event": event, "time_ns": time.time_ns(), **fields})
        with self._lock:
            if self._sink is None:
                return
            try:
                self._sink.write(line)
            except StorageError as error:
                self._warn("log", error)

    def tick(self) -> None:
        """Write what is due."""
        now = time.monotonic()
        requests = fills_asked(self._store).requests
        if requests != self._requests:
            self._requests = requests
            self.log("refill_requested", requests=requests)
        self._watch_standstill()
        if now >= self._status_due:
            self._status_due = now + STATUS_S
            self.write_status()
        if now >= self._counters_due:
            self._counters_due = now + COUNTERS_S
            self.log("stream_counters", **status_document(self._store))

    def _watch_standstill(self) -> None:
        """Note since when the stream has stood still, and tell of it once, and when it is over."""
        words = self._store.words
        lasted_s = frozen_s(self._store)
        if not is_frozen(self._store):
            words[StreamWords.FROZEN_SINCE_NS] = 0
            if self._is_frozen:
                self.log("stream_goes_on", frozen_s=lasted_s)
            self._is_frozen = False
            return
        if not words[StreamWords.FROZEN_SINCE_NS]:
            words[StreamWords.FROZEN_SINCE_NS] = time.monotonic_ns()
        if lasted_s and not self._is_frozen:
            self._is_frozen = True
            self.log("stream_frozen", frozen_s=lasted_s)
            _logger.warning(
                "The stream is blocked: draws have waited for %.1f s while all producers pause. "
                "Check mode, max_replay_ratio, min_fresh_fraction and high_water.",
                lasted_s,
            )

    def write_status(self) -> None:
        """Replace the status file."""
        if self._status_path is None:
            return
        document = status_document(self._store)
        frames, chunks, now = document["frames"], document["chunks"], time.monotonic()
        frames_before, chunks_before, before = self._last
        passed = now - before if before else 0.0
        self._last = (frames, chunks, now)
        document["frames_per_s"] = (frames - frames_before) / passed if passed else 0.0
        document["chunks_per_s"] = (chunks - chunks_before) / passed if passed else 0.0
        try:
            atomic_write_json(self._status_path, document)
        except StorageError as error:
            self._warn("status", error)

    def close(self) -> None:
        """Write everything once more and close the log."""
        self.write_status()
        self.log("stream_counters", **status_document(self._store))
        with self._lock:
            sink, self._sink = self._sink, None
        if sink is not None:
            try:
                sink.close()
            except StorageError as error:
                self._warn("log", error)

    def _warn(self, what: str, error: StorageError) -> None:
        if what not in self._warned:
            self._warned.add(what)
            _logger.warning("The stream's %s could not be written; it continues: %s", what, error)
