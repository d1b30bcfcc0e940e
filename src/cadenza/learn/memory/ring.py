"""The rows of a table: where its episodes lie, which windows fit into them, batches made of them.

An episode occupies consecutive rows of a ring of N rows, handed out in the order of arrival; a hole
at the ring's end is left rather than splitting an episode. ``remaining[row]`` is the number of
steps that a window starting at this row may have, 0 where none may start.

Moves:   when the free rows are scattered, or too few, all episodes are moved to the front of a new
         ring; everything that keeps data per row is told (`EpisodeRows.add_listener`).
Counts:  an episode with ``usable`` steps has ``max(0, usable - T + 1)`` windows. Totals are kept
         for each T in use and change in O(1) per episode.
Draws:   row uniform in the used part of the ring, rejected unless its window fits; this is exactly
         uniform over all windows, in O(1) per window whatever N is. Where few rows can start a
         window, running sums over the episodes find one instead, in O(E).
Rows:    a row of the `RecordArena` holds one value of each stored column and ``remaining``, so
         sampling a step touches one or two lines of memory whatever the number of columns. Each
         column is read through a view of items as large as its row, which numpy copies fastest.
Axes:    N = rows, E = stored episodes, L = steps of an episode, n = windows, T = rows per window,
         B = n T, rollout-major.
"""

import contextlib
import math
import mmap
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from cadenza.core.errors import InputError, PreconditionError, refuse
from cadenza.learn.loaded_state import complete_state
from cadenza.learn.memory.column import (
    Column,
    Ends,
    IndexArray,
    Mapped,
    NoWindowError,
    SamplePoint,
    SequenceRows,
    Shift,
    TableLayout,
    TagProxy,
    UnknownKeyError,
)

#: Brings the data of rows, in this order, to the front of a new ring of so many; the rest is 0.
RowListener: TypeAlias = Callable[[IndexArray, int], None]


def moved(array: NDArray[Any], rows: IndexArray, capacity: int) -> NDArray[Any]:
    """Return ``array`` in a ring of ``capacity`` rows, which begins with its ``rows``."""
    result = np.zeros((capacity, *array.shape[1:]), array.dtype)
    result[: len(rows)] = array[rows]
    return result


def row_indices(starts: IndexArray, counts: IndexArray) -> IndexArray:
    """Return ``starts[i] ... starts[i] + counts[i] - 1`` for every i, one after the other."""
    before = np.cumsum(counts) - counts
    return np.repeat(starts - before, counts) + np.arange(int(counts.sum()))


#: Rows of a ring when nothing else is asked for.
_FIRST_ROWS: Final = 256
#: A moved ring is left at most this full, so that moving stays rare.
_FULLEST: Final = 0.8
#: Growth of a ring that is too small.
_GROWTH: Final = 1.5


class WindowCounts:
    """Totals by window length."""

    def __init__(self) -> None:
        self._episodes: Counter[int] = Counter()
        self._totals: dict[int, int] = {}

    def change(self, usable: int, sign: int) -> None:
        """Count an episode with so many usable steps in (1) or out (-1)."""
        self._episodes[usable] += sign
        if not self._episodes[usable]:
            del self._episodes[usable]
        for length in self._totals:
            if usable >= length:
                self._totals[length] += sign * (usable - length + 1)

    def total(self, length: int) -> int:
        """Return the number of windows of ``length`` rows."""
        if length not in self._totals:
            self._totals[length] = sum(
                episodes * max(usable - length + 1, 0)
                for usable, episodes in self._episodes.items()
            )
        return self._totals[length]

    def longest(self) -> int:
        """Return the most usable steps of any episode, 0 without one."""
        return max(self._episodes, default=0)


#: Facts of `EpisodeSlots`.
SLOT_FIELDS: Final = ("start", "steps", "usable", "rows", "serial")


