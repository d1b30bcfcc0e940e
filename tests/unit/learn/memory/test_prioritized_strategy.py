"""Prioritised sampling, alone and in a table."""

import base64
import json

import numpy as np
import pytest
import torch

from cadenza.core.errors import CheckpointError, ConfigurationError
from cadenza.learn.memory.column import Column
from cadenza.learn.memory.strategy import PrioritizedSampleStrategy
from cadenza.learn.memory.table import ArrayMemoryTable
from tests.unit.learn.memory.test_uniform_and_fifo_strategies import tracked


def make_table(maxlen=20, **options):
    sampler = PrioritizedSampleStrategy(**options)
    columns = [Column("actions", (), np.int64)]
    return ArrayMemoryTable(columns=columns, maxlen=maxlen, sampler=sampler, seed=0)


def add(table, identity, steps):
    table.add_sequence(identity, {"actions": np.arange(steps) + 100 * identity})


def test_windows_are_drawn_by_priority_to_the_power_of_alpha():
    strategy = tracked(PrioritizedSampleStrategy(alpha=0.5, epsilon=1e-9, seed=0), [4])
    strategy.on_sample([(0, s, s + 1) for s in range(4)], 1, [1.0, -4.0, 9.0, 0.0])
    starts = [point[1] for point in strategy.sample(6000, 1)]
    counts = np.bincount(starts, minlength=4)
    assert counts[3] < 5  # sqrt(1e-9) = 3e-5 of 6
    expected = np.array([1000.0, 2000.0, 3000.0])
    # chi-square with 2 degrees of freedom: P(x > 13.8) = 0.001
    assert ((counts[:3] - expected) ** 2 / expected).sum() < 13.8


def test_importance_weights_follow_the_formula():
    """p = 1, 2, 4: P = p / 7; w = (3 P)^-1/2 / max = (p / 1)^-1/2."""
    table = make_table(alpha=1.0, beta=0.5, epsilon=1e-12, seed=1)
    add(table, 0, 3)
    batch = table.sample(60, 1)
    table.update_priorities(batch["sample_ids"], 2.0 ** batch["actions"])
    batch = table.sample(200, 1)
    assert batch["sample_weights"].dtype == torch.float32
    assert batch["sample_weights"].shape == batch["sample_ids"].shape == (200,)
    expected = (2.0 ** batch["actions"]) ** -0.5
    torch.testing.assert_close(batch["sample_weights"], expected, check_dtype=False)
    assert set(batch["actions"].tolist()) == {0, 1, 2}


@pytest.mark.parametrize(("beta", "weight"), [(0.0, 1.0), (1.0, 0.25)])
def test_beta_can_be_raised_during_training(beta, weight):
    strategy = tracked(PrioritizedSampleStrategy(alpha=1.0, epsilon=1e-9), [2])
    strategy.on_sample([(0, 0, 1), (0, 1, 2)], 1, [1.0, 4.0])
    strategy.beta = beta
    strategy.sample(1, 1)
    assert strategy.weights(np.array([1]))[0] == pytest.approx(weight, rel=1e-6)


def test_alpha_zero_is_uniform_with_weights_of_one():
    strategy = tracked(PrioritizedSampleStrategy(alpha=0.0, beta=1.0, seed=0), [3, 2])
    strategy.on_sample([(0, 0, 1)], 1, [1e6])
    rows = strategy.sample_rows(5000, 1)
    counts = np.bincount(rows, minlength=5)
    # chi-square with 4 degrees of freedom: P(x > 18.5) = 0.001
    assert ((counts - 1000.0) ** 2 / 1000.0).sum() < 18.5
    assert (strategy.weights(rows) == 1.0).all()


def test_new_windows_get_the_highest_priority_so_far():
    strategy = tracked(PrioritizedSampleStrategy(alpha=1.0, epsilon=1e-9, seed=0), [1])
    strategy.on_sample([(0, 0, 1)], 1, [9.0])
    strategy.on_sample([(0, 0, 1)], 1, [1.0])
    strategy.track(1, 1)
    share = np.mean([point[0] == 1 for point in strategy.sample(4000, 1)])
    assert abs(share - 0.9) < 3.5 * np.sqrt(0.09 / 4000)


