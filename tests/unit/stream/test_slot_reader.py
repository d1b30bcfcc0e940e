"""What chunks hold: masked steps, next states, computed keys, earlier draws, refusals."""

from typing import Any

import numpy as np
import pytest
from torch import Tensor

from cadenza.core.errors import ConfigurationError, InputError, NotReadyError, UnknownNameError
from cadenza.stream import slot_reader
from cadenza.stream.batches import chunk_fields
from cadenza.stream.draw_options import DrawOptions
from cadenza.stream.layout import BOOKKEEPING, VIRTUAL, Field, StoreLayout
from cadenza.stream.slot_reader import SlotReader
from cadenza.stream.slot_writer import EpisodeWriter
from cadenza.stream.slots import SlotStore
from cadenza.stream.windows import DrawnChunks
from tests.stream_episodes import FIELDS, new_store, seeded, targets, write_episode

EVERY_KEY = ("actions", "next.obs", "segment_id", *(field.name for field in VIRTUAL))


def draw(
    store: SlotStore, n: int, c: int, *names: str, **options: object
) -> tuple[DrawnChunks, dict[str, Tensor]]:
    out = targets(store, n, c, *names)
    chosen = DrawOptions(**options)  # type: ignore[arg-type]
    return SlotReader(store).draw(n, c, out, seeded(), chosen), out


def test_padded_chunk_repeats_the_last_step_behind_its_mask() -> None:
    store = new_store()
    write_episode(store, 3, 10.0)
    drawn, out = draw(store, 1, 5, "obs", "actions", "next.obs", "valid", short="pad")
    assert drawn.mask is not None
    assert drawn.mask.tolist() == out["valid"].tolist() == [[True, True, True, False, False]]
    assert out["actions"].flatten().tolist() == [10, 11, 12, 12, 12]
    assert out["obs"][0, :, 0].tolist() == [10, 11, 12, 12, 12]
    assert out["next.obs"][0, :, 0].tolist() == [11, 12, 13, 13, 13]


def test_chunks_without_overhang_have_no_mask() -> None:
    store = new_store()
    write_episode(store, 5)
    assert draw(store, 4, 3, "actions")[0].mask is None
    assert draw(store, 4, 3, "actions", short="pad")[0].mask is None


def test_computed_keys_of_segments() -> None:
    store = new_store(steps=7)
    write_episode(store, 7, segments=(-1, 4, 4, 4, 2, -1, 9))
    _, out = draw(store, 1, 7, *EVERY_KEY)
    assert out["segment_id"].tolist() == [[-1, 4, 4, 4, 2, -1, 9]]
    assert out["episode_step"].tolist() == [[0, 1, 2, 3, 4, 5, 6]]
    assert out["segment_step"].tolist() == [[-1, 0, 1, 2, 0, -1, 0]]
    assert out["segment_start"].int().tolist() == [[0, 1, 0, 0, 1, 0, 1]]
    assert out["segment_end"].int().tolist() == [[0, 0, 0, 1, 1, 0, 1]]
    assert out["valid"].all()


def test_computed_keys_are_empty_outside_the_episode() -> None:
    store = new_store()
    write_episode(store, 2, segments=(0, 0))
    _, out = draw(store, 1, 4, *EVERY_KEY, short="pad")
    assert out["episode_step"].tolist() == [[0, 1, -1, -1]]
    assert out["segment_step"].tolist() == [[0, 1, -1, -1]]
    assert out["segment_end"].int().tolist() == [[0, 1, 0, 0]]


def test_short_episodes_can_be_refused() -> None:
    store = new_store(slots=4)
    for length in (5, 2, 5, 5):
        write_episode(store, length)
    with pytest.raises(InputError, match=r"every episode to have at least 3 steps, got 25\.0%"):
        draw(store, 1, 3, "actions", short="error")
    assert draw(store, 1, 2, "actions", short="error")[0].excluded == 0.0
    write_episode(store, 2, segments=(0, 1))
    with pytest.raises(InputError, match="every segment to have at least 2"):
        draw(store, 1, 2, "actions", short="error", sampling_mode="segment")


@pytest.mark.parametrize(
    ("mode", "message"),
    [
        ("episode", r"an episode of at least 4 steps, got none \(sampling_mode 'episode', chunk"),
        ("segment", r"a segment of at least 4 steps, got none"),
        ("boundary", r"an episode of at least 4 steps with a change of segment, got none"),
    ],
)
def test_nothing_to_draw_is_told_with_mode_and_size(mode: str, message: str) -> None:
    store = new_store()
    write_episode(store, 3)
    with pytest.raises(NotReadyError, match=message):
        draw(store, 1, 4, "actions", sampling_mode=mode)


def test_options_that_do_not_exist_or_fit_are_refused() -> None:
    with pytest.raises(InputError, match="at least 2 steps with sampling_mode 'boundary', got 1"):
        draw(new_store(), 1, 1, "actions", sampling_mode="boundary")
    with pytest.raises(ConfigurationError, match=r"DrawOptions.short: expected one of .* 'drop'"):
        DrawOptions(short="drop")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="with sampling_mode 'boundary', got 'step'"):
        DrawOptions(sampling_mode="boundary", weighting="step")
    with pytest.raises(ConfigurationError, match="with stratified, got 'window'"):
        DrawOptions(stratified=True, weighting="window")
    assert [DrawOptions(**o).may_mask for o in ({}, {"short": "pad"}, {"weighting": "step"})] == [  # type: ignore[arg-type]
        False,
        True,
        True,
    ]


def test_slots_that_never_hold_still_end_the_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    store = new_store()
    write_episode(store, 5)
    copied = slot_reader.copy_chunks

    def copy_while_rewritten(*arguments: object) -> None:
        copied(*arguments)  # type: ignore[arg-type]
        store.version[0] += 2

    monkeypatch.setattr(slot_reader, "copy_chunks", copy_while_rewritten)
    with pytest.raises(NotReadyError, match="slots that changed 64 times in a row"):
        draw(store, 2, 3, "actions")


def test_selection_by_name_and_beginning() -> None:
    layout = new_store().layout
    assert list(chunk_fields(layout)) == [*(field.name for field in FIELDS), "valid"]
    assert list(chunk_fields(layout, ["next.obs", "valid"])) == ["next.obs", "valid"]
    assert list(chunk_fields(layout, ["next"])) == ["next.obs"]
    assert list(chunk_fields(layout, ["obs"], masked=True)) == ["obs", "valid"]
    assert list(chunk_fields(layout, ["valid", "obs"], masked=True)) == ["valid", "obs"]
    with pytest.raises(InputError, match="expected at least one key, got none"):
        chunk_fields(layout, [])
    with pytest.raises(UnknownNameError, match=r"expected keys among .*'next.obs'.*, got 'ob'"):
        chunk_fields(layout, ["ob"])


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
