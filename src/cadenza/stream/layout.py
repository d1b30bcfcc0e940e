"""Where everything lies in the shared block of a trajectory store.

The block has one table per fact about slots, producers, consumers and the stream, then one array
per field of the trajectories. A slot holds one episode, or one part of a longer one. A *step* field
has one entry per step; a *state* field has one more, the state that the last step led to.

Axes:  S = slots, T = steps that a slot can hold, P = producers, C = consumers.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

import numpy as np

from cadenza.core.checks import checked_integer, is_whole
from cadenza.core.errors import ConfigurationError
from cadenza.core.recordings import Field

#: Arrays start at multiples of a cache line, so that no two of them share one.
ALIGNMENT: Final = 64
#: Bytes for the description of one producer's error.
ERROR_BYTES: Final = 8192
#: Processes that may draw at once.
MAX_CONSUMERS: Final = 128
#: Row of the drawing processes' tables in which the engine's owner asks for fills.
OWNER_ROW: Final = MAX_CONSUMERS
#: Logarithmic classes of waiting times and version lags, see `counters`.
HISTOGRAM_CLASSES: Final = 64
#: Runs of equal ``segment_id`` that a slot notes.
MAX_SEGMENTS: Final = 32


#: Fields that every store has besides observations and actions.
BOOKKEEPING: Final = (
    Field(name="rewards", shape=(), dtype="float32"),
    Field(name="terminated", shape=(), dtype="bool"),
    Field(name="truncated", shape=(), dtype="bool"),
    Field(name="segment_id", shape=(), dtype="int64"),
    Field(name="policy_version", shape=(), dtype="int64"),
)

#: Prefix of the state that a step led to: ``next.obs`` of step t is ``obs`` of step t + 1.
NEXT: Final = "next."
#: Keys of a chunk that are computed from where it lies.
VIRTUAL: Final = (
    Field(name="valid", shape=(), dtype="bool"),
    Field(name="action_is_pad", shape=(), dtype="bool"),
    Field(name="success", shape=(), dtype="int64"),
    Field(name="episode_id", shape=(), dtype="int64"),
    Field(name="part", shape=(), dtype="int64"),
    Field(name="episode_step", shape=(), dtype="int64"),
    Field(name="segment_step", shape=(), dtype="int64"),
    Field(name="segment_start", shape=(), dtype="bool"),
    Field(name="segment_end", shape=(), dtype="bool"),
)

#: Kinds of numbers that fields may have: truth values, integers, floats; and their most bytes.
NUMBER_KINDS: Final = "biuf"
_LARGEST_NUMBER: Final = 8

#: Tables of int64, by name: what their axes are.
_SLOT_TABLES: Final = (
    "version",
    "length",
    "policy_version",
    "number",
    "episode_id",
    "part",
    "written_at_ns",
    "success",
    "draws",
    "drawn_before",
    "drawable_at",
    "undrawable_at",
    "lease",
    "segments",
)
_PRODUCER_TABLES: Final = (
    "pid",
    "started_at",
    "heartbeat_ns",
    "restarts",
    "state",
    "claim",
    "publishing",
    "begun",
    "episodes",
    "turns",
    "frames",
    "dropped",
    "stalled_ns",
    "error_length",
)
_CONSUMER_TABLES: Final = (
    "pid",
    "started_at",
    "chunks",
    "frames",
    "redraws",
    "blocked_ns",
    "waiting_ns",
    "wanted_chunks",
    "wanted_until",
    "under_way",
    "staleness_us",
    "version_lag",
    "excluded_ppm",
    "passed",
    "published",
    "to_fill",
    "requests",
    "drawn_at",
    "passed_at",
)


@dataclass(frozen=True, slots=True)
class Placed:
    """One array in the block."""

    offset: int
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreLayout:
    """Sizes S, T and P of a store and its fields; equal layouts place everything alike."""

    slots: int
    steps: int
    producers: int
    fields: tuple[Field, ...]

    def __post_init__(self) -> None:
        sizes = {"slots": self.slots, "steps": self.steps, "producers": self.producers}
        for name, value in sizes.items():
            checked_integer(f"StoreLayout.{name}", value)
        for field in self.fields:
            _check_field(field)
        names = [field.name for field in self.fields]
        if len(set(names)) != len(names):
            raise ConfigurationError(f"StoreLayout.fields: expected distinct names, got {names}.")
        reserved = {field.name for field in VIRTUAL}
        taken = sorted(name for name in names if name in reserved or name.startswith(NEXT))
        if taken:
            raise ConfigurationError(
                f"StoreLayout.fields: expected names other than {sorted(reserved)} and {NEXT}*, "
                f"got {taken}; rename them."
            )

    def places(self) -> dict[str, Placed]:
        """Return every array by name: ``slot.*``, ``producer.*``, ``field.*``, ..."""
        arrays: list[tuple[str, tuple[int, ...], str]] = [("stream", (ALIGNMENT // 2,), "int64")]
        arrays += [(f"slot.{name}", (self.slots,), "int64") for name in _SLOT_TABLES]
        arrays.append(("slot.segment_bounds", (self.slots, MAX_SEGMENTS, 2), "int32"))
        arrays += [(f"producer.{name}", (self.producers,), "int64") for name in _PRODUCER_TABLES]
        arrays.append(("producer.error", (self.producers, ERROR_BYTES), "uint8"))
        arrays += [(f"consumer.{name}", (OWNER_ROW + 1,), "int64") for name in _CONSUMER_TABLES]
        for name in ("staleness_classes", "lag_classes"):
            arrays.append((f"consumer.{name}", (OWNER_ROW + 1, HISTOGRAM_CLASSES), "int64"))
        for field in self.fields:
            entries = self.entries_per_slot(field)
            arrays.append(
                (f"field.{field.name}", (self.slots * entries, *field.shape), field.dtype)
            )
        return _placed(arrays)

    def entries_per_slot(self, field: Field) -> int:
        """Return how many entries of ``field`` a slot holds."""
        return self.steps + (field.kind == "state")

    @property
    def nbytes(self) -> int:
        """Bytes of the whole block."""
        last = list(self.places().values())[-1]
        return last.offset + bytes_of(last.shape, last.dtype)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "StoreLayout":
        """Return the layout that `dataclasses.asdict` described."""
        fields = [
            Field(name=f["name"], shape=tuple(f["shape"]), dtype=f["dtype"], kind=f["kind"])
            for f in document["fields"]
        ]
        sizes = {name: document[name] for name in ("slots", "steps", "producers")}
        return cls(**sizes, fields=tuple(fields))


def _check_field(field: Field) -> None:
    if not isinstance(cast("object", field.name), str) or not all(field.name.split(".")):
        raise ConfigurationError(
            f"StoreLayout.fields: expected names like 'obs' or 'obs.state', got {field.name!r}."
        )
    if not all(is_whole(size) and size >= 1 for size in field.shape):
        raise ConfigurationError(
            f"StoreLayout.fields: expected axes of at least 1, got the shape {field.shape} of "
            f"{field.name!r}."
        )
    try:
        dtype = np.dtype(field.dtype)
    except TypeError:
        dtype = np.dtype(object)
    if dtype.kind not in NUMBER_KINDS or dtype.itemsize > _LARGEST_NUMBER:
        raise ConfigurationError(
            "StoreLayout.fields: expected numbers or truth values of at most 64 bits, got the "
            f"type {field.dtype!r} of {field.name!r}; convert it in the environment."
        )


def _placed(arrays: Iterable[tuple[str, tuple[int, ...], str]]) -> dict[str, Placed]:
    places: dict[str, Placed] = {}
    offset = 0
    for name, shape, dtype in arrays:
        places[name] = Placed(offset, shape, dtype)
        offset += -(-bytes_of(shape, dtype) // ALIGNMENT) * ALIGNMENT
    return places


def bytes_of(shape: tuple[int, ...], dtype: str) -> int:
    """Return the bytes of an array."""
    return int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
