"""Counts what producers write and consumers draw; anybody may look at any time.

Every producer and every drawing process adds to its own row of the shared tables, so that no
process waits for another. Rows of ended processes are given to new ones and go on counting: the
sums over all rows are the totals of the stream.

Waiting times and version lags in classes that grow with the value.

Times:  two classes per doubling from 1.024 us, the last begins at about 52 minutes.
Lags:   one class per value up to 15, then four per doubling.
Error:  a quantile lies in the class of the true one, so times are within a factor 1.42.
"""

import os
import threading
import time
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from cadenza.core.errors import NotReadyError
from cadenza.stream.back_pressure import readable_slots, unread_episodes, waiting_rows
from cadenza.stream.engine_state import LARGEST, saturating_sum
from cadenza.stream.layout import HISTOGRAM_CLASSES, MAX_CONSUMERS
from cadenza.stream.processes import is_same_process, started_at
from cadenza.stream.slot_reader import DrawnChunks
from cadenza.stream.slots import SlotStore, StreamWords

_Ints = NDArray[np.int64]
_Floats = NDArray[np.float64]

#: Smallest waiting time with a class of its own, ns.
_FIRST_NS: Final = 1024.0
#: Lags below it have a class each.
_EXACT_LAGS: Final = 16

#: Lower edges of the classes, and the upper edge of the last.
TIME_EDGES_NS: Final[_Floats] = _FIRST_NS * 2.0 ** (np.arange(HISTOGRAM_CLASSES + 1) / 2)
LAG_EDGES: Final[_Floats] = np.concatenate(
    (
        np.arange(_EXACT_LAGS, dtype=np.float64),
        _EXACT_LAGS * 2.0 ** (np.arange(HISTOGRAM_CLASSES - _EXACT_LAGS + 1) / 4),
    )
)
#: Those between two classes; a whole number is at least an edge if it is at least the next integer.
_INNER_NS, _INNER_LAGS = (np.ceil(e[1:-1]).astype(np.int64) for e in (TIME_EDGES_NS, LAG_EDGES))


def time_classes(ages_ns: _Ints) -> _Ints:
    """Return how many of ``ages_ns`` fall into each class, shape (HISTOGRAM_CLASSES,)."""
    return _counts(ages_ns, _INNER_NS)


def lag_classes(lags: _Ints) -> _Ints:
    """Return how many of ``lags`` fall into each class, shape (HISTOGRAM_CLASSES,)."""
    return _counts(lags, _INNER_LAGS)


def time_quantile_ns(classes: _Ints, q: float) -> float:
    """Return the ``q`` quantile of waiting times, ns; 0 without any."""
    return _quantile(classes, TIME_EDGES_NS, q)


def lag_quantile(classes: _Ints, q: float) -> int:
    """Return the ``q`` quantile of lags, exact below 16; 0 without any."""
    return max(int(np.ceil(_quantile(classes, LAG_EDGES, q))) - 1, 0)


def _counts(values: _Ints, inner: _Ints) -> _Ints:
    return np.bincount(inner.searchsorted(values, side="right"), minlength=HISTOGRAM_CLASSES)


def _quantile(classes: _Ints, edges: _Floats, q: float) -> float:
    """Return the quantile, taking the values of a class as spread evenly over it."""
    sums: _Ints = np.cumsum(classes)
    if not sums[-1]:
        return 0.0
    wanted = q * sums[-1]
    index = int(np.count_nonzero(sums < wanted))
    share = (wanted - (sums[index] - classes[index])) / classes[index]
    return float(edges[index] + share * (edges[index + 1] - edges[index]))


_NS: float = 1e9


