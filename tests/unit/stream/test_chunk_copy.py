"""Chunks of every type that a field may have, copied at once and drawn anew."""

from typing import Any

import numpy as np
import pytest

from cadenza.stream import slot_reader
from cadenza.stream.draw_options import DrawOptions
from cadenza.stream.layout import BOOKKEEPING, Field, StoreLayout
from cadenza.stream.slot_reader import SlotReader
from cadenza.stream.slot_writer import EpisodeWriter
from cadenza.stream.slots import SlotStore
from tests.stream_episodes import seeded, targets

STEPS = 5
TYPES = ("bool", *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)))
TYPES += ("float16", "float32", "float64")


def numbers(dtype: str, first: int) -> np.ndarray[Any, Any]:
    """Return one number for each state of an episode, the largest of the type among them."""
    kind = np.dtype(dtype).kind
    found = (np.arange(STEPS + 1) + first).astype(dtype)
    found[0] = np.iinfo(dtype).max if kind in "iu" else 1
    return found


def write(store: SlotStore, states: np.ndarray[Any, Any]) -> None:
    writer = EpisodeWriter(store, store.take_slot(0))
    writer.start({"obs": states[0]})
    for state in states[1:]:
        step = {"rewards": 0.0, "terminated": False, "truncated": False}
        writer.add(step, {"obs": state})
    writer.publish()


@pytest.mark.parametrize("options", [{}, {"weighting": "step"}, {"stratified": True}])
@pytest.mark.parametrize("dtype", TYPES)
def test_chunks_of_every_type_are_drawn_anew(monkeypatch, dtype: str, options: Any) -> None:
    fields = (Field(name="obs", shape=(), dtype=dtype, kind="state"), *BOOKKEEPING)
    layout = StoreLayout(slots=2, steps=STEPS, producers=1, fields=fields)
    store = SlotStore.create(layout)
    episodes = [numbers(dtype, first) for first in (10, 20, 30)]
    write(store, episodes[0])
    write(store, episodes[1])
    copied, calls = slot_reader.copy_chunks, []

    def replace_after_the_first(*arguments: Any) -> None:
        copied(*arguments)
        calls.append(1)
        if len(calls) == 1:
            write(store, episodes[2])  # into slot 0, the oldest

    monkeypatch.setattr(slot_reader, "copy_chunks", replace_after_the_first)
    out = targets(store, 40, 3, "obs", "next.obs")
    drawn = SlotReader(store).draw(40, 3, out, seeded(), DrawOptions(**options))
    assert 0 < drawn.redraws < 40
    assert set(drawn.slots.tolist()) == {0, 1}
    np.testing.assert_array_equal(store.version[drawn.slots], drawn.versions)
    steps = np.clip(drawn.offsets[:, None] + np.arange(3), 0, STEPS - 1)
    shown = np.stack((episodes[2], episodes[1]))
    for name, later in (("obs", 0), ("next.obs", 1)):
        expected = shown[drawn.slots[:, None], steps + later]
        np.testing.assert_array_equal(out[name].numpy(), expected)
