import json
import math
from collections.abc import Sequence

import pytest
from pydantic import ValidationError

from cadenza.core.errors import InputError
from cadenza.loop.config import LoopConfig, ThresholdConfig
from cadenza.loop.contracts.records import CheckpointRecord, EpisodeOutcome, EvalReport
from cadenza.loop.orchestrator import verdicts
from cadenza.loop.orchestrator.decision import (
    Decision,
    Judgement,
    decide,
    judge,
    past_candidate,
)
from cadenza.loop.orchestrator.evidence import Evidence, first_evidence
from cadenza.loop.orchestrator.sequential_plan import SequentialPlan
from cadenza.loop.orchestrator.state import CycleState, LoopState, PastCandidate

THRESHOLDS = ThresholdConfig()


def replay(scores: list[float]) -> list[str]:
    """Return the decisions on a sequence of scores, kept as a loop keeps its books."""
    baseline: float | None = None
    history: list[float] = []
    decisions: list[str] = []
    for score in scores:
        decision = decide(score, baseline, history, THRESHOLDS)
        decisions.append(decision.value)
        if decision is Decision.PROMOTE:
            baseline, history = score, []
        else:
            history.append(score)
    return decisions


@pytest.mark.parametrize(
    ("scores", "decisions"),
    [
        ([0.50, 0.53, 0.60], ["promote", "iterate", "promote"]),
        ([0.50, 0.505, 0.502], ["promote", "iterate", "escalate"]),
        ([0.50, 0.30], ["promote", "rollback"]),
        ([0.0, 0.0, 0.0], ["promote", "iterate", "iterate"]),
    ],
)
def test_decide_replays_the_promised_sequences(scores, decisions):
    assert replay(scores) == decisions


@pytest.mark.parametrize(
    ("candidate", "baseline", "history", "expected"),
    [
        (0.0, None, [], Decision.PROMOTE),
        (0.75, 0.5, [], Decision.PROMOTE),  # 0.25 >= 0.25: inclusive
        (0.74, 0.5, [], Decision.ITERATE),
        (0.25, 0.5, [], Decision.ROLLBACK),
        (0.26, 0.5, [], Decision.ITERATE),
        (0.5, 0.5, [], Decision.ITERATE),  # one flat score is no plateau of two
        (0.5, 0.5, [0.5], Decision.ESCALATE),
        (0.5, 0.5, [0.5, 0.7], Decision.ITERATE),  # only the last two count
        (0.5, 0.5, [0.7, 0.5], Decision.ESCALATE),
        (0.625, 0.5, [0.5], Decision.ITERATE),  # 0.125 is not below plateau_epsilon
        (0.04, 0.04, [0.04], Decision.ITERATE),  # below escalate_floor
        (0.05, 0.05, [0.05], Decision.ESCALATE),  # at the floor
    ],
)
def test_decide_at_the_edges_of_the_thresholds(candidate, baseline, history, expected):
    thresholds = ThresholdConfig(promote_delta=0.25, regression_delta=0.25, plateau_epsilon=0.125)
    assert decide(candidate, baseline, history, thresholds) is expected


def test_decide_without_floor_escalates_at_zero():
    assert decide(0.0, 0.0, [0.0], ThresholdConfig(escalate_floor=0.0)) is Decision.ESCALATE


@pytest.mark.parametrize(
    ("candidate", "baseline", "history", "name"),
    [
        (math.nan, 0.5, [], "candidate"),
        (math.nan, None, [], "candidate"),
        (0.5, math.nan, [], "baseline"),
        (0.5, math.inf, [], "baseline"),
        (0.5, 0.5, [0.1, math.nan], r"history\[1\]"),
    ],
)
def test_decide_refuses_scores_that_are_no_numbers(candidate, baseline, history, name):
    with pytest.raises(InputError, match=rf"^{name}: expected a finite score, got (nan|inf)"):
        decide(candidate, baseline, history, THRESHOLDS)


def evidence(
    difference: float,
    lower: float | None,
    upper: float | None,
    *,
    baseline: float = 0.5,
    own: tuple[float | None, float | None] = (None, None),
) -> Evidence:
    return Evidence(
        candidate=baseline + difference,
        candidate_lower=own[0],
        candidate_upper=own[1],
        candidate_confidence=0.98,
        baseline=baseline,
        difference=difference,
        lower=lower,
        upper=upper,
        n_pairs=100,
        confidence=0.95,
        method="test",
    )


