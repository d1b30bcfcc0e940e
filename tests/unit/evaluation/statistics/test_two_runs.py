import numpy as np
import pytest
from scipy import optimize, stats

from cadenza.core.errors import InputError
from cadenza.evaluation.statistics.two_runs import (
    boschloo_p,
    mcnemar_p,
    miettinen_nurminen_interval,
    score_p,
    tango_interval,
)


@pytest.mark.parametrize(
    ("counts", "p"),
    [
        ((11, 2, 28), 0.00726709),
        ((5, 0, 20), 0.0206947),
        ((30, 15, 200), 0.0140627),
        ((0, 0, 12), 1.0),
    ],
)
def test_unconditional_mcnemar_equals_the_golden_values(counts, p):
    assert mcnemar_p(*counts) == pytest.approx(p, abs=1e-6)


def test_conditional_mcnemar_is_the_binomial_test_of_the_signs():
    for wins, losses, n in ((11, 2, 28), (3, 9, 40), (7, 7, 20), (0, 0, 5), (520, 480, 4000)):
        differing = wins + losses
        expected = (
            stats.binomtest(wins, differing, alternative="greater").pvalue if differing else 1.0
        )
        assert mcnemar_p(wins, losses, n, conditional=True) == pytest.approx(expected, rel=1e-9)
    # above 1000 pairs the conditional one is used, which is close
    assert mcnemar_p(280, 220, 1001) == mcnemar_p(280, 220, 1001, conditional=True)
    assert mcnemar_p(280, 220, 1000) == pytest.approx(mcnemar_p(280, 220, 1001), rel=0.12)


#: Wins, losses, pairs and two-sided p of 12 random tables by `mcnemar` of robostats 0.2.0.
MCNEMAR = [
    (0, 0, 16, 1.0), (25, 21, 53, 0.6587380770236564), (0, 1, 10, 1.0),
    (74, 66, 206, 0.5542689157763168), (4, 7, 15, 0.548828125), (1, 0, 60, 1.0),
    (0, 49, 140, 3.552713678800501e-15), (171, 1, 311, 5.779853685574373e-50),
    (35, 17, 60, 0.017533235299084904), (2, 0, 4, 0.5), (0, 19, 57, 3.814697265625e-06),
    (9, 20, 83, 0.06142834573984146),
]  # fmt: skip
#: Successes and runs of both sides, and one-sided p of Boschloo's test, by `compare_independent` of
#: fieldtrial 0.3.0.
BOSCHLOO = [
    (0, 8, 31, 31, 1.0), (1, 3, 48, 51, 0.9958295192849178), (22, 33, 11, 14, 0.803149625787165),
    (24, 42, 17, 37, 0.16812251999948444), (21, 51, 1, 2, 0.7099045813356302),
    (2, 9, 9, 28, 0.7221366951742058), (1, 8, 0, 56, 0.07187031715002322),
    (6, 7, 12, 17, 0.26657663669539405), (31, 44, 10, 28, 0.00214699541928976),
    (3, 5, 23, 28, 0.8733915918556043),
]  # fmt: skip


def test_p_equals_that_of_two_public_tools():
    for wins, losses, n, p in MCNEMAR:
        one_sided = mcnemar_p(max(wins, losses), min(wins, losses), n, conditional=True)
        assert abs(min(1.0, 2.0 * one_sided) - p) <= 1e-12
        assert one_sided >= p / 2.0 * (1.0 - 1e-9)  # small ones keep their digits
    for *counts, p in BOSCHLOO:
        assert boschloo_p(*counts) == pytest.approx(p, abs=1e-4)


def test_unconditional_mcnemar_is_the_supremum_over_the_share_that_differs():
    n, wins, losses = 9, 6, 1
    z = (wins - losses) / np.sqrt(wins + losses)
    extreme = [
        (w, m - w)
        for m in range(1, n + 1)
        for w in range(m + 1)
        if (2 * w - m) / np.sqrt(m) >= z - 1e-12
    ]

    def probability(share):
        return sum(
            stats.binom.pmf(w + lost, n, share) * stats.binom.pmf(w, w + lost, 0.5)
            for w, lost in extreme
        )

    grid = max(probability(share) for share in np.linspace(0.01, 0.99, 197))
    assert mcnemar_p(wins, losses, n) == pytest.approx(grid, abs=1e-4)


