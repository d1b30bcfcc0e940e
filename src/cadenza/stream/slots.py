"""The trajectory store: slots in shared memory, each guarded by its version.

Protocol of a slot (a sequence lock):
    writer   version += 1 (now odd), length = 0, write the episode, set its length, version += 1
    reader   read the version (even), copy, read it again; another value means: draw anew
Nobody waits, and a process that dies in the middle leaves nothing locked: an odd version is a slot
that nobody reads.

Producers share no lock either: two that want the same slot see each other's claim, give way, and
try again; past the claim of one that died each tries its next. A count is the sum of a column in
which every producer writes its own row. A producer says that it publishes before it counts what is
published and who else says so: several never publish more than may be. Drawing processes claim
their rows, and ask for fills, under the file's lock.

Axes:  S = slots, T = steps that a slot can hold.
"""

import mmap
import time
from collections.abc import Callable
from contextlib import suppress
from enum import IntEnum, StrEnum, unique
from itertools import product
from typing import Any, Final, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cadenza.core.errors import ConfigurationError, NotReadyError
from cadenza.stream.layout import StoreLayout
from cadenza.stream.shared_file import SharedFile, ThreadLock, full_fence

IntArray = NDArray[np.int64]
Reuse = Literal["oldest", "most_drawn"]

#: Chunks drawn from the store, per slot, after which an episode that none of them came from counts
#: as passed over. Draws that take every episode alike leave one out for so long with a probability
#: of exp(-8) = 0.03 %.
PASSED_OVER_DRAWS: Final = 8
#: Episodes begun after it, per slot, after which ``reuse="most_drawn"`` replaces an episode however
#: seldom it is drawn.
AGED_FILLS: Final = 4
#: Tries for a slot that another producer claims as well, and the wait between the first of them, s.
#: Producers of higher numbers wait longer. That makes 0.2 s in all, 0.7 s for producer 63, after
#: which the other is taken for dead.
_CONTESTS: Final = 30
_YIELD_S: Final = 2e-5
#: Largest count; counters stay there instead of becoming negative.
LARGEST: Final = 2**63 - 1
#: Value of ``slot.success`` while nobody has judged the episode.
UNKNOWN_SUCCESS: Final = -1


class StreamWords:
    """Names of the single words that describe the whole stream."""

    STATE: Final = 0
    CLOSING: Final = 5
    OWNER_PID: Final = 6
    OWNER_STARTED_AT: Final = 7
    #: Whether the trajectories' memory was given back.
    FREED: Final = 8
    #: Steps that were published when the first fill was complete.
    FRAMES_AT_READY: Final = 16
    #: Producer whose error made the engine fail, plus one.
    FAILED_PRODUCER: Final = 17
    #: Since when draws wait while all producers pause, ns of the monotonic clock; 0: they do not.
    FROZEN_SINCE_NS: Final = 19