def past(
    difference: float | None = None, half_width: float | None = None, *, score: float = 0.5
) -> PastCandidate:
    return PastCandidate(score=score, difference=difference, half_width=half_width)


TIE = past(0.0, 0.05)


def first(rate: float, lower: float | None, upper: float | None) -> Evidence:
    return Evidence(
        candidate=rate,
        candidate_lower=lower,
        candidate_upper=upper,
        candidate_confidence=0.98,
        n_pairs=10,
        method="test",
    )


@pytest.mark.parametrize("looks_left", [0, 3])
@pytest.mark.parametrize("warm_up", [False, True])
def test_judge_promotes_iff_bounds_lie_above_zero_and_the_gain_counts(looks_left, warm_up):
    def decision(found: Evidence) -> Decision | None:
        return judge(found, (), THRESHOLDS, warm_up=warm_up, looks_left=looks_left).decision

    assert decision(evidence(0.05, 0.001, 0.09)) is Decision.PROMOTE
    assert decision(evidence(0.20, 0.0, 0.40)) is not Decision.PROMOTE
    assert decision(evidence(0.04, 0.001, 0.045)) is Decision.ITERATE


def test_judge_rolls_back_iff_bounds_lie_below_zero_and_the_loss_counts():
    def decision(found: Evidence) -> Decision | None:
        return judge(found, (), THRESHOLDS, warm_up=False, looks_left=2).decision

    assert decision(evidence(-0.05, -0.09, -0.001)) is Decision.ROLLBACK
    assert decision(evidence(-0.20, -0.40, 0.0)) is None
    assert decision(evidence(-0.04, -0.045, -0.001)) is Decision.ITERATE


def test_judge_in_warm_up_iterates_where_it_would_roll_back():
    found = evidence(-0.2, -0.3, -0.1)
    verdict = judge(found, (), THRESHOLDS, warm_up=True, looks_left=2)
    assert verdict.decision is Decision.ITERATE
    assert "warms up" in verdict.reason


def test_judge_in_warm_up_spends_no_look_on_a_possible_loss():
    found = evidence(-0.02, -0.06, 0.02)
    assert judge(found, (), THRESHOLDS, warm_up=False, looks_left=1).decision is None
    assert judge(found, (), THRESHOLDS, warm_up=True, looks_left=1).decision is Decision.ITERATE


@pytest.mark.parametrize(
    ("lower", "upper"),
    [(-0.02, 0.05), (-0.05, 0.02), (-0.3, 0.4), (None, 0.01), (-0.01, None), (None, None)],
)
def test_judge_is_undecided_while_bounds_hold_a_difference_that_counts(lower, upper):
    found = evidence(0.01, lower, upper)
    open_ = judge(found, (TIE,), THRESHOLDS, warm_up=False, looks_left=1)
    assert open_.decision is None
    assert open_.reason.startswith("Further episodes may decide")
    closed = judge(found, (TIE,), THRESHOLDS, warm_up=False, looks_left=0)
    assert closed.decision is Decision.ESCALATE


def test_judge_stops_early_once_no_difference_that_counts_is_left():
    found = evidence(0.0, -0.049, 0.049)
    assert judge(found, (), THRESHOLDS, warm_up=False, looks_left=5).decision is Decision.ITERATE


def test_judge_counts_what_the_episodes_cannot_resolve_as_equal():
    # 0.03 exceeds plateau_epsilon 0.01, but not the half-width 0.06, nor the deltas 0.05
    found = evidence(0.03, -0.03, 0.09)
    assert judge(found, (past(-0.03, 0.06),), THRESHOLDS, warm_up=False, looks_left=0).decision is (
        Decision.ESCALATE
    )


def test_judge_counts_no_resolved_difference_as_equal():
    found = evidence(0.03, 0.01, 0.05)  # half-width 0.02
    assert judge(found, (TIE,), THRESHOLDS, warm_up=False, looks_left=0).decision is (
        Decision.ITERATE
    )


def test_judge_never_counts_a_difference_as_large_as_the_deltas_as_equal():
    found = evidence(0.08, -0.10, 0.26)
    assert judge(found, (TIE,), THRESHOLDS, warm_up=False, looks_left=0).decision is (
        Decision.ITERATE
    )
    found = evidence(0.0, -0.2, 0.2)
    assert judge(found, (past(-0.2, 0.2),), THRESHOLDS, warm_up=False, looks_left=0).decision is (
        Decision.ITERATE
    )


