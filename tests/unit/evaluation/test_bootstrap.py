import logging
import math

import numpy as np
import pytest
from scipy import stats

from cadenza.core.errors import InputError
from cadenza.evaluation.bootstrap import (
    PairedEpisode,
    aggregate_metrics,
    build_paired_episodes,
    cluster_bootstrap,
    pacluster_bootstrap,
)
from cadenza.evaluation.results import EpisodeResult, SpikeRun
from cadenza.evaluation.statistics.estimate import (
    interquartile_mean,
    optimality_gap,
    performance_profile_area,
)


def trimmed(values) -> float:
    return float(stats.trim_mean(values, 0.25)) if len(values) else math.nan


def reference_bounds(clusters, n_resamples, rng) -> tuple[float, float]:
    """Draw seeds, then episodes of each drawn seed, in the recorded order."""
    replicates = []
    for _ in range(n_resamples):
        pooled = []
        for index in rng.integers(0, len(clusters), size=len(clusters)):
            if len(clusters[index]):
                chosen = rng.integers(0, len(clusters[index]), size=len(clusters[index]))
                pooled += [clusters[index][i] for i in chosen]
        replicates.append(trimmed(pooled))
    finite = [r for r in replicates if math.isfinite(r)]
    return tuple(np.percentile(finite, [2.5, 97.5]))


def run_of(episodes) -> SpikeRun:
    return SpikeRun.model_validate(
        {
            "spike_id": "s", "prereg_sha": "x", "git_tag": "t", "axis": "AS", "sub_stage": "1b",
            "condition_pair": {"homogeneous_id": "a", "heterogeneous_id": "b"},
            "seeds": [0, 1], "episode_results": episodes,
        }
    )  # fmt: skip


def episode(condition, index, success, seed=0) -> EpisodeResult:
    return EpisodeResult(
        seed=seed, episode_idx=index, initial_state_seed=index, success=success, condition=condition
    )


@pytest.mark.parametrize("n", range(1, 14))
def test_interquartile_mean_equals_scipys_trimmed_mean(n):
    values = np.random.default_rng(n).normal(size=n)
    assert interquartile_mean(values) == pytest.approx(trimmed(values), abs=1e-15)


@pytest.mark.parametrize(("k", "n"), [(0, 8), (1, 8), (2, 8), (3, 8), (5, 8), (6, 8), (8, 8)])
def test_interquartile_mean_of_outcomes_is_the_clipped_and_stretched_rate(k, n):
    expected = min(max((k / n - 0.25) / 0.5, 0.0), 1.0)  # exact: 8 is divisible by 4
    assert interquartile_mean([1.0] * k + [0.0] * (n - k)) == expected


def test_optimality_gap_is_the_mean_shortfall():
    assert optimality_gap([0.2, 0.5, 0.9, 1.0]) == pytest.approx(0.35)  # (.8 + .5 + .1 + 0) / 4
    assert optimality_gap([2.0, 0.5], threshold=1.0) == 0.25  # excess does not pay for shortfall


def test_profile_area_of_outcomes_is_99_percent_of_the_rate():
    # 51 points: the share is p below 1 and 0 at 1, so the last trapezoid loses half of 0.02 p.
    assert performance_profile_area([1.0, 1.0, 0.0, 1.0]) == pytest.approx(0.99 * 0.75)


def test_aggregates_of_nothing_are_nan():
    assert all(math.isnan(value) for value in aggregate_metrics({0: []}).values())


def test_aggregate_metrics_returns_only_what_was_asked():
    assert aggregate_metrics({0: [0.2, 0.5], 1: [0.9, 1.0]}, metrics=("optimality_gap",)) == {
        "optimality_gap": pytest.approx(0.35)
    }


def test_aggregate_metrics_with_unknown_name_is_refused():
    with pytest.raises(InputError, match=r"expected metrics among .*'iqm'.*, got \['median'\]"):
        aggregate_metrics({0: [1.0]}, metrics=("median",))


