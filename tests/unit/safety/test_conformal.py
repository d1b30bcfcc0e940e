import math

import numpy as np
import pytest

from cadenza.core.errors import InputError
from cadenza.safety.conformal import (
    RuleSettings,
    compute_per_pair_loss,
    compute_prediction_gap_for_pairs,
    make_rule,
    reset_on_partner_swap,
    update_lambda,
    update_lambda_from_predictor,
)
from cadenza.safety.contracts import SafetyState
from tests.unit.safety.scenes import agent

AB = ("a", "b")


def state(value=0.0, *, epsilon=0.05, eta=0.01, warmup=0):
    return SafetyState({AB: value}, epsilon, eta, warmup)


def update_margin(s, scores, *, gamma, lambda_bound):
    make_rule("two_sided", RuleSettings(gamma=gamma, lambda_bound=lambda_bound)).update(s, scores)


def test_margin_rises_on_a_miss_and_falls_otherwise_by_hand():
    # gamma = 5, eta = 0.01, epsilon = 0.05. Miss: q = 0.01 * 0.95, lambda = -5 q = -0.0475.
    s = state()
    update_margin(s, {AB: 0.5}, gamma=5.0, lambda_bound=1.4)
    assert s.lambda_[AB] == pytest.approx(-0.0475, abs=1e-15)
    # No miss (score below q = 0.0095): q falls by 0.01 * 0.05 = 0.0005.
    update_margin(s, {AB: 0.009}, gamma=5.0, lambda_bound=1.4)
    assert s.lambda_[AB] == pytest.approx(-5.0 * 0.009, abs=1e-15)


def test_margin_never_turns_positive():
    s = state()
    update_margin(s, {AB: -3.0}, gamma=5.0, lambda_bound=1.4)
    assert math.copysign(1.0, s.lambda_[AB]) == 1.0
    assert s.lambda_[AB] == 0.0


def test_margin_stops_at_the_bound():
    s = state(eta=10.0)
    update_margin(s, {AB: 0.5}, gamma=5.0, lambda_bound=1.4)
    assert s.lambda_[AB] == pytest.approx(-1.4)


def test_margin_falls_more_slowly_in_warm_up_and_counts_it_down():
    cold, warm = state(-1.0), state(-1.0, warmup=2)
    for s in (cold, warm):
        update_margin(s, {AB: 0.0}, gamma=5.0, lambda_bound=1.4)
    # Without a miss q falls by eta epsilon, in warm-up by eta epsilon / 1.5.
    assert cold.lambda_[AB] == pytest.approx(-1.0 + 5.0 * 0.01 * 0.05, abs=1e-15)
    assert warm.lambda_[AB] == pytest.approx(-1.0 + 5.0 * 0.01 * 0.05 / 1.5, abs=1e-15)
    assert (cold.warmup_steps_remaining, warm.warmup_steps_remaining) == (0, 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epsilon": 0.0}, r"expected a miss rate in \(0, 1\), got 0.0"),
        ({"epsilon": 1.0}, "expected a miss rate"),
        ({"gamma": 0.0}, "gamma must be strictly positive"),
        ({"lambda_bound": -1.0}, "lambda_bound must be strictly positive"),
        ({"scores": {AB: math.nan}}, "expected a finite number, got nan"),
    ],
)
def test_margin_malformed_update_is_refused_without_a_trace(change, message):
    s = state(-0.3, epsilon=change.get("epsilon", 0.05), warmup=3)
    before = s.to_dict()
    with pytest.raises(InputError, match=message):
        update_margin(
            s,
            change.get("scores", {AB: 0.1}),
            gamma=change.get("gamma", 5.0),
            lambda_bound=change.get("lambda_bound", 1.4),
        )
    assert s.to_dict() == before


def test_one_sided_rule_warm_up_is_stricter_and_counts_down():
    s = SafetyState({AB: 0.0}, warmup_steps_remaining=1)
    update_lambda(s, {AB: 0.0}, in_warmup=True, lambda_bound=7.0)
    assert s.lambda_[AB] == pytest.approx(-7.5e-4, abs=1e-18)
    assert s.warmup_steps_remaining == 0
    update_lambda(s, {AB: 0.0}, in_warmup=True, lambda_bound=7.0)
    assert s.warmup_steps_remaining == 0
    other = SafetyState({AB: 0.0}, warmup_steps_remaining=4)
    update_lambda(other, {AB: 0.0}, lambda_bound=7.0)
    assert other.warmup_steps_remaining == 4