class SlotStore:
    """Arrays of the shared block by meaning; those of slots are int64 (S,) unless noted.

    Attributes:
        version: Odd while a slot is written.
        length: Steps of the episode or part, 0 without one.
        number: P times the episodes published before, plus the producer: no two are equal, and
            those of a producer rise.
        episode_id: Which episode it is, or is a part of; no two have the same.
        part: Which part of the episode, from 0 on; all but the last have T steps.
        success: 1, 0, or -1 for unknown.
        draws: Chunks drawn from this episode; approximate with several consumers.
        drawn_before: Chunks that had been drawn from the store, or were being drawn, when a draw
            first found one in this episode.
        drawable_at: Latest version in which some draw found a chunk.
        undrawable_at: Latest version in which some draw found none.
        lease: 1 + the number of the producer that writes the slot, else 0.
        segments: Noted runs of equal segment ids.
        segment_bounds: int32 (S, MAX_SEGMENTS, 2), first step and step after the last of each.
        producers: Tables of the producers by name, each (P, ...); a producer writes its own row.
        consumers: Tables of the drawing processes by name, each (C, ...); each writes its own row.
        field_arrays: The trajectories as arrays, (S * T, ...) or (S * (T + 1), ...); ``fields`` are
            the same memory as tensors.
        counting: Around every change of the consumers' tables: the threads of a process share a
            row.
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
        store.number[:] = -1
        return store

    def __reduce__(self) -> tuple[Any, ...]:
        """View the file anew in another process."""
        return SlotStore, (self.layout, self.file)

    def _attach(self) -> None:
        self.counting: ThreadLock = ThreadLock()
        arrays = {
            name: np.ndarray(place.shape, place.dtype, buffer=self.file.map, offset=place.offset)
            for name, place in self.layout.places().items()
        }
        self.words: IntArray = arrays["stream"]
        self.version: IntArray = arrays["slot.version"]
        self.length: IntArray = arrays["slot.length"]
        self.policy_version: IntArray = arrays["slot.policy_version"]
        self.number: IntArray = arrays["slot.number"]
        self.episode_id: IntArray = arrays["slot.episode_id"]
        self.part: IntArray = arrays["slot.part"]
        self.written_at_ns: IntArray = arrays["slot.written_at_ns"]
        self.success: IntArray = arrays["slot.success"]
        self.draws: IntArray = arrays["slot.draws"]
        self.drawn_before: IntArray = arrays["slot.drawn_before"]
        self.drawable_at: IntArray = arrays["slot.drawable_at"]
        self.undrawable_at: IntArray = arrays["slot.undrawable_at"]
        self.lease: IntArray = arrays["slot.lease"]
        self.segments: IntArray = arrays["slot.segments"]
        self.segment_bounds: NDArray[np.int32] = arrays["slot.segment_bounds"]
        self.producers: dict[str, NDArray[Any]] = _tables(arrays, "producer.")
        self.consumers: dict[str, NDArray[Any]] = _tables(arrays, "consumer.")
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

    def free(self) -> None:
        """Give the trajectories' memory to the system, for all processes; counters stay.

        Nothing can be read afterwards: draws that are under way find other versions.
        """
        self.words[StreamWords.FREED] = 1
        self.length[:] = 0
        self.version += 2
        full_fence()
        places = self.layout.places()
        begin = min(places[f"field.{field.name}"].offset for field in self.layout.fields)
        begin = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE
        if begin < self.layout.nbytes:
            with suppress(OSError):  # a file system that cannot: with the last process
                self.file.map.madvise(mmap.MADV_REMOVE, begin)

    def take_slot(
        self, producer: int, *, reuse: Reuse = "oldest", spare_unread: bool = False
    ) -> int:
        """Give the slot that readers miss least to ``producer`` and close it for them.

        That is an empty one, else by ``reuse`` the one published longest ago, or the one that most
        chunks were drawn from (of several the older one). The latter takes the oldest of those that
        draws pass over (see `passed_over`) or that are older than `AGED_FILLS` fills first:
        otherwise they, from which little or nothing is drawn, would never leave.

        ``spare_unread`` takes the ones that draws want and nothing was drawn from last of all. Age
        alone does not spare them: a producer that the system held up while it published opens an
        episode whose number is older than those that others published meanwhile.

        Raises:
            ConfigurationError: ``reuse`` is none of the two.
            NotReadyError: Every slot is being written.
        """
        if reuse not in ("oldest", "most_drawn"):
            raise ConfigurationError(
                f"SlotStore.take_slot: expected reuse 'oldest' or 'most_drawn', got {reuse!r}."
            )
        while True:
            versions = self.version.copy()
            full_fence()
            free = np.flatnonzero(self.lease == 0)
            if not len(free):
                raise NotReadyError(
                    "SlotStore.take_slot: expected a free slot, got "
                    f"{len(self.lease)} slots in writing; give the store one slot more per "
                    "environment."
                )
            order: list[NDArray[Any]] = [self.number[free]]  # a clock may be set back
            if reuse == "most_drawn":
                begun_since = self.published() - self.number // self.layout.producers
                first = self.passed_over() | (begun_since > AGED_FILLS * self.layout.slots)
                order += [-np.where(first, 0, self.draws)[free], ~first[free]]
            if spare_unread:
                order.append(((self.draws == 0) & ~self.passed_over())[free])
            order.append(self.length[free] > 0)
            ranked = free[np.lexsort(order)].tolist()
            for slot, attempt in product(ranked, range(_CONTESTS)):
                taken = self._take(slot, int(versions[slot]), producer)
                if taken:
                    return slot
                if taken is False:  # the ranks are old
                    break
                time.sleep(attempt * (attempt + producer) * _YIELD_S)

    def _take(self, slot: int, version: int, producer: int) -> bool | None:
        """Take ``slot`` unless it was taken since its ``version``.

        Returns:
            Whether it was taken; None if another producer claims it, too, and may get it or not.
        """
        claims = self.producers["claim"]
        claims[producer] = slot + 1
        full_fence()
        is_contested = np.count_nonzero(claims == slot + 1) > 1
        full_fence()  # whoever claims no longer has written the lease
        is_mine = not is_contested and not self.lease[slot] and self.version[slot] == version
        if is_mine:
            self.lease[slot] = producer + 1
            self.version[slot] = (version + 1) | 1
            full_fence()
            self.length[slot] = 0
            self.draws[slot] = 0
            self.written_at_ns[slot] = 0
        full_fence()
        claims[producer] = 0
        return None if is_contested else is_mine

    def begin_episode(self, slot: int) -> int:
        """Return a number for the episode that the owner of ``slot`` begins; nobody else has it."""
        producer, begun = int(self.lease[slot]) - 1, self.producers["begun"]
        number = int(begun[producer])
        begun[producer] = number + 1
        return number * self.layout.producers + producer

    def publish(
        self,
        slot: int,
        length: int,
        *,
        success: int,
        policy_version: int,
        may_publish: Callable[[int], bool] | None = None,
    ) -> int | None:
        """Open a written slot of so many steps to readers, and count it once they can see it.

        Whoever has seen the count finds the episode, and its steps counted. ``success`` is 1, 0, or
        -1 for unknown. ``may_publish`` is asked with the episodes published so far, those that
        other producers are publishing among them, so that several that ask at once do not go beyond
        a limit; of two that each leave the last place to the other, the first to ask again gets it.

        Returns:
            Its number, see `number`; None if it may not be published.
        """
        producer, table = int(self.lease[slot]) - 1, self.producers
        table["publishing"][producer] = 1
        full_fence()
        others = int(np.count_nonzero(table["publishing"])) - 1
        full_fence()  # first who publishes, then what is published: nobody is left out
        published = self.published()
        producers = self.layout.producers
        mine = self.number[self.number % producers == producer]
        # One that died before it counted an episode has used the number of that count.
        number = max(published * producers, int(mine.max(initial=-1)) + 1)
        number += (producer - number) % producers
        may = may_publish is None or may_publish(published + others)
        if may:
            self.number[slot] = number
            self.policy_version[slot] = policy_version
            self.success[slot] = success
            self.written_at_ns[slot] = time.time_ns()
            self.length[slot] = length
            full_fence()
            self.version[slot] += 1
            table["frames"][producer] += length
            full_fence()
            table["episodes"][producer] += 1
            table["turns"][producer] += 1
            full_fence()
            self.lease[slot] = 0
        full_fence()
        table["publishing"][producer] = 0
        return number if may else None

    def published(self) -> int:
        """Return the episodes that were published."""
        return int(self.producers["episodes"].sum())

    def published_frames(self) -> int:
        """Return their steps."""
        return int(self.producers["frames"].sum())

    def weights_version(self) -> int:
        """Return the version of the weights that were published last, 0 without any."""
        return int(self.consumers["published"].max())

    def drawn_chunks(self) -> int:
        """Return the chunks that all processes have drawn, at most the largest 64-bit number."""
        return min(sum(self.consumers["chunks"].tolist()), LARGEST)  # Python's do not overflow

    def note_windows(self, slots: IntArray, versions: IntArray, windows: IntArray) -> None:
        """Note in which slots, of which versions, a draw found windows, shape (x,) each.

        Versions are noted and not flags, so that a note that comes late says nothing of the next
        episode.
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

    def drop(self, slot: int) -> None:
        """Take a slot back that was not finished; it stays empty and is the next to be written."""
        self.length[slot] = 0
        self.written_at_ns[slot] = 0
        full_fence()
        self.version[slot] += int(self.version[slot] & 1)
        full_fence()
        self.lease[slot] = 0

    def drop_leases(self, producer: int) -> int:
        """Take back every slot that ``producer``, which must be dead, was writing.

        Returns:
            How many they were.
        """
        left = np.flatnonzero(self.lease == producer + 1)
        unfinished = left[self.version[left] & 1 == 1]
        for slot in unfinished.tolist():
            self.drop(slot)
        self.lease[left] = 0  # the others hold what they held before, or are published
        self.producers["claim"][producer] = self.producers["publishing"][producer] = 0
        return len(unfinished)


