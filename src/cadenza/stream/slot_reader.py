"""Draws chunks from the store without a lock and without a torn one.

Steps:  windows are chosen, copied, and the versions of their slots read again. Only chunks whose
        slot changed meanwhile are drawn anew.
Axes:   n = chunks, c = steps of a chunk.
"""

import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from cadenza.core.errors import DataPendingError, InputError, StaleDataError
from cadenza.stream.chunk_copy import copy_chunks, overhanging_steps, validity
from cadenza.stream.draw_options import DEFAULT_OPTIONS, DrawOptions
from cadenza.stream.fences import full_fence
from cadenza.stream.slots import IntArray, SlotStore
from cadenza.stream.windows import Picked, WindowTable

#: Rounds of drawing anew before a call gives up. Most of them copy one chunk at a time, which only
#: a reader that loses its processor in the middle of each does not get done.
MAX_ROUNDS: Final = 64
#: Window tables that a reader keeps, one per chunk size and options, latest used.
KEPT_TABLES: Final = 16


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class DrawnChunks:
    """Where chunks came from.

    Attributes:
        slots: Shape (n,).
        offsets: First step of each chunk, shape (n,); negative where it hangs over the beginning.
        versions: Version of the slot it was copied at, shape (n,).
        bounds: First step of its run and the step after the last, shape (n, 2).
        written_at_ns: When its episode was published, ns since 1970, shape (n,).
        policy_versions: Version of the policy that acted, shape (n,).
        mask: True where a step lies in the run, shape (n, c); None when all do.
        redraws: Chunks that were drawn anew.
        excluded: Share of the runs that nothing is drawn from because they are too short.
    """

    slots: IntArray
    offsets: IntArray
    versions: IntArray
    bounds: IntArray
    written_at_ns: IntArray
    policy_versions: IntArray
    mask: Tensor | None = None
    redraws: int = 0
    excluded: float = 0.0


class _Tables(threading.local):
    """Window tables of one thread, latest used last.

    A table is renewed in place. Threads that shared one could choose a window of an episode and
    check its chunk against the version of the next.
    """

    def __init__(self) -> None:
        self.kept: OrderedDict[tuple[int, DrawOptions], WindowTable] = OrderedDict()


