"""The conformal rules behind their Protocol: numbers by hand, memory, and what is refused."""

import json
import math

import pytest

from cadenza.core.errors import InputError, UnknownNameError
from cadenza.safety.conformal import (
    SUPPORTED_RULES,
    ConformalRule,
    DtaciTracker,
    RuleSettings,
    make_rule,
)
from cadenza.safety.contracts import SafetyState

AB, AC = ("a", "b"), ("a", "c")
GAMMA = 5.0


def settings(**changes):
    return RuleSettings(**{"gamma": GAMMA, "lambda_bound": 5.0, **changes})


def begun(name, lambda_=None, **changes):
    """Return a rule and its state at the given slack."""
    lambda_ = {AB: 0.0, AC: 0.0} if lambda_ is None else lambda_
    rule = make_rule(name, settings(**changes))
    rule.begin(lambda_)
    return rule, SafetyState(dict(lambda_), epsilon=0.1, eta=0.02)


VARIANTS = [(name, {}) for name in SUPPORTED_RULES] + [("two_sided", {"eta_decay": 0.6})]


@pytest.mark.parametrize(("name", "changes"), VARIANTS)
def test_rule_scores_only_the_pairs_that_fell_due(name, changes):
    rule, state = begun(name, {AB: -0.5, AC: -0.5}, **changes)
    state.warmup_steps_remaining = 2
    assert isinstance(rule, ConformalRule)
    rule.update(state, {AB: 3.0})
    assert state.lambda_[AC] == -0.5
    assert state.lambda_[AB] < -0.5
    assert state.warmup_steps_remaining == 1


@pytest.mark.parametrize(("name", "changes"), VARIANTS)
def test_rule_restored_through_json_continues_exactly(name, changes):
    rule, state = begun(name, **changes)
    scores = [{AB: math.sin(3.0 * k), AC: 0.1 * math.cos(k)} for k in range(60)]
    for score in scores[:30]:
        rule.update(state, score)
    memory, saved = json.loads(json.dumps([rule.to_dict(), state.to_dict()]))
    other, _ = begun(name, **changes)
    other.load_dict(memory)
    again = SafetyState.from_dict(saved)
    for score in scores[30:]:
        rule.update(state, score)
        other.update(again, score)
    assert again == state
    assert other.to_dict() == rule.to_dict()


@pytest.mark.parametrize(("name", "changes"), VARIANTS)
def test_rule_bad_scores_are_refused_without_a_trace(name, changes):
    rule, state = begun(name, **changes)
    before = (rule.to_dict(), state.to_dict())
    with pytest.raises(InputError, match="expected a pair of"):
        rule.update(state, {("x", "y"): 0.0})
    with pytest.raises(InputError, match="expected a finite number, got nan"):
        rule.update(state, {AB: 1.0, AC: math.nan})
    assert (rule.to_dict(), state.to_dict()) == before


@pytest.mark.parametrize(("name", "changes"), VARIANTS)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema_version": 7}, "of version 7"),
        ({"rule": "other"}, "got rule 'other'"),
        ({"pairs": None}, "expected a complete record"),
        ({"pairs": [{"a": "a"}]}, "expected a complete record"),
        ({"pairs": [{"a": "x", "b": "y", "memory": [0, 0, 0]}]}, "expected the pairs"),
    ],
)
def test_rule_record_of_something_else_is_refused(name, changes, change, message):
    rule, _ = begun(name, **changes)
    before = rule.to_dict()
    with pytest.raises(InputError, match=message):
        rule.load_dict(before | change)
    assert rule.to_dict() == before


def test_decaying_steps_by_hand():
    # Three misses at miss rate 0.1: q = 0.9 * 0.02 * (1 + 2^-0.5 + 3^-0.5).
    rule, state = begun("two_sided", {AB: 0.0, AC: 0.0}, eta_decay=0.5)
    for _ in range(3):
        rule.update(state, {AB: 1.0})
    expected = 0.018 * (1.0 + 2**-0.5 + 3**-0.5)
    assert state.lambda_[AB] == pytest.approx(-GAMMA * expected)
    rule.update(state, {AC: 1.0})  # another pair counts for itself
    assert state.lambda_[AC] == pytest.approx(-GAMMA * 0.018)
    rule.restart()
    rule.update(state, {AB: 1.0})
    assert state.lambda_[AB] == pytest.approx(-GAMMA * (expected + 0.018))
    rule.begin(state.lambda_)
    rule.update(state, {AB: 1.0})
    assert state.lambda_[AB] == pytest.approx(-GAMMA * (expected + 0.036))


