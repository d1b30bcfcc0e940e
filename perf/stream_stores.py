"""Episodes for the measurements of the stream, and the stores that hold them.

Axes:  S = episodes, T = steps of the longest one, n = chunks, c = steps of a chunk.
"""

import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cadenza.stream.chunk_keys import allocate_chunks, chunk_fields, torch_dtype
from cadenza.stream.chunk_source import ChunkSource, DrawRequest
from cadenza.stream.config import OnlineDataEngineCfg
from cadenza.stream.engine_state import OnlineDataEngineState
from cadenza.stream.layout import BOOKKEEPING, Field, StoreLayout
from cadenza.stream.live_draws import LiveDraws
from cadenza.stream.processes import started_at
from cadenza.stream.slot_reader import SlotReader
from cadenza.stream.slots import SlotStore, StreamWords

if TYPE_CHECKING:
    from tensordict import TensorDict

WIDTH, STEPS = 14, 300
CHUNKS, CHUNK_SIZE = 32, 64
STATE_NAMES = ("obs.robot.qpos", "obs.robot.qvel", "obs.robot.qf")
FIELDS = (
    *(Field(name=name, shape=(WIDTH,), dtype="float32", kind="state") for name in STATE_NAMES),
    Field(name="actions", shape=(WIDTH,), dtype="float32"),
    *BOOKKEEPING,
)
#: The same with one camera.
CAMERA_FIELDS = (
    Field(name="obs.sensor.camera.color", shape=(96, 96, 3), dtype="uint8", kind="state"),
    *FIELDS,
)


@dataclass(frozen=True, slots=True)
class Episodes:
    """The same episodes for every store.

    Attributes:
        values: Each field, shape (S, T, ...).
        lengths: Steps of each episode, shape (S,).
        fields: Their description.
    """

    values: Mapping[str, Tensor]
    lengths: Tensor
    fields: tuple[Field, ...]


def trajectories(
    slots: int, fields: tuple[Field, ...] = FIELDS, *, shortest: int = STEPS
) -> Episodes:
    """Return ``slots`` random episodes with lengths uniform in [``shortest``, STEPS]."""
    generator = torch.Generator().manual_seed(0)
    values = {}
    for field in fields:
        shape, dtype = (slots, STEPS, *field.shape), torch_dtype(field.dtype)
        if dtype is torch.uint8:
            values[field.name] = torch.randint(256, shape, generator=generator, dtype=dtype)
        else:
            values[field.name] = torch.rand(shape, generator=generator).to(dtype)
    lengths = torch.randint(shortest, STEPS + 1, (slots,), generator=generator)
    return Episodes(values, lengths, fields)


def filled_store(episodes: Episodes) -> SlotStore:
    """Return our store with ``episodes``."""
    slots = len(episodes.lengths)
    layout = StoreLayout(slots=slots, steps=STEPS, producers=1, fields=episodes.fields)
    store = SlotStore.create(layout)
    for number, length in enumerate(episodes.lengths.tolist()):
        slot = store.take_slot(0)
        for name, values in episodes.values.items():
            store.entries(name, slot)[:STEPS] = values[number].numpy()
        store.publish(slot, length, success=1, policy_version=0)
    return store


def ours(store: SlotStore, n: int = CHUNKS, c: int = CHUNK_SIZE) -> Callable[[], object]:
    """Return a draw from ``store`` into kept buffers."""
    reader = SlotReader(store)
    out = allocate_chunks(chunk_fields(store.layout), n, c)
    generator = torch.Generator().manual_seed(1)
    return lambda: reader.draw(n, c, out, generator)


def ours_of_sizes(store: SlotStore, n: int, sizes: Sequence[int]) -> Callable[[], object]:
    """Return a draw of ``n`` chunks of ``sizes`` in turn, into buffers made for each draw."""
    reader, fields = SlotReader(store), chunk_fields(store.layout)
    generator = torch.Generator().manual_seed(1)
    turn = itertools.cycle(sizes)

    def draw() -> object:
        c = next(turn)
        return reader.draw(n, c, allocate_chunks(fields, n, c), generator)

    return draw


class FilledStream(ChunkSource):
    """A full store that serves like the engine whose producers are idle."""

    def __init__(self, store: SlotStore) -> None:
        """Serve ``store`` from this process on; others may draw as well."""
        self._store = store
        store.words[StreamWords.OWNER_PID] = os.getpid()
        store.words[StreamWords.OWNER_STARTED_AT] = started_at(os.getpid())
        store.words[StreamWords.STATE] = OnlineDataEngineState.READY

    def __getstate__(self) -> dict[str, Any]:
        """Return what other processes need."""
        return {"_store": self._store}

    @cached_property
    def _draws(self) -> LiveDraws:
        return LiveDraws(self._store, OnlineDataEngineCfg(mode="continuous"))

    @property
    def layout(self) -> StoreLayout:
        """Sizes and fields of the store."""
        return self._store.layout

    @property
    def draw_timeout(self) -> float:
        """Longest wait of a draw for fresh data, s; none ever waits."""
        return 1.0

    def _draw(self, request: DrawRequest) -> "TensorDict":
        return self._draws.draw(request)