class EpisodeSlots:
    """Facts by slot; a slot is a small number that one stored episode holds.

    ``start`` is its first row, ``steps`` its transitions L, ``usable`` the steps that windows may
    use, ``rows`` the rows that it occupies, ``serial`` the number of its arrival, never used twice;
    ``identity`` its id. ``facts`` has all but the id, (5, S).
    """

    def __init__(self, size: int) -> None:
        self.identity: list[int] = [0] * size
        self._use(np.zeros((len(SLOT_FIELDS), size), np.int64))

    def _use(self, facts: NDArray[np.int64]) -> None:
        self.facts: NDArray[np.int64] = facts
        self.start: IndexArray = facts[0]
        self.steps: IndexArray = facts[1]
        self.usable: IndexArray = facts[2]
        self.rows: IndexArray = facts[3]
        self.serial: IndexArray = facts[4]

    def grow(self) -> None:
        """Double the number of slots."""
        self._use(np.concatenate((self.facts, np.zeros_like(self.facts)), axis=1))
        self.identity.extend([0] * len(self.identity))


#: Rejection is used while at least one in so many rows can start a window.
_MOST_REJECTED: Final = 8
#: A sample id holds, from its low bits up, the row, the number of moves so far, and the serial
#: number of the row's episode, as far as they fit into 63 bits.
_ROW_BITS: Final = 34
_MOVES_BITS: Final = 6
_MOVES_MASK: Final = (1 << _MOVES_BITS) - 1
_SERIAL_MASK: Final = (1 << (63 - _ROW_BITS - _MOVES_BITS)) - 1
#: Standard deviations of spare draws, so that one round nearly always suffices.
_SPARE: Final = 3.0


