import json
import re

import numpy as np
import pytest
from scipy import stats

from cadenza.core.errors import InputError
from cadenza.evaluation.statistics.cluster_means import SignFlips
from cadenza.loop.contracts.records import EpisodeOutcome, EvalReport
from cadenza.loop.orchestrator.evidence import (
    RAW_CHARS,
    RESAMPLES,
    RESERVE,
    first_evidence,
    mean_bounds,
    paired_evidence,
    pooled_report,
    told_report,
)


def outcomes(successes, *, task="push", start=0):
    """Return one episode per character, 1 for success, on seeds from ``start``."""
    return [
        EpisodeOutcome(task=task, seed=start + i, success=c == "1") for i, c in enumerate(successes)
    ]


def scored(*scores):
    return [EpisodeOutcome(task="push", seed=i, success=False, score=s) for i, s in
            enumerate(scores)]  # fmt: skip


def paired(candidate, reference, *, metric="success", alpha=0.05, seed=0):
    return paired_evidence(candidate, reference, metric=metric, alpha=alpha, look=2, seed=seed)


def test_success_evidence_counts_wins_and_losses():
    # wins on seeds 0-5, loss on 6, both solve 7, none 8 and 9
    found = paired(outcomes("1111110100"), outcomes("0000001100"))
    assert (found.candidate, found.baseline, found.difference) == (0.7, 0.2, 0.5)
    assert (found.n_pairs, found.look, found.confidence) == (10, 2, 0.9)
    assert found.method == "success/paired/exact-mcnemar/v1"
    # P(Bin(7, 1/2) >= 6) = 8/128 = 0.0625: rejected at 7 %, not at 5 %
    assert found.lower is not None
    assert found.lower <= 0.0
    stricter = paired(outcomes("1111110100"), outcomes("0000001100"), alpha=0.07)
    assert stricter.lower is not None
    assert stricter.lower > 0.0


def test_evidence_pairs_by_task_and_seed_in_any_order():
    candidate = outcomes("1100", task="push") + outcomes("1111", task="lift")
    reference = outcomes("0100", task="push") + outcomes("0011", task="lift")
    expected = paired(candidate, reference)
    assert paired(candidate, reference[::-1]) == expected
    assert paired(candidate[4:] + candidate[:4], reference) == expected
    assert expected.difference == 3 / 8  # push 0, lift 0 and 1


def test_score_evidence_bounds_the_mean_difference_from_equal_seeds_equally():
    high = scored(*(0.5 + 0.01 * i for i in range(20)))
    low = scored(*(0.4 + 0.007 * i for i in range(20)))
    found = paired(high, low, metric="score")
    # differences 0.1 + 0.003 i, i = 0..19: mean 0.1285, all positive
    assert found.difference == pytest.approx(0.1285)
    assert found.lower is not None
    assert found.upper is not None
    assert 0.1 < found.lower < 0.1285 < found.upper < 0.157
    assert found.method == "score/paired/sign-flips-and-bootstrap-t/v1"
    assert paired(high, low, metric="score") == found
    assert paired(high, low, metric="score", seed=1).lower != found.lower


def own(found):
    return found.candidate_lower, found.candidate_upper, found.candidate_confidence


def test_first_evidence_bounds_the_success_exactly():
    found = first_evidence(outcomes("1000"), metric="success", alpha=0.05, look=1, seed=0)
    interval = stats.binomtest(1, 4).proportion_ci(0.9, method="exact")
    assert own(found) == (pytest.approx(interval.low), pytest.approx(interval.high), 0.9)
    assert (found.candidate, found.n_pairs, found.look) == (0.25, 4, 1)
    assert (found.baseline, found.difference, found.confidence) == (None, None, None)
    assert found.method == "success/clopper-pearson/v1"


def test_first_evidence_bounds_the_mean_score_in_any_order_of_playing():
    scores = np.random.default_rng(0).normal(-20.0, 3.0, 30)
    found = first_evidence(scored(*scores), metric="score", alpha=0.05, look=0, seed=3)
    assert found.candidate_lower < found.candidate < found.candidate_upper < -15.0
    assert found.candidate == pytest.approx(scores.mean())
    assert found.method == "score/sign-flips-and-bootstrap-t/v1"
    backwards = first_evidence(scored(*scores)[::-1], metric="score", alpha=0.05, look=0, seed=3)
    assert own(backwards) == own(found)
    other = first_evidence(scored(*scores), metric="score", alpha=0.05, look=0, seed=4)
    assert own(other) != own(found)


def test_paired_evidence_bounds_the_candidate_alone_if_asked():
    assert own(paired(outcomes("1100"), outcomes("0100"))) == (None, None, None)
    found = paired_evidence(
        outcomes("1100"), outcomes("0100"), metric="success", alpha=0.01, look=0, seed=0,
        own_alpha=0.1,
    )  # fmt: skip
    alone = first_evidence(outcomes("1100"), metric="success", alpha=0.1, look=0, seed=0)
    assert own(found) == own(alone)
    assert found.confidence == 0.98