@pytest.mark.parametrize("memory", [None, [], [-1], [1.5]])
def test_decay_refuses_a_memory_without_a_count_and_keeps_its_own(memory):
    rule, state = begun("two_sided", {AB: 0.0}, eta_decay=0.5)
    rule.update(state, {AB: 1.0})
    kept = rule.to_dict()
    broken = {**kept, "pairs": [{"a": "a", "b": "b", "memory": memory}]}
    with pytest.raises(InputError, match="expected a count of updates"):
        rule.load_dict(broken)
    assert rule.to_dict() == kept


def test_dtaci_first_step_by_hand():
    # Steps 0.1 and 0.4, score 1, miss rate 0.2, margins 0.5: equal losses leave equal weights;
    # both miss, so the margins become 0.58 and 0.82 and their mean 0.7.
    tracker = DtaciTracker.start(0.5, steps=(0.1, 0.4), interval=10)
    tracker.update(1.0, miss_rate=0.2, largest=10.0)
    assert tracker.margins == pytest.approx([0.58, 0.82])
    assert tracker.weights == pytest.approx([0.5, 0.5])
    assert tracker.margin == pytest.approx(0.7)
    assert tracker.loss_power == pytest.approx(0.16)  # (0.8 * 0.5)^2
    # Score 1 again: losses 0.8 * (0.42, 0.18) = (0.336, 0.144); V = 0.9 * 0.16 + their mean square.
    tracker.update(1.0, miss_rate=0.2, largest=10.0)
    power = 0.9 * 0.16 + 0.5 * (0.336**2 + 0.144**2)
    rho = math.sqrt((math.log(2 * 2 * 10) + 1) / power)
    ratio = math.exp(-rho * (0.336 - 0.144))
    sigma = 1 / 20
    first = (1 - sigma) * ratio / (1 + ratio) + sigma / 2
    assert tracker.weights == pytest.approx([first, 1 - first])
    assert tracker.margins == pytest.approx([0.66, 1.14])


def test_huriot_sibai_rule_relaxes_up_to_its_limit_only():
    rule, state = begun("huriot_sibai", {AB: 0.0}, lambda_max=0.003)
    rule.update(state, {AB: -4.0})  # no loss: + eta epsilon = 0.002
    assert state.lambda_[AB] == pytest.approx(0.002)
    rule.update(state, {AB: -4.0})
    assert state.lambda_[AB] == 0.003
    strict, state = begun("huriot_sibai", {AB: 0.0})
    strict.update(state, {AB: -4.0})
    assert state.lambda_[AB] == 0.0
    strict.update(state, {AB: 1.0})
    assert state.lambda_[AB] == pytest.approx(0.02 * (0.1 - 1.0))


def rule(**changes):
    return make_rule("dtaci", settings(**changes))


def tracker(**changes):
    record = DtaciTracker.start(0.1, steps=(0.1, 0.2)).to_dict()
    return DtaciTracker.from_dict(record | changes)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: rule(gamma=0.0), "gamma must be strictly positive"),
        (lambda: rule(lambda_bound=math.inf), "lambda_bound must be strictly positive"),
        (lambda: rule(lambda_max=5.1), r"lambda_max: expected a number in \[0, 5\]"),
        (lambda: rule(eta_decay=1.0), r"eta_decay: expected a number in \[0, 1\)"),
        (lambda: rule(step_grid=()), "expected step sizes > 0"),
        (
            lambda: begun("dtaci", step_grid=(0.5,))[0].load_dict(begun("dtaci")[0].to_dict()),
            r"expected the step grid \(0.5,\)",
        ),
        (lambda: DtaciTracker.start(-0.1), "expected a margin >= 0"),
        (lambda: tracker(schema_version=0), "expected schema version 1, got 0"),
        (lambda: tracker(steps=[]), "expected step sizes > 0"),
        (lambda: tracker(interval=0), "expected an interval >= 1"),
        (lambda: tracker(margins=[0.1]), "expected 2 margins"),
        (lambda: tracker(weights=[0.5, math.nan]), "expected 2 margins"),
        (lambda: tracker(loss_power="much"), "expected a complete record"),
        (lambda: make_rule("magic", settings()), r"expected one of .*, got 'magic'"),
    ],
)
def test_settings_and_records_out_of_range_are_refused(make, message):
    with pytest.raises((InputError, UnknownNameError), match=message):
        make()


@pytest.mark.parametrize("name", ["dtaci", "two_sided"])
def test_rate_of_another_kind_is_refused(name):
    rule, state = begun(name)
    state.epsilon = 1.5
    with pytest.raises(InputError, match="expected a miss rate in"):
        rule.update(state, {AB: 0.0})
