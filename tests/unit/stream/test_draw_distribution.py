"""What is drawn how often: chi-square tests with fixed seeds, each beside a wrong distribution.

Every expected frequency is counted from the definition by listing all windows.
"""

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from scipy import stats

from cadenza.core.errors import DataPendingError
from cadenza.stream.draw_options import DrawOptions
from cadenza.stream.slot_reader import SlotReader
from cadenza.stream.slots import SlotStore
from cadenza.stream.windows import DrawnChunks
from tests.stream_episodes import new_store, seeded, targets, write_episode

LENGTHS = (3, 5, 9, 12)
#: Twelve steps: no segment, 0, 0, 0, 1, 1, none, 2, 2, 2, 2, 2.
SEGMENTS = (-1, 0, 0, 0, 1, 1, -1, 2, 2, 2, 2, 2)
DRAWS = 40_000
#: A correct sampler fails one test of windows in a thousand seeds; the seeds are fixed.
LEVEL = 1e-3


def store_of(lengths: Sequence[int] = LENGTHS) -> SlotStore:
    store = new_store(slots=len(lengths), steps=max(lengths))
    for length in lengths:
        write_episode(store, length)
    return store


def segmented_store() -> SlotStore:
    store = new_store(slots=3, steps=12)
    write_episode(store, 12, segments=SEGMENTS)
    write_episode(store, 6, segments=(0, 0, 0, 0, 1, 1))
    write_episode(store, 4, segments=(3, 3, 3, 3))
    return store


def draw(store: SlotStore, c: int, options: DrawOptions, n: int = DRAWS) -> DrawnChunks:
    return SlotReader(store).draw(n, c, targets(store, n, c, "rewards"), seeded(), options)


def fits(observed: Counter[tuple[int, ...]], expected: dict[tuple[int, ...], float]) -> bool:
    """Return whether the counts agree with the probabilities."""
    if not set(observed) <= set(expected):
        return False
    counts = np.array([observed[key] for key in expected])
    shares = np.array(list(expected.values()))
    result = stats.chisquare(counts, shares / shares.sum() * counts.sum())
    return bool(result.pvalue > LEVEL)


def windows(drawn: DrawnChunks) -> Counter[tuple[int, ...]]:
    return Counter(zip(drawn.slots.tolist(), drawn.offsets.tolist(), strict=True))


def episode_first(offsets: dict[int, list[int]]) -> dict[tuple[int, ...], float]:
    """Episodes equally likely, then their offsets."""
    return {(s, o): 1 / len(all_) for s, all_ in offsets.items() if all_ for o in all_}


def window_first(offsets: dict[int, list[int]]) -> dict[tuple[int, ...], float]:
    """All windows equally likely."""
    return {(s, o): 1.0 for s, all_ in offsets.items() for o in all_}


def inside(c: int, lengths: Sequence[int] = LENGTHS) -> dict[int, list[int]]:
    return {slot: list(range(length - c + 1)) for slot, length in enumerate(lengths)}


def segment_offsets(c: int) -> dict[int, list[int]]:
    return windows_where(c, lambda ids: len(set(ids)) == 1 and ids[0] >= 0)


def boundary_offsets(c: int) -> dict[int, list[int]]:
    return windows_where(c, lambda ids: len(set(ids)) > 1)


def windows_where(c: int, wanted: Callable[[Sequence[int]], bool]) -> dict[int, list[int]]:
    rows = (SEGMENTS, (0, 0, 0, 0, 1, 1), (3, 3, 3, 3))
    return {
        slot: [o for o in range(len(ids) - c + 1) if wanted(ids[o : o + c])]
        for slot, ids in enumerate(rows)
    }


def test_episode_weighting_draws_episodes_then_offsets_equally() -> None:
    found = windows(draw(store_of(), 4, DrawOptions()))
    assert fits(found, episode_first(inside(4)))
    assert not fits(found, window_first(inside(4)))