def test_priorities_stay_with_their_steps_when_rows_move():
    strategy = tracked(PrioritizedSampleStrategy(alpha=1.0, epsilon=1e-9, seed=0), [10])
    strategy.on_sample([(0, s, s + 1) for s in range(10)], 1, [0.0] * 7 + [1.0, 0.0, 0.0])
    strategy.track(1, 400)  # more than there was room for, each as likely as step 7
    drawn = strategy.sample(10_000, 1)
    assert {start for identity, start, _ in drawn if identity == 0} == {7}  # 25 times


def test_updates_of_gone_windows_are_passed_over():
    table = make_table(maxlen=6, alpha=1.0, epsilon=1e-9, seed=0)
    add(table, 0, 3)
    old = table.sample(4, 1)
    add(table, 1, 3)
    new = table.sample(40, 1)
    add(table, 2, 3)  # ejects episode 0
    before = table.sampler.state()["priorities"]
    assert table.update_priorities(old["sample_ids"], torch.full((4,), 5.0)) == 0
    assert table.sampler.state()["priorities"] == before
    still_there = int((new["actions"] >= 100).sum())
    assert 0 < still_there < 40
    ids = torch.cat([old["sample_ids"], new["sample_ids"]])
    assert table.update_priorities(ids, torch.full((44,), 5.0)) == still_there
    assert table.sampler.state()["priorities"] != before


def test_of_one_window_given_twice_the_last_priority_counts():
    strategy = tracked(PrioritizedSampleStrategy(alpha=1.0, epsilon=1e-9, seed=0), [2])
    strategy.on_sample([(0, 0, 1), (0, 1, 2), (0, 0, 1)], 1, [9.0, 1.0, 0.0])
    assert {point[1] for point in strategy.sample(200, 1)} == {1}


def test_state_is_json_and_goes_round_exactly():
    first = tracked(PrioritizedSampleStrategy(0.7, 0.3, 1e-3, seed=1), [4, 5])
    first.on_sample([(1, s, s + 1) for s in range(5)], 1, np.arange(5.0))
    first.sample(3, 2)
    state = json.loads(json.dumps(first.state()))
    second = PrioritizedSampleStrategy(seed=9)
    second.begin_simple_import()
    second.load_state(state)
    tracked(second, [4, 5])
    second.end_simple_import()
    third = tracked(PrioritizedSampleStrategy(seed=9), [4, 5])
    third.sample(1, 2)  # from priorities that the state replaces
    third.load_state(state)
    draws = [s.sample(50, 2) for s in (first, second, third)]
    assert draws[0] == draws[1] == draws[2]
    assert second.state() == first.state()
    assert (second.alpha, second.beta) == (0.7, 0.3)
    for strategy in (first, second, third):
        strategy.track(7, 3)  # with the highest priority so far, 4.001
    assert first.state() == second.state() == third.state()


def test_table_without_priorities_refuses_updates():
    table = ArrayMemoryTable(columns=[Column("actions", (), np.int64)], maxlen=5)
    with pytest.raises(ConfigurationError, match="got one with a UniformSampleStrategy"):
        table.update_priorities(torch.tensor([0]), torch.tensor([1.0]))


def encoded(values):
    return base64.b64encode(np.array(values, "<f4").tobytes()).decode()


@pytest.mark.parametrize(
    "change",
    [
        {"alpha": None},
        {"beta": 2.0},
        {"priorities": "?"},
        {"priorities": encoded([1.0])},
        {"priorities": encoded([1.0, -1.0])},
        {"priorities": encoded([1.0, np.nan])},
        {"counts": [3, -1]},
        {"identities": []},
    ],
)
def test_malformed_state_is_refused_and_changes_nothing(change):
    strategy = tracked(PrioritizedSampleStrategy(), [2])
    before = strategy.state()
    with pytest.raises(CheckpointError, match="complete state of settings and priorities"):
        strategy.load_state({**before, **change})
    assert strategy.state() == before
