"""Writes episodes into the store, step by step, for the environments of one producer.

An episode is one slot from its reset to its end, or several, its parts, if it is longer than a
slot. Step t holds the observation before the action, the action, and what came of it; the
observation after the last step is entry ``length`` of a state field, and entry 0 of the next part.
"""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cadenza.core.errors import InputError
from cadenza.stream.layout import MAX_SEGMENTS, NUMBER_KINDS, Field
from cadenza.stream.slots import UNKNOWN_SUCCESS, IntArray, SlotStore

#: ``segment_id`` of steps that belong to no segment.
NO_SEGMENT = -1


class EpisodeWriter:
    """The episode that one environment is in, or the part of it that fits into a slot.

    Readers see nothing of it before `publish`.
    """

    def __init__(
        self, store: SlotStore, slot: int, *, before: "EpisodeWriter | None" = None
    ) -> None:
        """Write into ``slot``, which was taken; ``before`` is the last part of the episode."""
        self._store = store
        self.slot = slot
        self.length: int = 0
        self.part: int = 0 if before is None else before.part + 1
        store.part[slot] = self.part
        self.episode_id: int = store.begin_episode(slot) if before is None else before.episode_id
        store.episode_id[slot] = self.episode_id
        self._fields = {field.name: field for field in store.layout.fields}
        self._entries = {name: store.entries(name, self.slot) for name in self._fields}

    @property
    def is_full(self) -> bool:
        """Whether the slot has no step left."""
        return self.length >= self._store.layout.steps

    @property
    def segments(self) -> int:
        """Runs of equal ``segment_id`` that are segments so far."""
        return len(self._segment_bounds())

    def start(self, state: Mapping[str, Any]) -> None:
        """Note the state that the episode begins in."""
        self._write(0, state, "state")

    def add(self, step: Mapping[str, Any], next_state: Mapping[str, Any]) -> None:
        """Add one step and the state that it led to.

        ``segment_id`` and ``policy_version`` of the step may be left out.

        Raises:
            InputError: The slot is full; a field is missing, unknown or of another shape; or a
                field of integers or truth values would change a number.
        """
        if self.is_full:
            raise InputError(
                f"EpisodeWriter.add: expected at most {self._store.layout.steps} steps per "
                "episode, got one more; publish when the slot is full."
            )
        self._write(self.length, {"segment_id": NO_SEGMENT, "policy_version": 0, **step}, "step")
        self._write(self.length + 1, next_state, "state")
        self.length += 1

    def publish(
        self,
        *,
        success: bool | None = None,
        policy_version: int = 0,
        may_publish: Callable[[int], bool] | None = None,
    ) -> int | None:
        """Open the episode to readers; arguments and result as of `SlotStore.publish`.

        Raises:
            InputError: The episode has no step, or more segments than a slot notes.
        """
        if self.length < 1:
            raise InputError("EpisodeWriter.publish: expected at least one step, got 0; use drop.")
        self._note_segments()
        known = UNKNOWN_SUCCESS if success is None else int(success)
        return self._store.publish(
            self.slot,
            self.length,
            success=known,
            policy_version=policy_version,
            may_publish=may_publish,
        )

    def drop(self) -> None:
        """Give the slot back without publishing."""
        self._store.drop(self.slot)

    def _write(self, index: int, values: Mapping[str, Any], kind: str) -> None:
        expected = {name for name, field in self._fields.items() if field.kind == kind}
        if set(values) != expected:
            raise InputError(
                f"EpisodeWriter: expected the {kind} fields {sorted(expected)}, got "
                f"{sorted(values)}."
            )
        for name, value in values.items():
            entries = self._entries[name]
            entries[index] = _checked(self._fields[name], value, entries.dtype)

    def _segment_bounds(self) -> IntArray:
        """Return first step and end of every run of equal ids >= 0, shape (K, 2)."""
        ids = self._entries["segment_id"][: self.length]
        edges = np.flatnonzero(np.diff(ids)) + 1
        bounds = np.stack((np.r_[0, edges], np.r_[edges, self.length]), axis=1)
        return bounds[ids[bounds[:, 0]] >= 0]

    def _note_segments(self) -> None:
        """Write the runs into the slot's table."""
        bounds = self._segment_bounds()
        if len(bounds) > MAX_SEGMENTS:
            raise InputError(
                f"EpisodeWriter: expected at most {MAX_SEGMENTS} segments per episode, got "
                f"{len(bounds)}; merge short segments."
            )
        self._store.segment_bounds[self.slot, : len(bounds)] = bounds
        self._store.segments[self.slot] = len(bounds)


def _checked(field: Field, value: Any, dtype: np.dtype[Any]) -> Any:
    """Return ``value`` as an array that the field, which has ``dtype``, keeps as it is."""
    array = np.asarray(value)
    if array.shape != field.shape:
        raise InputError(
            f"EpisodeWriter: expected {field.name!r} of shape {field.shape}, got {array.shape}."
        )
    if array.dtype is dtype or _is_kept(array.dtype, dtype):
        return array
    return _exact(field, array, dtype)


@cache
def _is_kept(given: np.dtype[Any], dtype: np.dtype[Any]) -> bool:
    """Return whether ``dtype`` holds every number of ``given``; floats may round."""
    return given.kind in NUMBER_KINDS and (dtype.kind == "f" or np.can_cast(given, dtype, "safe"))


def _exact(field: Field, array: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return ``array`` in a type of integers or truth values, which must not change a number."""
    came: Any = array.reshape(-1)[:1]
    if array.dtype.kind in NUMBER_KINDS:
        with np.errstate(invalid="ignore"):  # a NaN becomes some integer, which differs from it
            converted = array.astype(dtype)
        changed = converted != array
        if not changed.any():
            return converted
        came = array[changed]
    raise InputError(
        f"EpisodeWriter: expected numbers of {field.name!r} that {dtype} holds, got "
        f"{came.tolist()[0]!r} as {array.dtype}; correct what gives them, or the type of their "
        "space."
    )
