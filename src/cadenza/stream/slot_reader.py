"""Draws chunks from the store without a lock and without a torn one.

Steps:  windows are chosen, copied, and the versions of their slots read again. Only chunks whose
        slot changed meanwhile are drawn anew.
Axes:   n = chunks, c = steps of a chunk.
"""

import threading
from collections import OrderedDict
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cadenza.core.errors import DataPendingError
from cadenza.stream.draw_options import DEFAULT_OPTIONS, PADDING, DrawOptions
from cadenza.stream.layout import MAX_SEGMENTS, NEXT, VIRTUAL
from cadenza.stream.shared_file import full_fence
from cadenza.stream.slots import IntArray, SlotStore
from cadenza.stream.windows import DrawnChunks, WindowTable

_VIRTUAL_NAMES = frozenset(field.name for field in VIRTUAL)
_SEGMENT_NAMES = frozenset(name for name in _VIRTUAL_NAMES if name.startswith("segment"))
#: Types that PyTorch copies in some ways only, and those of equal size that it copies in all.
_SAME_BITS = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


def copy_chunks(
    store: SlotStore, c: int, picked: DrawnChunks, out: Mapping[str, Tensor], rows: Tensor | None
) -> None:
    """Copy the n picked windows of ``c`` steps into ``rows`` of every target, or into all of them.

    Targets are contiguous, (N, c, ...); steps outside the run repeat its nearest step.
    """
    starts = overhanging_steps(c, picked)
    computed = _VIRTUAL_NAMES.intersection(out)
    if starts is None and "valid" in computed:
        computed -= {"valid"}
        out["valid"].fill_(True) if rows is None else out["valid"].index_fill_(0, rows, True)
    indices: dict[tuple[int, int], Tensor] = {}  # by entries of a slot, and how much later to read
    for name, target in out.items():
        if name in _VIRTUAL_NAMES:
            continue
        shift = int(name.startswith(NEXT))  # how many entries later it is read
        source = store.fields[name.removeprefix(NEXT)]
        if target.dtype in _SAME_BITS:
            target, source = (each.view(_SAME_BITS[each.dtype]) for each in (target, source))
        entries = source.shape[0] // store.layout.slots
        index = indices.get((entries, shift))
        if index is None:
            first = picked.slots * entries + shift
            places = first + picked.offsets if starts is None else first[:, None] + starts
            index = indices[entries, shift] = torch.as_tensor(places)
        if starts is None:
            _copy_windows(source, index, c, target, rows)
        else:
            _copy_steps(source, index, target, rows)
    if computed:
        for name, values in _virtual(store, c, picked, computed, is_whole=starts is None).items():
            out[name][slice(None) if rows is None else rows] = torch.as_tensor(values)


def overhanging_steps(c: int, picked: DrawnChunks) -> IntArray | None:
    """Return the step that each place of a chunk shows, (n, c); None when no window overhangs."""
    begin, end = picked.bounds[:, 0], picked.bounds[:, 1]
    if not np.any((picked.offsets < begin) | (picked.offsets + c > end)):
        return None
    return np.clip(_steps(c, picked), begin[:, None], end[:, None] - 1)


def validity(c: int, picked: DrawnChunks) -> NDArray[np.bool_]:
    """Return which places of the chunks lie in their run, shape (n, c)."""
    steps = _steps(c, picked)
    return (steps >= picked.bounds[:, :1]) & (steps < picked.bounds[:, 1:])


def _steps(c: int, picked: DrawnChunks) -> IntArray:
    return picked.offsets[:, None] + np.arange(c)


def _copy_windows(
    source: Tensor, first: Tensor, c: int, target: Tensor, rows: Tensor | None
) -> None:
    """Copy stretches of ``c`` entries that begin at ``first``."""
    width = source.numel() // source.shape[0]
    # Every stretch of c entries as one row, overlapping: a chunk is then one copy.
    windows = source.as_strided((source.shape[0] - c + 1, c * width), (width, 1))
    flat = target.view(target.shape[0], c * width)
    if rows is None:
        torch.index_select(windows, 0, first, out=flat)
    else:
        flat[rows] = windows.index_select(0, first)


def _copy_steps(source: Tensor, entries: Tensor, target: Tensor, rows: Tensor | None) -> None:
    """Copy single entries, shape (n, c)."""
    index = entries.view(-1)
    if rows is None:
        torch.index_select(source, 0, index, out=target.view(-1, *source.shape[1:]))
    else:
        target[rows] = source.index_select(0, index).view(*entries.shape, *source.shape[1:])


