"""The record of one control step of every environment of a batch."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from cadenza.core.arrays import FloatArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)  # eq=False: array == is ambiguous
class SafetyBatchStep:
    """What the driver decided for one control step of every environment.

    Attributes:
        action: Actions to execute, shape (B, A), float64; the nominal bits where nothing was
            active.
        loss: Forecast error per pair, max(0, score), shape (B, N), m/s; 0 where nothing was scored.
        scored: Whether the environment had a forecast to score, shape (B,).
        braked: The emergency controller's action is executed, shape (B,).
        infeasible: No action met every row, shape (B,).
        uncertified: The invariance certificate does not cover the step, shape (B,).
        intervention: Euclidean distance between executed and nominal action, shape (B,).
        lambda_: Slack per pair after this step's update, shape (B, N), m/s^2.
        used_lambda: Slack per pair that entered the rows, shape (B, N), m/s^2.
        constraint_violation: max(0, -h) before the action, on overlap at least cbf_gamma times the
            overlap, shape (B, N), m/s.
        margin: Free distances less the safety margin, shape (B, N), m.
        slack: By how much the filter's action misses each row, shape (B, N), m/s^2.
        bad_input: What was wrong with each environment's observation, by environment; only those
            whose was.
        brake_reasons: Reasons of each environment's braking, by environment; only those braked.
    """

    action: FloatArray
    loss: FloatArray
    scored: NDArray[np.bool_]
    braked: NDArray[np.bool_]
    infeasible: NDArray[np.bool_]
    uncertified: NDArray[np.bool_]
    intervention: FloatArray
    lambda_: FloatArray
    used_lambda: FloatArray
    constraint_violation: FloatArray
    margin: FloatArray
    slack: FloatArray
    brake_reasons: Mapping[int, tuple[str, ...]]
    bad_input: Mapping[int, str] = field(default_factory=dict[int, str])