def _tables(arrays: dict[str, NDArray[Any]], prefix: str) -> dict[str, NDArray[Any]]:
    """Return the arrays whose names begin with ``prefix``, by the rest of the name."""
    return {
        name.removeprefix(prefix): array
        for name, array in arrays.items()
        if name.startswith(prefix)
    }


@unique
class OnlineDataEngineState(StrEnum):
    """Where an engine stands; FAILED and STOPPED are final."""

    CREATED = "CREATED"
    STARTING = "STARTING"
    READY = "READY"
    #: Data keeps coming, from fewer producers than configured.
    DEGRADED = "DEGRADED"
    FAILED = "FAILED"
    STOPPED = "STOPPED"

    @property
    def is_serving(self) -> bool:
        """Whether chunks can be drawn."""
        return self in (OnlineDataEngineState.READY, OnlineDataEngineState.DEGRADED)


#: States by the number that stands for them in shared memory.
_STATES: Final = tuple(OnlineDataEngineState)


@unique
class ProducerState(IntEnum):
    """What a producer is doing."""

    ABSENT = 0
    STARTING = 1
    RUNNING = 2
    PAUSED = 3
    #: Died, and starts anew after a pause.
    WAITING = 4
    FAILED = 5
    ENDED = 6


def engine_state(store: SlotStore) -> OnlineDataEngineState:
    """Return the state that the owner of the engine wrote last."""
    return _STATES[int(store.words[StreamWords.STATE])]


def set_engine_state(store: SlotStore, state: OnlineDataEngineState) -> None:
    """Write where the engine stands, for all processes."""
    store.words[StreamWords.STATE] = _STATES.index(state)


def saturating_sum(a: int, b: int) -> int:
    """Return ``a + b``, at most the largest 64-bit number."""
    return min(a + b, LARGEST)
