"""Rows of one step on the ego's action, and the lambda that may enter them.

Row j:  -n_j^T J u <= (c_max - tau - w) / dt - push_j + lambda_j
push_j: acceleration towards the ego that partner j is assumed capable of, m/s^2.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from cadenza.safety.authority import EgoAuthority
from cadenza.safety.barrier import PairParameters, pair_geometry, row_level
from cadenza.safety.snapshot import AgentSnapshot

#: Room a tightening lambda leaves above the limit of feasibility, m/s^2; above rounding.
_FEASIBILITY_ROOM: Final = 1e-9


@dataclass(slots=True)
class EgoRows:
    """Rows of one step before lambda, one entry per partner.

    Attributes:
        a: Row vectors on the ego's action, lists of n numbers.
        level: Right-hand sides at lambda = 0, m/s^2.
        h: Barrier values, m/s.
        margin: Free distance less the safety margin, m.
        time_left: Time until the margin is used up at today's closing speed, s; inf if never.
        forecast_breaks_bound: A partner is predicted to push harder than its declared bound.
    """

    a: list[list[float]]
    level: list[float]
    h: list[float]
    margin: list[float]
    time_left: list[float]
    forecast_breaks_bound: bool


def build_ego_rows(
    ego: AgentSnapshot,
    partners: Sequence[AgentSnapshot],
    predicted: Sequence[AgentSnapshot],
    pairs: Sequence[PairParameters],
    authority: EgoAuthority,
    *,
    margin_m: float,
    prediction_error: float | None,
) -> EgoRows:
    """Return the rows against all partners.

    Args:
        ego: The ego now.
        partners: The partners now.
        predicted: The partners one step ahead, in the same order.
        pairs: Constants of each pair.
        authority: The ego's action map.
        margin_m: Distance kept in addition to the radii, m.
        prediction_error: Bound on the error of the predicted accelerations, m/s^2; None assumes
            each partner's own bound, or the forecast where that is worse.
    """
    rows = EgoRows([], [], [], [], [], False)
    p_ego, v_ego = ego.position_numbers, ego.velocity_numbers
    radius = ego.radius + margin_m
    for partner, forecast, pair in zip(partners, predicted, pairs, strict=True):
        v_partner = partner.velocity_numbers
        normal, distance, closing, tangential = pair_geometry(
            p_ego, v_ego, partner.position_numbers, v_partner
        )
        contact_distance = radius + partner.radius
        level, h = row_level(distance, contact_distance, closing, tangential, pair)
        push = _forecast_push(normal, v_partner, forecast.velocity_numbers, pair.dt)
        if prediction_error is not None:
            push += prediction_error
        elif push > pair.partner_accel:
            rows.forecast_breaks_bound = True
        else:
            push = pair.partner_accel
        margin = distance - contact_distance
        rows.a.append(_action_row(normal, authority))
        rows.level.append(level - push)
        rows.h.append(h)
        rows.margin.append(margin)
        rows.time_left.append(
            0.0 if margin <= 0.0 else margin / closing if closing > 0.0 else math.inf
        )
    return rows


def _forecast_push(
    normal: list[float], now: Sequence[float], ahead: Sequence[float], dt: float
) -> float:
    """Return the predicted partner acceleration along the normal, towards the ego, m/s^2."""
    if now == ahead:
        return 0.0
    push = 0.0
    for n_k, v_now, v_ahead in zip(normal, now, ahead, strict=True):
        push += n_k * (v_ahead - v_now)
    return push / dt


def _action_row(normal: list[float], authority: EgoAuthority) -> list[float]:
    """Return -n^T J, n numbers."""
    if authority.jacobian is None:
        return [-n_k for n_k in normal]
    return (-(authority.jacobian.T @ normal)).tolist()


def feasible_lambda(lambda_: float, row: list[float], level: float, c: float) -> float:
    """Return ``lambda_``, no tighter than the row allows.

    The box |u_k| <= c meets the row iff lambda >= -c |row|_1 - level. A relaxing lambda is
    returned as it is; a row that the box misses even at 0 gets 0.

    Args:
        lambda_: Slack asked for, m/s^2.
        row: Row vector, n numbers.
        level: Right-hand side at lambda = 0, m/s^2.
        c: Half width of the box.
    """
    if lambda_ >= 0.0:
        return lambda_
    tightest = -c * sum([abs(a_k) for a_k in row]) - level + _FEASIBILITY_ROOM
    return min(0.0, max(lambda_, tightest))