def test_window_weighting_draws_all_windows_equally() -> None:
    found = windows(draw(store_of(), 4, DrawOptions(weighting="window")))
    assert fits(found, window_first(inside(4)))
    assert not fits(found, episode_first(inside(4)))


def coverage(drawn: DrawnChunks, c: int) -> Counter[tuple[int, ...]]:
    """How often each step of each episode is in a chunk."""
    steps = drawn.offsets[:, None] + np.arange(c)
    valid = (steps >= drawn.bounds[:, :1]) & (steps < drawn.bounds[:, 1:])
    if drawn.mask is not None:
        np.testing.assert_array_equal(drawn.mask.numpy(), valid)
    slots = np.broadcast_to(drawn.slots[:, None], steps.shape)
    return Counter(zip(slots[valid].tolist(), steps[valid].tolist(), strict=True))


@pytest.mark.parametrize("c", [2, 4, 7])
def test_step_weighting_covers_every_step_equally(c: int) -> None:
    store = store_of()
    every = {(s, t): 1.0 for s, length in enumerate(LENGTHS) for t in range(length)}
    drawn = draw(store, c, DrawOptions(weighting="step", short="pad"))
    overhanging = {s: list(range(1 - c, length)) for s, length in enumerate(LENGTHS)}
    assert fits(windows(drawn), window_first(overhanging))
    assert fits(coverage(drawn, c), every)
    others = (DrawOptions(weighting="window", short="pad"), DrawOptions(short="pad"))
    for other in others:  # interior steps, or those of short episodes, come more often
        assert not fits(coverage(draw(store, c, other), c), every)


def test_step_weighting_leaves_short_episodes_out_when_told() -> None:
    found = coverage(draw(store_of(), 4, DrawOptions(weighting="step")), 4)
    assert fits(found, {(s, t): 1.0 for s in (1, 2, 3) for t in range(LENGTHS[s])})


def test_segment_mode_draws_windows_of_one_segment() -> None:
    # c = 3: row 0 has offset 1 (segment 0) and 7, 8, 9 (segment 2); row 1 has 0, 1; row 2 has 0, 1.
    assert segment_offsets(3) == {0: [1, 7, 8, 9], 1: [0, 1], 2: [0, 1]}
    found = windows(draw(segmented_store(), 3, DrawOptions(sampling_mode="segment")))
    assert fits(found, episode_first(segment_offsets(3)))
    assert not fits(found, window_first(segment_offsets(3)))
    weighted = DrawOptions(sampling_mode="segment", weighting="window")
    assert fits(windows(draw(segmented_store(), 3, weighted)), window_first(segment_offsets(3)))


def test_segment_mode_covers_the_steps_of_segments_equally() -> None:
    options = DrawOptions(sampling_mode="segment", weighting="step", short="pad")
    rows = (SEGMENTS, (0, 0, 0, 0, 1, 1), (3, 3, 3, 3))
    expected = {(s, t): 1.0 for s, ids in enumerate(rows) for t, i in enumerate(ids) if i >= 0}
    assert fits(coverage(draw(segmented_store(), 3, options), 3), expected)


@pytest.mark.parametrize("c", [2, 3, 5])
def test_boundary_mode_draws_windows_with_a_change(c: int) -> None:
    options = DrawOptions(sampling_mode="boundary")
    found = windows(draw(segmented_store(), c, options))
    assert fits(found, episode_first(boundary_offsets(c)))
    assert not fits(found, window_first(boundary_offsets(c)))
    weighted = DrawOptions(sampling_mode="boundary", weighting="window")
    assert fits(windows(draw(segmented_store(), c, weighted)), window_first(boundary_offsets(c)))


