"""Whole episodes, copied out of the store while producers go on writing.

Readers of chunks draw what they like as often as they like; here every published episode, or part
of one, comes exactly once, in the order of publication, unless its slot was written again before
its turn. An episode that was read here counts as one drawn chunk: with ``mode="continuous"`` and
``high_water`` producers pause while so many are unread, and in the other modes the next fill is
asked for when the last one has been read, so that a single reader loses none. Draws of chunks
beside it may change that.

Axes:  L = steps of an episode.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from cadenza.core.checks import checked_names, is_whole, require_instance
from cadenza.core.errors import InputError, NotReadyError, UnknownNameError
from cadenza.stream.counters import ConsumerRow
from cadenza.stream.layout import Field
from cadenza.stream.shared_file import full_fence
from cadenza.stream.slots import IntArray, SlotStore, StreamWords
from cadenza.stream.windows import DrawnChunks

Array = NDArray[Any]

#: Step field that says whether an episode ended by itself.
_TERMINATED: Final = "terminated"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)  # eq=False: array == is ambiguous
class Episode:
    """One finished episode; nobody else has its arrays.

    Attributes:
        steps: Step fields by name, each (L, ...).
        states: State fields by name, each (L + 1, ...): entry t is what the action of step t was
            chosen from, entry L what the last step led to.
        number: Its number in the stream, larger than those of all that its producer published
            before.
        part: Which part of the episode ``episode_id``, from 0 on. Parts follow each other without a
            gap, and all but the last are as long as a slot and end truncated.
        success: Whether it solved the task, None if nobody judged.
        policy_version: Version of the policy that began it; ``steps`` has that of every step.
        written_at_ns: Time of publication, ns since 1970.
    """

    steps: Mapping[str, Array]
    states: Mapping[str, Array]
    number: int = 0
    episode_id: int = 0
    part: int = 0
    success: bool | None = None
    policy_version: int = 0
    written_at_ns: int = 0

    def __post_init__(self) -> None:
        lengths = {name: len(array) for name, array in self.steps.items()}
        lengths |= {name: len(array) - 1 for name, array in self.states.items()}
        if not lengths or len(set(lengths.values())) != 1 or self.length < 1:
            raise InputError(
                "Episode: expected fields of one length L >= 1, and of L + 1 for states, got the "
                f"lengths {lengths}."
            )
        object.__setattr__(self, "steps", MappingProxyType(dict(self.steps)))
        object.__setattr__(self, "states", MappingProxyType(dict(self.states)))

    @property
    def length(self) -> int:
        """Steps of the episode, L."""
        if self.steps:
            return len(next(iter(self.steps.values())))
        return len(next(iter(self.states.values()))) - 1

    @property
    def is_terminal(self) -> bool:
        """Whether the episode ended by itself, so that nothing would have come after it.

        False when it was cut off: truncated, or at the end of its slot.

        Raises:
            UnknownNameError: The field ``terminated`` was not selected.
        """
        return bool(self.field(_TERMINATED)[-1])

    def field(self, name: str) -> Array:
        """Return a step or state field.

        Raises:
            UnknownNameError: There is none of this name.
        """
        found = self.steps.get(name, self.states.get(name))
        if found is None:
            raise UnknownNameError(
                f"Episode.field: expected one of {sorted([*self.steps, *self.states])}, got "
                f"{name!r}; select it when reading."
            )
        return found

    def dones(self) -> NDArray[np.bool_]:
        """Return where the episode ends, shape (L,): in its last step, cut off or not."""
        dones = np.zeros(self.length, dtype=np.bool_)
        dones[-1] = True
        return dones


class EpisodeReader:
    """Reads each published episode of a store once; any number of readers may, in any processes.

    Attributes:
        fields: What it copies.
        read: Episodes returned so far.
        lost: Episodes whose slot was written again before they were read, as of the last look that
            left none to be read.
    """

    def __init__(self, store: SlotStore, *, select: Sequence[str] | None = None) -> None:
        """Begin with the oldest episode that is still there; copy the fields to ``select``, or all.

        Raises:
            ConfigurationTypeError: ``store`` is none.
            InputError: ``select`` is no list of names.
            UnknownNameError: The store has no such field.
        """
        require_instance("EpisodeReader.store", store, SlotStore, "give engine.store")
        known = {field.name: field for field in store.layout.fields}
        names = list(known) if select is None else checked_names("EpisodeReader.select", select)
        for name in names:
            if name not in known:
                raise UnknownNameError(
                    f"EpisodeReader: expected fields among {sorted(known)}, got {name!r}."
                )
        self._store = store
        self.fields: tuple[Field, ...] = tuple(known[name] for name in names)
        self._consumer = ConsumerRow(store)
        self._last = np.full(store.layout.producers, -1)
        self.read: int = 0
        self.lost: int = 0

    def take(self, limit: int | None = None) -> list[Episode]:
        """Return the episodes published since the last call, oldest first, ``limit`` at most.

        Raises:
            InputError: ``limit`` is no integer or below one.
            NotReadyError: The engine has stopped, or more processes draw than the store can count.
        """
        if self._store.words[StreamWords.FREED]:
            raise NotReadyError(
                "EpisodeReader.take: expected an engine that has not stopped, got one that gave "
                "its episodes' memory back; take what is left before stop()."
            )
        if limit is not None and (not is_whole(limit) or limit < 1):
            raise InputError(f"EpisodeReader.take: expected a limit >= 1 or None, got {limit!r}.")
        passed, published = self.read + self.lost, self._store.published()
        episodes, is_all = self._take(limit)
        if is_all:  # of those that were published before the look
            self.lost = max(self.lost, published - self.read)
        if self.read + self.lost > passed:
            with self._store.counting.here():
                self._consumer.note_passed(self.read + self.lost - passed)
        return episodes

    def _take(self, limit: int | None) -> tuple[list[Episode], bool]:
        """Return the next episodes, and whether none is left."""
        episodes: list[Episode] = []
        for number, slot, version in self._readable():
            if len(episodes) == limit:
                return episodes, False
            self._last[number % len(self._last)] = number
            episode = self._copy(slot, number)
            full_fence()
            if self._store.version[slot] == version:
                episodes.append(episode)
                self.read += 1
                with self._store.counting.here():
                    self._consumer.note(_drawn(episode, slot, version), episode.length)
        return episodes, True

    def _readable(self) -> list[tuple[int, int, int]]:
        """Return number, slot and version of the unread episodes that are there, in order."""
        store = self._store
        full_fence()
        versions = store.version.copy()
        full_fence()
        numbers: IntArray = store.number.copy()
        there = (store.length > 0) & (versions & 1 == 0)
        there &= numbers > self._last[numbers % len(self._last)]
        full_fence()
        slots = np.flatnonzero(there & (store.version == versions))
        slots = slots[np.argsort(numbers[slots])]
        return [(int(numbers[slot]), int(slot), int(versions[slot])) for slot in slots]

    def _copy(self, slot: int, number: int) -> Episode:
        """Copy what the slot holds now; of use only if its version stayed the same."""
        store = self._store
        # A slot that is being written again may say 0, which the version tells afterwards.
        length = max(int(store.length[slot]), 1)
        arrays = {field: store.entries(field.name, slot) for field in self.fields}
        judged = int(store.success[slot])
        return Episode(
            steps={f.name: a[:length].copy() for f, a in arrays.items() if f.kind == "step"},
            states={f.name: a[: length + 1].copy() for f, a in arrays.items() if f.kind == "state"},
            number=number,
            episode_id=int(store.episode_id[slot]),
            part=int(store.part[slot]),
            success=None if judged < 0 else bool(judged),
            policy_version=int(store.policy_version[slot]),
            written_at_ns=int(store.written_at_ns[slot]),
        )


def _drawn(episode: Episode, slot: int, version: int) -> DrawnChunks:
    """Return the episode as one drawn chunk."""
    return DrawnChunks(
        slots=np.array([slot]),
        offsets=np.array([0]),
        versions=np.array([version]),
        bounds=np.array([[0, episode.length]]),
        written_at_ns=np.array([episode.written_at_ns]),
        policy_versions=np.array([episode.policy_version]),
    )
