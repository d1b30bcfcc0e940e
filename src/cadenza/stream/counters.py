"""Counts what producers write and consumers draw; anybody may look at any time.

Every process adds to its own row of the shared tables; rows of ended processes are given to new
ones and go on counting. Ages and version lags are counted in classes that grow with the value.

Times:  two classes per doubling from 1.024 us, the last begins at about 52 minutes. Lags:   one
class per value up to 15, then four per doubling. Error:  a quantile lies in the class of the true
one, so times are within a factor 1.42.
"""

import os
import threading
import time
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from cadenza.core.errors import NotReadyError
from cadenza.stream.back_pressure import readable_slots, unread_episodes, waiting_rows
from cadenza.stream.layout import HISTOGRAM_CLASSES, MAX_CONSUMERS
from cadenza.stream.processes import is_same_process, started_at
from cadenza.stream.slots import LARGEST, SlotStore, saturating_sum
from cadenza.stream.windows import DrawnChunks

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

    def __reduce__(self) -> tuple[Any, ...]:
        """Count in a row of its own in a new process."""
        return ConsumerRow, (self._store,)

    @property
    def row(self) -> int:
        """Number of this process's row.

        Raises:
            NotReadyError: As many processes draw as there are rows.
        """
        if self._pid != os.getpid():
            with self._store.counting.here():
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
        newest = store.weights_version()
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

        ``chunks`` are those for which the replay ratio wants more steps; 0: it waits for something
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


def read_counters(store: SlotStore) -> dict[str, Any]:
    """Return the counters of ``store`` as JSON values; running counts may differ by one draw.

    Counts are since the stream's beginning, ``..._s`` seconds. ``readable`` episodes can be drawn
    from now; draws do not want those that are ``passed_over``, see `SlotStore.passed_over`, and
    nothing was drawn yet from the ``unread`` others. Staleness is the age of the episodes that
    chunks were drawn from, a version lag how many policy versions they were behind.
    ``excluded_mean`` is the share of runs, see `DrawOptions`, that were shorter than a chunk, as a
    mean over the drawn chunks; ``replay_ratio`` chunks per step written, like ``max_replay_ratio``.
    A producer is ``silent_s`` since it last moved, 0 before its first start.
    """
    draws, made = store.consumers, store.producers
    chunks, frames = _total(draws["chunks"]), store.published_frames()
    readable, passed_over = readable_slots(store), store.passed_over()
    waits = waiting_rows(store)
    staleness = draws["staleness_classes"].sum(axis=0)
    return {
        "time_ns": time.time_ns(),
        "episodes": store.published(),
        "frames": frames,
        "dropped": int(made["dropped"].sum()),
        "readable": int(np.count_nonzero(readable)),
        "passed_over": int(np.count_nonzero(readable & passed_over)),
        "unread": unread_episodes(store),
        "chunks": chunks,
        "drawn_frames": _total(draws["frames"]),
        "redraws": _total(draws["redraws"]),
        "blocked_s": int(draws["blocked_ns"].sum()) / _NS,
        "stalled_s": int(made["stalled_ns"].sum()) / _NS,
        "policy_version": store.weights_version(),
        "staleness_mean_s": _total(draws["staleness_us"]) / 1e6 / max(chunks, 1),
        "staleness_p95_s": time_quantile_ns(staleness, 0.95) / _NS,
        "version_lag_mean": _total(draws["version_lag"]) / max(chunks, 1),
        "version_lag_p95": lag_quantile(draws["lag_classes"].sum(axis=0), 0.95),
        "excluded_mean": _total(draws["excluded_ppm"]) / 1e6 / max(chunks, 1),
        "replay_ratio": chunks / frames if frames else 0.0,
        "producers": [_producer(store, row) for row in range(store.layout.producers)],
        "consumers": [
            _consumer(store, row, waits=bool(waits[row]))
            for row in np.flatnonzero(draws["pid"]).tolist()
        ],
    }


def _total(counts: NDArray[np.int64]) -> int:
    """Return the sum of a column; Python's numbers do not overflow."""
    return sum(counts.tolist())


def _producer(store: SlotStore, row: int) -> dict[str, Any]:
    table = {name: int(values[row]) for name, values in store.producers.items() if name != "error"}
    beat = table["heartbeat_ns"]
    return {
        "producer": row,
        "pid": table["pid"],
        "alive": is_same_process(table["pid"], table["started_at"]),
        "silent_s": (time.monotonic_ns() - beat) / _NS if beat else 0.0,
        **{name: table[name] for name in ("restarts", "episodes", "frames", "dropped")},
        "stalled_s": table["stalled_ns"] / _NS,
    }


def _consumer(store: SlotStore, row: int, *, waits: bool) -> dict[str, Any]:
    table = {name: int(v[row]) for name, v in store.consumers.items() if v.ndim == 1}
    return {
        "pid": table["pid"],
        "alive": is_same_process(table["pid"], table["started_at"]),
        **{name: table[name] for name in ("chunks", "frames", "redraws")},
        "blocked_s": table["blocked_ns"] / _NS,
        "waits": waits,
        "excluded_mean": table["excluded_ppm"] / 1e6 / max(table["chunks"], 1),
    }


def _claim_row(store: SlotStore) -> int:
    """Give this process a row: its own, that of an ended process, or a fresh one."""
    pids, starts = store.consumers["pid"], store.consumers["started_at"]
    mine = (os.getpid(), started_at(os.getpid()))
    held = list(zip(pids.tolist(), starts.tolist(), strict=True))[:MAX_CONSUMERS]
    if mine in held:
        return held.index(mine)
    for row, (pid, start) in enumerate(held):
        if pid and is_same_process(pid, start):
            continue
        with store.file.claimed(row) as is_mine:  # else another takes this one
            if is_mine and (pids[row], starts[row]) == (pid, start):
                pids[row], starts[row] = mine
                store.consumers["under_way"][row] = 0
                return row
    raise NotReadyError(
        f"ConsumerRow: expected at most {MAX_CONSUMERS} drawing processes, got one more; end some."
    )
