"""Scores: how wrong a forecast was, measured in the barrier of the pair.

Units:  m/s.
Axes:   one number per pair of agents.
"""

from collections.abc import Mapping

import numpy as np

from cadenza.core.arrays import FloatArray
from cadenza.core.errors import InputError
from cadenza.safety.pairs import LambdaDict, make_pair_keys
from cadenza.safety.rows.barrier import pair_h_value
from cadenza.safety.snapshot import AgentSnapshot


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
        InputError: The two sets of agents differ, or ``alpha_pair`` is negative or not finite.
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
        InputError: The shapes differ, or a number is NaN.
    """
    if predicted_h.shape != actual_h.shape:
        raise InputError(
            f"per-pair loss: expected equal shapes, got {predicted_h.shape} and {actual_h.shape}."
        )
    loss = np.maximum(0.0, predicted_h - actual_h)
    if np.isnan(loss).any():
        raise InputError("per-pair loss: expected numbers, got NaN among the barrier values.")
    return loss
