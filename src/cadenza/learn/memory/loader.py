"""Endless batches from tables, in the shape the trainer wants.

A batch of `MemoryLoader` is ``{data_group: columns, size_key: rows}`` with ``rows = n T``. With
``prefetch`` a background thread samples ahead, in order; an error of the producer arrives at the
``next`` call that would have got the value. `MemoryWarmup` waits before training until a collector
in another thread has filled the memory.
"""

import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from queue import SimpleQueue
from typing import Any, Final, TypeVar
from weakref import WeakSet

from cadenza.core.errors import ConfigurationError, NotReadyError, refuse
from cadenza.core.timing import TimedBlock
from cadenza.learn.callback import Callback
from cadenza.learn.memory.column import SampleResult
from cadenza.learn.memory.table import MemoryTable
from cadenza.learn.trainer import TrainingShutdownException

T = TypeVar("T")

#: How long a closed prefetcher waits for the batch that is being made, s.
_JOIN_S: Final = 10.0

Batch = dict[str, Any]
#: Batches in the order in which they were made, or what was raised instead of one.
_Batches = SimpleQueue[Batch | BaseException]


class _Prefetcher(Iterator[Batch]):
    """Calls ``produce`` in a thread, up to ``depth`` batches ahead of the consumer."""

    def __init__(self, produce: Callable[[], Batch], depth: int) -> None:
        self._batches: _Batches = SimpleQueue()
        self._room = threading.Semaphore(depth)
        self._stop = threading.Event()
        # The thread must not hold `self`, or a forgotten prefetcher would never end.
        arguments = (produce, self._batches, self._room, self._stop)
        self._thread = threading.Thread(target=_fill, args=arguments, name="prefetch", daemon=True)
        self._end = weakref.finalize(self, _end, *arguments[1:])
        self._thread.start()

    def __next__(self) -> Batch:
        """Return the next batch, waiting for it if need be; raise what its making raised."""
        if self._stop.is_set():
            raise StopIteration
        batch = self._batches.get()
        if isinstance(batch, BaseException):
            self.close()
            raise batch
        self._room.release()
        return batch

    def close(self) -> None:
        """Stop the thread and wait for it; calling twice is fine."""
        self._end()
        self._thread.join(timeout=_JOIN_S)


def _fill(
    produce: Callable[[], Batch],
    batches: _Batches,
    room: threading.Semaphore,
    stop: threading.Event,
) -> None:
    """Put batches into the queue until asked to stop or until one cannot be made."""
    while room.acquire() and not stop.is_set():
        try:
            batches.put(produce())
        except BaseException as error:  # noqa: BLE001 -- the consumer's thread raises it again
            batches.put(error)
            return


def _end(batches: _Batches, room: threading.Semaphore, stop: threading.Event) -> None:
    """Wake the thread and whoever waits for it, for the last time."""
    stop.set()
    room.release()
    batches.put(StopIteration())


#: How often a loader that waits looks at its table, s.
_POLL_S: Final = 0.01


class MemoryLoader:
    """Samples one table again and again.

    Args:
        prefetch: Batches that a background thread samples ahead; 0 samples when asked. Ahead means
            that a batch misses what was added since, and that a resumed run is no longer equal bit
            for bit, since the sampler has drawn batches that nobody used.
        ready_timeout_s: How long ``next`` waits for enough data, and for an episode of T steps,
            before it raises; 0 raises at once. Only a collector in another thread can end the wait.
    """

    def __init__(
        self,
        memory_table: MemoryTable,
        rollout_count: int,
        rollout_length: int,
        size_key: str,
        data_group: str = "default",
        *,
        prefetch: int = 0,
        ready_timeout_s: float = 0.0,
    ) -> None:
        if rollout_count < 1 or rollout_length < 1 or prefetch < 0 or not ready_timeout_s >= 0.0:
            wanted = "rollout_count >= 1, rollout_length >= 1, prefetch >= 0, ready_timeout_s >= 0"
            got = f"{rollout_count}, {rollout_length}, {prefetch} and {ready_timeout_s}"
            refuse(ConfigurationError, "MemoryLoader", expected=wanted, got=got)
        self.memory_table = memory_table
        self.rollout_count = rollout_count
        self.rollout_length = rollout_length
        self.size_key = size_key
        self.data_group = data_group
        self.timer: TimedBlock = TimedBlock()
        self._prefetch = prefetch
        self._ready_timeout_s = ready_timeout_s
        self._prefetchers: WeakSet[_Prefetcher] = WeakSet()

    def is_ready(self) -> bool:
        """Return whether the table holds a batch of transitions, or as many as it ever will."""
        rows = self.rollout_count * self.rollout_length
        return self.memory_table.size() >= rows or self.memory_table.full()

    def __iter__(self) -> Iterator[Batch]:
        """Return an endless iterator over fresh batches.

        Its ``next`` raises `NotReadyError` while the table holds too little; without ``prefetch``
        the same iterator may be asked again later.
        """
        if self._prefetch == 0:
            return iter(self._sample, None)  # after a refusal, the next call tries again
        prefetcher = _Prefetcher(self._sample, self._prefetch)
        self._prefetchers.add(prefetcher)
        return prefetcher

    def close(self) -> None:
        """Stop the threads of all iterators that prefetch; they end there."""
        for prefetcher in list(self._prefetchers):
            prefetcher.close()

    def _sample(self) -> Batch:
        sampled = self._retried(self._draw)
        rows = self.rollout_count * self.rollout_length
        data: Batch = {**sampled, self.size_key: rows}
        return {self.data_group: data, self.size_key: rows}

    def _draw(self) -> SampleResult:
        self._require_batch()
        with self.timer:
            return self.memory_table.sample(self.rollout_count, self.rollout_length)

    def wait_until_ready(self) -> None:
        """Return when the table holds enough, and an episode that is long enough; draw nothing.

        Only a table with a method ``require_window`` is asked for the episode.

        Raises:
            NotReadyError: It does not, even after ``ready_timeout_s``; if all episodes are too
                short, this is a `NoWindowError`.
        """
        self._retried(self._require_batch)

    def _retried(self, attempt: Callable[[], T]) -> T:
        deadline = time.monotonic() + self._ready_timeout_s
        while True:
            try:
                return attempt()
            except NotReadyError:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(_POLL_S)

    def _require_batch(self) -> None:
        if not self.is_ready():
            count, length = self.rollout_count, self.rollout_length
            wanted = (
                f"at least {count * length} transitions in the table ({count} rollouts of {length})"
            )
            do = "collect more first (warm-up), or use MemoryWarmup with a threaded collector"
            got = self.memory_table.size()
            refuse(NotReadyError, "MemoryLoader", expected=wanted, got=got, do=do)
        require_window = getattr(self.memory_table, "require_window", None)
        if require_window is not None:
            require_window(self.rollout_length)


