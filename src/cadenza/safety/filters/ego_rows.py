"""Rows of one step on the ego's action, and the lambda that may enter them.

Row j:   -n_j^T J u <= level_j + n_j @ bias - push_j + lambda_j
level_j: from `cadenza.safety.rows.barrier`, or `cadenza.safety.rows.stale` if j's packet is old.
push_j:  acceleration towards the ego that partner j is assumed capable of, m/s^2.
Shared:  with a partner that runs the same filter, beta_j level_j replaces level_j - push_j.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from cadenza.safety.rows.authority import EgoAuthority
from cadenza.safety.rows.barrier import (
    CERTIFICATE_TOLERANCE,
    OVERLAP_TOLERANCE,
    LevelFunction,
    PairParameters,
    barrier_value,
    braking_meets_row,
    pair_geometry,
    row_level,
    time_left,
)
from cadenza.safety.rows.passive import PassiveScene
from cadenza.safety.rows.stale import stale_row_level, staleness, worst_closing_speed
from cadenza.safety.snapshot import AgentSnapshot

#: Relative excess of an age over the declared bound that is rounding of a sum of steps.
AGE_ROUNDING: Final = 1e-9


@dataclass(frozen=True, slots=True)
class RowRule:
    """How rows are built, the same in every step.

    Attributes:
        level: Function behind every row.
        margin_m: Distance kept in addition to the radii, m.
        prediction_error: Bound on the error of the predicted accelerations, m/s^2; None assumes
            each partner's own bound, or the forecast where that is worse.
        max_age_s: Age up to which the certificate covers a packet, s.
        ignore_age: Take every packet for current.
        always_feasible: A lone row is met in every step, so a state that started in the safe set
            is still there. The options leave no way around the row: no hard rate limit, and no
            forecast that may be wrong.
    """

    level: LevelFunction = row_level
    margin_m: float = 0.0
    prediction_error: float | None = None
    max_age_s: float = 0.0
    ignore_age: bool = False
    always_feasible: bool = True


@dataclass(slots=True)
class EgoRows:
    """Rows of one step before lambda, one entry per partner.

    Attributes:
        a: Row vectors on the ego's action, lists of n numbers.
        level: Right-hand sides at lambda = 0, m/s^2.
        h: Barrier values at the best estimate of the state, m/s.
        margin: Free distance less the safety margin, at the same estimate, m.
        closing: Closing speeds, at the same estimate, m/s.
        uncovered: The certificate does not cover the step: a packet older than declared, the ego's
            own state old, a partner forecast to break its bound, an old packet that puts a state
            outside the safe set for sure, or a level raised to the floor of an old packet where
            an earlier step may have left the safe set.
        outside: A state is outside the safe set, beyond rounding.
        violated: A barrier value or a margin is below 0.
        passive: What passive safety against several partners is judged by; None without it.
    """

    a: list[list[float]]
    level: list[float]
    h: list[float]
    margin: list[float]
    closing: list[float]
    uncovered: bool
    outside: bool = False
    violated: bool = False
    passive: PassiveScene | None = None

    @property
    def time_left(self) -> list[float]:
        """Time until each margin is used up at today's closing speed, s; inf if never."""
        return [time_left(e, w) for e, w in zip(self.margin, self.closing, strict=True)]


def build_ego_rows(
    ego: AgentSnapshot,
    partners: Sequence[AgentSnapshot],
    predicted: Sequence[AgentSnapshot],
    pairs: Sequence[PairParameters],
    authority: EgoAuthority,
    rule: RowRule,
    shares: Sequence[float] | None = None,
) -> EgoRows:
    """Return the rows against all partners.

    Args:
        ego: The ego now; an old snapshot of itself voids the certificate.
        partners: The last packet of every partner.
        predicted: The partners one step ahead, in the same order.
        pairs: Constants of each pair.
        authority: The ego's action map.
        rule: How rows are built.
        shares: The ego's share of each row; None if the partners do not cooperate.
    """
    a: list[list[float]] = []
    levels: list[float] = []
    barriers: list[float] = []
    margins: list[float] = []
    closings: list[float] = []
    rows = EgoRows(a, levels, barriers, margins, closings, ego.age_s > 0.0)
    p_ego, v_ego = ego.position_numbers, ego.velocity_numbers
    radius, level_of, ages_count = ego.radius + rule.margin_m, rule.level, not rule.ignore_age
    jacobian, bias, planar = authority.jacobian, authority.bias, len(p_ego) == 2
    worst_push = shares is None and rule.prediction_error is None
    for j, partner in enumerate(partners):
        pair = pairs[j]
        contact = radius + partner.radius
        p_partner, v_partner = partner.position_numbers, partner.velocity_numbers
        stale = ages_count and partner.age_s > 0.0
        if stale:
            p_partner = _extrapolated(partner)
        normal, distance, closing, tangential = pair_geometry(p_ego, v_ego, p_partner, v_partner)
        margin = distance - contact
        if worst_push and predicted[j].velocity_numbers == v_partner:  # the common forecast
            push = pair.partner_accel
        else:
            push = 0.0 if shares else _push(rows, normal, partner, predicted[j], pair, rule)
        if stale:
            geometry = (distance, contact, closing, tangential)
            share = shares[j] if shares else 1.0
            level, h = _stale_level(
                rows,
                geometry,
                partner.age_s,
                pair,
                authority,
                rule,
                share=share,
                push=push,
                lone=len(partners) == 1,
            )
        else:
            level, h = level_of(distance, contact, closing, tangential, pair)
            level = (shares[j] * level if shares else level) - push
        if h < 0.0 or margin < 0.0:
            rows.violated = True
            if not stale and (h < -CERTIFICATE_TOLERANCE or margin < -OVERLAP_TOLERANCE):
                rows.outside = True
        if bias is not None:
            level += sum([n_k * b_k for n_k, b_k in zip(normal, bias, strict=True)])
        if jacobian is not None:
            a.append((-(jacobian.T @ normal)).tolist())
        else:
            a.append([-normal[0], -normal[1]] if planar else [-n_k for n_k in normal])
        levels.append(level)
        barriers.append(h)
        margins.append(margin)
        closings.append(closing)
    return rows


