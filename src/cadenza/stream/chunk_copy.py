"""Copies windows out of the trajectories into a caller's buffers, one operation per key.

Axes:  n = chunks, c = steps of a chunk, K = noted segments of a slot.
"""

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cadenza.stream.layout import MAX_SEGMENTS, NEXT, VIRTUAL
from cadenza.stream.slots import IntArray, SlotStore
from cadenza.stream.windows import Picked

_VIRTUAL_NAMES = frozenset(field.name for field in VIRTUAL)
_SEGMENT_NAMES = frozenset(name for name in _VIRTUAL_NAMES if name.startswith("segment"))
#: Types that PyTorch copies in some ways only, and those of equal size that it copies in all.
_SAME_BITS = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


def copy_chunks(
    store: SlotStore, c: int, picked: Picked, out: Mapping[str, Tensor], rows: Tensor | None
) -> None:
    """Copy the picked windows into ``rows`` of every target, or into all of them.

    Steps outside the run repeat its nearest step.

    Args:
        store: Where from.
        c: Steps of a chunk.
        picked: The windows, n of them.
        out: Targets by key, contiguous, shape (N, c, ...).
        rows: Which of the N rows, shape (n,); None when n = N.
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
        field, shift = _stored(name)
        source = store.fields[field]
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


def overhanging_steps(c: int, picked: Picked) -> IntArray | None:
    """Return the step that each place of a chunk shows, (n, c); None when no window overhangs."""
    begin, end = picked.bounds[:, 0], picked.bounds[:, 1]
    if not np.any((picked.offsets < begin) | (picked.offsets + c > end)):
        return None
    return np.clip(_steps(c, picked), begin[:, None], end[:, None] - 1)


def validity(c: int, picked: Picked) -> NDArray[np.bool_]:
    """Return which places of the chunks lie in their run, shape (n, c)."""
    steps = _steps(c, picked)
    return (steps >= picked.bounds[:, :1]) & (steps < picked.bounds[:, 1:])


def _stored(name: str) -> tuple[str, int]:
    """Return the stored field behind a key, and how many entries later it is read."""
    return (name.removeprefix(NEXT), 1) if name.startswith(NEXT) else (name, 0)


def _steps(c: int, picked: Picked) -> IntArray:
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
    store: SlotStore, c: int, picked: Picked, names: frozenset[str], *, is_whole: bool
) -> dict[str, NDArray[np.generic] | np.generic]:
    """Return the computed keys, each as (n, c) or what becomes it; no more than is asked for.

    Outside the run steps are -1 and flags False; ``is_whole`` tells that no window overhangs.
    """
    valid = np.True_ if is_whole else validity(c, picked)
    found: dict[str, NDArray[np.generic] | np.generic] = {"valid": valid}
    if names - {"valid"}:
        parts, steps = store.part[picked.slots, None], _steps(c, picked)
        found |= {"part": parts, "episode_id": store.episode_id[picked.slots, None]}
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
