"""Draws chunks from the store without a lock and without a torn one.

Steps:  eligible slots and their lengths are read, slots and offsets drawn, the chunks copied, and
        the versions read again. Only chunks whose slot changed meanwhile are drawn anew.
Axes:   n = chunks, c = steps of a chunk, S = slots, k = eligible slots.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor

from cadenza.core.errors import NotReadyError
from cadenza.stream.fences import full_fence
from cadenza.stream.slots import IntArray, SlotStore, StreamWords

#: Rounds of drawing anew before a call gives up.
MAX_ROUNDS: Final = 8


@dataclass(frozen=True, slots=True, eq=False)
class Eligible:
    """Slots that a chunk may come from, as they were at one moment.

    Attributes:
        slots: Their numbers, shape (k,).
        lengths: Steps of their episodes, shape (k,).
        versions: Their versions, shape (k,).
    """

    slots: IntArray
    lengths: IntArray
    versions: IntArray


@dataclass(frozen=True, slots=True, eq=False)
class DrawnChunks:
    """Where chunks came from.

    Attributes:
        slots: Shape (n,).
        offsets: First step of each chunk, shape (n,).
        versions: Version of the slot it was copied at, shape (n,).
        redraws: Chunks that were drawn anew.
    """

    slots: IntArray
    offsets: IntArray
    versions: IntArray
    redraws: int = 0


def eligible_slots(store: SlotStore, shortest: int) -> Eligible:
    """Return the published slots with at least ``shortest`` steps."""
    versions = store.version.copy()
    full_fence()
    slots = np.flatnonzero((store.length >= shortest) & (versions & 1 == 0))
    return Eligible(slots, store.length[slots], versions[slots])


class SlotReader:
    """Draws from a store; every process has its own."""

    def __init__(self, store: SlotStore, *, validate: bool = True) -> None:
        """Read ``store``.

        Args:
            store: The store.
            validate: False trusts every copy; only for showing what that would let through.
        """
        self._store = store
        self._validate = validate
        self._change = -1
        self._eligible: dict[int, Eligible] = {}

    def draw(
        self, n: int, c: int, out: Mapping[str, Tensor], generator: torch.Generator
    ) -> DrawnChunks:
        """Copy ``n`` chunks of ``c`` steps into ``out``.

        A slot is drawn uniformly among those with an episode long enough, then an offset uniformly
        among those that fit.

        Args:
            n: Chunks.
            c: Steps of a chunk.
            out: Targets by field name, each contiguous, shape (n, c, ...).
            generator: Source of the draws.

        Raises:
            NotReadyError: No episode is long enough, or slots kept changing while they were copied.
        """
        drawn = self._choose(n, c, generator)
        self._copy(c, drawn, out, None)
        if not self._validate:
            return drawn
        redraws = 0
        for _ in range(MAX_ROUNDS):
            full_fence()
            torn = np.flatnonzero(self._store.version[drawn.slots] != drawn.versions)
            if not len(torn):
                return DrawnChunks(drawn.slots, drawn.offsets, drawn.versions, redraws)
            redraws += len(torn)
            again = self._choose(len(torn), c, generator)
            drawn.slots[torn] = again.slots
            drawn.offsets[torn] = again.offsets
            drawn.versions[torn] = again.versions
            self._copy(c, again, out, torch.as_tensor(torn))
        raise NotReadyError(
            f"SlotReader.draw: expected chunks that stay unchanged for one copy, got slots that "
            f"changed {MAX_ROUNDS} times in a row; give the store more slots."
        )

    def _choose(self, n: int, c: int, generator: torch.Generator) -> DrawnChunks:
        eligible = self._eligible_for(c)
        count = len(eligible.slots)
        if not count:
            raise NotReadyError(
                f"SlotReader.draw: expected an episode of at least {c} steps, got none; collect "
                "more first or draw shorter chunks."
            )
        uniform = torch.rand((2, n), dtype=torch.float64, generator=generator).numpy()
        rows = (uniform[0] * count).astype(np.int64)
        offsets = (uniform[1] * (eligible.lengths[rows] - (c - 1))).astype(np.int64)
        return DrawnChunks(eligible.slots[rows], offsets, eligible.versions[rows])

    def _eligible_for(self, c: int) -> Eligible:
        """Return the eligible slots, looked up once per change of the store."""
        change = int(self._store.words[StreamWords.CHANGES])
        if change != self._change:
            self._eligible.clear()
            self._change = change
        found = self._eligible.get(c)
        if found is None:
            found = self._eligible[c] = eligible_slots(self._store, c)
        return found

    def _copy(
        self, c: int, drawn: DrawnChunks, out: Mapping[str, Tensor], rows: Tensor | None
    ) -> None:
        """Copy the drawn chunks into ``rows`` of every target, or into all of them."""
        for name, target in out.items():
            source = self._store.fields[name]
            per_slot = source.shape[0] // self._store.layout.slots
            starts = torch.as_tensor(drawn.slots * per_slot + drawn.offsets)
            width = source[0].numel()
            # Every window of c entries as one row, overlapping: a chunk is then one copy.
            windows = source.as_strided((source.shape[0] - c + 1, c * width), (width, 1))
            flat = target.view(target.shape[0], c * width)
            if rows is None:
                torch.index_select(windows, 0, starts, out=flat)
            else:
                flat[rows] = windows.index_select(0, starts)
