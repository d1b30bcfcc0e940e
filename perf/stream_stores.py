"""Episodes for the measurements of the stream, and the stores that hold them.

Axes:  S = episodes, T = steps of the longest one, n = chunks, c = steps of a chunk.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import batch_space
from torch import Tensor

from cadenza.stream.batches import allocate_chunks, chunk_fields, torch_dtype
from cadenza.stream.config import OnlineDataEngineCfg
from cadenza.stream.engine import OnlineDataEngine
from cadenza.stream.layout import BOOKKEEPING, Field
from cadenza.stream.slot_reader import SlotReader
from cadenza.stream.slots import OnlineDataEngineState, SlotStore, set_engine_state

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


def spaces_alone(num_envs: int, fields: Sequence[Field]) -> VectorEnv:
    """Return environments that nobody steps, with the spaces of ``fields``."""
    observed: dict = {}
    for field in fields:
        high = 1 if field.dtype == "bool" else 100
        box = spaces.Box(0, high, field.shape, np.dtype(field.dtype))
        if field.kind == "state":
            *folders, name = field.name.removeprefix("obs.").split(".")
            inner = observed
            for folder in folders:
                inner = inner.setdefault(folder, {})
            inner[name] = box
        elif field.name == "actions":
            actions = box
    worlds = VectorEnv()
    worlds.num_envs = num_envs
    worlds.single_observation_space = _nested(observed)
    worlds.single_action_space = actions
    worlds.observation_space = batch_space(worlds.single_observation_space, num_envs)
    worlds.action_space = batch_space(actions, num_envs)
    return worlds


def _nested(entries: dict) -> spaces.Dict:
    return spaces.Dict({k: _nested(v) if isinstance(v, dict) else v for k, v in entries.items()})


def filled_engine(episodes: Episodes) -> OnlineDataEngine:
    """Return our engine with ``episodes``; it serves as one whose producers are idle."""
    cfg = OnlineDataEngineCfg(
        buffer_size=len(episodes.lengths),
        max_episode_steps=STEPS,
        gym_config={
            "factory": "perf.stream_stores:spaces_alone",
            "kwargs": {"fields": episodes.fields},
        },
        mode="continuous",
    )
    engine = OnlineDataEngine(cfg)
    store = engine.store
    for number, length in enumerate(episodes.lengths.tolist()):
        slot = store.take_slot(0)
        for name, values in episodes.values.items():
            store.entries(name, slot)[:STEPS] = values[number].numpy()
        store.publish(slot, length, success=1, policy_version=0)
    set_engine_state(store, OnlineDataEngineState.READY)
    return engine


def ours(engine: OnlineDataEngine, n: int = CHUNKS, c: int = CHUNK_SIZE) -> Callable[[], object]:
    """Return a draw from ``engine`` into a kept batch."""
    out = engine.sample_batch(n, c)
    return lambda: engine.sample_batch(n, c, out=out)


def ours_of_sizes(engine: OnlineDataEngine, n: int, sizes: Sequence[int]) -> Callable[[], object]:
    """Return a draw of ``n`` chunks of ``sizes`` in turn, each a new batch."""
    turn = itertools.cycle(sizes)
    return lambda: engine.sample_batch(n, next(turn))


def reader_of(store: SlotStore, *, kept: bool) -> Callable[[], object]:
    """Return a draw of what the engine's calls are made of: the bare copy, untorn.

    Args:
        store: Where from.
        kept: Into kept buffers; otherwise into new ones.
    """
    reader, fields = SlotReader(store), chunk_fields(store.layout)
    generator = torch.Generator().manual_seed(1)
    out = allocate_chunks(fields, CHUNKS, CHUNK_SIZE)
    if kept:
        return lambda: reader.draw(CHUNKS, CHUNK_SIZE, out, generator)
    return lambda: reader.draw(
        CHUNKS, CHUNK_SIZE, allocate_chunks(fields, CHUNKS, CHUNK_SIZE), generator
    )