class EpisodeRows:
    """Finds rows for episodes, and windows in them.

    Args:
        capacity: Rows of the ring; it grows when they do not suffice.
        external_remaining: Returns the array to use as ``remaining`` in a ring that its owner has
            already filled or moved; None keeps an own array.

    Attributes:
        remaining: Steps that a window starting at a row may have, int32, shape (N,).
        slot_of_row: Slot of the episode that holds a row, int32, shape (N,); stale in free rows.
        slots: Facts by slot.
    """

    def __init__(
        self,
        capacity: int = _FIRST_ROWS,
        *,
        external_remaining: Callable[[], NDArray[np.int32]] | None = None,
    ) -> None:
        self._external = external_remaining
        self._listeners: list[RowListener] = []
        #: Rows of the ring, N.
        self.capacity: int = max(int(capacity), 1)
        self._reset()

    def _reset(self) -> None:
        external = self._external
        self.remaining: NDArray[Any] = external() if external else np.zeros(self.capacity, np.int32)
        self.slot_of_row: NDArray[np.int32] = np.zeros(self.capacity, np.int32)
        self.slots: EpisodeSlots = EpisodeSlots(16)
        self._slot_count = 0
        self._free_slots: list[int] = []
        self._live: OrderedDict[int, int] = OrderedDict()
        self._head = 0
        self._end = 0  # one past the last used row before the ring went round
        #: Transitions in all episodes.
        self.steps: int = 0
        self._rows = 0
        self._serial = 0
        self._moves = 0
        self._countdown = np.arange(64, 0, -1, dtype=np.int32)
        self.windows: WindowCounts = WindowCounts()

    def __len__(self) -> int:
        """Return the number of episodes, E."""
        return len(self._live)

    def __contains__(self, identity: object) -> bool:
        """Return whether this episode is stored."""
        return identity in self._live

    def identities(self) -> list[int]:
        """Return the ids of all episodes, oldest first."""
        return list(self._live)

    def live_slots(self) -> IndexArray:
        """Return the slots of all episodes, oldest first, shape (E,)."""
        return np.fromiter(self._live.values(), np.int64, len(self._live))

    def iterate_slots(self) -> Iterator[int]:
        """Yield the slots of all episodes, oldest first."""
        return iter(self._live.values())

    def slot(self, identity: int) -> int:
        """Return the slot of an episode.

        Raises:
            UnknownKeyError: It is not stored.
        """
        slot = self._live.get(identity)
        if slot is None:
            wanted, got = f"one of the {len(self._live)} stored ones", "another"
            gone = "it was ejected or never added"
            refuse(UnknownKeyError, f"episode {identity}", expected=wanted, got=got, do=gone)
        return slot

    def add_listener(self, listener: RowListener) -> None:
        """Tell ``listener`` when rows move."""
        self._listeners.append(listener)

    def remove_listener(self, listener: RowListener) -> None:
        """Stop telling ``listener``."""
        self._listeners.remove(listener)

    def clear(self) -> None:
        """Forget all episodes; the ring keeps its size."""
        self.remaining[: max(self._head, self._end)] = 0  # rows never used stay untouched
        serial, moves = self._serial, self._moves
        self._reset()
        self._serial, self._moves = serial, moves

    def add(
        self, identity: int, steps: int, *, usable: int | None = None, rows: int | None = None
    ) -> int:
        """Give a new episode its rows, return the first; unless told otherwise it needs and uses L.

        Raises:
            PreconditionError: The id is stored already.
            InputError: No steps.
        """
        self.require_new(identity)
        if steps < 1:
            refuse(InputError, f"episode {identity}", expected="at least 1 step", got=steps)
        usable = steps if usable is None else usable
        rows = steps if rows is None else rows
        start = self._take_rows(rows)
        if self._free_slots:
            slot = self._free_slots.pop()
        else:
            slot = self._slot_count
            self._slot_count += 1
            if slot == len(self.slots.start):
                self.slots.grow()
        self.slots.facts[:, slot] = start, steps, usable, rows, self._serial
        self._serial += 1
        self._place(identity, slot, start, steps, usable, rows)
        return start

    def require_new(self, identity: int) -> None:
        """Raise `PreconditionError` if an episode with this id is stored."""
        if identity in self._live:
            where, got = f"episode {identity}", "one that is"
            wanted, do = "an id that is not stored", "ids are used for one episode each"
            refuse(PreconditionError, where, expected=wanted, got=got, do=do)

    def remove(self, identity: int) -> None:
        """Forget an episode and free its rows.

        Raises:
            UnknownKeyError: It is not stored.
        """
        slot = self.slot(identity)
        del self._live[identity]
        start, usable = int(self.slots.start[slot]), int(self.slots.usable[slot])
        self.steps -= int(self.slots.steps[slot])
        self._rows -= int(self.slots.rows[slot])
        self.remaining[start : start + usable] = 0
        self._free_slots.append(slot)
        self.windows.change(usable, -1)

    def _take_rows(self, rows: int) -> int:
        """Return the first of ``rows`` free consecutive rows after the newest episode."""
        if not self._live:
            self._head = self._end = 0
            if rows > self.capacity:
                self._move(rows)
        else:
            oldest = int(self.slots.start[next(iter(self._live.values()))])
            if oldest < self._head:  # the used rows are [oldest, head)
                if self.capacity - self._head < rows:
                    if oldest >= rows:
                        self._end, self._head = self._head, 0
                    else:
                        self._move(rows)
            elif oldest - self._head < rows:  # the used rows are [oldest, end) and [0, head)
                self._move(rows)
        start = self._head
        self._head += rows
        return start

    def _move(self, extra: int) -> None:
        """Bring all episodes to the front of a new ring with room for ``extra`` rows."""
        needed = self._rows + extra
        capacity = self.capacity
        if needed > _FULLEST * capacity:
            capacity = max(int(_GROWTH * capacity), math.ceil(needed / _FULLEST))
        slots = self.live_slots()
        counts = self.slots.rows[slots]
        rows = row_indices(self.slots.start[slots], counts)
        for listener in self._listeners:
            listener(rows, capacity)
        self.slot_of_row = moved(self.slot_of_row, rows, capacity)
        if self._external is None:
            self.remaining = moved(self.remaining, rows, capacity)
        else:
            self.remaining = self._external()
        self.slots.start[slots] = np.cumsum(counts) - counts
        self._moves += 1
        self.capacity, self._head = capacity, int(counts.sum())

    def state_dict(self) -> dict[str, Any]:
        """Return where everything lies, without ``remaining``, as numbers and lists."""
        slots = self.live_slots()
        return {
            "capacity": self.capacity,
            "head": self._head,
            "end": self._end,
            "next_serial": self._serial,
            "moves": self._moves,
            "slot_count": self._slot_count,
            "free_slots": list(self._free_slots),
            "identities": self.identities(),
            "slots": slots.tolist(),
            **dict(zip(SLOT_FIELDS, self.slots.facts[:, slots].tolist(), strict=True)),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over the places that `state_dict` described; the ring must have its capacity."""
        with complete_state("places of episodes", "places in a ring of this capacity"):
            self._load(state)

    def _load(self, state: Mapping[str, Any]) -> None:
        head, end, slot_count = int(state["head"]), int(state["end"]), int(state["slot_count"])
        slots, free = list(state["slots"]), list(state["free_slots"])
        identities = [int(identity) for identity in state["identities"]]
        facts = np.array([state[name] for name in SLOT_FIELDS], np.int64)
        start, steps, usable, rows, _ = facts
        inside = (start >= 0) & (start <= self.capacity - rows)
        inside &= (usable >= 0) & (usable <= steps) & (steps > 0) & (steps <= rows)
        known = len(set(identities)) == len(identities) == len(slots)
        known &= sorted(slots + free) == list(range(slot_count))
        fits = int(state["capacity"]) == self.capacity >= max(head, end) >= min(head, end) >= 0
        if not (inside.all() and known and fits):
            raise ValueError("episodes outside the ring, or ids or slots that are used twice")
        self._reset()
        self._slot_count, self._free_slots = slot_count, free
        self.slots = EpisodeSlots(max(16, 1 << max(slot_count - 1, 0).bit_length()))
        self.slots.facts[:, slots] = facts
        for identity, slot, numbers in zip(identities, slots, facts.T.tolist(), strict=True):
            self._place(identity, slot, *numbers[:4])
        self._head, self._end = head, end
        self._serial, self._moves = int(state["next_serial"]), int(state["moves"])

    def _place(
        self, identity: int, slot: int, start: int, steps: int, usable: int, rows: int
    ) -> None:
        """Enter an episode whose numbers are in ``slot`` already."""
        self.slots.identity[slot] = identity
        self._live[identity] = slot
        self.steps += steps
        self._rows += rows
        self.slot_of_row[start : start + rows] = slot
        if usable > 0:
            if usable > len(self._countdown):
                self._countdown = np.arange(2 * usable, 0, -1, dtype=np.int32)
            self.remaining[start : start + usable] = self._countdown[-usable:]
        self.windows.change(usable, 1)

    def draw_windows(self, rng: np.random.Generator, count: int, length: int) -> IndexArray:
        """Return the first rows of ``count`` windows, drawn uniformly from all that fit."""
        total = self.require_windows(length)
        low, high = self._span()
        span = high - low
        if total * _MOST_REJECTED < span:
            counts = np.zeros(len(self.slots.usable), np.int64)
            live = self.live_slots()
            counts[live] = np.maximum(self.slots.usable[live] - length + 1, 0)
            after = np.cumsum(counts)
            numbers = rng.integers(0, total, size=count)
            slots = np.searchsorted(after, numbers, side="right")
            return self.slots.start[slots] + numbers - (after - counts)[slots]
        if total == span:
            return rng.integers(low, high, size=count)
        rejected = span / total - 1.0
        found = np.zeros(0, np.int64)
        while len(found) < count:
            missing = count - len(found)
            spare = int(missing * rejected + _SPARE * math.sqrt(missing * rejected)) + 1
            rows = rng.integers(low, high, size=missing + spare)
            found = np.concatenate((found, rows[self.remaining[rows] >= length]))
        return found[:count]

    def draw_steps(self, rng: np.random.Generator, count: int) -> IndexArray:
        """Return the slots of ``count`` uniformly drawn usable steps; none if there are no such."""
        if self.windows.total(1) == 0:
            return np.zeros(0, np.int64)
        return self.slot_of_row[self.draw_windows(rng, count, 1)].astype(np.int64)

    def require_windows(self, length: int) -> int:
        """Return how many windows of ``length`` rows there are, at least 1.

        Raises:
            NoWindowError: There is none.
        """
        total = self.windows.total(length)
        if total == 0:
            raise NoWindowError(
                f"sample: expected an episode of at least {length} steps, got {len(self._live)} "
                f"episodes of at most {self.windows.longest()}; lower the length, collect longer "
                f"episodes, or use MemoryTableProxy's minimum_length_threshold={length}."
            )
        return total

    def points(self, rows: IndexArray, length: int) -> list[SamplePoint]:
        """Return the windows that start at ``rows`` as (id, start, stop)."""
        slots = self.slot_of_row[rows]
        starts = (rows - self.slots.start[slots]).tolist()
        identity = self.slots.identity
        return [
            (identity[slot], start, start + length)
            for slot, start in zip(slots.tolist(), starts, strict=True)
        ]

    def rows_of(self, points: Sequence[SamplePoint], length: int) -> IndexArray:
        """Return the first rows of windows given as (id, start, stop), shape (n,).

        Raises:
            UnknownKeyError: An episode is not stored.
            InputError: A window is not inside its episode or has another length.
        """
        slots = np.fromiter((self.slot(point[0]) for point in points), np.int64, len(points))
        starts = np.fromiter((point[1] for point in points), np.int64, len(points))
        stops = np.fromiter((point[2] for point in points), np.int64, len(points))
        usable = self.slots.usable[slots]
        wrong = (starts < 0) | (stops > usable) | (stops - starts != length)
        if wrong.any():
            first = int(np.argmax(wrong))
            wanted = f"windows of {length} steps inside their episodes"
            got = f"[{starts[first]}, {stops[first]}) in episode {points[first][0]}, which has "
            do = "correct the sample strategy"
            refuse(InputError, "sample", expected=wanted, got=f"{got}{usable[first]}", do=do)
        return self.slots.start[slots] + starts

    def sample_ids(self, rows: IndexArray) -> IndexArray:
        """Return numbers that find the episodes' steps at ``rows`` again, or tell they are gone.

        They become stale when rows move, too. Shape (n,).
        """
        return (self._stamps(rows) << _ROW_BITS) | rows

    def _stamps(self, rows: IndexArray) -> IndexArray:
        """Return what tells the present step at a row from all others that were there before."""
        serials = self.slots.serial[self.slot_of_row[rows]] & _SERIAL_MASK
        return (serials << _MOVES_BITS) | (self._moves & _MOVES_MASK)

    def rows_of_sample_ids(self, sample_ids: IndexArray) -> tuple[IndexArray, NDArray[np.bool_]]:
        """Return the rows that `sample_ids` named, and which of them still hold the same step."""
        rows = sample_ids & ((1 << _ROW_BITS) - 1)
        known = (sample_ids >= 0) & (rows < self.capacity)
        rows = np.where(known, rows, 0)
        known &= (self.remaining[rows] > 0) & (self._stamps(rows) == sample_ids >> _ROW_BITS)
        return rows, known

    def _span(self) -> tuple[int, int]:
        """Return the range of rows that holds every episode."""
        if not self._live:
            return 0, 0
        oldest = int(self.slots.start[next(iter(self._live.values()))])
        return (oldest, self._head) if oldest < self._head else (0, self._end)


#: Arenas of at least this size ask for huge pages (2 MiB each).
_HUGE_BYTES: Final = 1 << 21
#: Items of these sizes are copied as numbers, others as opaque bytes.
_NUMBER_SIZES: Final = (1, 2, 4, 8)
#: Name of the field that holds `EpisodeRows.remaining`.
_REMAINING: Final = "\0remaining"


#: Rows begin at multiples of this many bytes, so that every field can be aligned.
_ROW_ALIGNMENT: Final = 8


def _size(field: Column) -> int:
    """Return the bytes of one value."""
    return field.dtype.itemsize * math.prod(field.shape)


def _alignment(field: Column) -> int:
    """Return the largest power of two, at most 8, that divides the size."""
    size = _size(field)
    return min(size & -size, _ROW_ALIGNMENT) if size else 1


class RecordArena:
    """Values by row and column."""

    def __init__(self, fields: Sequence[Column], capacity: int) -> None:
        remaining = Column(_REMAINING, (), np.dtype(np.int32))
        # Falling alignment leaves no gaps, as each size is a multiple of its alignment.
        ordered = sorted((*fields, remaining), key=_alignment, reverse=True)
        self._fields = {field.name: field for field in ordered}
        ends = np.cumsum([_size(field) for field in ordered]).tolist()
        self.row_bytes: int = -(-ends[-1] // _ROW_ALIGNMENT) * _ROW_ALIGNMENT
        names = [str(index) for index in range(len(ordered))]
        record: Any = {"names": names, "offsets": [0, *ends[:-1]]}
        record["itemsize"] = self.row_bytes
        values = [(field.dtype, field.shape) for field in ordered]
        kinds = ["u" if _size(field) in _NUMBER_SIZES else "V" for field in ordered]
        items = [f"{kind}{_size(field)}" for kind, field in zip(kinds, ordered, strict=True)]
        self._records = [
            np.dtype(cast("Any", {**record, "formats": formats})) for formats in (values, items)
        ]
        self._use(_zeros(capacity * self.row_bytes))

    def _use(self, buffer: NDArray[np.uint8]) -> None:
        self._rows = buffer.reshape(-1, self.row_bytes)
        self._beginnings = self._rows[:, 0]
        self._values, items = (
            {name: buffer.view(record)[str(index)] for index, name in enumerate(self._fields)}
            for record in self._records
        )
        self._items = {name: views for name, views in items.items() if views.itemsize}

    def remaining(self) -> NDArray[np.int32]:
        """Return the field for `EpisodeRows.remaining`, shape (N,)."""
        return self._values[_REMAINING]

    def values(self, name: str) -> NDArray[Any]:
        """Return a column's values, to be read and written at once, shape (N, *shape)."""
        return self._values[name]

    def gather(self, name: str, rows: IndexArray) -> NDArray[Any]:
        """Return a fresh array with the values of a column at ``rows``, shape (n, *shape)."""
        field = self._fields[name]
        if name not in self._items:  # nothing to copy
            return np.zeros((len(rows), *field.shape), field.dtype)
        values = self._items[name][rows].view(field.dtype)
        return values if field.shape == () else values.reshape(len(rows), *field.shape)

    def touch(self, rows: IndexArray) -> None:
        """Load the beginnings of ``rows`` into the processor's cache.

        One cheap pass waits for many lines of memory at once; the passes over wider items that
        follow would wait for them one by one.
        """
        self._beginnings[rows]

    def rows_moved(self, rows: IndexArray, capacity: int) -> None:
        """Bring the rows into a new buffer; see `RowListener`."""
        buffer = _zeros(capacity * self.row_bytes)
        front = buffer.reshape(-1, self.row_bytes)[: len(rows)]
        np.take(self._rows, rows, axis=0, out=front, mode="clip")  # "raise" would copy once more
        self._use(buffer)


def _zeros(size: int) -> NDArray[np.uint8]:
    """Return zeros; large ones on huge pages where the system has them."""
    if size < _HUGE_BYTES or not hasattr(mmap, "MADV_HUGEPAGE"):
        return np.zeros(size, np.uint8)
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without huge pages
        pages.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(pages, np.uint8)


class _ColumnView:
    """One stored column as mappers see it: arrays by episode id."""

    def __init__(self, contents: "EpisodeContents", name: str) -> None:
        self._contents = contents
        self._name = name

    def __getitem__(self, identity: int, /) -> Any:
        """Return the rows of one episode, read-only."""
        rows = self._contents.episode(self._name, identity)
        rows.flags.writeable = False
        return TagProxy(rows) if self._contents.layout.stored[self._name].is_tag else rows


class EpisodeContents:
    """The rows of all episodes and columns, the table's content at one time; makes batches of them.

    ``extra`` has the rows beyond L of the flexible columns by slot, int32, (S, F).
    """

    def __init__(self, layout: TableLayout, capacity: int) -> None:
        self.layout = layout
        self.arena: RecordArena = RecordArena(layout.fields(), capacity)
        self.rows: EpisodeRows = EpisodeRows(capacity, external_remaining=self.arena.remaining)
        self.rows.add_listener(self.arena.rows_moved)
        self.extra: NDArray[np.int32] = np.zeros((0, len(layout.flexible)), np.int32)
        self._steps = np.zeros(1, np.int64)
        self._storages: dict[str, Any] = {}
        self._looks_ahead = any(
            isinstance(output, Shift) and (output.after or output.first == 1)
            for output in layout.outputs
        )

    def counts(self, name: str, slots: IndexArray) -> IndexArray:
        """Return the rows that a stored column has in the episodes of ``slots``, shape (E,)."""
        stored = self.layout.stored[name]
        if stored.is_tag:
            return np.ones(len(slots), np.int64)
        steps = self.rows.slots.steps[slots]
        if name in self.layout.flexible:
            return steps + self.extra[slots, self.layout.flexible.index(name)]
        return steps + stored.least_extra

    def add(self, identity: int, episode: SequenceRows) -> None:
        """Store a checked episode."""
        start = self.rows.add(identity, episode.steps, usable=episode.usable, rows=episode.rows)
        if episode.extra:
            self.set_extra(self.rows.slot(identity), episode.extra)
        for name, stored in self.layout.stored.items():
            values = episode.values[name]
            count = episode.rows if stored.is_tag else len(values)
            self.arena.values(name)[start : start + count] = values

    def extra_rows(self, slots: IndexArray) -> NDArray[np.int32]:
        """Return the rows beyond L of the flexible columns, (E, F)."""
        width = len(self.layout.flexible)
        return self.extra[slots] if width else np.zeros((len(slots), 0), np.int32)

    def set_extra(self, slot: int, extra: list[int]) -> None:
        """Note the rows beyond L of the flexible columns of a new episode."""
        if slot >= len(self.extra):
            more = len(self.rows.slots.start) - len(self.extra)
            self.extra = np.concatenate((self.extra, np.zeros((more, len(extra)), np.int32)))
        self.extra[slot] = extra

    def episode(self, name: str, identity: int) -> NDArray[Any]:
        """Return one episode's rows of a stored column: a view, to be read at once."""
        slot = self.rows.slot(identity)
        start = int(self.rows.slots.start[slot])
        count = int(self.counts(name, np.array([slot]))[0])
        return self.arena.values(name)[start : start + count]

    def _storage(self, name: str) -> Any:
        """Return a column as the mappers of others see it."""
        if name not in self._storages:
            position = [column.name for column in self.layout.columns].index(name)
            column, output = self.layout.columns[position], self.layout.outputs[position]
            if name in self.layout.stored:
                self._storages[name] = _ColumnView(self, name)
            else:
                made_by: Any = output if isinstance(output, Mapped) else column
                source = self._storage(output.source)
                made = made_by.mapper(source, tuple(column.shape), column.dtype)
                self._storages[name] = made
        return self._storages[name]

    def gather(self, starts: IndexArray, length: int) -> dict[str, Any]:
        """Return fresh arrays by column of windows with these first rows, (n,), of ``length`` rows.

        They are (B, *shape), or (n, *shape) for one value per window.
        """
        arena = self.arena
        if length == 1:
            rows = starts
        else:
            if len(self._steps) != length:
                self._steps = np.arange(length)
            rows = (starts[:, None] + self._steps).reshape(-1)
        shifted: dict[int, IndexArray] = {0: rows}
        if length == 1 and self._looks_ahead:
            shifted[1] = rows + 1
            arena.touch(shifted[1])
        result: dict[str, NDArray[Any]] = {}
        final: dict[str, NDArray[np.bool_]] = {}
        for output in self.layout.outputs:
            if isinstance(output, Shift):
                at = _rows_of(output, starts, length, shifted)
                result[output.name] = arena.gather(output.source, at)
            elif isinstance(output, Ends):
                if output.source not in final:
                    final[output.source] = self._final(output.source, starts, length)
                result[output.name] = _flags(output, final[output.source], length)
            else:
                result[output.name] = self._map(output, starts, length)
        return result

    def _final(self, source: str, starts: IndexArray, length: int) -> NDArray[np.bool_]:
        """Return whether each window ends with the last row of ``source``, shape (n,)."""
        rows, stored = self.rows, self.layout.stored[source]
        last = starts if length == 1 else starts + (length - 1)
        if self.layout.whole and stored.most_extra == 0:
            return rows.remaining[last] == 1
        slots = rows.slot_of_row[starts].astype(np.int64)
        return last - rows.slots.start[slots] == self.counts(source, slots) - 1

    def _map(self, output: Mapped, starts: IndexArray, length: int) -> NDArray[Any]:
        """Return the values that a mapper gives, window by window."""
        storage = self._storage(output.name)
        per_window = storage.sequence_length_transform(length)
        points = self.rows.points(starts, length)
        shape = output.field.shape
        result = np.empty((len(points) * per_window, *shape), output.field.dtype)
        for index, (identity, start, stop) in enumerate(points):
            values = np.asarray(storage[identity][start:stop])
            try:
                result[index * per_window : (index + 1) * per_window] = values
            except ValueError as error:
                shapes = ", ".join(
                    f"{name} {self.episode(name, identity).shape}" for name in self.layout.stored
                )
                raise InputError(
                    f"sample: expected {per_window} rows of shape {shape} for column "
                    f"{output.name!r}, episode {identity}, slice [{start}:{stop}], got an array of "
                    f"shape {values.shape}; the episode has {shapes}."
                ) from error
        return result


def _rows_of(
    output: Shift, starts: IndexArray, length: int, shifted: dict[int, IndexArray]
) -> IndexArray:
    """Return the rows that an output reads; ``shifted`` keeps those that others read too."""
    if output.single:
        return starts
    if output.after:
        return shifted[1] if length == 1 and 1 in shifted else starts + length
    at = shifted.get(output.first)
    if at is None:
        at = shifted[output.first] = shifted[0] + output.first
    return at


def _flags(output: Ends, final: NDArray[np.bool_], length: int) -> NDArray[Any]:
    """Return episode ends as values, shape (B, *shape)."""
    field, count = output.field, len(final)
    if length == 1:
        values = ~final if output.mask else final
        # A boolean result may be ``final`` itself, which other columns use too.
        return values.astype(field.dtype).reshape(count, *field.shape)
    values = np.full((count, length), output.mask, field.dtype)
    values[:, -1] = ~final if output.mask else final
    return values.reshape(count * length, *field.shape)
