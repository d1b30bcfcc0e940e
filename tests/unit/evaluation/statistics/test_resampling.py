import numpy as np
import pytest
from scipy import stats

from cadenza.core.errors import InputError
from cadenza.evaluation.statistics import resampling
from cadenza.evaluation.statistics.resampling import (
    cluster_counts,
    count_trimmed_means,
    exact_cluster_pmf,
    exact_paired_pmf,
    exact_stratified_pmf,
    gather_trimmed_means,
    pmf_bounds,
    stratified_counts,
    trimmed_mean_of_counts,
    two_level_successes,
    weighted_trimmed_means,
)


def rng(seed=0):
    return np.random.default_rng(seed)


SCORES = rng(9).random((10, 100))
FLAT = SCORES.T.ravel()  # the order of counts: column, then row


def by_counts(replicates, seed=0):
    blocks = stratified_counts(10, 100, replicates=replicates, rng=rng(seed))
    return count_trimmed_means(blocks, FLAT)


def test_counts_and_drawn_values_have_the_same_trimmed_mean():
    blocks = list(stratified_counts(10, 100, replicates=50, rng=rng()))
    counts = np.concatenate(blocks)
    assert (counts.reshape(50, 100, 10).sum(axis=2) == 10).all()
    expected = [stats.trim_mean(np.repeat(FLAT, row), 0.25) for row in counts]
    assert count_trimmed_means(iter(blocks), FLAT) == pytest.approx(expected, abs=1e-12)
    assert weighted_trimmed_means(counts, FLAT) == pytest.approx(expected, abs=1e-12)


def test_replicates_outside_the_windows_are_still_right(monkeypatch):
    expected = by_counts(400)
    monkeypatch.setattr(resampling, "_WINDOW", 0.2)
    assert by_counts(400) == pytest.approx(expected, abs=1e-12)


def test_kernels_agree_on_the_distribution():
    gathered = gather_trimmed_means(SCORES, replicates=8000, rng=rng(1))
    counted = by_counts(8000, 2)
    assert counted.mean() == pytest.approx(gathered.mean(), abs=5e-4)
    for level in (0.025, 0.5, 0.975):
        assert np.quantile(counted, level) == pytest.approx(np.quantile(gathered, level), abs=2e-3)


@pytest.mark.parametrize(
    "kernel", [by_counts, lambda b: gather_trimmed_means(SCORES, replicates=b, rng=rng())]
)
def test_results_do_not_depend_on_how_many_replicates_follow(kernel):
    assert np.array_equal(kernel(700)[:512], kernel(512))


@pytest.mark.parametrize("rows", [1, 2, 7, 30, 300])
def test_counts_of_a_column_have_multinomial_moments(rows):
    counts = np.concatenate(list(stratified_counts(rows, 1, replicates=4000, rng=rng(rows))))
    assert (counts.sum(axis=1) == rows).all()
    assert counts[:, 0].mean() == pytest.approx(1.0, abs=0.08)
    assert counts[:, 0].astype(float).var() == pytest.approx(1.0 - 1.0 / rows, abs=0.12)


def test_clusters_are_drawn_for_all_columns_at_once():
    counts = np.concatenate(list(cluster_counts(5, 3, replicates=20, rng=rng())))
    assert (counts[:, :5] == counts[:, 5:10]).all()
    assert (counts.sum(axis=1) == 15).all()


def test_exact_stratified_distribution_is_that_of_the_sampled_one():
    # columns of 4 with 1 and 3 successes: P(0) = (3/4)^4 (1/4)^4
    pmf = exact_stratified_pmf([1, 3], [4, 4])
    assert pmf[0] == pytest.approx(0.75**4 * 0.25**4)
    expected = np.convolve(stats.binom.pmf(range(5), 4, 0.25), stats.binom.pmf(range(5), 4, 0.75))
    assert pmf == pytest.approx(expected, abs=1e-12)
    binary = (SCORES < 0.8).astype(float)
    drawn = gather_trimmed_means(binary, replicates=20_000, rng=rng(3))
    pmf = exact_stratified_pmf(binary.sum(axis=0).astype(int).tolist(), [10] * 100)
    support = trimmed_mean_of_counts(np.arange(1001.0), 1000)
    assert pmf_bounds(pmf, support) == pytest.approx(np.quantile(drawn, [0.025, 0.975]), abs=2e-3)


def test_exact_cluster_distribution_is_that_of_the_two_level_bootstrap():
    wins, episodes = [18, 20, 12, 16, 9], 20
    pmf = exact_cluster_pmf(wins, episodes)
    drawn = two_level_successes(wins, [episodes] * 5, replicates=40_000, rng=rng(4))
    rates = np.arange(101) / 100
    assert pmf @ rates == pytest.approx(0.75)
    assert drawn.mean() == pytest.approx(0.75, abs=2e-3)
    assert pmf_bounds(pmf, rates) == pytest.approx(np.quantile(drawn, [0.025, 0.975]), abs=0.0101)


def test_exact_paired_distribution_by_hand():
    # one seed, two pairs, one won and one lost: steps -1, +1 with chance 1/2 each
    assert exact_paired_pmf([1], [1], 2) == pytest.approx([0.25, 0, 0.5, 0, 0.25])
    # two seeds of one pair, one won, one tied: each step +1 or 0
    assert exact_paired_pmf([1, 0], [0, 0], 1) == pytest.approx([0, 0, 0.25, 0.5, 0.25])


def test_trimmed_mean_of_counts_is_that_of_the_outcomes():
    for won in range(13):
        outcomes = np.r_[np.ones(won), np.zeros(12 - won)]
        assert trimmed_mean_of_counts(np.array(won), 12) == pytest.approx(
            stats.trim_mean(outcomes, 0.25)
        )


@pytest.mark.parametrize(
    "call",
    [
        lambda: gather_trimmed_means(np.zeros(3), replicates=5, rng=rng()),
        lambda: gather_trimmed_means(np.zeros((3, 1)), replicates=0, rng=rng()),
        lambda: list(stratified_counts(3, 1, replicates=0, rng=rng())),
        lambda: exact_cluster_pmf([5], 4),
        lambda: exact_paired_pmf([3], [3], 4),
        lambda: two_level_successes([], [], replicates=1, rng=rng()),
    ],
)
def test_malformed_input_is_refused(call):
    with pytest.raises(InputError):
        call()
