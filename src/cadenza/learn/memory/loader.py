"""Endless batches from tables, in the shape the trainer wants.

A batch of `MemoryLoader` is ``{data_group: columns, size_key: rows}`` with ``rows = n T``.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Protocol, runtime_checkable
from weakref import WeakSet

from cadenza.core.errors import ConfigurationError, NotReadyError
from cadenza.core.timing import TimedBlock
from cadenza.learn.memory.errors import NoWindowError
from cadenza.learn.memory.prefetch import Prefetcher
from cadenza.learn.memory.table import MemoryTable

#: How often a loader that waits looks at its table, s.
_POLL_S: Final = 0.01

Batch = dict[str, Any]


@runtime_checkable
class _KnowsWindows(Protocol):
    """A table that can say whether it has a window without drawing one."""

    def require_window(self, sequence_length: int) -> None:
        """Raise `NoWindowError` unless an episode has ``sequence_length`` steps."""
        ...


class _Batches(Iterator[Batch]):
    """Makes one batch per ``next``; after a refusal the next call simply tries again."""

    def __init__(self, produce: Callable[[], Batch]) -> None:
        self._produce = produce

    def __next__(self) -> Batch:
        return self._produce()


class MemoryLoader:
    """Samples one table again and again.

    Args:
        memory_table: The table.
        rollout_count: Windows per batch, n.
        rollout_length: Transitions per window, T.
        size_key: Key of the number of rows, n T, in the batch and beside it.
        data_group: Key of the batch.
        prefetch: Batches that a background thread samples ahead; 0 samples when asked. Ahead means
            that a batch misses what was added since, and that a resumed run is no longer equal bit
            for bit, since the sampler has drawn batches that nobody used.
        ready_timeout_s: How long ``next`` waits for enough data, and for an episode of T steps,
            before it raises; 0 raises at once. Only a collector in another thread can end the wait.

    Raises:
        ConfigurationError: A number is out of range.
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
            raise ConfigurationError(
                "MemoryLoader: expected rollout_count >= 1, rollout_length >= 1, prefetch >= 0 and "
                f"ready_timeout_s >= 0, got {rollout_count}, {rollout_length}, {prefetch} and "
                f"{ready_timeout_s}."
            )
        self.memory_table = memory_table
        self.rollout_count = rollout_count
        self.rollout_length = rollout_length
        self.size_key = size_key
        self.data_group = data_group
        self.timer = TimedBlock()
        self._prefetch = prefetch
        self._ready_timeout_s = ready_timeout_s
        self._prefetchers: WeakSet[Prefetcher[Batch]] = WeakSet()

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
            return _Batches(self._sample)
        prefetcher = Prefetcher(self._sample, depth=self._prefetch)
        self._prefetchers.add(prefetcher)
        return prefetcher

    def close(self) -> None:
        """Stop the threads of all iterators that prefetch; they end there."""
        for prefetcher in list(self._prefetchers):
            prefetcher.close()

    def _sample(self) -> Batch:
        deadline = time.monotonic() + self._ready_timeout_s
        self.wait_until_ready()
        while True:
            try:
                with self.timer:
                    sampled = self.memory_table.sample(self.rollout_count, self.rollout_length)
                break
            except NoWindowError:  # enough transitions, but all episodes are too short
                if time.monotonic() >= deadline:
                    raise
            time.sleep(_POLL_S)
        rows = self.rollout_count * self.rollout_length
        data: Batch = {**sampled, self.size_key: rows}
        return {self.data_group: data, self.size_key: rows}

    def wait_until_ready(self) -> None:
        """Return when the table holds enough, and an episode that is long enough; draw nothing.

        Only a table with a method ``require_window`` is asked for the episode.

        Raises:
            NotReadyError: It does not, even after ``ready_timeout_s``.
            NoWindowError: All episodes are too short, even after ``ready_timeout_s``.
        """
        deadline = time.monotonic() + self._ready_timeout_s
        while True:
            try:
                self._require_batch()
            except NotReadyError:  # NoWindowError is one, too
                if time.monotonic() >= deadline:
                    raise
                time.sleep(_POLL_S)
            else:
                return

    def _require_batch(self) -> None:
        if not self.is_ready():
            raise NotReadyError(
                f"MemoryLoader: expected at least {self.rollout_count * self.rollout_length} "
                f"transitions in the table ({self.rollout_count} rollouts of "
                f"{self.rollout_length}), got {self.memory_table.size()}; collect more first "
                "(warm-up), or use MemoryWarmup with a threaded collector."
            )
        if isinstance(self.memory_table, _KnowsWindows):
            self.memory_table.require_window(self.rollout_length)


class JointMemoryLoader:
    """One batch out of several loaders, each with its own data group.

    Args:
        loaders: The loaders; their data groups must differ.
        size_key: Key of the total number of rows.

    Raises:
        ConfigurationError: No loader, or two with one data group.
    """

    def __init__(self, loaders: Sequence[MemoryLoader], size_key: str = "batch_size") -> None:
        counts = Counter(loader.data_group for loader in loaders)
        if not counts or max(counts.values()) > 1:
            raise ConfigurationError(
                f"{type(self).__name__}: expected loaders with different data groups (else one "
                f"batch would replace the other), got these counts: {dict(counts)}. "
                "JointMemoryLoader needs at least one loader and one data_group for each."
            )
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
        return _Batches(lambda: self._join(iterators))

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
    """A `JointMemoryLoader` that puts all groups inside one more group.

    Args:
        loaders: The loaders; their data groups must differ.
        data_group: Key of the dict that holds the loaders' groups.
        size_key: Key of the total number of rows, beside ``data_group``.
    """

    def __init__(
        self, loaders: Sequence[MemoryLoader], data_group: str, size_key: str = "batch_size"
    ) -> None:
        super().__init__(loaders, size_key)
        self._data_group = data_group

    def _join(self, iterators: list[Iterator[Batch]]) -> Batch:
        joint = super()._join(iterators)
        total = joint.pop(self._size_key)
        return {self._data_group: joint, self._size_key: total}
