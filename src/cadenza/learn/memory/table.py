"""A table of whole episodes that samples windows of them.

Start at `ArrayMemoryTable`. Its rows lie in a `RecordArena`, where they lie is in `EpisodeRows`,
and which windows are sampled and which episodes go is for the two strategies to say.

A snapshot, for files, holds the episodes from the oldest to the newest and nothing of their places.
The state for checkpoints also holds the places, since uniform sampling draws places: a table that
loads it samples the same windows as the one that made it.
"""

import logging
import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from numbers import Integral
from pathlib import Path
from typing import Any, Final, Protocol, runtime_checkable

import torch

from cadenza.core.errors import (
    CheckpointError,
    ConfigurationError,
    InputError,
    refuse,
)
from cadenza.core.timing import BlockTimers
from cadenza.learn.callback import accepts_other_names
from cadenza.learn.loaded_state import complete_state
from cadenza.learn.memory.adaptors import Adaptor
from cadenza.learn.memory.column import (
    Column,
    IndexArray,
    SampleResult,
    TableLayout,
    checked_sequence,
    from_numpy,
)
from cadenza.learn.memory.files import (
    IdPolicy,
    TableChanges,
    TableSnapshot,
    contents_of,
    contents_state,
    load_contents_state,
    take_changes,
    write_snapshot,
)
from cadenza.learn.memory.loading import TableSerializationVersion, read_snapshot
from cadenza.learn.memory.ring import EpisodeContents
from cadenza.learn.memory.strategy import (
    EjectionStrategy,
    FifoEjectionStrategy,
    SampleStrategy,
    Strategy,
    UniformSampleStrategy,
    prefers_rows,
)

_LOGGER = logging.getLogger(__name__)

#: Memory that a new table reserves at once, if its maxlen needs so much; the system provides it
#: page by page as rows are written.
_RESERVED_BYTES: Final = 1 << 28
#: Stands in for a timer while nobody has asked for durations.
_UNTIMED: Final = nullcontext()
#: Rows reserved beyond maxlen: states after the last steps, and the hole at the ring's end.
_SPARE_SHARE: Final = 8
_SPARE_ROWS: Final = 64


@runtime_checkable
class MemoryTable(Protocol):
    """What proxies and loaders need of a table."""

    adaptors: list[Adaptor]

    def sample(self, count: int, sequence_length: int) -> SampleResult:
        """Return ``count`` windows of ``sequence_length`` steps, column by column."""
        ...

    def size(self) -> int:
        """Return the number of stored transitions."""
        ...

    def full(self) -> bool:
        """Return whether adding may eject."""
        ...

    def add_sequence(self, identity: int, sequence: Mapping[str, Any]) -> None:
        """Add a finished episode."""
        ...

    def store(
        self, path: str, version: TableSerializationVersion = TableSerializationVersion.LATEST
    ) -> bool:
        """Write everything to the file at ``path``, to which an ending is added."""
        ...

    def restore(self, path: str, override_version: TableSerializationVersion | None = None) -> bool:
        """Replace the content by that of the file at ``path``."""
        ...


