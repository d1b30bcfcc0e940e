"""One-sided rule, upstream's: lambda follows the mean loss.

Rule:       lambda <- lambda + eta (epsilon - l),  l = max(0, s)
Source:     Huriot and Sibai, "Safe decentralized multi-agent control using online conformal
            prediction", theorem 3.
Promise:    for epsilon > 0, (1/K) sum l <= epsilon + (lambda_1 - lambda_safe + eta) / (eta K), if
            the loss is 0 whenever lambda <= lambda_safe.
Limits:     epsilon <= 0 lowers lambda in every step whatever happens, down to the clamp. The rule
            adds m/s (epsilon, l) to m/s^2 (lambda): eta carries 1/s.
"""

from collections.abc import Mapping

from cadenza.safety.conformal.checks import require_pairs, require_positive
from cadenza.safety.conformal.margin import WARMUP_FACTOR
from cadenza.safety.conformal.scores import (
    compute_prediction_gap_for_pairs,
    constant_velocity_predict,
)
from cadenza.safety.pairs import LambdaDict
from cadenza.safety.snapshot import AgentSnapshot
from cadenza.safety.state import SafetyState


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
        lambda_bound: Clamp to +-this, m/s^2; None does not clamp, and a target <= 0, as the
            default one, then lowers lambda for ever.

    Raises:
        InputError: The pairs differ, the bound is not positive, or a loss is not finite.
    """
    if lambda_bound is not None:
        require_positive("lambda_bound", lambda_bound)
    require_pairs(state.lambda_, loss_k)
    target = WARMUP_FACTOR * state.epsilon if in_warmup else state.epsilon
    for key, loss in loss_k.items():
        value = state.lambda_[key] + state.eta * (target - loss)
        if lambda_bound is not None:
            value = min(max(value, -lambda_bound), lambda_bound)
        state.lambda_[key] = value
    if in_warmup:
        state.warmup_steps_remaining = max(0, state.warmup_steps_remaining - 1)


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
