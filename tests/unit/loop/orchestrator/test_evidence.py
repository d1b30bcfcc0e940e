import json

import numpy as np
import pytest
from scipy import stats

from cadenza.core.errors import InputError
from cadenza.loop.contracts.records import EpisodeOutcome
from cadenza.loop.orchestrator.evidence import Evidence, first_evidence, paired_evidence


def outcomes(successes: str, *, task: str = "push", start: int = 0) -> list[EpisodeOutcome]:
    """Return one episode per character, 1 for success, on seeds from ``start``."""
    return [
        EpisodeOutcome(task=task, seed=start + i, success=c == "1") for i, c in enumerate(successes)
    ]


def scored(*scores: float) -> list[EpisodeOutcome]:
    return [EpisodeOutcome(task="push", seed=i, success=False, score=s) for i, s in
            enumerate(scores)]  # fmt: skip


def paired(candidate, reference, *, metric="success", alpha=0.05, seed=0) -> Evidence:
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


def test_evidence_is_a_json_document():
    found = paired(scored(0.1, 0.9), scored(0.4, 0.2), metric="score", alpha=1e-9)
    assert (found.lower, found.upper) == (None, None)
    assert Evidence.model_validate_json(json.dumps(found.model_dump(), allow_nan=False)) == found


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


def test_score_evidence_of_yes_or_no_scores_that_all_agree_keeps_its_width():
    found = paired(scored(*[1.0] * 30), scored(*[1.0] * 30), metric="score")
    assert found.lower is not None
    assert found.lower < 0.0
    assert found.upper is not None
    assert found.upper > 0.0


def test_score_evidence_without_spread_is_unbounded():
    found = paired(scored(*[0.3] * 30), scored(*[0.3] * 30), metric="score")
    assert (found.difference, found.lower, found.upper) == (0.0, None, None)


def test_success_metric_ignores_scores_and_the_seed():
    left, right = scored(0.1, 0.2), scored(0.5, 0.5)
    assert paired(left, right).difference == 0.0
    assert paired(left, right, seed=1) == paired(left, right, seed=2)


def own(found: Evidence) -> tuple[float | None, float | None, float | None]:
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


def test_first_evidence_of_yes_or_no_scores_is_that_of_success():
    settings = {"alpha": 0.05, "look": 0, "seed": 0}
    one = first_evidence(scored(1.0, 0.0, 1.0), metric="score", **settings)
    assert own(one) == own(first_evidence(outcomes("101"), metric="success", **settings))


def test_first_evidence_without_spread_is_unbounded():
    found = first_evidence(scored(*[0.3] * 30), metric="score", alpha=0.05, look=0, seed=0)
    assert own(found) == (None, None, 0.9)


def test_paired_evidence_bounds_the_candidate_alone_if_asked():
    assert own(paired(outcomes("1100"), outcomes("0100"))) == (None, None, None)
    found = paired_evidence(
        outcomes("1100"), outcomes("0100"), metric="success", alpha=0.01, look=0, seed=0,
        own_alpha=0.1,
    )  # fmt: skip
    alone = first_evidence(outcomes("1100"), metric="success", alpha=0.1, look=0, seed=0)
    assert own(found) == own(alone)
    assert found.confidence == 0.98


def test_unmatched_episodes_are_named():
    with pytest.raises(
        InputError,
        match=r"got 1 only of the candidate \(first: 'push' seed 3\) and 6 only of the reference "
        r"\(first: 'lift' seed 0, .* 'lift' seed 4\); evaluate both",
    ):
        paired(outcomes("1111"), outcomes("111") + outcomes("111111", task="lift"))


@pytest.mark.parametrize("side", ["candidate", "reference"])
def test_duplicate_episodes_are_named(side):
    once, twice = outcomes("11"), outcomes("11") + outcomes("1", start=1)
    sides = (twice, once) if side == "candidate" else (once, twice)
    with pytest.raises(InputError, match=rf"^{side}: .* got two of task 'push', seed 1"):
        paired(*sides)


@pytest.mark.parametrize("side", ["candidate", "reference"])
def test_no_episode_is_refused(side):
    sides = ([], outcomes("1")) if side == "candidate" else (outcomes("1"), [])
    with pytest.raises(InputError, match=rf"^{side}: expected at least one episode"):
        paired(*sides)


def test_missing_score_is_named():
    with pytest.raises(InputError, match=r"^reference: .* got none for task 'push', seed 0"):
        paired(scored(0.1), outcomes("1"), metric="score")


@pytest.mark.parametrize("alpha", [-0.01, 0.5, float("nan")])
def test_alpha_out_of_range_is_refused(alpha):
    with pytest.raises(InputError, match=r"paired_evidence\.alpha: expected in \[0, 0\.5\), got"):
        paired(outcomes("1"), outcomes("1"), alpha=alpha)


@pytest.mark.parametrize("alpha", [-0.01, 0.5, float("nan")])
def test_level_of_the_candidates_own_bounds_out_of_range_is_refused(alpha):
    with pytest.raises(InputError, match=r"first_evidence\.alpha: expected in \[0, 0\.5\), got"):
        first_evidence(outcomes("1"), metric="success", alpha=alpha, look=0, seed=0)
    with pytest.raises(InputError, match=r"paired_evidence\.own_alpha: expected in \[0, 0\.5\)"):
        paired_evidence(
            outcomes("1"), outcomes("1"), metric="success", alpha=0.1, look=0, seed=0,
            own_alpha=alpha,
        )  # fmt: skip