class ArrayMemoryTable:
    """Stores whole episodes and samples windows that never cross an episode's end.

    Thread-safe: any thread may add, sample, store or restore.

    Args:
        maxlen: Most transitions to hold; the ejector makes room for more.
        sampler: Chooses windows; `UniformSampleStrategy` if None.
        ejector: Chooses episodes to remove; `FifoEjectionStrategy` if None.
        seed: Root seed of the default strategies; strategies that are passed in have their own.
        check_finite: Refuse episodes with NaN or infinity, which spoil all weights.

    Raises:
        ConfigurationError: The columns contradict each other, ``maxlen`` is below 1, or a
            strategy follows another table.
    """

    def __init__(
        self,
        *,
        columns: Sequence[Column],
        maxlen: int,
        sampler: SampleStrategy | None = None,
        ejector: EjectionStrategy | None = None,
        length_key: str = "actions",
        adaptors: Sequence[Adaptor] | None = None,
        device: torch.device | str = "cpu",
        seed: int = 0,
        name: str = "memory",
        check_finite: bool = True,
    ) -> None:
        if maxlen < 1:
            refuse(ConfigurationError, "maxlen", expected="at least 1 transition", got=maxlen)
        self.adaptors: list[Adaptor] = list(adaptors or [])
        #: Name in messages.
        self.name: str = name
        #: Most transitions to hold; see `resize`.
        self.maxlen: int = int(maxlen)
        #: Where batches go.
        self.device: torch.device = torch.device(device)
        self._check_finite = check_finite
        self._layout = TableLayout(columns, length_key)
        #: All columns, in declared order.
        self.columns: Final[tuple[Column, ...]] = self._layout.columns
        #: Column with one row per transition.
        self.length_key: Final = length_key
        self._contents = self._new_contents()
        #: Chooses windows.
        self.sampler: Final[SampleStrategy] = (
            UniformSampleStrategy(seed=seed) if sampler is None else sampler
        )
        #: Chooses episodes to remove.
        self.ejector: Final[EjectionStrategy] = (
            FifoEjectionStrategy(seed=seed) if ejector is None else ejector
        )
        self._strategies: tuple[Strategy, ...] = (self.sampler, self.ejector)
        for role, strategy in zip(("sampler", "ejector"), self._strategies, strict=True):
            if strategy.attached:
                own, got = f"the table's own {role}", "one that follows another table"
                refuse(ConfigurationError, "ArrayMemoryTable", expected=own, got=got)
            strategy.attach(self._contents.rows)
        self._by_rows = prefers_rows(self.sampler)
        self._watchers = [strategy for strategy in self._strategies if strategy.watches_samples()]
        self._filled = False
        self._lock = threading.RLock()
        self._timers: BlockTimers | None = None

    def _new_contents(self) -> EpisodeContents:
        """Return an empty content that can grow to ``maxlen`` with few moves."""
        contents = self._empty_contents(1)
        wanted = self.maxlen + self.maxlen // _SPARE_SHARE + _SPARE_ROWS
        affordable = max(_RESERVED_BYTES // contents.arena.row_bytes, _SPARE_ROWS)
        return self._empty_contents(min(wanted, affordable))

    def _empty_contents(self, capacity: int) -> EpisodeContents:
        return EpisodeContents(self._layout, capacity)

    def timers(self) -> BlockTimers:
        """Return durations of ``points``, ``gather``, ``add_sequence``, ``add_sequence_inner``.

        They are measured from the first call on.
        """
        if self._timers is None:
            self._timers = BlockTimers()
        return self._timers

    def _timed(self, name: str) -> AbstractContextManager[Any]:
        return _UNTIMED if self._timers is None else self._timers.scope(name)

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
            UnknownKeyError: It is not stored.
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
            if new_size < self.maxlen:
                wanted = f"at least the present maxlen {self.maxlen}"
                do = "make a new table to hold less"
                refuse(ConfigurationError, "resize", expected=wanted, got=new_size, do=do)
            self.maxlen = int(new_size)

    def clear(self) -> None:
        """Remove every episode, start the timers anew; generators go on."""
        with self._lock:
            for strategy in self._strategies:
                strategy.clear()
            self._contents.rows.clear()
            self._filled = False
            self._timers = self._timers and BlockTimers()

    def add_sequence(self, identity: int, sequence: Mapping[str, Any]) -> None:
        """Add a finished episode; old ones go if there is no room.

        Everything is checked before anything changes. Columns have L rows, of those with next
        values L + 1.

        Raises:
            UnknownKeyError: A key is no column of the table.
            PreconditionError: The id is stored already.
            InputError: The id is no integer; a column is missing or has another length, shape or
                type than it should; the episode is longer than ``maxlen``.
        """
        with self._timed("add_sequence"):
            key = _checked_identity(identity)
            episode = checked_sequence(self._layout, sequence, finite=self._check_finite)
            with self._lock, self._timed("add_sequence_inner"):
                self._require_room(key, episode.steps)
                excess = self._contents.rows.steps + episode.steps - self.maxlen
                if excess > 0:
                    self._eject(excess)
                self._contents.add(key, episode)
                for strategy in self._strategies:
                    strategy.track(key, episode.steps)

    def _require_room(self, identity: int, steps: int) -> None:
        if steps > self.maxlen:
            most = f"at most maxlen = {self.maxlen} transitions"
            do = "use a larger table, or a MemoryTableProxy with use_terminal, which adds parts"
            refuse(InputError, f"episode {identity}", expected=most, got=steps, do=do)
        self._contents.rows.require_new(identity)

    def _eject(self, count: int) -> None:
        """Remove episodes with at least ``count`` transitions."""
        rows = self._contents.rows
        ejected = dict.fromkeys(self.ejector.sample(count))
        covered = sum(int(rows.slots.steps[rows.slot(identity)]) for identity in ejected)
        if covered < count:
            where = f"{type(self.ejector).__name__}.sample"
            wanted, got = f"episodes with {count} transitions", f"{len(ejected)} with {covered}"
            do = "correct the strategy"
            refuse(ConfigurationError, where, expected=wanted, got=got, do=do)
        self._filled = True
        for identity in ejected:
            for strategy in self._strategies:
                strategy.forget(identity)
            rows.remove(identity)

    def sample(self, count: int, sequence_length: int) -> SampleResult:
        """Return ``count`` windows of ``sequence_length`` consecutive steps of one episode each.

        Tensors by column are (B, *shape), or (n, *shape) for one value per window; then the
        adaptors change them. No two results share memory.

        Raises:
            InputError: ``count`` or ``sequence_length`` is below 1.
            NoWindowError: No episode is long enough.
        """
        if count < 1 or sequence_length < 1:
            wanted, got = "at least 1 window of at least 1 step", f"{count} of {sequence_length}"
            refuse(InputError, "sample", expected=wanted, got=got)
        with self._lock:
            with self._timed("points"):
                starts = self._draw(count, sequence_length)
            with self._timed("gather"):
                values = self._contents.gather(starts, sequence_length)
                values |= self.sampler.annotations(starts, sequence_length)
        result = {name: from_numpy(array) for name, array in values.items()}
        if self.device.type != "cpu":
            result = {name: tensor.to(self.device) for name, tensor in result.items()}
        for adaptor in self.adaptors:
            result = adaptor(result, count, sequence_length)
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
            starts = self.sampler.sample_rows(count, length)
        else:
            starts = self._contents.rows.rows_of(self.sampler.sample(count, length), length)
        if len(starts) != count:
            where, do = f"{type(self.sampler).__name__}.sample", "correct the strategy"
            wanted = f"{count} windows"
            refuse(ConfigurationError, where, expected=wanted, got=len(starts), do=do)
        for strategy in self._watchers:
            strategy.on_sample_rows(starts, length)
        return starts

    def update_priorities(self, sample_ids: torch.Tensor, priorities: torch.Tensor) -> int:
        """Tell a prioritised sampler how surprising windows with these ids, (n,), were.

        Return how many are still stored; the others are passed over.

        Raises:
            InputError: The shapes differ, or a priority is negative or not finite.
            ConfigurationError: The sampler has no priorities.
        """
        ids = sample_ids.detach().cpu().numpy()
        values = priorities.detach().to("cpu", torch.float64).numpy()
        with self._lock:
            return self.sampler.update_priorities(ids, values)

    def store(
        self,
        path: str | Path,
        version: TableSerializationVersion | None = TableSerializationVersion.LATEST,
        *,
        compress: bool = False,
    ) -> bool:
        """Replace ``<path>.safetensors`` by the whole content; adding goes on meanwhile.

        With ``compress``, ``<path>.zip`` holds the same file, deflated.

        Raises:
            ConfigurationError: ``version`` is not the latest: others are only read.
            StorageError: The file system refused.
        """
        if version not in (None, TableSerializationVersion.LATEST):
            wanted, do = "V3 to write a memory", "the others are only read"
            refuse(ConfigurationError, "version", expected=wanted, got=f"{version}", do=do)
        write_snapshot(self.snapshot(), path, compress=compress)
        return True

    def restore(
        self,
        path: str | Path,
        override_version: TableSerializationVersion | None = None,
        *,
        allow_pickle: bool = False,
        id_policy: IdPolicy = "keep",
        max_unpacked_bytes: int | None = None,
    ) -> bool:
        """Replace the content by that of a stored memory; after an error nothing has changed.

        Args:
            path: File without its ending; ``.safetensors`` comes before ``.zip``.
            override_version: Format of a zip file to assume; None looks into the file.
            allow_pickle: Accept the legacy format, which is a pickle.
            id_policy: ``keep`` the ids of the file, or ``remap`` them to -1, -2, ..., so that
                collectors, which count from 0, never meet them.
            max_unpacked_bytes: Most bytes that a compressed file may unpack to; None allows 1 GiB
                or 64 times its size on disk, whichever is more.

        Raises:
            FileNotFoundError: There is no such file.
            IntegrityError: The file is damaged.
            InputError: It holds NaN or infinity; a table with ``check_finite=False`` takes it.
            ConfigurationError: It does not suit the table, or is a pickle that is not allowed.
        """
        if id_policy not in ("keep", "remap"):
            got = repr(id_policy)
            refuse(ConfigurationError, "id_policy", expected="'keep' or 'remap'", got=got)
        snapshot = read_snapshot(
            path,
            self._layout,
            self.maxlen,
            override_version,
            allow_pickle=allow_pickle,
            max_unpacked_bytes=max_unpacked_bytes,
        )
        self._warn_about_settings(path, snapshot)
        self.load_snapshot(snapshot if id_policy == "keep" else snapshot.with_fresh_identities())
        return True

    def _warn_about_settings(self, path: str | Path, snapshot: TableSnapshot) -> None:
        """Log one warning for each setting of a file that differs and that the table keeps."""
        pairs: dict[str, tuple[Any, Any]] = {
            f"type of column {column.name!r}": (
                type(column).__name__,
                snapshot.columns.get(column.name, {}).get("kind", ""),
            )
            for column in self.columns
        }
        pairs["ejector type"] = (type(self.ejector).__name__, snapshot.ejector_type)
        pairs["sampler type"] = (type(self.sampler).__name__, snapshot.sampler_type)
        pairs["length key"] = (self.length_key, snapshot.length_key)
        pairs["maxlen"] = (self.maxlen, snapshot.maxlen)
        for what, (own, theirs) in pairs.items():
            if theirs not in (own, ""):
                _LOGGER.warning(
                    "%s: %s of the table is %s, of the file %s; the table keeps its own, which may "
                    "lead to unexpected behavior",
                    path,
                    what,
                    own,
                    theirs,
                )

    def snapshot(self) -> TableSnapshot:
        """Return a copy of the whole content."""
        return self.changes_since(None, 0)[1].added

    def changes_since(self, mark: object, next_serial: int) -> tuple[object, TableChanges]:
        """Return a mark of the present content, and the episodes from ``next_serial`` on.

        All of them come if ``mark`` is not that of the present content, e.g. None.
        """
        with self._lock:
            place = self._contents.rows
            first = next_serial if mark is place else 0
            return place, take_changes(self._contents, self.maxlen, self._strategies, first)

    def load_snapshot(self, snapshot: TableSnapshot) -> None:
        """Replace the content by that of ``snapshot``; after an error nothing has changed.

        The newest episodes that fit are taken. The table keeps its columns, limit, strategies and
        adaptors; strategies of the snapshot's types take over their states.

        Raises:
            ConfigurationError: The snapshot's rows do not suit the columns.
            InputError: They hold NaN or infinity, and the table checks that.
            CheckpointError: The state of a strategy is malformed.
        """
        contents = contents_of(
            snapshot, self._layout, self._new_contents, self.maxlen, finite=self._check_finite
        )
        saved = (
            (snapshot.sampler_type, snapshot.sampler_state),
            (snapshot.ejector_type, snapshot.ejector_state),
        )
        states = [
            state if type(strategy).__name__ == kind else None
            for strategy, (kind, state) in zip(self._strategies, saved, strict=True)
        ]
        with self._lock:
            self._swap(contents, states)
            self._filled = len(contents.rows) < len(snapshot.identities)

    def _swap(self, contents: EpisodeContents, states: Sequence[Mapping[str, Any] | None]) -> None:
        """Put ``contents`` in place and load the strategies, or leave everything as it was."""
        before, old = [strategy.state() for strategy in self._strategies], self._contents
        try:
            self._use(contents, states)
        except BaseException:
            self._use(old, before)
            raise

    def _use(self, contents: EpisodeContents, states: Sequence[Mapping[str, Any] | None]) -> None:
        rows = contents.rows
        for strategy, state in zip(self._strategies, states, strict=True):
            strategy.clear()
            strategy.attach(rows)
            strategy.begin_simple_import()
            if state is not None:
                strategy.load_state(state)
            for identity in rows.identities():
                strategy.track(identity, int(rows.slots.steps[rows.slot(identity)]))
            strategy.end_simple_import()
        self._contents = contents

    def state_dict(self) -> dict[str, Any]:
        """Return content, layout and strategies, so that sampling goes on exactly as it would."""
        with self._lock:
            return {
                "maxlen": self.maxlen,
                "filled": self._filled,
                "contents": contents_state(self._contents),
                "sampler": self.sampler.state(),
                "ejector": self.ejector.state(),
            }

    @accepts_other_names
    def load_state_dict(
        self,
        state_dict: Mapping[str, Any],
        load_network: bool = True,
        load_optimizer: bool = True,
        load_hparams: bool = True,
    ) -> None:
        """Go on where `state_dict` was taken; after an error nothing has changed.

        It is of a table with the same columns; without ``load_hparams`` nothing is loaded.

        Raises:
            CheckpointError: It is no such state, or of a table with other columns.
        """
        del load_network, load_optimizer
        if not load_hparams:
            return
        with complete_state(self.name, "a memory table"):
            maxlen, filled = int(state_dict["maxlen"]), bool(state_dict["filled"])
            states = [state_dict["sampler"], state_dict["ejector"]]
            contents = load_contents_state(
                self._layout, state_dict["contents"], self._empty_contents
            )
        if contents.rows.steps > maxlen:
            most = f"at most maxlen = {maxlen} transitions"
            refuse(CheckpointError, self.name, expected=most, got=contents.rows.steps)
        with self._lock:
            self._swap(contents, states)
            self.maxlen, self._filled = maxlen, filled


def _checked_identity(identity: object) -> int:
    """Return ``identity`` as a Python integer."""
    if type(identity) is int:
        return identity
    if isinstance(identity, bool) or not isinstance(identity, Integral):
        refuse(InputError, "identity", expected="an integer", got=repr(identity))
    return int(identity)
