"""The trajectory store: slots in shared memory, each guarded by its version.

Protocol of a slot (a sequence lock):
    writer   version += 1 (now odd), length = 0, write the episode, set its length, version += 1
    reader   read the version (even), copy, read it again; another value means: draw anew
The writer never waits for readers, readers never block each other, and a process that dies in the
middle of either leaves nothing locked: an odd version is a slot that nobody reads.

What writers share (which slot is free, the counters of the stream) they change under the file's
lock, which the kernel takes away from a dead holder.

Axes:  S = slots, T = steps that a slot can hold.
"""

import time
from collections.abc import Callable
from typing import Any, Final, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cadenza.core.errors import ConfigurationError, NotReadyError
from cadenza.stream.fences import full_fence
from cadenza.stream.layout import StoreLayout
from cadenza.stream.shared_file import SharedFile
from cadenza.stream.thread_lock import ThreadLock

IntArray = NDArray[np.int64]
Reuse = Literal["oldest", "most_drawn"]

#: Chunks drawn from the store, per slot, after which an episode that none of them came from counts
#: as passed over. Draws that take every episode alike leave one out for so long with a probability
#: of exp(-8) = 0.03 %.
PASSED_OVER_DRAWS: Final = 8
#: Episodes begun after it, per slot, after which ``reuse="most_drawn"`` replaces an episode however
#: seldom it is drawn.
AGED_FILLS: Final = 4
#: Largest count; counters stay there instead of becoming negative.
LARGEST: Final = 2**63 - 1
#: Value of ``slot.success`` while nobody has judged the episode.
UNKNOWN_SUCCESS: Final = -1


class StreamWords:
    """Names of the single words that describe the whole stream."""

    STATE: Final = 0
    #: Goes up whenever a slot is taken or published: readers keep their index until then.
    CHANGES: Final = 1
    NEXT_EPISODE: Final = 2
    PUBLISHED: Final = 3
    PUBLISHED_FRAMES: Final = 4
    POLICY_VERSION: Final = 5
    #: Full fills asked for, and how many episodes are published once all of them are done.
    REQUESTS: Final = 6
    TO_FILL: Final = 7
    #: Chunks drawn when the last fill was asked for.
    DRAWN_AT_REQUEST: Final = 8
    CLOSING: Final = 9
    OWNER_PID: Final = 10
    OWNER_STARTED_AT: Final = 11


