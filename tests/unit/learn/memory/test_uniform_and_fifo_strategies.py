"""Strategies on their own, through the list interface."""

import numpy as np
import pytest

from cadenza.core.errors import CheckpointError, InputError
from cadenza.learn.memory.strategy import (
    FifoEjectionStrategy,
    FifoSampleStrategy,
    UniformEjectionStrategy,
    UniformSampleStrategy,
)


def tracked(strategy, lengths):
    for identity, length in enumerate(lengths):
        strategy.track(identity, length)
    return strategy


def test_seed_decides_the_draws_and_state_continues_them():
    def draws(strategy):
        return strategy.sample(20, 1)

    first, same, other = (tracked(UniformSampleStrategy(seed=s), [50] * 3) for s in (1, 1, 2))
    assert draws(first) == draws(same)
    assert draws(first) != draws(other)
    other.load_state(first.state())
    assert draws(first) == draws(other)


@pytest.mark.parametrize("seed", range(5))
def test_uniform_ejection_covers_the_count_with_different_episodes(seed):
    strategy = tracked(UniformEjectionStrategy(seed=seed), [1, 2, 30, 4])
    for count, least in ((1, 1), (31, 31), (37, 37)):
        ids = strategy.sample(count)
        assert len(set(ids)) == len(ids)
        assert sum([1, 2, 30, 4][i] for i in ids) >= least
    assert sorted(strategy.sample(37)) == [0, 1, 2, 3]


def test_uniform_ejection_draws_episodes_in_proportion_to_their_length():
    strategy = tracked(UniformEjectionStrategy(seed=0), [10, 20, 30, 40])
    firsts = np.bincount([strategy.sample(1)[0] for _ in range(4000)], minlength=4)
    expected = np.array([400, 800, 1200, 1600])
    # chi-square with 3 degrees of freedom: P(x > 16.3) = 0.001
    assert ((firsts - expected) ** 2 / expected).sum() < 16.3


@pytest.mark.parametrize("kind", [UniformEjectionStrategy, FifoEjectionStrategy])
def test_ejecting_more_than_there_is_is_refused(kind):
    strategy = tracked(kind(), [2, 3])
    with pytest.raises(InputError, match=r"at most 5 transitions \(all that are stored\), got 6"):
        strategy.sample(6)
    assert list(strategy.sample(0)) == []


def test_fifo_ejects_the_oldest_until_the_count_is_covered():
    strategy = tracked(FifoEjectionStrategy(), [3, 4, 5])
    assert strategy.sample(1) == [0]
    assert strategy.sample(3) == [0]
    assert strategy.sample(4) == [0, 1]
    strategy.forget(0)
    assert strategy.sample(5) == [1, 2]
    strategy.track(0, 1)  # now the newest
    assert strategy.sample(10) == [1, 2, 0]


def test_fifo_per_episode_takes_one_window_from_each_and_starts_again():
    strategy = tracked(FifoSampleStrategy(seed=0), [5, 1, 8])
    points = strategy.sample(5, 3)
    assert [point[0] for point in points] == [0, 2, 0, 2, 0]
    lengths = {0: 5, 2: 8}
    assert all(0 <= a <= lengths[i] - 3 and b == a + 3 for i, a, b in points)
    offsets = {point[1] for point in strategy.sample(400, 3) if point[0] == 2}
    assert offsets == set(range(6))  # uniform in [0, len - T], both ends included


def test_fifo_walk_takes_windows_side_by_side_from_the_oldest():
    strategy = tracked(FifoSampleStrategy(per_episode=False, random_offset=False), [5, 1, 6])
    first_six = [(0, 0, 2), (0, 2, 4), (2, 0, 2), (2, 2, 4), (2, 4, 6), (0, 0, 2)]
    assert list(strategy.sample(6, 2)) == first_six
    assert list(strategy.sample(2, 2)) == first_six[:2]  # no cursor is kept


def test_fifo_state_lists_ids_and_lengths_and_goes_round():
    strategy = tracked(FifoEjectionStrategy(), [3, 4, 5])
    strategy.forget(1)
    state = strategy.state()
    assert state["identities"] == [0, 2]
    assert state["sequence_lengths"] == [[0, 3], [2, 5]]
    other = tracked(FifoEjectionStrategy(), [9])
    other.load_state(state)
    assert other.sample(8) == [0, 2]


def test_fifo_import_tracks_episodes_that_its_state_lacks():
    """A file of a stateless strategy has no FIFO state; then tracking alone must suffice."""
    strategy = FifoEjectionStrategy()
    strategy.begin_simple_import()
    strategy.load_state({"identities": [5], "sequence_lengths": [[5, 2]]})
    for identity in (5, 6):
        strategy.track(identity, 2)
    strategy.end_simple_import()
    assert strategy.sample(4) == [5, 6]


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({}, "complete state of episodes by id, got one with KeyError"),
        ({"identities": [1], "sequence_lengths": []}, "of 1 different ids"),
        ({"identities": [1], "sequence_lengths": [[1, 0]]}, "no lengths, at least 1"),
        ({"identities": [1], "sequence_lengths": [[1, 2], [2, 2]]}, "of 1 different ids"),
        ({"identities": [1, 1], "sequence_lengths": [[1, 2]]}, "of 2 different ids"),
    ],
)
def test_malformed_fifo_state_is_refused(state, message):
    with pytest.raises(CheckpointError, match=message):
        FifoEjectionStrategy().load_state(state)


def test_post_import_forgets_negative_ids_and_moves_the_rest():
    strategy = FifoEjectionStrategy()
    for identity in (-3, 0, 7):
        strategy.track(identity, 2)
    strategy.post_import()
    assert strategy.sample(4) == [-1, -8]


def test_fifo_per_episode_is_random_even_if_told_otherwise():
    strategy = tracked(FifoSampleStrategy(per_episode=True, random_offset=False), [100])
    assert len({point[1] for point in strategy.sample(20, 1)}) > 1
