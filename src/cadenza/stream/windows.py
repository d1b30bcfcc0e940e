"""Which windows a store holds at a moment, kept up to date, and drawing from them.

A table holds intervals of offsets for every slot. A look at the store costs one comparison of the
versions; only slots that changed are read again. Drawing n windows then costs O(n), or O(n log S)
with weights.

Axes:  n = chunks, c = steps of a chunk, S = slots, K = intervals of a slot, x = changed slots.
"""

from typing import Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cadenza.core.errors import DataPendingError, InputError
from cadenza.stream.draw_options import PADDING, DrawOptions
from cadenza.stream.layout import MAX_SEGMENTS
from cadenza.stream.shared_file import full_fence
from cadenza.stream.slots import IntArray, SlotStore

_Ints = NDArray[np.int32]

#: Version of a slot whose windows are not known; no slot has it.
_UNREAD: Final = -1


class DrawnChunks(NamedTuple):
    """Windows, and what was known of their slots when they were chosen.

    Attributes:
        slots: Shape (n,), like all but the bounds.
        offsets: First step of each; negative where a window hangs over the beginning.
        versions: Version of the slot it was copied at.
        bounds: First step of its run and the step after the last, shape (n, 2).
        written_at_ns: When its episode was published, ns since 1970.
        policy_versions: Version of the policy that acted.
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


class WindowTable:
    """Windows of ``c`` steps of a store, under given options; for one thread.

    Attributes:
        too_short: Share of the runs that are shorter than a chunk.
    """

    def __init__(self, store: SlotStore, c: int, options: DrawOptions) -> None:
        options.check_chunk(c)
        self._store = store
        self._c = c
        self._options = options
        slots = store.layout.slots
        columns = {"episode": 1, "segment": MAX_SEGMENTS, "boundary": 2 * MAX_SEGMENTS}
        runs = MAX_SEGMENTS if options.sampling_mode == "segment" else 1
        shape = (slots, columns[options.sampling_mode])
        self._versions = np.full(slots, _UNREAD, np.int64)
        self._first = np.zeros(shape, np.int32)
        self._count = np.zeros(shape, np.int32)
        self._runs = np.zeros((slots, runs, 2), np.int32)
        self._windows = np.zeros(slots, np.int64)
        self._short = np.zeros(slots, np.int64)
        self._all = np.zeros(slots, np.int64)
        self._written_at = np.zeros(slots, np.int64)
        self._policy_versions = np.zeros(slots, np.int64)
        self._rows = np.zeros(0, np.int64)
        self._sums = np.zeros(0, np.int64)
        self.too_short: float = 0.0

    def refresh(self) -> None:
        """Read the slots that changed since the last call.

        The versions are noted last: what a call that did not come to its end has changed, the next
        one reads again.
        """
        versions = self._store.version.copy()
        full_fence()
        changed = np.flatnonzero(versions != self._versions)
        if not len(changed):
            return
        self._versions[changed] = _UNREAD
        self._read(changed, versions[changed] & 1 == 0)
        self._rows = np.flatnonzero(self._windows)
        self._sums = np.cumsum(self._windows[self._rows])
        self.too_short = int(self._short.sum()) / max(int(self._all.sum()), 1)
        self._store.note_windows(changed, versions[changed], self._windows[changed])
        self._versions = versions

    def pick(self, n: int, generator: torch.Generator, taken: IntArray) -> DrawnChunks:
        """Draw ``n`` windows; strata take last the slots that this call has ``taken`` already.

        Raises:
            DataPendingError: There is no window.
            InputError: A run is too short and the options refuse that.
        """
        self._check()
        if self._options.weighting == "episode":
            uniform = torch.rand((2, n), dtype=torch.float64, generator=generator).numpy()
            if self._options.stratified:
                slots = self._stratified(n, generator, taken)
            else:
                slots = self._rows[(uniform[0] * len(self._rows)).astype(np.int64)]
            within = (uniform[1] * self._windows[slots]).astype(np.int64)
        else:
            uniform = torch.rand(n, dtype=torch.float64, generator=generator).numpy()
            position = (uniform * self._sums[-1]).astype(np.int64)
            row = np.asarray(np.searchsorted(self._sums, position, side="right"), np.int64)
            slots = self._rows[row]
            within = position - (self._sums[row] - self._windows[slots])
        return self._locate(slots, within)

    def _check(self) -> None:
        mode, c = self._options.sampling_mode, self._c
        run = "segment" if mode == "segment" else "episode"
        if self._options.short == "error" and self.too_short:
            raise InputError(
                f"SlotReader.draw: expected every {run} to have at least {c} steps, "
                f"got {self.too_short:.1%} shorter ones; draw shorter chunks, or choose "
                "short='exclude' or 'pad'."
            )
        if not len(self._rows):
            wanted = {
                "episode": f"an episode of at least {c} steps",
                "segment": f"a segment of at least {c} steps",
                "boundary": f"an episode of at least {c} steps with a change of segment",
            }
            success = self._options.success
            judged = {None: "", True: ", of one that succeeded", False: ", of one that failed"}
            raise DataPendingError(
                f"SlotReader.draw: expected {wanted[mode]}{judged[success]}, got none "
                f"(sampling_mode {mode!r}, chunk size {c}); collect more first or draw "
                "shorter chunks."
            )

    def _stratified(self, n: int, generator: torch.Generator, taken: IntArray) -> IntArray:
        """Return ``n`` slots: every row once, in random order, before one comes again."""
        times = np.bincount(taken, minlength=len(self._windows))[self._rows]
        drawn: list[IntArray] = []
        left = n
        while left:
            fewest = np.flatnonzero(times == times.min())
            order = torch.randperm(len(fewest), generator=generator).numpy()[:left]
            rows = fewest[order]
            times[rows] += 1
            drawn.append(self._rows[rows])
            left -= len(rows)
        return np.concatenate(drawn)

    def _locate(self, slots: IntArray, within: IntArray) -> DrawnChunks:
        """Return the window with number ``within`` of every slot."""
        if self._first.shape[1] == 1:
            column = 0
            offsets = self._first[slots, 0] + within
        else:
            ends = np.cumsum(self._count[slots], axis=1)
            column = np.count_nonzero(ends <= within[:, None], axis=1)
            before = ends[np.arange(len(slots)), column] - self._count[slots, column]
            offsets = self._first[slots, column] + within - before
        run = column if self._runs.shape[1] > 1 else 0
        return DrawnChunks(
            slots,
            offsets,
            self._versions[slots],
            self._runs[slots, run].astype(np.int64),
            self._written_at[slots],
            self._policy_versions[slots],
        )

    def _read(self, slots: IntArray, published: NDArray[np.bool_]) -> None:
        """Renew the rows of ``slots``; those in writing get no window.

        A slot that changes meanwhile gives numbers that do not fit together, but each of them is
        one that some episode had, so that no window leaves the slot; its version gives it away.
        """
        store = self._store
        self._written_at[slots] = store.written_at_ns[slots]
        self._policy_versions[slots] = store.policy_version[slots]
        if self._options.success is not None:
            published = published & (store.success[slots] == int(self._options.success))
        lengths = np.where(published, store.length[slots], 0).astype(np.int32)
        if self._options.sampling_mode == "episode":
            runs = _whole(lengths)
            first, count = self._intervals(runs)
        elif self._options.sampling_mode == "segment":
            runs = _segments(store, slots, lengths)
            first, count = self._intervals(runs)
        else:
            runs = _whole(lengths)
            first, count = self._boundaries(_segments(store, slots, lengths), lengths)
        self._runs[slots] = runs
        self._first[slots] = first
        self._count[slots] = count
        self._windows[slots] = count.sum(axis=1)
        sizes = runs[..., 1] - runs[..., 0]
        self._all[slots] = np.count_nonzero(sizes > 0, axis=1)
        self._short[slots] = np.count_nonzero((sizes > 0) & (sizes < self._c), axis=1)

    def _intervals(self, runs: _Ints) -> tuple[_Ints, _Ints]:
        """Return first offset and number of windows of every run, each (x, K)."""
        begins, lengths = runs[..., 0], runs[..., 1] - runs[..., 0]
        takes_part = lengths > 0 if self._options.short in PADDING else lengths >= self._c
        if self._options.weighting == "step":
            first = begins - np.int32(self._c - 1)
            return first, np.where(takes_part, lengths + np.int32(self._c - 1), 0)
        if self._options.short == "pad_end":
            return begins, lengths
        return begins, np.where(takes_part, np.maximum(lengths - np.int32(self._c - 1), 1), 0)

    def _boundaries(self, segments: _Ints, lengths: _Ints) -> tuple[_Ints, _Ints]:
        """Return the offsets whose window has a change of segment inside, each (x, 2 K).

        With a change before step b these are b - c + 1 ... b - 1; what an earlier change already
        gives is left out, so that every window counts once.
        """
        c, end = np.int32(self._c), lengths[:, None]
        edges = np.sort(np.where(segments > 0, segments, end[..., None]).reshape(len(end), -1))
        before = np.concatenate((np.zeros_like(end), edges[:, :-1]), axis=1)
        first = np.maximum(edges - c + 1, before)
        last = np.minimum(edges - 1, end - (1 if self._options.short == "pad_end" else c))
        count = np.where(edges < end, np.maximum(last - first + 1, 0), 0)
        if self._options.short == "pad":
            padded = (lengths < c) & (edges < end).any(axis=1)
            first[padded, 0], count[padded, 0] = 0, 1
        return first, count


def _whole(lengths: _Ints) -> _Ints:
    """Return each episode as one run, shape (x, 1, 2)."""
    return np.stack((np.zeros_like(lengths), lengths), axis=-1)[:, None]


def _segments(store: SlotStore, slots: IntArray, lengths: _Ints) -> _Ints:
    """Return the noted segments, shape (x, MAX_SEGMENTS, 2); beyond them empty ones."""
    noted = np.arange(MAX_SEGMENTS) < store.segments[slots, None]
    noted &= lengths[:, None] > 0
    return np.where(noted[..., None], store.segment_bounds[slots], 0)
