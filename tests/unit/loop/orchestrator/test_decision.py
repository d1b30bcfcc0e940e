import math

import pytest

from cadenza.core.errors import InputError
from cadenza.loop.config import LoopConfig, ThresholdConfig
from cadenza.loop.contracts.records import CheckpointRecord, EvalReport
from cadenza.loop.orchestrator import machine as verdicts
from cadenza.loop.orchestrator.decision import Decision, Judgement, Shown, decide
from cadenza.loop.orchestrator.decision import judge as judge_shown
from cadenza.loop.orchestrator.evidence import Evidence
from cadenza.loop.state import CycleState, LoopState, PastCandidate
from tests.loop_fakes import judged_by_bounds as judge

THRESHOLDS = ThresholdConfig()


def replay(scores):
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


def evidence(difference, lower, upper, *, baseline=0.5, own=(None, None)):
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


def past(difference=None, half_width=None, *, score=0.5):
    return PastCandidate(score=score, difference=difference, half_width=half_width)


TIE = past(0.0, 0.05)


def first(rate, lower, upper):
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
    def decision(found):
        return judge(found, (), THRESHOLDS, warm_up=warm_up, looks_left=looks_left).decision

    assert decision(evidence(0.05, 0.001, 0.09)) is Decision.PROMOTE
    assert decision(evidence(0.20, 0.0, 0.40)) is not Decision.PROMOTE
    assert decision(evidence(0.04, 0.001, 0.045)) is Decision.ITERATE


def test_judge_rolls_back_iff_bounds_lie_below_zero_and_the_loss_counts():
    def decision(found):
        return judge(found, (), THRESHOLDS, warm_up=False, looks_left=2).decision

    assert decision(evidence(-0.05, -0.09, -0.001)) is Decision.ROLLBACK
    assert decision(evidence(-0.20, -0.40, 0.0)) is None
    assert decision(evidence(-0.04, -0.045, -0.001)) is Decision.ITERATE


def test_judge_in_warm_up_iterates_and_spends_no_look_on_a_possible_loss():
    lost = judge(evidence(-0.2, -0.3, -0.1), (), THRESHOLDS, warm_up=True, looks_left=2)
    assert lost.decision is Decision.ITERATE
    assert "warms up" in lost.reason
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


@pytest.mark.parametrize("looks_left", [0, 4])
def test_judge_blesses_a_first_candidate_iff_its_lower_bound_reaches_min_promote(looks_left):
    def verdict(lower, upper=0.9):
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


def test_judge_blesses_what_reaches_min_promote_and_is_level_with_a_provisional_reference():
    limits = ThresholdConfig(min_promote=0.3)

    def decision(found, *, provisional=True, looks_left=0):
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
    told = verdicts.judged(state, config, Judgement(decision, "r"), found)
    assert told.state.history == (TIE, past(0.125, 0.25, score=0.625))


def likely(difference, half_width):
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


def test_a_gain_that_is_shown_but_too_small_is_told_and_not_blessed():
    found = evidence(0.04, 0.01, 0.07)
    verdict = judge(found, (), THRESHOLDS, warm_up=False, looks_left=0)
    assert verdict.decision is Decision.ITERATE
    assert verdict.reason.startswith("It is better, but by less than promote_delta 0.050, so it is")
    # remembered: shown before, by whatever bounds there are now
    shown = Shown(better=True)
    later = judge_shown(
        evidence(0.05, None, None), (), THRESHOLDS, warm_up=False, looks_left=1, shown=shown
    )
    assert later.decision is Decision.PROMOTE