class ConsumerRow:
    """Counts the draws of this process.

    The row is claimed with the first count. A forked or newly started process that was given this
    object claims one of its own. Threads share it: count with ``SlotStore.counting`` held.
    """

    def __init__(self, store: SlotStore) -> None:
        self._store = store
        self._pid = 0
        self._row = -1
        self._under_way: dict[int, int] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Return the store; the row stays with its process."""
        return {"store": self._store}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Count in a new process."""
        self.__init__(state["store"])

    @property
    def row(self) -> int:
        """Number of this process's row.

        Raises:
            NotReadyError: As many processes draw as there are rows.
        """
        if self._pid != os.getpid():
            self._row = _claim_row(self._store)
            self._under_way = {}  # after a fork, the threads of the parent are not here
            self._pid = os.getpid()
        return self._row

    def note_begun(self, chunks: int) -> None:
        """Say that this thread draws ``chunks``; a draw that was broken off counts no longer."""
        row = self.row
        self._under_way[threading.get_ident()] = chunks
        self._store.consumers["under_way"][row] = sum(self._under_way.values())

    def _note_ended(self, row: int) -> None:
        self._under_way.pop(threading.get_ident(), None)
        self._store.consumers["under_way"][row] = sum(self._under_way.values())

    def note(self, drawn: DrawnChunks, c: int) -> None:
        """Count one draw of chunks of ``c`` steps, which is done."""
        row, store, table = self.row, self._store, self._store.consumers
        chunks = len(drawn.slots)
        ages = time.time_ns() - drawn.written_at_ns
        np.maximum(ages, 0, out=ages)
        counted = {
            "chunks": chunks,
            "frames": chunks * c if drawn.mask is None else int(drawn.mask.sum()),
            "staleness_us": int(np.add.reduce(ages)) // 1000,
        }
        if drawn.redraws or drawn.excluded:
            counted["redraws"] = drawn.redraws
            counted["excluded_ppm"] = round(drawn.excluded * chunks * 1e6)
        newest = int(store.words[StreamWords.POLICY_VERSION])
        if newest:
            lags = np.maximum(newest - drawn.policy_versions, 0)
            counted["version_lag"] = int(lags.sum())
            table["lag_classes"][row] += lag_classes(lags)
        else:
            table["lag_classes"][row, 0] += chunks  # nothing lags behind the first version
        for name, more in counted.items():
            column = table[name]
            column[row] = saturating_sum(int(column[row]), more)
        table["staleness_classes"][row] += time_classes(ages)
        there = store.version[drawn.slots] == drawn.versions  # the next episode is still unread
        np.add.at(store.draws, drawn.slots[there], 1)
        table["waiting_ns"][row] = 0
        self._note_ended(row)

    def note_passed(self, episodes: int) -> None:
        """Count episodes that a reader of whole ones is through with, read or lost."""
        self._store.consumers["passed"][self.row] += episodes

    def note_blocked(self, duration_ns: int, chunks: int = 0) -> None:
        """Count time that this process waited for data, and say that it still waits.

        Args:
            duration_ns: The time, ns.
            chunks: Chunks for which the replay ratio wants more steps; 0: it waits for something
                else, which more steps may or may not bring.
        """
        row, table = self.row, self._store.consumers
        table["blocked_ns"][row] += duration_ns
        table["wanted_chunks"][row] = chunks
        table["wanted_until"][row] = LARGEST
        table["waiting_ns"][row] = time.monotonic_ns()

    def note_given_up(self, episodes: int) -> None:
        """Say that a draw gave up, and may try again once there are ``episodes`` more."""
        row, store = self.row, self._store
        self._note_ended(row)
        published = store.published()
        store.consumers["wanted_until"][row] = saturating_sum(published, episodes)