@pytest.mark.parametrize("deltas", [(0.05, 0.2), (0.2, 0.05)])
def test_judge_counts_as_equal_only_what_is_below_both_deltas(deltas):
    limits = ThresholdConfig(promote_delta=deltas[0], regression_delta=deltas[1])
    for difference, expected in ((0.04, Decision.ESCALATE), (0.06, Decision.ITERATE)):
        found = evidence(difference, difference - 0.3, difference + 0.3)
        verdict = judge(found, (TIE,), limits, warm_up=False, looks_left=0)
        assert verdict.decision is expected


def test_judge_on_a_plateau_at_the_floor_escalates():
    found = evidence(0.0, -0.03, 0.03, baseline=0.05)
    verdict = judge(found, (past(0.0, 0.03),), THRESHOLDS, warm_up=False, looks_left=0)
    assert verdict.decision is Decision.ESCALATE
    assert verdict.reason.startswith(
        "The last 2 candidates are level with the reference, each on its own initial states, with "
        "differences up to 0.000: 0.050 against 0.050 on "
    )


def test_judge_on_a_plateau_below_the_floor_iterates_and_says_why():
    found = evidence(0.0, -0.03, 0.03, baseline=0.02)
    verdict = judge(found, (past(0.0, 0.03),), THRESHOLDS, warm_up=False, looks_left=0)
    assert verdict.decision is Decision.ITERATE
    assert "escalate_floor is 0.050" in verdict.reason


@pytest.mark.parametrize("looks_left", [0, 4])
def test_judge_blesses_a_first_candidate_iff_its_lower_bound_reaches_min_promote(looks_left):
    def verdict(lower: float | None, upper: float | None = 0.9):
        found = first(0.1, lower, upper)
        return judge(found, (), THRESHOLDS, warm_up=False, looks_left=looks_left)

    assert verdict(0.05).decision is Decision.PROMOTE
    assert "reaches min_promote 0.050: 0.100 in 10 episodes, mean in [0.050, 0.900] at 98 %" in (
        verdict(0.05).reason
    )
    undecided = None if looks_left else Decision.PROVISIONAL
    for lower, upper in ((0.049, 0.9), (None, None), (None, 0.05)):
        assert verdict(lower, upper).decision is undecided
    # nothing that may still come can show it
    weak = verdict(0.0, 0.049)
    assert weak.decision is Decision.PROVISIONAL
    assert "not shown to reach min_promote 0.050, so it is not blessed: 0.100 in" in weak.reason


def test_judge_without_bar_blesses_a_first_candidate_without_any_success():
    limits = ThresholdConfig(min_promote=0.0)
    found = first(0.0, 0.0, 0.4)
    assert judge(found, (), limits, warm_up=False, looks_left=3).decision is Decision.PROMOTE


def test_one_success_in_ten_is_not_enough_to_bless():
    outcomes = [EpisodeOutcome(task="t", seed=i, success=i == 0) for i in range(10)]
    plan = SequentialPlan(first=10, growth=2.0, max_episodes=20, alpha=0.05)
    for look in (0, 1):
        alpha = plan.bar_alphas(2)[look]
        found = first_evidence(outcomes, metric="success", alpha=alpha, look=look, seed=0)
        left = plan.looks_left(look)
        decision = judge(found, (), THRESHOLDS, warm_up=False, looks_left=left).decision
        assert decision is (Decision.PROVISIONAL if look else None)


@pytest.mark.parametrize("looks_left", [0, 2])
def test_judge_against_a_provisional_reference_blesses_only_what_reaches_min_promote(looks_left):
    thresholds = ThresholdConfig(min_promote=0.3)

    def verdict(own: tuple[float | None, float | None], *, provisional: bool = True):
        found = evidence(0.15, 0.05, 0.25, baseline=0.3, own=own)
        return judge(
            found, (), thresholds, warm_up=False, looks_left=looks_left, provisional=provisional
        )

    assert verdict((0.3, 0.6)).decision is Decision.PROMOTE
    assert verdict((0.3, 0.6)).reason.startswith("It is better and reaches min_promote 0.300: 0.45")
    assert verdict((None, None), provisional=False).decision is Decision.PROMOTE
    open_ = verdict((0.29, 0.6))
    if looks_left:
        assert open_.decision is None
        assert "further episodes may show whether it reaches min_promote" in open_.reason
    else:
        assert open_.decision is Decision.PROVISIONAL
    never = verdict((0.1, 0.29))
    assert never.decision is Decision.PROVISIONAL
    assert "replaces it, but is not shown to reach min_promote 0.300" in never.reason


