"""Coverage-based strategies, alone and in a table."""

import numpy as np
import pytest

from cadenza.core.errors import CheckpointError, ConfigurationError
from cadenza.learn.memory.column import Column
from cadenza.learn.memory.strategy import (
    CoverageBasedEjectionStrategy,
    CoverageBasedSampleStrategy,
    UniformSampleStrategy,
)
from cadenza.learn.memory.table import ArrayMemoryTable
from tests.unit.learn.memory.test_uniform_and_fifo_strategies import tracked


def test_alpha_zero_is_uniform_sampling_draw_by_draw():
    coverage = tracked(CoverageBasedSampleStrategy(alpha=0.0, seed=4), [3, 7, 1])
    uniform = tracked(UniformSampleStrategy(seed=4), [3, 7, 1])
    assert [coverage.sample(50, 2) for _ in range(3)] == [uniform.sample(50, 2) for _ in range(3)]


def test_counts_grow_while_sampling_and_change_the_weights_at_once():
    strategy = CoverageBasedSampleStrategy(alpha=50.0, renew_while_sampling=True, seed=0)
    tracked(strategy, [10, 10])
    strategy.sample(1, 1)
    taken = max(strategy.counts(), key=strategy.counts().get)
    # The other episode is now 2^50 times as likely, without any track or forget between.
    assert strategy.sample(1, 1)[0][0] == 1 - taken
    assert strategy.counts() == {0: 1, 1: 1}


def test_weights_wait_for_the_next_change_of_episodes_by_default():
    strategy = tracked(CoverageBasedSampleStrategy(alpha=50.0, seed=0), [30, 30])
    seen = {strategy.sample(1, 1)[0][0] for _ in range(40)}
    assert seen == {0, 1}  # still half and half, as when they came
    counts = strategy.counts()
    strategy.track(2, 10)
    assert {point[0] for point in strategy.sample(40, 1)} == {2}
    strategy.forget(2)
    less = min(counts, key=counts.get)
    assert counts[0] != counts[1]
    assert {point[0] for point in strategy.sample(40, 1)} == {less}


def known_to_weights(strategy):
    """Return the windows that the weights know of, per episode."""
    return [known for _, _, known in strategy.state()["counts"]]


def test_weights_are_renewed_after_one_pass_over_the_memory():
    """Two episodes of 10 steps; the first has nearly all the samples. Pass: 20 windows."""
    strategy = tracked(CoverageBasedSampleStrategy(alpha=50.0, seed=0), [10, 10])
    strategy.load_state({**strategy.state(), "counts": [[0, 18, 0], [1, 0, 0]]})
    strategy.sample(1, 1)
    assert known_to_weights(strategy) == [0, 0]  # half and half until the 20th sample
    strategy.sample(1, 1)
    assert known_to_weights(strategy) == list(strategy.counts().values())
    assert sum(strategy.counts().values()) == 20
    assert {point[0] for point in strategy.sample(15, 1)} == {1}  # at least 6^50 times as likely


def test_unfinished_pass_goes_on_after_a_resume():
    """15 windows before, 5 after: both must renew the weights at the same draw."""
    first = tracked(CoverageBasedSampleStrategy(alpha=50.0, seed=0), [10, 10])
    first.sample(15, 1)
    second = tracked(CoverageBasedSampleStrategy(alpha=50.0, seed=1), [10, 10])
    second.sample(3, 1)
    second.load_state(first.state())
    for strategy in (first, second):
        strategy.sample(4, 1)
        assert known_to_weights(strategy) == [0, 0]
        strategy.sample(1, 1)
        assert known_to_weights(strategy) == list(strategy.counts().values())


def test_forgotten_episodes_are_not_drawn_and_new_ones_start_uncovered():
    strategy = tracked(CoverageBasedSampleStrategy(seed=0), [4, 4])
    strategy.sample(20, 1)
    strategy.forget(0)
    assert {point[0] for point in strategy.sample(20, 1)} == {1}
    strategy.track(0, 4)
    assert strategy.counts()[0] == 0
    for identity in range(10, 60):  # more than there were places for counts
        strategy.track(identity, 1)
    assert {strategy.counts()[identity] for identity in range(10, 60)} == {0}
    assert {point[0] for point in strategy.sample(2000, 1)} == {0, 1, *range(10, 60)}


def test_ejection_prefers_well_covered_episodes():
    strategy = tracked(CoverageBasedEjectionStrategy(alpha=20.0, seed=0), [5, 5, 5])
    strategy.on_sample([(1, 0, 2)] * 7, 2)
    assert strategy.counts() == {0: 0, 1: 7, 2: 0}
    assert strategy.sample(5) == [1]
    assert strategy.sample(6)[0] == 1
    assert sorted(strategy.sample(15)) == [0, 1, 2]


def test_table_tells_its_ejector_what_was_sampled():
    ejector = CoverageBasedEjectionStrategy(alpha=20.0, seed=0)
    sampler = UniformSampleStrategy(seed=0)
    memory = ArrayMemoryTable(
        columns=[Column("actions", (), np.float32)], maxlen=20, sampler=sampler, ejector=ejector
    )
    memory.add_sequence(0, {"actions": np.zeros(10)})
    memory.sample(30, 1)
    memory.add_sequence(1, {"actions": np.zeros(10)})
    memory.add_sequence(2, {"actions": np.zeros(10)})
    assert memory.identities() == [1, 2]
    assert ejector.counts() == {1: 0, 2: 0}


def test_state_goes_round_with_counts_and_alpha():
    first = tracked(CoverageBasedSampleStrategy(0.7, seed=1), [4, 5, 6])
    first.sample(40, 2)
    second = CoverageBasedSampleStrategy(0.1, seed=9)
    second.begin_simple_import()
    second.load_state(first.state())
    tracked(second, [4, 5, 6])
    second.end_simple_import()
    assert second.alpha == 0.7
    assert second.counts() == first.counts()
    assert second.sample(30, 2) == first.sample(30, 2)
    for strategy in (first, second):
        strategy.track(3, 9)
    assert second.sample(30, 2) == first.sample(30, 2)


@pytest.mark.parametrize("alpha", [-0.1, float("nan"), float("inf")])
def test_alpha_out_of_range_is_refused(alpha):
    with pytest.raises(ConfigurationError, match="alpha: expected a finite number >= 0"):
        CoverageBasedSampleStrategy(alpha)


@pytest.mark.parametrize(
    "state", [{}, {"alpha": 0.5}, {"alpha": -1.0, "counts": []}, {"alpha": 0.5, "counts": [1]}]
)
def test_malformed_state_is_refused_and_changes_nothing(state):
    strategy = tracked(CoverageBasedSampleStrategy(seed=1), [4])
    before = strategy.state()
    with pytest.raises(CheckpointError, match="complete state of alpha and counts by id"):
        strategy.load_state(state)
    assert strategy.state() == before


def test_windows_are_drawn_by_number_and_count():
    """Episodes of 4 and 3 windows, sampled 8 and 0 times; alpha = 0.5: 4 / 3 against 3."""
    first = 0
    for seed in range(400):
        strategy = tracked(CoverageBasedSampleStrategy(0.5, seed=seed), [5, 4])
        strategy.load_state({**strategy.state(), "counts": [[0, 8, 8], [1, 0, 0]]})
        first += strategy.sample(1, 2)[0][0] == 0
    expected = 400 * (4 / 3) / (4 / 3 + 3)  # 123, standard deviation 9.2
    assert abs(first - expected) < 3.5 * 9.2
