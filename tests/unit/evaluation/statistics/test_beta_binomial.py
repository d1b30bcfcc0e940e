import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from cadenza.core.errors import InputError
from cadenza.evaluation.statistics import beta_binomial
from cadenza.evaluation.statistics.beta_binomial import (
    beta_binomial_interval,
    beta_binomial_intervals,
)


def interval(successes, trials, **options):
    trials = np.broadcast_to(np.asarray(trials, dtype=float), (len(successes),)).copy()
    return beta_binomial_interval(np.array(successes, dtype=float), trials, **options)


@pytest.mark.parametrize(
    ("successes", "trials", "bounds"),
    [
        ([20] * 5, 20, (0.8062, 1.0)),
        ([45, 48, 39, 50, 47], 50, (0.6912, 0.9622)),
        ([18, 20, 17, 19, 20, 12, 20, 16, 19, 20], 20, (0.7510, 0.9556)),
        ([20, 20, 19], 20, (0.6314, 0.9966)),
    ],
)
def test_bounds_equal_the_golden_vectors(successes, trials, bounds):
    assert interval(successes, trials) == pytest.approx(bounds, abs=1e-4)


@pytest.mark.parametrize(
    ("successes", "trials"), [([7, 9, 3], [10, 12, 4]), ([0, 2, 0, 1], [20, 30, 5, 8])]
)
def test_bounds_agree_with_scipys_beta_binomial_on_a_finer_grid(successes, trials):
    # p at Jeffreys' quantiles, sqrt(rho) uniform: every point of the grid has equal prior weight
    p = np.sin((np.arange(1024) + 0.5) * np.pi / 2048)[:, None] ** 2
    m = ((np.arange(96) + 0.5) / 96) ** -2.0 - 1
    logs = sum(
        stats.betabinom.logpmf(k, n, p * m, (1 - p) * m)
        for k, n in zip(successes, trials, strict=True)
    )
    mass = np.cumsum(np.exp(logs - logs.max()).sum(axis=1))
    low, high = (p[np.searchsorted(mass / mass[-1], level), 0] for level in (0.025, 0.975))
    assert interval(successes, trials) == pytest.approx(
        (low, high if 1 - high > 1e-6 else 1.0) if sum(successes) else (0.0, high), abs=4e-3
    )


def test_long_seeds_continue_the_tables_without_a_step(monkeypatch):
    tabled = interval([470, 500, 512], 512)
    monkeypatch.setattr(beta_binomial, "MAX_TABLE", 100)
    assert interval([470, 500, 512], 512) == pytest.approx(tabled, abs=1e-9)
    low, high = interval([96_000, 95_000, 97_000], 100_000)
    assert 0.8 < low < 0.96 < high < 1.0


@given(
    counts=st.lists(
        st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=2, max_size=8
    ).filter(lambda pairs: all(a + b for a, b in pairs))
)
def test_bounds_mirror_and_do_not_depend_on_the_order_of_seeds(counts):
    won = [a for a, _ in counts]
    played = [a + b for a, b in counts]
    low, high = interval(won, played)
    assert 0.0 <= low < high <= 1.0
    failures = [b for _, b in counts]
    assert interval(failures, played) == pytest.approx((1 - high, 1 - low), abs=1e-12)
    assert interval(won[::-1], played[::-1]) == pytest.approx((low, high), abs=1e-12)
    wider = interval(won, played, confidence=0.99)
    assert wider[0] <= low
    assert wider[1] >= high


def test_more_seeds_narrow_the_interval_and_more_episodes_hardly_do():
    lows = [interval([n] * s, n)[0] for s, n in ((5, 10), (5, 20), (5, 100), (10, 50), (20, 50))]
    assert lows == pytest.approx([0.798, 0.806, 0.819, 0.904, 0.951], abs=2e-3)


@pytest.mark.parametrize(
    ("successes", "trials"), [([3], [5]), ([3, 6], [5, 5]), ([3, 1.5], [5, 5]), ([0, 0], [5, 0])]
)
def test_other_counts_are_refused(successes, trials):
    with pytest.raises(InputError, match="beta_binomial_interval"):
        interval(successes, trials)


def test_many_experiments_at_once_have_the_bounds_of_each():
    successes = np.random.default_rng(0).binomial(20, 0.9, size=(300, 6))
    successes[0], successes[1] = 20, 0
    for row, bounds in zip(successes, beta_binomial_intervals(successes, 20), strict=True):
        assert tuple(bounds) == pytest.approx(interval(row, 20), abs=1e-9)
    with pytest.raises(InputError, match=r"counts in 0\.\.20"):
        beta_binomial_intervals(successes + 1, 20)