def test_judge_blesses_what_reaches_min_promote_and_is_level_with_a_provisional_reference():
    limits = ThresholdConfig(min_promote=0.3)

    def decision(found: Evidence, *, provisional: bool = True, looks_left: int = 0):
        return judge(
            found, (), limits, warm_up=False, looks_left=looks_left, provisional=provisional
        ).decision

    level = evidence(-0.02, -0.2, 0.2, own=(0.3, 0.6))
    assert decision(level) is Decision.PROMOTE
    assert decision(level, looks_left=1) is None
    assert decision(level, provisional=False) is Decision.ITERATE
    assert decision(evidence(-0.02, -0.2, 0.2, own=(0.29, 0.6))) is Decision.ITERATE
    assert decision(evidence(-0.2, -0.3, -0.1, own=(0.3, 0.6))) is Decision.ROLLBACK


def test_judge_tells_numbers_to_people():
    verdict = judge(evidence(0.1, 0.02, 0.18), (), THRESHOLDS, warm_up=False, looks_left=0)
    assert verdict.reason == (
        "It is better: 0.600 against 0.500 on 100 shared initial states, difference +0.100 in "
        "[+0.020, +0.180] at 95 %."
    )
    verdict = judge(evidence(0.1, None, None), (), THRESHOLDS, warm_up=False, looks_left=1)
    assert "in [-inf, +inf]" in verdict.reason
    strict = evidence(0.1, 0.02, 0.18).model_copy(update={"confidence": 1.0 - 1e-9})
    verdict = judge(strict, (), THRESHOLDS, warm_up=False, looks_left=0)
    assert verdict.reason.endswith("[+0.020, +0.180] at over 99.99 %.")


# Plateaus


def final(found: Evidence, history: Sequence[PastCandidate], limits=THRESHOLDS) -> Decision | None:
    return judge(found, history, limits, warm_up=False, looks_left=0).decision


def test_two_exact_ties_make_a_plateau_however_easy_their_initial_states_were():
    before = past_candidate(evidence(0.0, -0.06, 0.06, baseline=0.58))
    assert before == past(0.0, 0.06, score=0.58)
    now = evidence(0.0, -0.06, 0.06, baseline=0.5)
    assert final(now, (before,)) is Decision.ESCALATE


def test_a_candidate_that_differed_is_no_part_of_a_plateau_whatever_it_scored():
    # it scored what the reference scores today, but on its own initial states it was 0.08 apart
    differed = past_candidate(evidence(-0.08, -0.12, -0.04, baseline=0.58))
    assert final(evidence(0.0, -0.04, 0.04), (differed,)) is Decision.ITERATE
    # nor does today's wider interval make an earlier, resolved difference one
    resolved = past(0.04, 0.02)
    assert final(evidence(0.0, -0.4, 0.4), (resolved,)) is Decision.ITERATE
    # and what was not resolved then is not, because today's interval is narrow
    assert final(evidence(0.0, -0.02, 0.02), (past(0.04, 0.06),)) is Decision.ESCALATE


@pytest.mark.parametrize("half_width", [0.0, 0.05, None])
def test_a_past_tie_is_level_whatever_its_bounds(half_width):
    limits = ThresholdConfig(plateau_epsilon=0.0)
    assert final(evidence(0.0, -0.05, 0.05), (past(0.0, half_width),), limits) is Decision.ESCALATE


def test_a_candidate_of_which_nothing_is_known_is_no_part_of_a_plateau():
    unknown = past_candidate(first(0.5, 0.3, 0.7))
    assert unknown == past(score=0.5)
    assert final(evidence(0.0, -0.05, 0.05), (unknown,)) is Decision.ITERATE
    assert final(evidence(0.0, -0.05, 0.05), (unknown, TIE)) is Decision.ESCALATE