def test_level_of_the_unconditional_test_holds_at_every_share():
    n = 20
    p = {(w, m - w): mcnemar_p(w, m - w, n) for m in range(n + 1) for w in range(m + 1)}
    for share in (0.05, 0.2, 0.5, 0.9):
        rejected = sum(
            stats.binom.pmf(w + lost, n, share) * stats.binom.pmf(w, w + lost, 0.5)
            for (w, lost), value in p.items()
            if value <= 0.05
        )
        assert rejected <= 0.05 + 1e-9


def test_boschloo_equals_scipy_on_random_tables():
    rng = np.random.default_rng(5)
    for _ in range(25):
        n, m = rng.integers(2, 35, size=2).tolist()
        a, b = int(rng.integers(n + 1)), int(rng.integers(m + 1))
        expected = stats.boschloo_exact([[a, b], [n - a, m - b]], alternative="greater").pvalue
        assert boschloo_p(a, n, b, m) == pytest.approx(expected, abs=1e-4)


def test_score_test_and_exact_test_agree_for_large_samples():
    assert score_p(280, 500, 240, 500) == pytest.approx(boschloo_p(280, 500, 240, 500), rel=0.07)


def test_miettinen_nurminen_bounds_equal_published_ones():
    # Newcombe 1998, Statistics in Medicine 17, 873-890, table II, method 6: (a) and (e)
    assert miettinen_nurminen_interval(56, 70, 48, 80) == pytest.approx((0.0528, 0.3382), abs=2e-4)
    assert miettinen_nurminen_interval(5, 56, 0, 29) == pytest.approx((-0.0326, 0.1933), abs=2e-4)


def test_tango_bounds_invert_the_score_test_of_the_likeliest_share():
    wins, losses, n = 9, 3, 30
    for bound in tango_interval(wins, losses, n):
        # q = P(loss), P(win) = q + d; the likeliest q given d by direct search

        def misfit(q, d=bound):
            return -(
                wins * np.log(q + d)
                + losses * np.log(q)
                + (n - wins - losses) * np.log1p(-2 * q - d)
            )

        limits = max(0.0, -bound) + 1e-12, (1 - bound) / 2 - 1e-12
        q = optimize.minimize_scalar(
            misfit, bounds=limits, method="bounded", options={"xatol": 1e-12}
        ).x
        z = (wins - losses - n * bound) / np.sqrt(n * (2 * q + bound - bound**2))
        assert abs(z) == pytest.approx(stats.norm.ppf(0.975), abs=1e-4)


def test_bounds_without_any_difference_are_symmetric_and_not_a_point():
    low, high = tango_interval(0, 0, 20)
    assert low == pytest.approx(-high)
    # no pair of 20 differs: T(d) = -sqrt(20 d / (1 + ...)) reaches 1.96 at z^2 / (n + z^2)
    z = stats.norm.ppf(0.975)
    assert high == pytest.approx(z**2 / (20 + z**2), abs=1e-6)
    assert miettinen_nurminen_interval(10, 10, 10, 10)[1] > 0.2


def test_bounds_follow_the_exact_test():
    assert tango_interval(5, 0, 20)[0] > 0.0
    assert tango_interval(5, 0, 20, p=0.06)[0] <= 0.0 + 1e-9
    assert miettinen_nurminen_interval(8, 20, 4, 20, p=0.04)[0] > 0.0


def test_impossible_counts_are_refused():
    for call in (
        lambda: mcnemar_p(-1, 0, 5),
        lambda: mcnemar_p(4, 4, 5),
        lambda: boschloo_p(6, 5, 0, 5),
        lambda: tango_interval(4, 4, 5),
        lambda: miettinen_nurminen_interval(1, 0, 0, 5),
    ):
        with pytest.raises(InputError):
            call()
