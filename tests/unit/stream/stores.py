"""Stores that tests of the trajectory store share."""

from collections.abc import Sequence

import torch

from cadenza.stream.chunk_keys import allocate_chunks, chunk_fields
from cadenza.stream.slot_writer import EpisodeWriter
from cadenza.stream.slots import SlotStore
from tests.stream_episodes import FIELDS, new_store

__all__ = ["FIELDS", "new_store", "seeded", "targets", "write_episode"]


def write_episode(
    store: SlotStore,
    length: int,
    first: float = 0.0,
    *,
    segments: Sequence[int] | None = None,
    policy_version: int = 0,
) -> int:
    """Publish an episode whose step t has the observation and action ``first + t``.

    Args:
        store: Where to.
        length: Steps.
        first: Value of step 0.
        segments: ``segment_id`` of every step; None for none.
        policy_version: Version of the policy that acted.

    Returns:
        The slot.
    """
    writer = EpisodeWriter(store, store.take_slot(0))
    writer.start({"obs": [first, first]})
    for t in range(length):
        step = {
            "actions": [first + t],
            "rewards": first + t,
            "terminated": t == length - 1,
            "truncated": False,
        }
        if segments is not None:
            step["segment_id"] = segments[t]
        writer.add(step, {"obs": [first + t + 1, first + t + 1]})
    writer.publish(success=True, policy_version=policy_version)
    return writer.slot


def targets(store: SlotStore, n: int, c: int, *names: str) -> dict[str, torch.Tensor]:
    return allocate_chunks(chunk_fields(store.layout, names or None), n, c)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
