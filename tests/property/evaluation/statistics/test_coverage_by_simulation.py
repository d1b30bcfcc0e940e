"""Nominal 95 % intervals must cover about 95 % in designs like the benchmark's own.

Each simulated experiment has S seeds with E episodes; seed success rates spread around p with a
beta distribution of the given standard deviation. With 800 experiments a true coverage of 0.95
shows between 0.934 and 0.966 (two standard errors).
"""

import numpy as np
import pytest

from cadenza.core.seeding import derive_substream
from cadenza.evaluation.statistics.cluster_means import PercentileBootstrap, StudentT
from cadenza.evaluation.statistics.estimate import mean_estimate, rate_estimate
from cadenza.evaluation.statistics.paired import Pair, Pairing, paired_comparison

EXPERIMENTS = 800
SPREADS = [0.0, 0.05, 0.15]


def seed_rates(p: float, spread: float, seeds: int, rng: np.random.Generator) -> np.ndarray:
    """Return one success rate per seed with mean ``p`` and standard deviation ``spread``."""
    if spread == 0.0:
        return np.full(seeds, p)
    total = p * (1 - p) / spread**2 - 1
    return rng.beta(p * total, (1 - p) * total, size=seeds)


def outcomes(p, spread, seeds, episodes, rng) -> dict[int, list[float]]:
    rates = seed_rates(p, spread, seeds, rng)
    drawn = rng.random((seeds, episodes)) < rates[:, None]
    return dict(enumerate(drawn.astype(float).tolist()))


def share_covered(estimates, truth: float) -> float:
    return float(np.mean([e.low <= truth <= e.high for e in estimates]))


@pytest.mark.parametrize("spread", SPREADS)
@pytest.mark.parametrize("seeds", [5, 10])
def test_rate_interval_covers_at_least_nominally(spread, seeds):
    rng = derive_substream(f"test.coverage.rate.{seeds}", root_seed=1).default_rng()
    estimates = [rate_estimate(outcomes(0.6, spread, seeds, 20, rng)) for _ in range(EXPERIMENTS)]
    assert share_covered(estimates, 0.6) >= 0.934


@pytest.mark.parametrize("p", [0.02, 0.98])
def test_rate_interval_covers_near_the_ends(p):
    rng = derive_substream("test.coverage.ends", root_seed=2).default_rng()
    estimates = [rate_estimate(outcomes(p, 0.0, 10, 20, rng)) for _ in range(EXPERIMENTS)]
    assert share_covered(estimates, p) >= 0.934


@pytest.mark.parametrize("spread", SPREADS)
def test_student_t_covers_about_nominally(spread):
    rng = derive_substream("test.coverage.t", root_seed=3).default_rng()
    estimates = [
        mean_estimate(outcomes(0.6, spread, 10, 20, rng), method=StudentT())
        for _ in range(EXPERIMENTS)
    ]
    assert 0.930 <= share_covered(estimates, 0.6) <= 0.975


@pytest.mark.parametrize("spread", SPREADS)
def test_paired_difference_covers_about_nominally(spread):
    rng = derive_substream("test.coverage.paired", root_seed=4).default_rng()
    estimates = []
    for _ in range(EXPERIMENTS):
        gaps = seed_rates(0.3, spread, 10, rng)  # share of pairs that only the treatment solves
        drawn = rng.random((10, 20))
        pairs = tuple(
            Pair(
                partner="p",
                seed=seed,
                episode_idx=i,
                initial_state_seed=i,
                treatment=float(drawn[seed, i] < gaps[seed] or drawn[seed, i] > 0.8),
                baseline=float(drawn[seed, i] > 0.9),
            )
            for seed in range(10)
            for i in range(20)
        )
        result = paired_comparison(Pairing(pairs=pairs), method=StudentT(), bounds=(-1.0, 1.0))
        estimates.append(result.difference)
    # the treatment solves u < gap or u > 0.8, the baseline u > 0.9: the difference is gap + 0.1
    assert 0.925 <= share_covered(estimates, 0.4) <= 0.975


def test_seed_percentile_bootstrap_at_five_seeds_would_fail_this_test():
    rng = derive_substream("test.coverage.mutant", root_seed=5).default_rng()
    estimates = [
        mean_estimate(
            outcomes(0.6, 0.15, 5, 20, rng), method=PercentileBootstrap(rng=rng, n_resamples=400)
        )
        for _ in range(300)
    ]
    defined = [e for e in estimates if e.low is not None]
    assert share_covered(defined, 0.6) < 0.90  # so the tests above have teeth