class ProducerRow:
    """Counts the work of one producer, in its process, besides what it publishes."""

    def __init__(self, store: SlotStore, producer: int) -> None:
        """Take over row ``producer``; its totals go on."""
        self._table = store.producers
        self._row = producer
        self._table["pid"][producer] = os.getpid()
        self._table["started_at"][producer] = started_at(os.getpid())
        self.beat()

    def beat(self) -> None:
        """Say that the producer lives and moves."""
        self._table["heartbeat_ns"][self._row] = time.monotonic_ns()

    def note_dropped(self) -> None:
        """Count an episode that was not published."""
        self._table["dropped"][self._row] += 1

    def note_stalled(self, duration_ns: int) -> None:
        """Count time that the producer waited for consumers."""
        self._table["stalled_ns"][self._row] += duration_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerCounters:
    """One producer at a moment.

    Attributes:
        producer: Its number.
        pid: Its process, 0 before the first.
        alive: Whether that process runs.
        silent_s: Seconds since it last moved; 0 before its first start.
        restarts: Times it was started again.
        episodes: Episodes it published.
        frames: Their steps.
        dropped: Episodes it gave up.
        stalled_s: Seconds it waited for consumers.
    """

    producer: int
    pid: int
    alive: bool
    silent_s: float
    restarts: int
    episodes: int
    frames: int
    dropped: int
    stalled_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerCounters:
    """One row of drawing processes at a moment.

    Attributes:
        pid: Process that counts in it, or did last.
        alive: Whether that process runs.
        chunks: Chunks drawn.
        frames: Their steps, without those that a mask hides.
        redraws: Chunks drawn anew because their slot changed.
        blocked_s: Seconds waited for data.
        waits: Whether a draw waits for data.
        excluded_mean: See `StreamCounters`, of the chunks of this row.
    """

    pid: int
    alive: bool
    chunks: int
    frames: int
    redraws: int
    blocked_s: float
    waits: bool
    excluded_mean: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamCounters:
    """A stream at a moment; counts are since its beginning.

    Attributes:
        time_ns: When, ns since 1970.
        episodes: Episodes published.
        frames: Their steps.
        dropped: Episodes given up.
        readable: Episodes that can be drawn from now.
        passed_over: Those of them that draws do not want, see `SlotStore.passed_over`.
        unread: Those of the others that nothing was drawn from yet.
        chunks: Chunks drawn.
        drawn_frames: Their steps.
        redraws: Chunks drawn anew.
        blocked_s: Seconds that consumers waited for data, summed.
        stalled_s: Seconds that producers waited for consumers, summed.
        policy_version: Newest version of the acting policy.
        staleness_mean_s: Mean age of the episodes that chunks were drawn from, s.
        staleness_p95_s: Its 95 % quantile, s.
        version_lag_mean: Mean number of policy versions that drawn chunks were behind.
        version_lag_p95: Its 95 % quantile.
        excluded_mean: Share of the runs (see `DrawOptions`) that were left out because they are
            shorter than a chunk, mean over the drawn chunks.
        producers: Each producer.
        consumers: Each row that some process drew in.
    """

    time_ns: int
    episodes: int
    frames: int
    dropped: int
    readable: int
    passed_over: int
    unread: int
    chunks: int
    drawn_frames: int
    redraws: int
    blocked_s: float
    stalled_s: float
    policy_version: int
    staleness_mean_s: float
    staleness_p95_s: float
    version_lag_mean: float
    version_lag_p95: int
    excluded_mean: float
    producers: tuple[ProducerCounters, ...]
    consumers: tuple[ConsumerCounters, ...]

    @property
    def replay_ratio(self) -> float:
        """Chunks drawn per step written, like ``max_replay_ratio``; 0 while nothing is written."""
        return self.chunks / self.frames if self.frames else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return the counters as JSON values, for a log event."""
        return asdict(self) | {"replay_ratio": self.replay_ratio}


def read_counters(store: SlotStore) -> StreamCounters:
    """Return the counters of ``store`` as they are now; running counts may differ by one draw."""
    draws, words = store.consumers, store.words
    chunks = _total(draws["chunks"])
    readable = readable_slots(store)
    passed_over = store.passed_over()
    waits = waiting_rows(store)
    staleness = draws["staleness_classes"].sum(axis=0)
    return StreamCounters(
        time_ns=time.time_ns(),
        episodes=store.published(),
        frames=store.published_frames(),
        dropped=int(store.producers["dropped"].sum()),
        readable=int(np.count_nonzero(readable)),
        passed_over=int(np.count_nonzero(readable & passed_over)),
        unread=unread_episodes(store),
        chunks=chunks,
        drawn_frames=_total(draws["frames"]),
        redraws=_total(draws["redraws"]),
        blocked_s=int(draws["blocked_ns"].sum()) / _NS,
        stalled_s=int(store.producers["stalled_ns"].sum()) / _NS,
        policy_version=int(words[StreamWords.POLICY_VERSION]),
        staleness_mean_s=_total(draws["staleness_us"]) / 1e6 / max(chunks, 1),
        staleness_p95_s=time_quantile_ns(staleness, 0.95) / _NS,
        version_lag_mean=_total(draws["version_lag"]) / max(chunks, 1),
        version_lag_p95=lag_quantile(draws["lag_classes"].sum(axis=0), 0.95),
        excluded_mean=_total(draws["excluded_ppm"]) / 1e6 / max(chunks, 1),
        producers=tuple(_producer(store, row) for row in range(store.layout.producers)),
        consumers=tuple(
            _consumer(store, row, waits=bool(waits[row]))
            for row in np.flatnonzero(draws["pid"]).tolist()
        ),
    )


def _total(counts: NDArray[np.int64]) -> int:
    """Return the sum of a column; Python's numbers do not overflow."""
    return sum(counts.tolist())


def _producer(store: SlotStore, row: int) -> ProducerCounters:
    table = {name: int(values[row]) for name, values in store.producers.items() if name != "error"}
    beat = table["heartbeat_ns"]
    return ProducerCounters(
        producer=row,
        pid=table["pid"],
        alive=is_same_process(table["pid"], table["started_at"]),
        silent_s=(time.monotonic_ns() - beat) / _NS if beat else 0.0,
        restarts=table["restarts"],
        episodes=table["episodes"],
        frames=table["frames"],
        dropped=table["dropped"],
        stalled_s=table["stalled_ns"] / _NS,
    )


def _consumer(store: SlotStore, row: int, *, waits: bool) -> ConsumerCounters:
    table = {name: int(v[row]) for name, v in store.consumers.items() if v.ndim == 1}
    return ConsumerCounters(
        pid=table["pid"],
        alive=is_same_process(table["pid"], table["started_at"]),
        chunks=table["chunks"],
        frames=table["frames"],
        redraws=table["redraws"],
        blocked_s=table["blocked_ns"] / _NS,
        waits=waits,
        excluded_mean=table["excluded_ppm"] / 1e6 / max(table["chunks"], 1),
    )


def _claim_row(store: SlotStore) -> int:
    """Give this process a row: its own, that of an ended process, or a fresh one."""
    pids, starts = store.consumers["pid"], store.consumers["started_at"]
    mine = started_at(os.getpid())
    with store.file.locked():
        for row in range(MAX_CONSUMERS):
            pid, start = int(pids[row]), int(starts[row])
            own = (pid, start) == (os.getpid(), mine)
            if own or not pid or not is_same_process(pid, start):
                pids[row], starts[row] = os.getpid(), mine
                store.consumers["under_way"][row] = 0
                return row
    raise NotReadyError(
        f"ConsumerRow: expected at most {MAX_CONSUMERS} drawing processes, got one more; end some."
    )
