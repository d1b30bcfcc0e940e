"""A table of whole episodes that samples windows of them.

Start at `ArrayMemoryTable`. Its rows lie in a `RecordArena`, where they lie is in `EpisodeRows`,
and which windows are sampled and which episodes go is for the two strategies to say.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from cadenza.core.errors import CheckpointError, ConfigurationError
from cadenza.learn.load_switches import accepts_other_names
from cadenza.learn.memory.core_types import SampleResult
from cadenza.learn.memory.gathering import EpisodeContents
from cadenza.learn.memory.sequence_rows import require_finite_rows
from cadenza.learn.memory.serialisation import (
    TableSerializationVersion,
    read_snapshot,
    write_snapshot,
)
from cadenza.learn.memory.serialisation_checks import ReadOptions
from cadenza.learn.memory.snapshot import ContentMark, IdPolicy, TableChanges, TableSnapshot
from cadenza.learn.memory.strategy import Strategy
from cadenza.learn.memory.table_base import EpisodeTable
from cadenza.learn.memory.table_state import (
    contents_of,
    contents_state,
    load_contents_state,
    read_field,
    take_snapshot,
)

if TYPE_CHECKING:
    from cadenza.learn.memory.adaptors import Adaptor

__all__ = ["ArrayMemoryTable", "MemoryTable", "TableSerializationVersion"]


class MemoryTable(Protocol):
    """What proxies and loaders need of a table."""

    adaptors: "list[Adaptor]"

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
        """Write everything to ``<path>.zip``."""
        ...

    def restore(self, path: str, override_version: TableSerializationVersion | None = None) -> bool:
        """Replace the content by that of ``<path>.zip``."""
        ...


class ArrayMemoryTable(EpisodeTable):
    """Stores whole episodes and samples windows that never cross an episode's end.

    Thread-safe: any thread may add, sample, store or restore. `EpisodeTable` describes the
    arguments, adding and sampling; here is what saves and loads.
    """

    def store(
        self,
        path: str | Path,
        version: TableSerializationVersion | None = TableSerializationVersion.LATEST,
        *,
        compress: bool = False,
    ) -> bool:
        """Replace ``<path>.zip`` by a file with the whole content; adding goes on meanwhile.

        Args:
            path: File without its extension.
            version: Format; None means the latest.
            compress: Deflate the rows.

        Returns:
            True.

        Raises:
            ConfigurationError: ``version`` is not the latest: others are only read.
            StorageError: The file system refused.
        """
        write_snapshot(self.snapshot(), path, version, compress=compress)
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
        """Replace the content by that of ``<path>.zip``; after an error nothing has changed.

        Args:
            path: File without its extension.
            override_version: Format to assume; None looks into the file.
            allow_pickle: Accept the legacy format, which is a pickle.
            id_policy: ``keep`` the ids of the file, or ``remap`` them to -1, -2, ..., so that
                collectors, which count from 0, never meet them.
            max_unpacked_bytes: Most bytes a compressed file may unpack to; None allows 1 GiB or
                64 times its size on disk, whichever is more.

        Returns:
            True.

        Raises:
            FileNotFoundError: There is no such file.
            IntegrityError: The file is damaged.
            InputError: It holds NaN or infinity; a table with ``check_finite=False`` takes it.
            ConfigurationError: It does not suit the table, or is a pickle and those are not
                allowed.
        """
        options = ReadOptions(
            columns=self.columns,
            length_key=self.length_key,
            maxlen=self._maxlen,
            sampler_type=type(self._sampler).__name__,
            ejector_type=type(self._ejector).__name__,
            allow_pickle=allow_pickle,
            max_unpacked_bytes=max_unpacked_bytes,
        )
        if id_policy not in ("keep", "remap"):
            raise ConfigurationError(f"id_policy: expected 'keep' or 'remap', got {id_policy!r}.")
        snapshot = read_snapshot(path, options, override_version)
        self.load_snapshot(snapshot if id_policy == "keep" else snapshot.with_fresh_identities())
        return True

    def snapshot(self) -> TableSnapshot:
        """Return a copy of the whole content."""
        with self._lock:
            return take_snapshot(self._contents, self._maxlen, self._sampler, self._ejector)

    def changes_since(self, mark: ContentMark | None) -> TableChanges:
        """Return the episodes that came after ``mark``, and which are stored now.

        Args:
            mark: From the changes before; None, or one from before a restore, gives everything.
        """
        with self._lock:
            rows = self._contents.rows
            is_whole = mark is None or mark.place is not rows
            first = 0 if mark is None or is_whole else mark.next_serial
            serials = rows.slots.serial[rows.live_slots()]
            added = take_snapshot(
                self._contents, self._maxlen, self._sampler, self._ejector, first_serial=first
            )
            after = ContentMark(place=rows, next_serial=int(serials.max(initial=first - 1)) + 1)
            return TableChanges(
                added=added,
                added_serials=serials[serials >= first],
                identities=tuple(rows.identities()),
                serials=serials,
                is_whole=is_whole,
                mark=after,
            )

    def load_snapshot(self, snapshot: TableSnapshot) -> None:
        """Replace the content by that of ``snapshot``; after an error nothing has changed.

        The newest episodes that fit are taken. The table keeps its columns, limit, strategies and
        adaptors; strategies of the snapshot's types take over their states.

        Raises:
            ConfigurationError: The snapshot's rows do not suit the columns.
            InputError: They hold NaN or infinity, and the table checks that.
            CheckpointError: The state of a strategy is malformed.
        """
        for name, part in snapshot.stored.items() if self._check_finite else ():
            require_finite_rows(f"{self._name}: column {name!r} of the loaded rows", part.rows)
        contents = contents_of(snapshot, self._layout, self._new_contents, self._maxlen)
        states: list[Mapping[str, Any] | None] = [
            snapshot.sampler_state if _is_type(self._sampler, snapshot.sampler_type) else None,
            snapshot.ejector_state if _is_type(self._ejector, snapshot.ejector_type) else None,
        ]
        with self._lock:
            self._swap(contents, states)
            self._filled = len(contents.rows) < len(snapshot.identities)

    def _swap(self, contents: EpisodeContents, states: Sequence[Mapping[str, Any] | None]) -> None:
        """Put ``contents`` in place and load the strategies, or leave everything as it was."""
        strategies: tuple[Strategy, ...] = (self._sampler, self._ejector)
        before = [strategy.state() for strategy in strategies]
        old = self._contents
        try:
            self._use(contents, states)
        except BaseException:
            self._use(old, before)
            raise

    def _use(self, contents: EpisodeContents, states: Sequence[Mapping[str, Any] | None]) -> None:
        rows = contents.rows
        for strategy, state in zip((self._sampler, self._ejector), states, strict=True):
            strategy.drop_all()
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
                "maxlen": self._maxlen,
                "filled": self._filled,
                "contents": contents_state(self._contents),
                "sampler": self._sampler.state(),
                "ejector": self._ejector.state(),
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

        Args:
            state_dict: What `state_dict` gave, of a table with the same columns.
            load_network: Without effect: a table has no network.
            load_optimizer: Without effect: a table has no optimiser.
            load_hparams: Load at all.

        Raises:
            CheckpointError: It is no such state, or of a table with other columns.
        """
        del load_network, load_optimizer
        if not load_hparams:
            return
        maxlen, filled = (read_field(state_dict, key) for key in ("maxlen", "filled"))
        contents = load_contents_state(
            self._layout, read_field(state_dict, "contents"), self._empty_contents
        )
        if contents.rows.steps > int(maxlen):
            raise CheckpointError(
                f"{self._name}: expected at most maxlen = {maxlen} transitions, got "
                f"{contents.rows.steps}."
            )
        states = [read_field(state_dict, key) for key in ("sampler", "ejector")]
        with self._lock:
            self._swap(contents, states)
            self._maxlen, self._filled = int(maxlen), bool(filled)


def _is_type(strategy: Strategy, name: str) -> bool:
    return type(strategy).__name__ == name