@pytest.mark.parametrize(("promote", "regression"), [(0.0, 0.0), (0.0, 0.05), (0.05, 0.0)])
@pytest.mark.parametrize("difference", [0.0, 0.03, -0.03])
def test_deltas_of_zero_leave_what_the_bounds_cannot_tell_a_plateau(
    promote, regression, difference
):
    limits = ThresholdConfig(
        promote_delta=promote, regression_delta=regression, plateau_epsilon=0.0
    )
    found = evidence(difference, difference - 0.04, difference + 0.04)
    assert final(found, (past(difference, 0.04),), limits) is Decision.ESCALATE
    assert final(found, (past(0.03, 0.02),), limits) is Decision.ITERATE


def test_history_of_bare_scores_is_read_as_scores_without_comparison():
    stored = '{"run_id": "run", "cycle": 3, "history": [0.58, 1]}'
    state = LoopState.model_validate_json(stored)
    assert state == LoopState.model_validate(json.loads(stored))
    assert state.history == (past(score=0.58), past(score=1.0))
    assert LoopState.model_validate_json(state.model_dump_json()) == state


@pytest.mark.parametrize("wrong", ["true", '"a half"', '{"score": 0.5, "half_width": -0.1}'])
def test_history_of_anything_else_is_refused(wrong):
    with pytest.raises(ValidationError, match=r"history\.0"):
        LoopState.model_validate_json(f'{{"run_id": "run", "history": [{wrong}]}}')


@pytest.mark.parametrize("decision", [Decision.ITERATE, Decision.ROLLBACK])
def test_state_keeps_how_a_candidate_compared_in_its_own_cycle(decision):
    checkpoint = CheckpointRecord(policy_type="bc", path="/c", cycle=1)
    report = EvalReport(
        checkpoint="/c", env_type="e", task_suite="s", n_episodes=100, success_rate=0.58
    )
    state = LoopState(
        run_id="run",
        cycle=1,
        step="decide",
        history=(TIE,),
        current=CycleState(candidate=checkpoint, candidate_report=report),
    )
    config = LoopConfig.from_document({"run_name": "r", "seed_dataset": "local/d"}, source="test")
    found = evidence(0.125, -0.125, 0.375)
    told = verdicts.judged(state, config, Judgement(decision=decision, reason="r"), found)
    assert told.state.history == (TIE, past(0.125, 0.25, score=0.625))


@pytest.mark.parametrize("name", ["score", "difference", "half_width"])
def test_a_past_candidate_refuses_numbers_that_are_none(name):
    with pytest.raises(ValidationError, match=name):
        PastCandidate(**{"score": 0.5, name: math.nan})


def test_judge_refuses_a_negative_number_of_looks():
    with pytest.raises(InputError, match=r"judge\.looks_left: expected >= 0, got -1"):
        judge(evidence(0.0, -1, 1), (), THRESHOLDS, warm_up=False, looks_left=-1)


def test_judge_refuses_a_baseline_without_difference():
    found = Evidence(candidate=0.5, baseline=0.5, n_pairs=1, method="test")
    with pytest.raises(InputError, match="expected a difference beside the baseline"):
        judge(found, (), THRESHOLDS, warm_up=False, looks_left=0)


def likely(difference: float, half_width: float) -> Evidence:
    """Return evidence whose bounds leave everything open and whose likely ones are narrower."""
    return evidence(difference, -0.6, 0.6).model_copy(
        update={"likely_lower": difference - half_width, "likely_upper": difference + half_width}
    )


@pytest.mark.parametrize(
    ("difference", "half_width", "expected"),
    [
        (0.0, 0.12, None),  # a gain of twice promote_delta is still likely enough
        (0.0, 0.09, Decision.ITERATE),
        (-0.15, 0.20, Decision.ITERATE),
        (0.2, 0.1, None),
    ],
)
def test_judge_gives_up_once_twice_the_smallest_gain_is_unlikely(difference, half_width, expected):
    limits = ThresholdConfig(promote_delta=0.05, regression_delta=0.05)
    found = likely(difference, half_width)
    assert judge(found, (), limits, warm_up=False, looks_left=2).decision is expected
    assert judge(found, (), limits, warm_up=False, looks_left=0).decision is Decision.ITERATE


@pytest.mark.parametrize(("difference", "decision"), [(-0.15, "escalate"), (-0.25, "iterate")])
def test_judge_counts_as_level_what_was_given_up_by_chance(difference, decision):
    earlier = past_candidate(likely(-0.1, 0.2))
    found = likely(difference, 0.2)
    assert judge(found, (earlier,), THRESHOLDS, warm_up=False, looks_left=2).decision == decision