class JointMemoryLoader:
    """One batch out of several loaders, each with its own data group.

    Raises:
        ConfigurationError: No loader, or two with one data group.
    """

    def __init__(self, loaders: Sequence[MemoryLoader], size_key: str = "batch_size") -> None:
        counts = Counter(loader.data_group for loader in loaders)
        if not counts or max(counts.values()) > 1:
            wanted = "at least one loader, and a data_group for each that no other has"
            got = f"these counts: {dict(counts)}"
            refuse(ConfigurationError, type(self).__name__, expected=wanted, got=got)
        self._loaders = list(loaders)
        self._size_key = size_key

    def is_ready(self) -> bool:
        """Return whether every loader is ready."""
        return all(loader.is_ready() for loader in self._loaders)

    def __iter__(self) -> Iterator[Batch]:
        """Yield the union of one fresh batch per loader, for ever.

        Raises:
            NotReadyError: By ``next``, while a table holds too little or only episodes that are too
                short; no loader has drawn then.
        """
        iterators = [iter(loader) for loader in self._loaders]
        return iter(lambda: self._join(iterators), None)

    def close(self) -> None:
        """Stop the threads of all iterators that prefetch."""
        for loader in self._loaders:
            loader.close()

    def _join(self, iterators: list[Iterator[Batch]]) -> Batch:
        for loader in self._loaders:  # before any of them draws
            loader.wait_until_ready()
        joint: Batch = {}
        total = 0
        for loader, iterator in zip(self._loaders, iterators, strict=True):
            batch = next(iterator)
            total += batch[loader.data_group][loader.size_key]
            joint[loader.data_group] = batch[loader.data_group]
        joint[self._size_key] = total
        return joint


class JointMemoryLoaderWithDataGroup(JointMemoryLoader):
    """A `JointMemoryLoader` that puts all groups inside one more group, ``data_group``."""

    def __init__(
        self, loaders: Sequence[MemoryLoader], data_group: str, size_key: str = "batch_size"
    ) -> None:
        super().__init__(loaders, size_key)
        self._data_group = data_group

    def _join(self, iterators: list[Iterator[Batch]]) -> Batch:
        joint = super()._join(iterators)
        total = joint.pop(self._size_key)
        return {self._data_group: joint, self._size_key: total}


#: How often a warm-up asks its loader, s.
_WARMUP_POLL_S: Final = 0.1
#: After all callbacks that start collecting.
_ORDER: Final = 100


class MemoryWarmup(Callback):
    """Blocks the start of training until a loader is ready.

    For collectors that run in a thread of their own. With a collector that runs inside the training
    loop nothing would ever arrive: give ``timeout_s`` to get an error instead of a standstill.

    Args:
        loader: Must become ready.
        exporter: An `OnnxExporter`, whose pending exports are done while waiting, or None.
        shutdown_signal: Training ends when it returns true.
        timeout_s: Longest wait, s; None waits for ever.
    """

    def __init__(
        self,
        loader: MemoryLoader | JointMemoryLoader,
        exporter: Any,
        shutdown_signal: Callable[[], bool] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> None:
        super().__init__()
        self._order = _ORDER
        self._loader = loader
        self._exporter = exporter
        self._shutdown_signal = shutdown_signal
        self._timeout_s = timeout_s

    def begin_training(self) -> None:
        """Wait.

        Raises:
            TrainingShutdownException: The shutdown signal came first.
            NotReadyError: The loader is not ready after ``timeout_s``.
        """
        started = time.monotonic()
        while not self._loader.is_ready():
            if self._shutdown_signal is not None and self._shutdown_signal():
                raise TrainingShutdownException("shutdown was asked for while the memory warmed up")
            if self._timeout_s is not None and time.monotonic() - started >= self._timeout_s:
                wanted = f"a ready loader within {self._timeout_s} s"
                do = "check that a collector runs in its own thread, with episodes long enough"
                refuse(NotReadyError, "MemoryWarmup", expected=wanted, got="none", do=do)
            if self._exporter is not None:
                self._exporter.process_pending_exports()
            time.sleep(_WARMUP_POLL_S)