def test_one_sided_rule_clamp_keeps_the_bits_of_inner_values():
    clamped, free = state(0.3, epsilon=0.05), state(0.3, epsilon=0.05)
    update_lambda(clamped, {AB: 0.1}, lambda_bound=0.5)
    update_lambda(free, {AB: 0.1})
    assert clamped.lambda_ == free.lambda_
    for sign in (1.0, -1.0):
        s = state(sign * 0.4999, eta=1.0)
        update_lambda(s, {AB: -sign}, lambda_bound=0.5)
        assert s.lambda_[AB] == sign * 0.5


@pytest.mark.parametrize(
    ("epsilon", "loss", "bound", "message"),
    [
        (0.05, {}, None, "key set mismatch"),
        (0.05, {AB: 0.0}, 0.0, "strictly positive"),
        (0.05, {AB: math.inf}, None, "expected a finite number"),
    ],
)
def test_one_sided_rule_malformed_update_is_refused_without_a_trace(epsilon, loss, bound, message):
    s = state(0.2, epsilon=epsilon, warmup=2)
    before = s.to_dict()
    with pytest.raises(InputError, match=message):
        update_lambda(s, loss, in_warmup=True, lambda_bound=bound)
    assert s.to_dict() == before


def test_prediction_gap_by_hand_and_one_sided():
    # e = 0.6 now, 0.8 forecast, at rest, alpha = 10: sqrt(16) - sqrt(12).
    now = {"a": agent([0, 0]), "b": agent([1.0, 0])}
    forecast = {"b": agent([1.2, 0]), "a": agent([0, 0])}
    gap = compute_prediction_gap_for_pairs(now, forecast, alpha_pair=10.0, gamma=5.0)
    assert gap == {AB: pytest.approx(4.0 - math.sqrt(12.0))}
    better = compute_prediction_gap_for_pairs(forecast, now, alpha_pair=10.0, gamma=5.0)
    assert better == {AB: 0.0}
    with pytest.raises(InputError, match="key set mismatch"):
        compute_prediction_gap_for_pairs(now, {"a": now["a"]}, alpha_pair=10.0, gamma=5.0)


def test_per_pair_loss_is_element_wise():
    loss = compute_per_pair_loss(np.array([1.0, 0.0]), np.array([0.25, 2.0]))
    assert loss.tolist() == [0.75, 0.0]
    with pytest.raises(InputError, match="expected equal shapes"):
        compute_per_pair_loss(np.zeros(2), np.zeros(3))


def accelerating_ego():
    """A static partner; the ego accelerated towards it by 5 m/s^2 for one step of 0.05 s."""
    before = {"a": agent([0, 0]), "b": agent([2.0, 0])}
    after = {"a": agent([0.00625, 0], [0.25, 0]), "b": agent([2.0, 0])}
    return before, after


def test_predictor_update_blames_the_ego_unless_it_is_named():
    before, after = accelerating_ego()
    blamed = update_lambda_from_predictor(
        state(), after, before, alpha_pair=10.0, gamma=5.0, dt=0.05
    )
    # h falls by the 0.25 m/s and by the 6 mm: sqrt(32) - sqrt(20 * 1.59375).
    assert blamed[AB] == pytest.approx(0.25 + math.sqrt(32.0) - math.sqrt(20 * 1.59375))
    s = state(epsilon=0.05)
    fair = update_lambda_from_predictor(
        s, after, before, alpha_pair=10.0, gamma=5.0, dt=0.05, ego_uid="a"
    )
    assert fair == {AB: 0.0}
    assert s.lambda_[AB] == pytest.approx(0.01 * 0.05)


def test_partner_swap_starts_over_for_all_pairs_or_the_egos():
    s = state(-0.7, epsilon=0.2, eta=0.3)
    reset_on_partner_swap(s, uids=["c", "a", "b"], lambda_safe=-0.1, n_warmup_steps=7)
    assert s == SafetyState({("a", "b"): -0.1, ("a", "c"): -0.1, ("b", "c"): -0.1}, 0.2, 0.3, 7)
    reset_on_partner_swap(s, uids=["c", "a", "b"], ego_uid="b")
    assert s == SafetyState({("a", "b"): 0.0, ("b", "c"): 0.0}, 0.2, 0.3, 50)


def test_partner_swap_bad_start_is_refused():
    with pytest.raises(InputError, match="finite lambda_safe"):
        reset_on_partner_swap(state(), uids=["a", "b"], lambda_safe=math.nan)
    with pytest.raises(InputError, match="n_warmup_steps >= 0"):
        reset_on_partner_swap(state(), uids=["a", "b"], n_warmup_steps=-1)