def test_cluster_bootstrap_follows_the_recorded_order_of_draws():
    values = {5: [0.1, 0.9, 0.4], 2: [], 9: [1.0, 0.0, 0.3, 0.7, 0.2]}
    result = cluster_bootstrap(values, n_resamples=200, rng=np.random.default_rng(11))
    expected = reference_bounds(list(values.values()), 200, np.random.default_rng(11))
    assert (result.ci_low, result.ci_high) == pytest.approx(expected, abs=1e-15)
    pooled = [v for cluster in values.values() for v in cluster]
    assert (result.iqm, result.mean) == pytest.approx((trimmed(pooled), np.mean(pooled)))
    assert result.n_resamples == 200


def test_cluster_bootstrap_of_nothing_is_nan():
    result = cluster_bootstrap({0: [], 1: []}, n_resamples=10, rng=np.random.default_rng(0))
    assert all(math.isnan(v) for v in (result.iqm, result.mean, result.ci_low, result.ci_high))


@pytest.mark.parametrize("n_resamples", [0, -1])
def test_bootstraps_without_resamples_are_refused(n_resamples):
    rng = np.random.default_rng(0)
    with pytest.raises(ValueError, match="n_resamples: expected >= 1"):
        cluster_bootstrap({0: [1.0]}, n_resamples=n_resamples, rng=rng)
    with pytest.raises(ValueError, match="n_resamples: expected >= 1"):
        pacluster_bootstrap([], n_resamples=n_resamples, rng=rng)


def test_paired_bootstrap_equals_the_plain_one_on_differences():
    rng = np.random.default_rng(4)
    pairs = [
        PairedEpisode(
            seed=seed, episode_idx=i, initial_state_seed=i,
            homogeneous=float(rng.random()), heterogeneous=float(rng.random()),
        )
        for seed in (3, 1)
        for i in range(5)
    ]  # fmt: skip
    differences: dict[int, list[float]] = {}
    for pair in pairs:
        differences.setdefault(pair.seed, []).append(pair.homogeneous - pair.heterogeneous)
    paired = pacluster_bootstrap(pairs, n_resamples=60, rng=np.random.default_rng(1))
    plain = cluster_bootstrap(differences, n_resamples=60, rng=np.random.default_rng(1))
    assert paired == plain


def test_paired_episodes_of_a_run_are_matched_and_the_rest_is_reported(caplog):
    run = run_of(
        [
            episode("a", 0, True), episode("b", 0, False), episode("a", 1, True),
            episode("other", 0, True), episode("b", 0, True, seed=1),
        ]
    )  # fmt: skip
    with caplog.at_level(logging.WARNING):
        pairs = build_paired_episodes(run)
    assert pairs == [
        PairedEpisode(
            seed=0, episode_idx=0, initial_state_seed=0, homogeneous=1.0, heterogeneous=0.0
        )
    ]
    assert "s: 2 episodes have no counterpart" in caplog.text


def test_paired_episodes_with_duplicate_key_are_refused():
    with pytest.raises(InputError, match="expected one episode per key, got two of 'a'"):
        build_paired_episodes(run_of([episode("a", 0, True), episode("a", 0, False)]))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    "statistic",
    [
        interquartile_mean,
        optimality_gap,
        performance_profile_area,
        lambda values: aggregate_metrics({0: values}),
        lambda values: cluster_bootstrap(
            {0: values, 1: [0.5]}, n_resamples=10, rng=np.random.default_rng(0)
        ),
        lambda values: pacluster_bootstrap(
            [
                PairedEpisode(
                    seed=0, episode_idx=k, initial_state_seed=k, homogeneous=x, heterogeneous=0.0
                )
                for k, x in enumerate(values)
            ],
            n_resamples=10,
            rng=np.random.default_rng(0),
        ),
    ],
)
def test_score_that_is_not_finite_enters_no_statistic(statistic, bad):
    statistic([0.1, 0.2, 0.3, 0.9])
    with pytest.raises(InputError, match=r"expected finite numbers, got -?(nan|inf) at index"):
        statistic([0.1, bad, 0.3, 0.9])
