import numpy as np
import pytest
from scipy import stats

from cadenza.core.errors import InputError
from cadenza.evaluation.statistics.differences import seed_difference
from cadenza.evaluation.statistics.power import (
    Rule,
    World,
    cheapest_plan,
    power,
    power_curve,
    smallest_gap,
)
from cadenza.evaluation.statistics.sequential import seed_difference_bounds


def rng(seed=0):
    return np.random.default_rng(seed)


def test_power_of_a_gap_is_that_of_the_paired_t_test():
    # seeds differ by sd .1 on each side, 500 episodes: seed differences are about normal
    rule, world = Rule(seeds=8, episodes=500), World(rate=0.5, gap=0.12, seed_sd=0.1)
    sd = np.sqrt(2 * 0.1**2 + 2 * 0.24 / 500)
    shift = 0.12 / (sd / np.sqrt(8))
    expected = 1 - stats.nct.cdf(stats.t.ppf(0.975, 7), 7, shift)
    assert power(rule, world, rng=rng()) == pytest.approx(expected, abs=0.035)


def test_power_simulates_the_registered_interval_also_near_one():
    rule, world = Rule(seeds=5, episodes=20), World(rate=0.8, gap=0.17, seed_sd=0.05)
    stream = rng(1)
    shown = 0
    for _ in range(300):
        ours, theirs = (
            [stream.binomial(1, p, 20).astype(float) for p in stream.beta(m * k, (1 - m) * k, 5)]
            for m, k in ((0.97, 0.97 * 0.03 / 0.0025 - 1), (0.8, 0.16 / 0.0025 - 1))
        )
        shown += seed_difference(ours, theirs, paired=True).low > 0
    assert power(rule, world, rng=rng(), replicates=600) == pytest.approx(shown / 300, abs=0.09)


def test_power_grows_with_gap_luck_and_seeds_and_is_small_without_a_gap():
    rule, world = Rule(seeds=5, episodes=20), World(rate=0.4, gap=0.2, seed_sd=0.05)
    curve = power_curve(rule, world, (0.0, 0.1, 0.3), rng=rng())
    assert curve[0] <= 0.04  # one side of 5 %
    assert curve[0] < curve[1] < curve[2]
    plain = power(rule, world, rng=rng())
    shared = World(rate=0.4, gap=0.2, seed_sd=0.05, shared_luck=1.0)
    assert power(rule, shared, rng=rng()) > plain
    assert power(Rule(seeds=10, episodes=20), world, rng=rng()) > plain
    assert power(Rule(seeds=5, episodes=20, gate=0.1), world, rng=rng()) < plain


def test_smallest_gap_has_the_target_power():
    rule, world = Rule(seeds=8, episodes=50), World(rate=0.3, gap=0.0, seed_sd=0.05)
    gap = smallest_gap(rule, world, rng=rng(), replicates=1000)
    assert power(rule, World(rate=0.3, gap=gap, seed_sd=0.05), rng=rng(5)) == pytest.approx(
        0.8, abs=0.05
    )
    hopeless = World(rate=0.97, gap=0.0, seed_sd=0.0)
    assert smallest_gap(Rule(seeds=2, episodes=5), hopeless, rng=rng(), replicates=100) is None


def test_cheapest_plan_weighs_seeds_against_episodes():
    world = World(rate=0.4, gap=0.3, seed_sd=0.04)
    sizes = {"seeds": (4, 6, 12), "episodes": (8, 60), "replicates": 500}
    dear_seeds = cheapest_plan(world, rng=rng(), cost_of_seed=100, cost_of_episode=0.1, **sizes)
    dear_episodes = cheapest_plan(world, rng=rng(), cost_of_seed=0, cost_of_episode=1, **sizes)
    assert dear_seeds.rule.seeds < dear_episodes.rule.seeds
    assert dear_episodes.rule.episodes == 8
    assert min(dear_seeds.power, dear_episodes.power) >= 0.8
    impossible = World(rate=0.4, gap=0.0)
    assert cheapest_plan(impossible, rng=rng(), **sizes) is None


def test_bounds_of_seed_differences_hold_after_every_seed():
    stream, failed = rng(3), 0
    for _ in range(200):
        d = np.clip(0.1 + 0.2 * stream.standard_normal(20), -1, 1)
        looks = [seed_difference_bounds(d[:k], level=0.025, most=20) for k in (3, 8, 14, 20)]
        failed += any(low > 0.1 for low, _ in looks)
    assert failed / 200 <= 0.025 + 3 * np.sqrt(0.025 / 200)
    low, high = seed_difference_bounds(np.full(20, 0.6), level=0.025, most=20)
    assert 0.0 < low < 0.6 < high
    for wrong in (np.zeros(0), np.array([1.2]), np.zeros(21)):
        with pytest.raises(InputError, match="seed_difference_bounds"):
            seed_difference_bounds(wrong, level=0.025, most=20)


def test_impossible_plans_are_refused():
    for call in (
        lambda: Rule(seeds=1, episodes=5),
        lambda: World(rate=0.9, gap=0.2),
        lambda: power(Rule(seeds=2, episodes=1), World(rate=0.5, gap=0), rng=rng(), replicates=0),
        lambda: smallest_gap(
            Rule(seeds=2, episodes=1), World(rate=0.5, gap=0), rng=rng(), target=1
        ),
    ):
        with pytest.raises(InputError):
            call()