class SlotReader:
    """Draws from a store; every process has its own, which its threads may share."""

    def __init__(self, store: SlotStore, *, validate: bool = True) -> None:
        """Read ``store``.

        Args:
            store: The store.
            validate: False trusts every copy; only for showing what that would let through.
        """
        self._store = store
        self._validate = validate
        self._tables = _Tables()

    def __getstate__(self) -> dict[str, Any]:
        """Return what a reader of another process needs; tables are made anew."""
        return {"store": self._store, "validate": self._validate}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Read in a new process."""
        self.__init__(state["store"], validate=state["validate"])

    def draw(
        self,
        n: int,
        c: int,
        out: Mapping[str, Tensor],
        generator: torch.Generator,
        options: DrawOptions = DEFAULT_OPTIONS,
    ) -> DrawnChunks:
        """Copy ``n`` chunks of ``c`` steps into ``out``.

        Args:
            n: Chunks, at least 1.
            c: Steps of a chunk, 1 to as many as a slot holds.
            out: Targets by key, see `Batches.targets`, which checks them; shape (n, c, ...).
            generator: Source of the draws.
            options: Distribution of the chunks.

        Raises:
            InputError: An episode is too short and the options refuse that.
            DataPendingError: No episode is long enough, or slots kept changing meanwhile.
        """
        table = self._table(c, options)
        table.refresh()
        picked = table.pick(n, generator, np.zeros(0, np.int64))
        copy_chunks(self._store, c, picked, out, None)
        if not self._validate:
            return _drawn(c, picked, 0, table, options)
        torn, redraws, attempt = self._changed(picked), 0, 0
        while len(torn) and attempt < MAX_ROUNDS:
            redraws, attempt = redraws + len(torn), attempt + 1
            # Ever fewer at a time: a writer that replaces every slot while many chunks are
            # copied cannot do so while one is.
            size = max(n >> attempt, 1)
            pieces = [torn[at : at + size] for at in range(0, len(torn), size)]
            torn = np.concatenate(
                [self._redraw(c, piece, picked, table, out, generator) for piece in pieces]
            )
        if len(torn):
            raise DataPendingError(
                "SlotReader.draw: expected chunks that stay unchanged for one copy, got slots that "
                f"changed {MAX_ROUNDS} times in a row; give the store more slots."
            )
        return _drawn(c, picked, redraws, table, options)

    def look(self, c: int, options: DrawOptions = DEFAULT_OPTIONS) -> None:
        """Find out in which slots there are chunks of ``c`` steps, and note it in the store."""
        self._table(c, options).refresh()

    def draw_at(
        self,
        slots: IntArray,
        versions: IntArray,
        offsets: IntArray,
        c: int,
        out: Mapping[str, Tensor],
        bounds: IntArray | None = None,
    ) -> DrawnChunks:
        """Copy the chunks of an earlier draw once more.

        Args:
            slots: Shape (n,), as `DrawnChunks` has them; so are the next two.
            versions: Shape (n,).
            offsets: Shape (n,).
            c: Steps of a chunk.
            out: Targets by key, as for `draw`.
            bounds: Runs of the chunks, shape (n, 2); None for whole episodes.

        Raises:
            InputError: A number is out of range.
            StaleDataError: An episode was replaced since.
        """
        store = self._store
        if len(slots) and not 0 <= slots.min() <= slots.max() < store.layout.slots:
            raise InputError(
                f"SlotReader.draw_at: expected slots in [0, {store.layout.slots}), got "
                f"{slots.min()} to {slots.max()}."
            )
        lengths = store.length[slots]
        if bounds is None:
            bounds = np.stack((np.zeros_like(lengths), lengths), axis=1)
        written, policies = store.written_at_ns[slots], store.policy_version[slots]
        picked = Picked(slots, offsets, versions, bounds, written, policies)
        self._refuse_stale(picked)
        covers = (offsets + c > bounds[:, 0]) & (offsets < bounds[:, 1])
        inside = (bounds[:, 0] >= 0) & (bounds[:, 1] <= lengths)
        if not np.all(covers & inside):
            raise InputError(
                "SlotReader.draw_at: expected chunks that cover a step of their run, got "
                f"{np.count_nonzero(~(covers & inside))} that do not."
            )
        copy_chunks(store, c, picked, out, None)
        self._refuse_stale(picked)
        return DrawnChunks(**picked._asdict(), mask=_mask(c, picked))

    def _table(self, c: int, options: DrawOptions) -> WindowTable:
        """Return this thread's windows of a chunk size; the tables used last are kept."""
        key, kept = (c, options), self._tables.kept
        table = kept.pop(key, None) or WindowTable(self._store, c, options)
        kept[key] = table
        if len(kept) > KEPT_TABLES:
            kept.popitem(last=False)
        return table

    def _redraw(
        self,
        c: int,
        rows: IntArray,
        picked: Picked,
        table: WindowTable,
        out: Mapping[str, Tensor],
        generator: torch.Generator,
    ) -> IntArray:
        """Draw and copy the chunks ``rows`` anew; return those that changed again."""
        table.refresh()
        again = table.pick(len(rows), generator, np.delete(picked.slots, rows))
        for kept, new in zip(picked, again, strict=True):
            kept[rows] = new
        copy_chunks(self._store, c, again, out, torch.as_tensor(rows))
        return rows[self._changed(again)]

    def _changed(self, picked: Picked) -> IntArray:
        """Return which chunks were not copied from the version they were chosen at."""
        full_fence()
        return np.flatnonzero(self._store.version[picked.slots] != picked.versions)

    def _refuse_stale(self, picked: Picked) -> None:
        changed = self._changed(picked)
        if len(changed):
            raise StaleDataError(
                f"SlotReader.draw_at: expected {len(picked.slots)} chunks as they were drawn, got "
                f"{len(changed)} from episodes replaced since; replay earlier, or give the store "
                "more slots."
            )


def _mask(c: int, picked: Picked) -> Tensor | None:
    if overhanging_steps(c, picked) is None:
        return None
    return torch.as_tensor(validity(c, picked))


def _drawn(
    c: int, picked: Picked, redraws: int, table: WindowTable, options: DrawOptions
) -> DrawnChunks:
    excluded = 0.0 if options.short == "pad" else table.too_short
    mask = _mask(c, picked) if options.may_mask else None
    return DrawnChunks(**picked._asdict(), mask=mask, redraws=redraws, excluded=excluded)