def pair_barrier(
    ego: AgentSnapshot, partner: AgentSnapshot, pair: PairParameters, rule: RowRule
) -> float:
    """Return h of one pair, m/s, as `build_ego_rows` reports it."""
    stale = partner.age_s > 0.0 and not rule.ignore_age
    _, distance, closing, tangential = pair_geometry(
        ego.position_numbers,
        ego.velocity_numbers,
        _extrapolated(partner) if stale else partner.position_numbers,
        partner.velocity_numbers,
    )
    contact = ego.radius + rule.margin_m + partner.radius
    if rule.level is row_level:
        return barrier_value(distance - contact, closing, pair.alpha, pair.dt, pair.gamma)
    return rule.level(distance, contact, closing, tangential, pair)[1]


def _extrapolated(partner: AgentSnapshot) -> list[float]:
    """Return where the partner would be had it kept its velocity, d numbers, m."""
    age = partner.age_s
    return [
        p + v * age for p, v in zip(partner.position_numbers, partner.velocity_numbers, strict=True)
    ]


def _push(
    rows: EgoRows,
    normal: list[float],
    partner: AgentSnapshot,
    forecast: AgentSnapshot,
    pair: PairParameters,
    rule: RowRule,
) -> float:
    """Return the assumed partner acceleration along the normal, towards the ego, m/s^2."""
    now, ahead = partner.velocity_numbers, forecast.velocity_numbers
    push = 0.0
    if now != ahead:
        for n_k, v_now, v_ahead in zip(normal, now, ahead, strict=True):
            push += n_k * (v_ahead - v_now)
        push /= pair.dt if rule.ignore_age else pair.dt + partner.age_s
    if rule.prediction_error is not None:
        return push + rule.prediction_error
    if push > pair.partner_accel:
        rows.uncovered = True
        return push
    return pair.partner_accel


def _stale_level(
    rows: EgoRows,
    geometry: tuple[float, float, float, float],
    age_s: float,
    pair: PairParameters,
    authority: EgoAuthority,
    rule: RowRule,
    *,
    share: float,
    push: float,
    lone: bool,
) -> tuple[float, float]:
    """Return level less push, m/s^2, and h, m/s, of a row whose partner is known from the past."""
    distance, contact, closing, tangential = geometry
    left_open = staleness(age_s, pair.partner_accel, pair.dt, distance, contact)
    # Both accelerations act along the true normal; the worst push needs no correction.
    tilting = authority.reach + (pair.partner_accel if rule.prediction_error is not None else 0.0)
    loss = push + tilting * left_open.tilt
    if rule.level is not row_level:
        # No certificate to keep: worst excess and closing speed, no credit for sliding past.
        worst = worst_closing_speed(closing, tangential, left_open)
        level, _ = rule.level(distance - left_open.position, contact, worst, 0.0, pair)
        _, h = rule.level(distance, contact, closing, tangential, pair)
        return share * level - loss, h
    stale = stale_row_level(distance, contact, closing, tangential, pair, left_open)
    level = share * stale.level - loss
    if (
        age_s > rule.max_age_s * (1.0 + AGE_ROUNDING)
        or stale.h_best < -CERTIFICATE_TOLERANCE
        or distance - contact + left_open.position < -OVERLAP_TOLERANCE
    ):
        rows.uncovered = True
    elif level < -authority.every_direction:
        level = -authority.every_direction
        # A state that started in the safe set cannot have left it: a lone row is always met.
        if not (rule.always_feasible and lone and braking_meets_row(pair, contact)):
            rows.uncovered = True
    return level, stale.h
