"""Episodes through the store: written, read in chunks, replaced, never seen unfinished."""

import numpy as np
import pytest
import torch

from cadenza.core.errors import InputError, NotReadyError
from cadenza.stream.layout import BOOKKEEPING, Field, StoreLayout
from cadenza.stream.slot_reader import SlotReader
from cadenza.stream.slot_writer import EpisodeWriter
from cadenza.stream.slots import SlotStore

FIELDS = (
    Field(name="obs", shape=(2,), dtype="float32", kind="state"),
    Field(name="actions", shape=(1,), dtype="float32"),
    *BOOKKEEPING,
)


def new_store(slots: int = 3, steps: int = 5) -> SlotStore:
    return SlotStore.create(StoreLayout(slots=slots, steps=steps, producers=1, fields=FIELDS))


def write_episode(store: SlotStore, length: int, first: float) -> int:
    """Publish an episode whose step t has the observation and action ``first + t``."""
    writer = EpisodeWriter(store, 0)
    writer.start({"obs": [first, first]})
    for t in range(length):
        step = {
            "actions": [first + t],
            "rewards": first + t,
            "terminated": t == length - 1,
            "truncated": False,
        }
        writer.add(step, {"obs": [first + t + 1, first + t + 1]})
    return writer.publish(success=True)


def targets(n: int, c: int) -> dict[str, torch.Tensor]:
    return {"obs": torch.empty(n, c, 2), "actions": torch.empty(n, c, 1)}


def test_chunks_are_windows_of_one_episode() -> None:
    store = new_store()
    write_episode(store, 5, 10.0)
    write_episode(store, 3, 100.0)
    out = targets(200, 3)
    drawn = SlotReader(store).draw(200, 3, out, torch.Generator().manual_seed(0))
    first = np.where(drawn.slots == 0, 10.0, 100.0) + drawn.offsets
    expected = first[:, None] + np.arange(3)
    np.testing.assert_array_equal(out["actions"][..., 0], expected)
    np.testing.assert_array_equal(out["obs"][..., 1], expected)
    assert set(drawn.offsets[drawn.slots == 0]) == {0, 1, 2}
    assert set(drawn.offsets[drawn.slots == 1]) == {0}


def test_unfinished_episode_is_not_drawn() -> None:
    store = new_store()
    EpisodeWriter(store, 0).start({"obs": [1, 1]})
    with pytest.raises(NotReadyError, match="expected an episode of at least 1 steps, got none"):
        SlotReader(store).draw(1, 1, targets(1, 1), torch.Generator())


def test_oldest_episode_is_replaced_first() -> None:
    store = new_store(slots=2)
    for first in (1.0, 2.0, 3.0):
        write_episode(store, 1, first)
    assert sorted(store.episode_id) == [1, 2]


def test_slot_beyond_all_is_refused() -> None:
    store = new_store(slots=1)
    EpisodeWriter(store, 0)
    with pytest.raises(NotReadyError, match="expected a slot that nobody writes, got 1 slots"):
        EpisodeWriter(store, 0)


def test_step_with_other_fields_is_refused() -> None:
    writer = EpisodeWriter(new_store(), 0)
    with pytest.raises(InputError, match="expected the state fields \\['obs'\\], got \\['ob'\\]"):
        writer.start({"ob": [1, 1]})
    with pytest.raises(InputError, match="expected 'obs' of shape \\(2,\\), got \\(3,\\)"):
        writer.start({"obs": [1, 1, 1]})
