import pytest
from scipy import stats

from cadenza.core.errors import InputError
from cadenza.evaluation.results import EpisodeResult
from cadenza.evaluation.statistics.cluster_means import StudentT
from cadenza.evaluation.statistics.paired import Pair, Pairing, pair_episodes, paired_comparison


def episode(condition, seed, index, success, *, partner="p", start=None) -> EpisodeResult:
    return EpisodeResult(
        seed=seed,
        episode_idx=index,
        initial_state_seed=index if start is None else start,
        success=success,
        condition=condition,
        partner=partner,
    )


def success(e: EpisodeResult) -> float:
    return float(e.success)


def pairing_of(differences: dict[int, list[tuple[float, float]]]) -> Pairing:
    return Pairing(
        pairs=tuple(
            Pair(
                partner="p", seed=seed, episode_idx=i, initial_state_seed=i, treatment=t, baseline=b
            )
            for seed, values in differences.items()
            for i, (t, b) in enumerate(values)
        )
    )


def test_pairing_matches_keys_and_counts_what_is_left():
    episodes = [
        episode("on", 0, 0, True), episode("off", 0, 0, False),
        episode("on", 0, 1, True),
        episode("off", 0, 1, True, start=99), episode("off", 1, 0, True),
        episode("on", 0, 0, True, partner="q"), episode("off", 0, 0, True, partner="q"),
        episode("else", 0, 0, True),
    ]  # fmt: skip
    pairing = pair_episodes(episodes, treatment="on", baseline="off", metric=success)
    assert [(p.partner, p.seed, p.difference) for p in pairing.pairs] == [
        ("p", 0, 1.0),
        ("q", 0, 0.0),
    ]
    assert (pairing.unmatched_treatment, pairing.unmatched_baseline) == (1, 2)


def test_pairing_with_duplicate_key_is_refused():
    with pytest.raises(InputError, match=r"got two of 'on' with .* = \('p', 0, 0, 0\)"):
        pair_episodes(
            [episode("on", 0, 0, True), episode("on", 0, 0, True)],
            treatment="on",
            baseline="off",
            metric=success,
        )


def test_pairing_of_an_unrecorded_metric_is_refused():
    with pytest.raises(InputError, match="expected every episode to record the metric"):
        pair_episodes(
            [episode("on", 0, 0, True)],
            treatment="on",
            baseline="off",
            metric=lambda e: e.episode_return,
        )


def test_pairing_of_a_condition_with_itself_is_refused():
    with pytest.raises(InputError, match="expected two conditions, got 'on' twice"):
        pair_episodes([], treatment="on", baseline="on", metric=success)


def test_comparison_equals_scipys_interval_on_seed_means():
    pairing = pairing_of({0: [(1, 0), (1, 1)], 1: [(1, 0), (1, 0)], 2: [(0, 1), (0, 0)]})
    result = paired_comparison(pairing, method=StudentT())
    seed_means = [0.5, 1.0, -0.5]
    expected = stats.t.interval(0.95, 2, loc=1 / 3, scale=stats.sem(seed_means))
    assert result.difference.value == pytest.approx(1 / 3)
    assert (result.difference.low, result.difference.high) == pytest.approx(expected, abs=1e-9)
    assert (result.treatment_mean, result.baseline_mean) == pytest.approx((4 / 6, 2 / 6))
    assert (result.n_higher, result.n_lower, result.n_equal) == (3, 1, 2)
    assert result.difference.estimator == "mean/paired-cluster/student-t/v1"


@pytest.mark.parametrize(
    ("pair", "value", "low", "high"),
    [
        ((1, 1), 0.0, -(1 - 0.025 ** (1 / 20)), 1 - 0.025 ** (1 / 20)),
        ((1, 0), 1.0, 2 * 0.025 ** (1 / 20) - 1, 1.0),
        ((0, 1), -1.0, -1.0, 1 - 2 * 0.025 ** (1 / 20)),
    ],
)
def test_comparison_of_equal_differences_is_exact_and_not_a_point(pair, value, low, high):
    # if 20 of 20 pairs agree, at least 0.025 ** (1 / 20) of all pairs do (Clopper-Pearson)
    pairing = pairing_of({seed: [pair] * 2 for seed in range(10)})
    result = paired_comparison(pairing, method=StudentT(), bounds=(-1.0, 1.0))
    assert result.difference.value == value
    assert (result.difference.low, result.difference.high) == pytest.approx((low, high))
    assert result.difference.undefined_reason is None
    assert "exact binomial" in result.difference.warnings[0]


def test_comparison_of_equal_real_differences_stays_undefined():
    pairing = pairing_of({seed: [(2.5, 2.0)] for seed in range(3)})
    result = paired_comparison(pairing, method=StudentT())
    assert (result.difference.value, result.difference.low) == (0.5, None)


def test_comparison_without_pairs_is_missing_and_not_zero():
    result = paired_comparison(
        Pairing(pairs=(), unmatched_treatment=2, unmatched_baseline=1), method=StudentT()
    )
    assert (result.difference.value, result.treatment_mean) == (None, None)
    assert result.difference.undefined_reason == "no episodes"
    assert (result.unmatched_treatment, result.unmatched_baseline) == (2, 1)


def test_comparison_with_few_seeds_warns():
    result = paired_comparison(pairing_of({0: [(1, 0)], 1: [(0, 0)]}), method=StudentT())
    assert "only 2 seeds" in result.difference.warnings[0]
