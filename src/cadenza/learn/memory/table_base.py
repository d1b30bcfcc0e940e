"""Adding episodes to a table, and sampling windows of them.

Axes: n = windows, T = rows per window, B = n T rows, rollout-major (row = window T + t).
"""

import threading
from collections.abc import Mapping, Sequence
from numbers import Integral
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, cast

import torch

from cadenza.core.errors import ConfigurationError, InputError
from cadenza.core.extras import load_extra
from cadenza.core.timing import BlockTimers
from cadenza.learn.memory.arena_places import Storage, place_of
from cadenza.learn.memory.column import Column
from cadenza.learn.memory.core_types import IndexArray, SampleResult
from cadenza.learn.memory.errors import DuplicateEpisodeError
from cadenza.learn.memory.fifo_strategy import FifoEjectionStrategy
from cadenza.learn.memory.gathering import EpisodeContents
from cadenza.learn.memory.sequence_rows import SequenceRows, checked_sequence
from cadenza.learn.memory.strategy import (
    EjectionStrategy,
    SampleStrategy,
    prefers_rows,
    require_free,
    watches_samples,
)
from cadenza.learn.memory.table_layout import TableLayout
from cadenza.learn.memory.uniform_strategy import UniformSampleStrategy

if TYPE_CHECKING:
    from cadenza.learn.memory.adaptors import Adaptor

#: Memory that a new table reserves at once, if its maxlen needs so much; the system provides it
#: page by page as rows are written.
_RESERVED_BYTES: Final = 1 << 28
#: Rows reserved beyond maxlen: states after the last steps, and the hole at the ring's end.
_SPARE_SHARE: Final = 8
_SPARE_ROWS: Final = 64