def test_padding_draws_short_episodes_as_often_as_long_ones() -> None:
    expected = {(0,): 1.0, (1,): 1.0, (2,): 1.0, (3,): 1.0}
    padded = draw(store_of(), 5, DrawOptions(short="pad"))
    assert fits(Counter((s,) for s in padded.slots.tolist()), expected)
    excluding = draw(store_of(), 5, DrawOptions())
    assert not fits(Counter((s,) for s in excluding.slots.tolist()), expected)
    assert (padded.excluded, excluding.excluded) == (0.0, 0.25)


def test_stratified_draws_every_episode_once_before_one_again() -> None:
    store = store_of([5] * 6)
    for n, times in ((6, {1}), (12, {2}), (15, {2, 3}), (4, {0, 1})):
        drawn = draw(store, 3, DrawOptions(stratified=True), n)
        assert set(np.bincount(drawn.slots, minlength=6)) == times
    repeated = draw(store, 3, DrawOptions(), 12)
    assert set(np.bincount(repeated.slots, minlength=6)) != {2}


def test_stratified_draws_are_fair_over_many_calls() -> None:
    store = store_of([5] * 6)
    reader, generator, out = SlotReader(store), seeded(), targets(store, 4, 3, "rewards")
    found: Counter[tuple[int, ...]] = Counter()
    for _ in range(3000):
        drawn = reader.draw(4, 3, out, generator, DrawOptions(stratified=True))
        found.update(zip(drawn.slots.tolist(), drawn.offsets.tolist(), strict=True))
    assert fits(found, episode_first(inside(3, [5] * 6)))


@pytest.mark.parametrize("weighting", ["episode", "window"])
def test_chunks_padded_at_their_end_begin_at_every_step(weighting) -> None:
    store, c = store_of(), 6
    options = DrawOptions(short="pad_end", weighting=weighting)
    out = targets(store, DRAWS, c, "rewards", "valid", "action_is_pad", "episode_step")
    drawn = SlotReader(store).draw(DRAWS, c, out, seeded(), options)
    share = {"episode": lambda length: 1 / length, "window": lambda length: 1.0}[weighting]
    expected = {(slot, t): share(n) for slot, n in enumerate(LENGTHS) for t in range(n)}
    assert fits(windows(drawn), expected)
    step = drawn.offsets[:, None] + np.arange(c)
    lengths = np.array(LENGTHS)[drawn.slots][:, None]
    np.testing.assert_array_equal(out["action_is_pad"], step >= lengths)
    np.testing.assert_array_equal(out["valid"], step < lengths)
    np.testing.assert_array_equal(out["rewards"], np.minimum(step, lengths - 1))


def test_boundaries_padded_at_the_end_are_those_of_segments() -> None:
    store, c = segmented_store(), 6
    drawn = draw(store, c, DrawOptions(sampling_mode="boundary", short="pad_end"))
    ids = [SEGMENTS, (0, 0, 0, 0, 1, 1), (3, 3, 3, 3)]
    crossing = {
        slot: [t for t in range(len(own)) if len(set(own[t : t + c])) > 1]
        for slot, own in enumerate(ids)
    }
    assert fits(windows(drawn), episode_first({k: v for k, v in crossing.items() if v}))


def test_only_episodes_of_the_asked_success_are_drawn() -> None:
    store = new_store(slots=3, steps=6)
    for ending in ("terminated", "truncated", "terminated"):
        write_episode(store, 6, ending=ending)
    store.success[2] = -1  # nobody judged it
    out = targets(store, 500, 2, "success")
    for success, slots in ((None, {0, 1, 2}), (True, {0}), (False, {1})):
        drawn = SlotReader(store).draw(500, 2, out, seeded(), DrawOptions(success=success))
        assert set(drawn.slots.tolist()) == slots
        np.testing.assert_array_equal(out["success"][:, 1], store.success[drawn.slots])
    with pytest.raises(DataPendingError, match="an episode of at least 2 steps, of one that succ"):
        SlotReader(new_store()).draw(1, 2, out, seeded(), DrawOptions(success=True))