def _virtual(
    store: SlotStore, c: int, picked: DrawnChunks, names: frozenset[str], *, is_whole: bool
) -> dict[str, NDArray[np.generic] | np.generic]:
    """Return the computed keys, each as (n, c) or what becomes it; no more than is asked for.

    Outside the run steps are -1 and flags False; ``is_whole`` tells that no window overhangs.
    """
    valid = np.True_ if is_whole else validity(c, picked)
    found: dict[str, NDArray[np.generic] | np.generic] = {"valid": valid}
    if names - {"valid"}:
        parts, steps = store.part[picked.slots, None], _steps(c, picked)
        found |= {"part": parts, "episode_id": store.episode_id[picked.slots, None]}
        found |= {"success": store.success[picked.slots, None], "action_is_pad": ~valid}
        found["episode_step"] = np.where(valid, parts * store.layout.steps + steps, -1)
    if names & _SEGMENT_NAMES:
        steps = np.where(valid, _steps(c, picked), -1)
        found |= _segment_keys(store, picked.slots, steps)
    return {name: found[name] for name in names}


def _segment_keys(
    store: SlotStore, slots: IntArray, steps: IntArray
) -> dict[str, NDArray[np.generic]]:
    """Return step, start and end within the segments, for steps (n, c)."""
    bounds = store.segment_bounds[slots].astype(np.int64)
    noted = store.segments[slots]
    segment_step = np.full(steps.shape, -1, np.int64)
    end = np.zeros(steps.shape, np.bool_)
    for k in range(min(int(noted.max(initial=0)), MAX_SEGMENTS)):
        first, after = bounds[:, k, :1], bounds[:, k, 1:]
        inside = (steps >= first) & (steps < after) & (noted > k)[:, None]
        segment_step = np.where(inside, steps - first, segment_step)
        end |= inside & (steps == after - 1)
    return {"segment_step": segment_step, "segment_start": segment_step == 0, "segment_end": end}


#: Rounds of drawing anew before a call gives up. Most of them copy one chunk at a time, which only
#: a reader that loses its processor in the middle of each does not get done.
MAX_ROUNDS: Final = 64
#: Window tables that a reader keeps, one per chunk size and options, latest used.
KEPT_TABLES: Final = 16


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
        """Read ``store``; without ``validate`` copies are trusted, to show what that lets in."""
        self._store = store
        self._validate = validate
        self._tables = _Tables()

    def __reduce__(self) -> tuple[Any, ...]:
        """Make tables anew in another process."""
        return partial(SlotReader, validate=self._validate), (self._store,)

    def draw(
        self,
        n: int,
        c: int,
        out: Mapping[str, Tensor],
        generator: torch.Generator,
        options: DrawOptions = DEFAULT_OPTIONS,
    ) -> DrawnChunks:
        """Copy ``n`` chunks of ``c`` steps into ``out``, (n, c, ...), checked by `Batches.targets`.

        Raises:
            InputError: An episode is too short and the options refuse that.
            DataPendingError: No episode is long enough, or slots kept changing meanwhile.
        """
        table = self._table(c, options)
        table.refresh()
        picked = table.pick(n, generator, np.zeros(0, np.int64))
        copy_chunks(self._store, c, picked, out, None)
        if not self._validate:
            return _drawn(c, picked, table, options)
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
        return _drawn(c, picked, table, options)._replace(redraws=redraws)

    def look(self, c: int, options: DrawOptions = DEFAULT_OPTIONS) -> None:
        """Find out in which slots there are chunks of ``c`` steps, and note it in the store."""
        self._table(c, options).refresh()

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
        picked: DrawnChunks,
        table: WindowTable,
        out: Mapping[str, Tensor],
        generator: torch.Generator,
    ) -> IntArray:
        """Draw and copy the chunks ``rows`` anew; return those that changed again."""
        table.refresh()
        again = table.pick(len(rows), generator, np.delete(picked.slots, rows))
        for kept, new in zip(picked[:6], again[:6], strict=True):
            kept[rows] = new
        copy_chunks(self._store, c, again, out, torch.as_tensor(rows))
        return rows[self._changed(again)]

    def _changed(self, picked: DrawnChunks) -> IntArray:
        """Return which chunks were not copied from the version they were chosen at."""
        full_fence()
        return np.flatnonzero(self._store.version[picked.slots] != picked.versions)


def _drawn(c: int, picked: DrawnChunks, table: WindowTable, options: DrawOptions) -> DrawnChunks:
    """Return the windows with their mask and the share of those too short."""
    mask = None
    if options.may_mask and overhanging_steps(c, picked) is not None:
        mask = torch.as_tensor(validity(c, picked))
    excluded = 0.0 if options.short in PADDING else table.too_short
    return picked._replace(mask=mask, excluded=excluded)
