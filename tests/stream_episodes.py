"""Stores and episodes whose numbers say where they belong, for tests of the stream's bridges."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from cadenza.stream.batches import allocate_chunks, chunk_fields
from cadenza.stream.bridges.episodes import Episode
from cadenza.stream.layout import BOOKKEEPING, Field, StoreLayout
from cadenza.stream.slot_writer import EpisodeWriter
from cadenza.stream.slots import SlotStore

FIELDS = (
    Field(name="obs", shape=(2,), dtype="float32", kind="state"),
    Field(name="actions", shape=(1,), dtype="float32"),
    *BOOKKEEPING,
)


def new_store(slots: int = 3, steps: int = 5, producers: int = 1) -> SlotStore:
    layout = StoreLayout(slots=slots, steps=steps, producers=producers, fields=FIELDS)
    return SlotStore.create(layout)


def targets(store: SlotStore, n: int, c: int, *names: str) -> dict[str, torch.Tensor]:
    return allocate_chunks(chunk_fields(store.layout, names or None), n, c)


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def fill(
    writer: EpisodeWriter,
    length: int,
    first: float,
    *,
    ending: str | None = "terminated",
    segments: Sequence[int] | None = None,
) -> None:
    """Write steps 0 to ``length - 1``: observation t is ``first + t``, so are action and reward."""
    writer.start({"obs": [first, -first]})
    for t in range(length):
        flags = {name: t == length - 1 and name == ending for name in ("terminated", "truncated")}
        step = {"actions": [first + t], "rewards": first + t, **flags}
        if segments is not None:
            step["segment_id"] = segments[t]
        writer.add(step, {"obs": [first + t + 1, -first - t - 1]})


def write_episode(
    store: SlotStore,
    length: int,
    first: float = 0.0,
    *,
    ending: str | None = "terminated",
    segments: Sequence[int] | None = None,
    policy_version: int | None = None,
) -> int:
    """Publish an episode, which succeeded if it terminated; return its slot."""
    writer = EpisodeWriter(store, store.take_slot(0))
    fill(writer, length, first, ending=ending, segments=segments)
    version = int(first) if policy_version is None else policy_version
    writer.publish(success=ending == "terminated", policy_version=version)
    return writer.slot


def random_episode(
    length: int,
    rng: np.random.Generator,
    *,
    number: int = 0,
    success: bool | None = True,
    image: tuple[int, int] | None = None,
) -> Episode:
    """Return an episode of random numbers, with a camera of ``image`` = (height, width)."""
    steps: dict[str, Any] = {
        "actions": rng.standard_normal((length, 3)).astype(np.float32),
        "rewards": rng.standard_normal(length).astype(np.float32),
        "terminated": np.arange(length) == length - 1,
        "truncated": np.zeros(length, dtype=bool),
        "segment_id": rng.integers(0, 4, length),
        "policy_version": rng.integers(0, 4, length),
    }
    states = {"obs.qpos": rng.standard_normal((length + 1, 4)).astype(np.float32)}
    if image is not None:
        pixels = rng.integers(0, 256, (length + 1, *image, 3), dtype=np.uint8)
        states["obs.sensor.front.color"] = pixels
    return Episode(steps=steps, states=states, number=number, success=success)