@pytest.mark.parametrize(
    ("sides", "changes", "message"),
    [
        (
            (outcomes("11") + outcomes("1", start=1), outcomes("11")),
            {},
            "candidate: .* got two of ta",
        ),
        ((outcomes("1"), []), {}, "reference: expected at least one episode"),
        (
            (outcomes("1111"), outcomes("111")),
            {},
            r"got 1 only of the candidate \(first: 'push' se",
        ),
        (
            (scored(0.1), outcomes("1")),
            {"metric": "score"},
            "reference: .* got none for task 'push'",
        ),
        (
            (outcomes("1"),) * 2,
            {"alpha": 0.5},
            r"paired_evidence\.alpha: expected in \[0, 0\.5\), g",
        ),
        ((outcomes("1"),) * 2, {"alpha": float("nan")}, r"paired_evidence\.alpha: expected in \[0"),
    ],
)
def test_episodes_that_cannot_be_compared_are_named(sides, changes, message):
    with pytest.raises(InputError, match=message):
        paired(*sides, **changes)


REPORT = EvalReport(
    checkpoint="/p", env_type="e", task_suite="s", n_episodes=1, success_rate=1.0,
    raw={"videos": ["v"]},
)  # fmt: skip


def outcome(task, seed, success, score=None):
    return EpisodeOutcome(task=task, seed=seed, success=success, score=score)


def test_pooled_report_counts_all_episodes_by_task():
    outcomes = [outcome("b", 0, True), outcome("a", 1, False), outcome("b", 2, False)]
    pooled = pooled_report(REPORT, outcomes)
    assert (pooled.n_episodes, pooled.success_rate) == (3, pytest.approx(1 / 3))
    assert pooled.per_task == {"a": 0.0, "b": 0.5}
    assert list(pooled.per_task) == ["a", "b"]
    assert pooled.outcomes == tuple(outcomes)
    assert (pooled.raw, pooled.checkpoint) == (REPORT.raw, "/p")


def test_raw_data_beyond_the_bound_are_cut_not_left_out():
    tasks = [
        {"task_id": i, "metrics": {"successes": [True] * 50, "video": "v" * 999}} for i in range(90)
    ]
    raw = {"per_task": tasks, "overall": {"pc_success": 50.0}}
    told = told_report(REPORT.model_copy(update={"raw": raw})).raw
    assert 1000 < len(json.dumps(told)) <= RAW_CHARS
    assert told["overall"] == {"pc_success": 50.0}
    assert told["per_task"][0]["task_id"] == 0
    assert re.fullmatch(r"\d+ left out", told["per_task"][-1])
    assert len(told["per_task"][0]["metrics"]["video"]) == 200
    wide = {f"k{i}": i for i in range(5000)}
    assert told_report(REPORT.model_copy(update={"raw": wide})).raw["left out"] == 5000 - 64


TAIL = 0.05


def bounds(values, *, tail=TAIL, seed=0):
    return mean_bounds(np.asarray(values, dtype=float), tail=tail, rng=np.random.default_rng(seed))


def test_skewed_values_have_the_bounds_of_the_studentised_bootstrap():
    values = stats.expon.ppf((np.arange(20) + 0.5) / 20)
    rng = np.random.default_rng(5)
    drawn = rng.choice(values, (4_000, 20))
    pivots = (drawn.mean(axis=1) - values.mean()) / stats.sem(drawn, axis=1)
    low, high = np.quantile(pivots, [RESERVE * TAIL, 1 - RESERVE * TAIL])
    lower, upper = bounds(values)
    assert upper == pytest.approx(values.mean() - low * stats.sem(values), rel=0.1)
    assert lower <= values.mean() - high * stats.sem(values) + 0.05
    flips = SignFlips(rng=rng).interval(values, confidence=1 - 2 * RESERVE * TAIL)
    assert upper > flips[1] + 0.1  # sign flips alone would be too narrow


def test_a_rare_loss_that_most_resamples_miss_leaves_the_bound_open():
    lower, upper = bounds([0.1] * 39 + [-0.9])
    assert lower is None
    assert 0.075 < upper < 0.15
    assert bounds([-0.1] * 39 + [0.9])[1] is None


@pytest.mark.parametrize("values", [[0.3], [0.3] * 30, [-7.0] * 2, [0.0] * 5])
def test_values_without_spread_bound_nothing(values):
    assert bounds(values) == (None, None)


def test_levels_that_the_resamples_cannot_resolve_bound_nothing():
    values = np.random.default_rng(0).normal(size=40)
    least = 1.0 / (RESERVE * (RESAMPLES + 1))
    assert bounds(values, tail=0.99 * least) == (None, None)
    assert None not in bounds(values, tail=least)


def test_bounds_of_an_exponential_mean_keep_their_level_and_those_of_sign_flips_do_not():
    rng, runs, tail = np.random.default_rng(3), 300, 0.05
    samples = 1.0 - rng.exponential(size=(runs, 10))
    failures = sum((bounds(x, tail=tail, seed=i)[0] or -1.0) > 0.0 for i, x in enumerate(samples))
    flips = sum(
        SignFlips(rng=rng, n_resamples=1_999).interval(x, confidence=1 - 2 * tail)[0] > 0.0
        for x in samples
    )
    at_most = stats.binom.ppf(0.999, runs, tail)
    assert failures <= at_most < flips


@pytest.mark.parametrize("values", [[], [[1.0, 2.0]], [1.0, float("nan")], [1.0, float("inf")]])
def test_values_that_are_no_finite_numbers_are_refused(values):
    with pytest.raises(InputError, match=r"mean_bounds\.tail: expected in \[0, 0\.5\), got"):
        bounds([1.0, 2.0], tail=0.5)
    with pytest.raises(InputError, match=r"mean_bounds\.values: expected finite numbers of shape"):
        bounds(values)