class SlotStore:
    """Arrays of the shared block by meaning.

    Attributes:
        layout: Sizes and fields.
        file: The block.
        version: int64 (S,), odd while a slot is written.
        length: int64 (S,), steps of the episode, 0 without one.
        policy_version: int64 (S,), version of the policy that acted.
        episode_id: int64 (S,), number of the episode in the stream.
        written_at_ns: int64 (S,), time of publication, ns since 1970.
        success: int64 (S,), 1, 0, or -1 for unknown.
        draws: int64 (S,), chunks drawn from this episode; approximate with several consumers.
        drawn_before: int64 (S,), chunks that had been drawn from the store, or were being drawn,
            when a draw first found one in this episode.
        drawable_at: int64 (S,), latest version in which some draw found a chunk.
        undrawable_at: int64 (S,), latest version in which some draw found none.
        lease: int64 (S,), 1 + the number of the producer that writes the slot, else 0.
        segments: int64 (S,), noted runs of equal segment ids.
        segment_bounds: int32 (S, MAX_SEGMENTS, 2), first step and step after the last of each.
        words: int64, see `StreamWords`.
        producers: Tables of the producers by name, each (P, ...); a producer writes its own row.
        consumers: Tables of the drawing processes by name, each (C, ...); each writes its own row.
        field_arrays: The trajectories as arrays, (S * T, ...) or (S * (T + 1), ...).
        fields: The same memory as tensors.
        counting: Around every change of the consumers' tables: the threads of a process share a
            row, and a sum that two of them read and write at once would lack one of their counts.
    """

    def __init__(self, layout: StoreLayout, file: SharedFile) -> None:
        """View ``file``, which must have ``layout.nbytes``."""
        self.layout = layout
        self.file = file
        self._attach()

    @classmethod
    def create(cls, layout: StoreLayout) -> Self:
        """Reserve a store with empty slots."""
        store = cls(layout, SharedFile.create(layout.nbytes))
        store.success[:] = UNKNOWN_SUCCESS
        store.episode_id[:] = -1
        return store

    def __getstate__(self) -> dict[str, Any]:
        """Return layout and file; views are made anew."""
        return {"layout": self.layout, "file": self.file}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """View the file in a new process."""
        self.layout = state["layout"]
        self.file = state["file"]
        self._attach()

    def _attach(self) -> None:
        self.counting = ThreadLock()
        arrays = {
            name: np.ndarray(place.shape, place.dtype, buffer=self.file.map, offset=place.offset)
            for name, place in self.layout.places().items()
        }
        self.words: IntArray = arrays["stream"]
        self.version: IntArray = arrays["slot.version"]
        self.length: IntArray = arrays["slot.length"]
        self.policy_version: IntArray = arrays["slot.policy_version"]
        self.episode_id: IntArray = arrays["slot.episode_id"]
        self.written_at_ns: IntArray = arrays["slot.written_at_ns"]
        self.success: IntArray = arrays["slot.success"]
        self.draws: IntArray = arrays["slot.draws"]
        self.drawn_before: IntArray = arrays["slot.drawn_before"]
        self.drawable_at: IntArray = arrays["slot.drawable_at"]
        self.undrawable_at: IntArray = arrays["slot.undrawable_at"]
        self.lease: IntArray = arrays["slot.lease"]
        self.segments: IntArray = arrays["slot.segments"]
        self.segment_bounds: NDArray[np.int32] = arrays["slot.segment_bounds"]
        self.producers = _tables(arrays, "producer.")
        self.consumers = _tables(arrays, "consumer.")
        self.field_arrays: dict[str, NDArray[Any]] = {
            field.name: arrays[f"field.{field.name}"] for field in self.layout.fields
        }
        self.fields: dict[str, Tensor] = {
            name: torch.as_tensor(array) for name, array in self.field_arrays.items()
        }

    def entries(self, name: str, slot: int) -> NDArray[Any]:
        """Return the part of a field that belongs to ``slot``, shape (T or T + 1, ...)."""
        array = self.field_arrays[name]
        size = array.shape[0] // self.layout.slots
        return array[slot * size : (slot + 1) * size]

    def close(self) -> None:
        """Give the block up in this process; the store cannot be used afterwards."""
        for name in [name for name in vars(self) if name not in ("layout", "file")]:
            delattr(self, name)
        self.file.close()

    def take_slot(self, producer: int, *, reuse: Reuse = "oldest") -> int:
        """Give the slot that readers miss least to ``producer`` and close it for them.

        That is an empty one, else by ``reuse`` the one published longest ago, or the one that most
        chunks were drawn from (of several the older one). The latter takes the oldest of those that
        draws pass over (see `passed_over`) or that are older than `AGED_FILLS` fills first:
        otherwise they, from which little or nothing is drawn, would never leave.

        Raises:
            ConfigurationError: ``reuse`` is none of the two.
            NotReadyError: Every slot is being written.
        """
        with self.file.locked():
            return self._take_slot(producer, reuse)

    def take_slot_if(
        self, may_begin: Callable[[], bool], producer: int, *, reuse: Reuse = "oldest"
    ) -> int | None:
        """Take a slot as `take_slot` does if an episode may begin; None if it may not.

        Args:
            may_begin: Asked with the store locked, so that no two producers begin the last episode
                that may; it must not lock the store itself.
            producer: Number of the producer.
            reuse: Which episode is replaced.

        Raises:
            ConfigurationError: ``reuse`` is none of the two.
            NotReadyError: Every slot is being written.
        """
        with self.file.locked():
            return self._take_slot(producer, reuse) if may_begin() else None

    def _take_slot(self, producer: int, reuse: Reuse) -> int:
        """Take a slot; call it with the file locked."""
        if reuse not in ("oldest", "most_drawn"):
            raise ConfigurationError(
                f"SlotStore.take_slot: expected reuse 'oldest' or 'most_drawn', got {reuse!r}."
            )
        free = np.flatnonzero(self.lease == 0)
        if not len(free):
            raise NotReadyError(
                "SlotStore.take_slot: expected a slot that nobody writes, got "
                f"{len(self.lease)} slots in writing; give the store one slot more per "
                "environment."
            )
        order: list[NDArray[Any]] = [self.episode_id[free]]  # a clock may be set back
        if reuse == "most_drawn":
            first = self.passed_over() | self._aged()
            order += [-np.where(first, 0, self.draws)[free], ~first[free]]
        order.append(self.length[free] > 0)
        slot = int(free[np.lexsort(order)[0]])
        self.lease[slot] = producer + 1
        # Odd also when a writer died while publishing and left an odd one.
        self.version[slot] = (self.version[slot] + 1) | 1
        full_fence()
        self.length[slot] = 0
        self.draws[slot] = 0
        self.written_at_ns[slot] = 0
        self.words[StreamWords.CHANGES] += 1
        return slot

    def publish(self, slot: int, length: int, *, success: int, policy_version: int) -> int:
        """Open a written slot to readers, and count it once they can see it.

        Whoever has seen the count finds the episode, and its steps counted.

        Returns:
            The number of the episode.
        """
        with self.file.locked():
            episode = int(self.words[StreamWords.NEXT_EPISODE])
            self.words[StreamWords.NEXT_EPISODE] = episode + 1
            self.episode_id[slot] = episode
            self.policy_version[slot] = policy_version
            self.success[slot] = success
            self.written_at_ns[slot] = time.time_ns()
            self.length[slot] = length
            self.lease[slot] = 0
            full_fence()
            self.version[slot] += 1
            self.words[StreamWords.CHANGES] += 1
            self.words[StreamWords.PUBLISHED_FRAMES] += length
            full_fence()
            self.words[StreamWords.PUBLISHED] += 1
        return episode

    def drawn_chunks(self) -> int:
        """Return the chunks that all processes have drawn, at most the largest 64-bit number."""
        return min(sum(self.consumers["chunks"].tolist()), LARGEST)  # Python's do not overflow

    def note_windows(self, slots: IntArray, versions: IntArray, windows: IntArray) -> None:
        """Note in which slots a draw found chunks.

        Versions are noted and not flags, so that a note that comes late says nothing of the next
        episode.

        Args:
            slots: Slots that the draw looked at, shape (x,).
            versions: Their versions then, shape (x,).
            windows: How many windows it found in each, shape (x,).
        """
        found = windows > 0
        first = found & (self.drawable_at[slots] < versions)
        if first.any():
            under_way = sum(self.consumers["under_way"].tolist())
            # Before the note: as soon as the episode is known, draws that miss it count.
            self.drawn_before[slots[first]] = min(self.drawn_chunks() + under_way, LARGEST)
            self.drawable_at[slots[first]] = versions[first]
        self.undrawable_at[slots[~found]] = versions[~found]

    def passed_over(self) -> NDArray[np.bool_]:
        """Return which episodes draws do not want, shape (S,).

        Those are the ones that all draws that looked found no chunk in, and the ones that nothing
        was drawn from although `PASSED_OVER_DRAWS` chunks per slot were since a draw first found
        one in them: draws of today may have no use for what earlier ones, with other options, found
        chunks in. Draws that were under way then do not count, because they may have chosen their
        windows before the episode was there.
        """
        drawable = self.drawable_at == self.version
        undrawable = (self.undrawable_at == self.version) & ~drawable
        since = self.drawn_chunks() - self.drawn_before
        left_out = since >= PASSED_OVER_DRAWS * self.layout.slots
        return undrawable | (drawable & (self.draws == 0) & left_out)

    def _aged(self) -> NDArray[np.bool_]:
        newest = int(self.words[StreamWords.NEXT_EPISODE])
        return newest - self.episode_id > AGED_FILLS * self.layout.slots

    def drop(self, slot: int) -> None:
        """Take a slot back that was not finished; it stays empty and is the next to be written."""
        with self.file.locked():
            self._empty(slot)

    def drop_leases(self, producer: int) -> int:
        """Take back every slot that ``producer``, which must be dead, was writing.

        Returns:
            How many they were.
        """
        with self.file.locked():
            left = np.flatnonzero(self.lease == producer + 1)
            for slot in left:
                self._empty(int(slot))
        return len(left)

    def _empty(self, slot: int) -> None:
        """Free ``slot`` without an episode; call it with the file locked."""
        self.length[slot] = 0
        self.written_at_ns[slot] = 0
        self.lease[slot] = 0
        full_fence()
        self.version[slot] += int(self.version[slot] & 1)
        self.words[StreamWords.CHANGES] += 1


def _tables(arrays: dict[str, NDArray[Any]], prefix: str) -> dict[str, NDArray[Any]]:
    """Return the arrays whose names begin with ``prefix``, by the rest of the name."""
    return {
        name.removeprefix(prefix): array
        for name, array in arrays.items()
        if name.startswith(prefix)
    }
