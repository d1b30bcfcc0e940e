"""Conformal layer: turns forecast errors of the safe set into the slack of the rows.

Score of a pair, one step after a forecast, m/s:  s = h(forecast) - h(now). Positive: the world is
less safe than forecast. h is the barrier of the pair.

Two-sided rule, used by the driver (adaptive conformal inference, arXiv:2106.00170, on a margin):
    miss m = 1 if s > q else 0;   q <- clip(q + eta (m - epsilon), 0, bound / gamma)
    lambda = -gamma q, so it only ever tightens a row; gamma turns m/s into m/s^2.
    The share of misses tends to at most epsilon: (1/K) sum m <= epsilon + (q_K - q_0) / (eta K).
One-sided rule, `update_lambda` (Huriot and Sibai, "Safe decentralized multi-agent control using
online conformal prediction"):
    lambda <- lambda + eta (epsilon - l),  l = max(0, s)
    Its epsilon <= 0 lowers lambda in every step whatever happens, so it then requires a clamp.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np

from cadenza.core.arrays import FloatArray
from cadenza.core.errors import InputError
from cadenza.safety.barrier import pair_h_value
from cadenza.safety.pairs import LambdaDict, make_ego_pair_keys, make_lambda_dict, make_pair_keys
from cadenza.safety.snapshot import AgentSnapshot
from cadenza.safety.state import DEFAULT_WARMUP_STEPS, SafetyState

#: Factor by which warm-up makes the one-sided rule stricter: it multiplies the (negative) target
#: loss; the two-sided rule divides its miss rate by it.
WARMUP_FACTOR: Final = 1.5
#: Score above q that is rounding of the forecast, m/s, and no miss.
SCORE_TOLERANCE: Final = 1e-9


def update_margin(
    state: SafetyState, scores: LambdaDict, *, gamma: float, lambda_bound: float
) -> None:
    """Apply the two-sided rule to every pair, in place; see the module's text.

    Args:
        state: Its ``epsilon`` is the miss rate, in (0, 1); its warm-up counter falls by one.
        scores: Signed score per pair, m/s.
        gamma: Gain from a speed to lambda, 1/s, > 0.
        lambda_bound: Largest magnitude of lambda, m/s^2, > 0.

    Raises:
        InputError: A parameter is out of range, the pairs differ, or a score is not finite.
    """
    if not 0.0 < state.epsilon < 1.0:
        raise InputError(f"update_margin: expected a miss rate in (0, 1), got {state.epsilon}.")
    _require_positive("gamma", gamma)
    _require_positive("lambda_bound", lambda_bound)
    _require_pairs(state.lambda_, scores)
    in_warmup = state.warmup_steps_remaining > 0
    miss_rate = state.epsilon / WARMUP_FACTOR if in_warmup else state.epsilon
    largest = lambda_bound / gamma
    updated: LambdaDict = {}
    for key, value in state.lambda_.items():
        q = max(0.0, -value / gamma)
        miss = 1.0 if scores[key] > q + SCORE_TOLERANCE else 0.0
        q = min(max(0.0, q + state.eta * (miss - miss_rate)), largest)
        updated[key] = 0.0 - gamma * q  # not -(gamma q): that would be -0.0
    state.lambda_.update(updated)
    if in_warmup:
        state.warmup_steps_remaining -= 1


def update_lambda(
    state: SafetyState,
    loss_k: LambdaDict,
    *,
    in_warmup: bool = False,
    lambda_bound: float | None = None,
) -> None:
    """Apply the one-sided rule to every pair, in place.

    Args:
        state: Slack, target loss and step size; its warm-up counter falls only if ``in_warmup``.
        loss_k: Loss per pair, m/s.
        in_warmup: Use the stricter target of the warm-up.
        lambda_bound: Clamp to +-this, m/s^2; None does not clamp.

    Raises:
        InputError: The pairs differ, the bound is not positive, a loss is not finite, or the
            target is <= 0 without a bound.
    """
    if lambda_bound is not None:
        _require_positive("lambda_bound", lambda_bound)
    elif state.epsilon <= 0.0:
        raise InputError(
            f"update_lambda: expected epsilon > 0 or a lambda_bound, got epsilon "
            f"{state.epsilon}: lambda would fall for ever; use update_margin or set a bound."
        )
    _require_pairs(state.lambda_, loss_k)
    target = WARMUP_FACTOR * state.epsilon if in_warmup else state.epsilon
    for key, loss in loss_k.items():
        value = state.lambda_[key] + state.eta * (target - loss)
        if lambda_bound is not None:
            value = min(max(value, -lambda_bound), lambda_bound)
        state.lambda_[key] = value
    if in_warmup:
        state.warmup_steps_remaining = max(0, state.warmup_steps_remaining - 1)


def constant_velocity_predict(snap: AgentSnapshot, dt: float) -> AgentSnapshot:
    """Return the snapshot ``dt`` seconds ahead if the velocity stays."""
    return AgentSnapshot(snap.position + snap.velocity * dt, snap.velocity, snap.radius)


def compute_prediction_gap_for_pairs(
    snaps_now: Mapping[str, AgentSnapshot],
    snaps_predicted: Mapping[str, AgentSnapshot],
    *,
    alpha_pair: float,
    gamma: float,
) -> LambdaDict:
    """Return max(0, h(forecast) - h(now)) of every pair, m/s, with the continuous-time barrier.

    Args:
        snaps_now: The agents.
        snaps_predicted: What they were forecast to be now.
        alpha_pair: Relative braking of every pair, m/s^2.
        gamma: Part of the promised call; the loss is a speed, so no gain enters.

    Raises:
        InputError: The two sets of agents differ.
    """
    del gamma
    if snaps_now.keys() != snaps_predicted.keys():
        raise InputError(
            "prediction gap: key set mismatch: expected the forecast of "
            f"{sorted(snaps_now)}, got {sorted(snaps_predicted)}."
        )
    losses: LambdaDict = {}
    for a, b in make_pair_keys(snaps_now):
        predicted = pair_h_value(snaps_predicted[a], snaps_predicted[b], alpha_pair=alpha_pair)
        actual = pair_h_value(snaps_now[a], snaps_now[b], alpha_pair=alpha_pair)
        losses[a, b] = max(0.0, predicted - actual)
    return losses


def compute_per_pair_loss(predicted_h: FloatArray, actual_h: FloatArray) -> FloatArray:
    """Return max(0, predicted - actual), element by element.

    Raises:
        InputError: The shapes differ.
    """
    if predicted_h.shape != actual_h.shape:
        raise InputError(
            f"per-pair loss: expected equal shapes, got {predicted_h.shape} and {actual_h.shape}."
        )
    return np.maximum(0.0, predicted_h - actual_h)


def update_lambda_from_predictor(
    state: SafetyState,
    snaps_now: Mapping[str, AgentSnapshot],
    snaps_prev: Mapping[str, AgentSnapshot],
    *,
    alpha_pair: float,
    gamma: float,
    dt: float,
    in_warmup: bool = False,
    lambda_bound: float | None = None,
    ego_uid: str | None = None,
) -> LambdaDict:
    """Forecast the last step at constant velocity, score it, update lambda, return the loss.

    Args:
        state: Updated in place by `update_lambda`.
        snaps_now: The agents now.
        snaps_prev: The agents one step ago.
        alpha_pair: Relative braking of every pair, m/s^2.
        gamma: Passed on to `compute_prediction_gap_for_pairs`.
        dt: Control step, s.
        in_warmup: Use the stricter target of the warm-up.
        lambda_bound: Clamp to +-this, m/s^2.
        ego_uid: Given, the ego is not forecast but taken as it is, so its own actions cause no
            loss, and only its pairs are scored.

    Raises:
        InputError: As `update_lambda`; or the agents changed between the steps.
    """
    predicted = {uid: constant_velocity_predict(snap, dt) for uid, snap in snaps_prev.items()}
    if ego_uid is not None and ego_uid in predicted and ego_uid in snaps_now:
        predicted[ego_uid] = snaps_now[ego_uid]
    loss = compute_prediction_gap_for_pairs(
        snaps_now, predicted, alpha_pair=alpha_pair, gamma=gamma
    )
    if ego_uid is not None:
        loss = {key: value for key, value in loss.items() if ego_uid in key}
    update_lambda(state, loss, in_warmup=in_warmup, lambda_bound=lambda_bound)
    return loss


def reset_on_partner_swap(
    state: SafetyState,
    *,
    uids: Iterable[str],
    lambda_safe: float = 0.0,
    n_warmup_steps: int = DEFAULT_WARMUP_STEPS,
    ego_uid: str | None = None,
) -> None:
    """Start over with an unknown partner: fresh slack and a warm-up, in place.

    Args:
        state: Its slack and counter are replaced; target and step size stay.
        uids: All agents.
        lambda_safe: Slack to start from, m/s^2.
        n_warmup_steps: Length of the warm-up, steps.
        ego_uid: Given, only the ego's pairs get a slack, as the ego-only filter expects.

    Raises:
        InputError: A duplicate id, a slack that is not finite or a negative warm-up.
    """
    if not math.isfinite(lambda_safe):
        raise InputError(f"partner swap: expected a finite lambda_safe, got {lambda_safe}.")
    if n_warmup_steps < 0:
        raise InputError(f"partner swap: expected n_warmup_steps >= 0, got {n_warmup_steps}.")
    if ego_uid is None:
        state.lambda_ = make_lambda_dict(uids, fill=lambda_safe)
    else:
        state.lambda_ = dict.fromkeys(make_ego_pair_keys(ego_uid, uids), float(lambda_safe))
    state.warmup_steps_remaining = n_warmup_steps


def _require_positive(name: str, value: float) -> None:
    if not 0.0 < value < math.inf:
        raise InputError(f"conformal: {name} must be strictly positive and finite, got {value}.")


def _require_pairs(lambda_: LambdaDict, values: LambdaDict) -> None:
    if values.keys() != lambda_.keys():
        raise InputError(
            f"conformal: key set mismatch: expected {sorted(lambda_)}, got {sorted(values)}."
        )
    for key, value in values.items():
        if not math.isfinite(value):
            raise InputError(f"conformal: value of {key}: expected a finite number, got {value}.")