class EpisodeTable:
    """Adds episodes and samples windows; see `ArrayMemoryTable`, which also saves itself.

    Args:
        columns: What an episode consists of; targets before the virtual columns that read them.
        maxlen: Most transitions to hold; the ejector makes room for more.
        sampler: Chooses windows; `UniformSampleStrategy` if None.
        ejector: Chooses episodes to remove; `FifoEjectionStrategy` if None.
        length_key: Column with one row per transition.
        adaptors: Change each sampled batch, in their order.
        device: Where batches go.
        seed: Root seed of the default strategies; strategies that are passed in have their own.
        name: Name in checkpoints.
        check_finite: Refuse episodes with NaN or infinity, which spoil all weights.
        as_tensordict: Return batches as `tensordict.TensorDict`.
        storage: Where the rows lie: on the ``host``; there, with batches through page-locked
            memory to a CUDA device (``pinned``); or on the ``device``. What is drawn, sampled and
            saved is the same.

    Attributes:
        adaptors: As given; may be changed.

    Raises:
        ConfigurationError: The columns contradict each other, ``maxlen`` is below 1, or a
            strategy follows another table, or there is no such ``storage``.
        DeviceUnavailableError: ``storage`` needs a device that is not there.
        MissingExtraError: ``as_tensordict`` without the extra ``tensordict``.
    """

    def __init__(
        self,
        *,
        columns: Sequence[Column],
        maxlen: int,
        sampler: SampleStrategy | None = None,
        ejector: EjectionStrategy | None = None,
        length_key: str = "actions",
        adaptors: "Sequence[Adaptor] | None" = None,
        device: torch.device | str = "cpu",
        seed: int = 0,
        name: str = "memory",
        check_finite: bool = True,
        as_tensordict: bool = False,
        storage: Storage = "host",
    ) -> None:
        if maxlen < 1:
            raise ConfigurationError(f"maxlen: expected at least 1 transition, got {maxlen}.")
        self.adaptors = list(adaptors or [])
        self._name = name
        self._maxlen = int(maxlen)
        self._device = torch.device(device)
        self._check_finite = check_finite
        self._tensordict = load_extra("tensordict").TensorDict if as_tensordict else None
        self._layout = TableLayout(columns, length_key)
        self._storage: Storage = storage
        self._place = place_of(storage, self._device)
        self._contents = self._new_contents()
        self._gatherer = self._place.gatherer(self._layout, lambda: self._contents)
        self._sampler = UniformSampleStrategy(seed=seed) if sampler is None else sampler
        self._ejector = FifoEjectionStrategy(seed=seed) if ejector is None else ejector
        require_free(self._sampler, "sampler")
        require_free(self._ejector, "ejector")
        self._watchers = [
            strategy for strategy in (self._sampler, self._ejector) if watches_samples(strategy)
        ]
        self._by_rows = prefers_rows(self._sampler)
        self._attach()
        self._filled = False
        self._lock = threading.RLock()
        self._use_timers()

    def _new_contents(self) -> EpisodeContents:
        """Return an empty content that can grow to ``maxlen`` with few moves."""
        contents = self._empty_contents(1)
        wanted = self._maxlen + self._maxlen // _SPARE_SHARE + _SPARE_ROWS
        affordable = max(_RESERVED_BYTES // contents.arena.row_bytes, _SPARE_ROWS)
        return self._empty_contents(min(wanted, affordable))

    def _empty_contents(self, capacity: int) -> EpisodeContents:
        return self._place.contents(self._layout, capacity)

    def _attach(self) -> None:
        self._sampler.attach(self._contents.rows)
        self._ejector.attach(self._contents.rows)

    def _use_timers(self) -> None:
        self._timers = BlockTimers()
        self._time_points = self._timers.scope("points")
        self._time_gather = self._timers.scope("gather")
        self._time_add = self._timers.scope("add_sequence")
        self._time_inner = self._timers.scope("add_sequence_inner")

    @property
    def name(self) -> str:
        """Name in checkpoints."""
        return self._name

    @property
    def columns(self) -> tuple[Column, ...]:
        """All columns, in declared order."""
        return self._layout.columns

    @property
    def length_key(self) -> str:
        """Column with one row per transition."""
        return self._layout.length_key

    @property
    def maxlen(self) -> int:
        """Most transitions to hold."""
        return self._maxlen

    @property
    def device(self) -> torch.device:
        """Where batches go."""
        return self._device

    @property
    def storage(self) -> Storage:
        """Where the rows lie."""
        return self._storage

    @property
    def sampler(self) -> SampleStrategy:
        """Chooses windows."""
        return self._sampler

    @property
    def ejector(self) -> EjectionStrategy:
        """Chooses episodes to remove."""
        return self._ejector

    def timers(self) -> BlockTimers:
        """Return durations of ``points``, ``gather``, ``add_sequence``, ``add_sequence_inner``."""
        return self._timers

    def size(self) -> int:
        """Return the number of stored transitions, at most ``maxlen``."""
        return self._contents.rows.steps

    def full(self) -> bool:
        """Return whether episodes were ejected since the table was made or cleared.

        It does not mean that `size` equals ``maxlen``: whole episodes come and go.
        """
        return self._filled

    def identities(self) -> list[int]:
        """Return the ids of the stored episodes, oldest first."""
        with self._lock:
            return self._contents.rows.identities()

    def episode(self, identity: int) -> dict[str, Any]:
        """Return a copy of the rows of one episode by stored column.

        Raises:
            UnknownEpisodeError: It is not stored.
        """
        with self._lock:
            return {
                name: self._contents.episode(name, identity).copy() for name in self._layout.stored
            }

    def resize(self, new_size: int) -> None:
        """Let the table hold ``new_size`` transitions.

        Raises:
            ConfigurationError: ``new_size`` is below the present ``maxlen``.
        """
        with self._lock:
            if new_size < self._maxlen:
                raise ConfigurationError(
                    f"resize: expected at least the present maxlen {self._maxlen}, got {new_size}; "
                    "make a new table to hold less."
                )
            self._maxlen = int(new_size)

    def clear(self) -> None:
        """Remove every episode, start the timers anew; generators go on."""
        with self._lock:
            for strategy in (self._sampler, self._ejector):
                strategy.drop_all()
            self._contents.rows.clear()
            self._filled = False
            self._use_timers()

    def add_sequence(self, identity: int, sequence: Mapping[str, Any]) -> None:
        """Add a finished episode; old ones go if there is no room.

        Everything is checked before anything changes.

        Args:
            identity: Id that no stored episode has; any integer.
            sequence: Values by column name: L rows, of columns with next values L + 1.

        Raises:
            UnknownColumnError: A key is no column of the table.
            DuplicateEpisodeError: The id is stored already.
            InputError: The id is no integer; a column is missing or has another length, shape or
                type than it should; the episode is longer than ``maxlen``.
        """
        begin = perf_counter()
        key = _checked_identity(identity)
        episode = checked_sequence(self._layout, sequence, finite=self._check_finite)
        with self._lock:
            inner = perf_counter()
            self._require_room(key, episode.steps)
            excess = self._contents.rows.steps + episode.steps - self._maxlen
            if excess > 0:
                self._eject(excess)
            self._write(key, episode)
            end = perf_counter()
        self._time_inner.add(end - inner)
        self._time_add.add(end - begin)

    def _require_room(self, identity: int, steps: int) -> None:
        if steps > self._maxlen:
            raise InputError(
                f"episode {identity}: expected at most maxlen = {self._maxlen} transitions, got "
                f"{steps}; use a larger table, or a MemoryTableProxy with use_terminal, which adds "
                "episodes in parts."
            )
        if identity in self._contents.rows:
            raise DuplicateEpisodeError(
                f"episode {identity}: expected an id that is not stored, got one that is; ids are "
                "used for one episode each."
            )

    def _eject(self, count: int) -> None:
        """Remove episodes with at least ``count`` transitions."""
        rows = self._contents.rows
        ejected = dict.fromkeys(self._ejector.sample(count))
        covered = 0
        for identity in ejected:
            covered += int(rows.slots.steps[rows.slot(identity)])
        if covered < count:
            raise ConfigurationError(
                f"{type(self._ejector).__name__}.sample: expected episodes with {count} "
                f"transitions, got {len(ejected)} with {covered}; correct the strategy."
            )
        self._filled = True
        for identity in ejected:
            self._sampler.forget(identity)
            self._ejector.forget(identity)
            rows.remove(identity)

    def _write(self, identity: int, episode: SequenceRows) -> None:
        """Store a checked episode for which there is room."""
        contents = self._contents
        start = contents.rows.add(identity, episode.steps, usable=episode.usable, rows=episode.rows)
        if episode.extra:
            contents.set_extra(contents.rows.slot(identity), episode.extra)
        arena = contents.arena
        for name, stored in self._layout.stored.items():
            values = episode.values[name]
            count = episode.rows if stored.is_tag else len(values)
            arena.write(name, start, count, values)
        self._sampler.track(identity, episode.steps)
        self._ejector.track(identity, episode.steps)

    def sample(self, count: int, sequence_length: int) -> SampleResult:
        """Return ``count`` windows of ``sequence_length`` consecutive steps of one episode each.

        No two results share memory.

        Args:
            count: Number of windows, n >= 1.
            sequence_length: Steps per window, T >= 1.

        Returns:
            Tensors by column name, of shape (B, *shape), or (n, *shape) for one value per window;
            then what the adaptors make of them.

        Raises:
            InputError: ``count`` or ``sequence_length`` is below 1.
            NoWindowError: No episode is long enough.
        """
        if count < 1 or sequence_length < 1:
            raise InputError(
                "sample: expected at least 1 window of at least 1 step, got "
                f"{count} of {sequence_length}."
            )
        with self._lock:
            with self._time_points:
                starts = self._draw(count, sequence_length)
            with self._time_gather:
                values = self._gatherer.gather(starts, sequence_length)
                values |= self._sampler.annotations(starts, sequence_length)
        result = self._place.deliver(values)
        for adaptor in self.adaptors:
            result = adaptor(result, count, sequence_length)
        if self._tensordict is not None:
            return _as_tensordict(self._tensordict, result, count * sequence_length)
        return result

    def require_window(self, sequence_length: int) -> None:
        """Raise unless there is a window of ``sequence_length`` steps; draws nothing.

        Raises:
            NoWindowError: No episode is long enough.
        """
        with self._lock:
            self._contents.rows.require_windows(sequence_length)

    def _draw(self, count: int, length: int) -> IndexArray:
        """Return the first rows of sampled windows, and tell who watches."""
        if self._by_rows:
            starts = self._sampler.sample_rows(count, length)
        else:
            points = self._sampler.sample(count, length)
            starts = self._contents.rows.rows_of(points, length)
        if len(starts) != count:
            raise ConfigurationError(
                f"{type(self._sampler).__name__}.sample: expected {count} windows, got "
                f"{len(starts)}; correct the strategy."
            )
        for strategy in self._watchers:
            strategy.on_sample_rows(starts, length)
        return starts

    def update_priorities(self, sample_ids: torch.Tensor, priorities: torch.Tensor) -> int:
        """Tell a prioritised sampler how surprising sampled windows were.

        Args:
            sample_ids: ``sample_ids`` of a batch, shape (n,).
            priorities: Non-negative numbers, e.g. absolute TD errors, shape (n,).

        Returns:
            How many windows are still stored; the others are passed over.

        Raises:
            InputError: The shapes differ, or a priority is negative or not finite.
            ConfigurationError: The sampler has no priorities.
        """
        ids = sample_ids.detach().cpu().numpy()
        values = priorities.detach().to("cpu", torch.float64).numpy()
        with self._lock:
            return self._sampler.update_priorities(ids, values)


def _checked_identity(identity: object) -> int:
    """Return ``identity`` as a Python integer.

    Raises:
        InputError: It is none.
    """
    if type(identity) is int:
        return identity
    if isinstance(identity, bool) or not isinstance(identity, Integral):
        raise InputError(f"identity: expected an integer, got {identity!r}.")
    return int(identity)


def _as_tensordict(kind: Any, result: SampleResult, batch: int) -> Any:
    """Return ``result`` with batch size [B], or [] if some values are not one per row."""
    return kind(result, batch_size=[batch] if _all_of_length(result, batch) else [])


def _all_of_length(result: Mapping[str, Any], batch: int) -> bool:
    return all(
        _all_of_length(cast("dict[str, Any]", value), batch)
        if isinstance(value, dict)
        else len(value) == batch
        for value in result.values()
    )
