"""Rows of the filter for unknown partners, before lambda.

Row j:   -n_j^T J u <= level_j + n_j @ bias - push_j
level_j: from `cadenza.safety.cbf`, by whether j's packet is old; along a remembered direction in
         place of n_j, see `cadenza.safety.filters.directions`, where errors are stated.
push_j:  acceleration towards the ego that partner j is assumed capable of, m/s^2.
Shared:  with a partner that runs the same filter, beta_j level_j replaces level_j - push_j.
Units:   actions in the ego's action unit, everything else SI.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from cadenza.safety.authority import EgoAuthority
from cadenza.safety.cbf import (
    CERTIFICATE_TOLERANCE,
    OVERLAP_TOLERANCE,
    PairParameters,
    barrier_value,
    braking_meets_row,
    pair_geometry,
    row_level,
    stale_row_level,
    staleness,
)
from cadenza.safety.filter_options import EgoOnlyOptions
from cadenza.safety.filters.directions import Direction, Offer, offers_of
from cadenza.safety.filters.projection import PairRows
from cadenza.safety.passive import PassiveScene
from cadenza.safety.snapshot import AgentSnapshot

#: Relative excess of an age over the declared bound that is rounding of a sum of steps.
AGE_ROUNDING: Final = 1e-9


@dataclass(slots=True)
class EgoRows(PairRows):
    """Rows of one step before lambda, one entry per partner.

    Attributes:
        uncovered: The certificate does not cover the step: a packet older than declared, the ego's
            own state old, a partner forecast to break its bound, an old packet that puts a state
            outside the safe set for sure, or a level raised to the floor of an old packet where
            an earlier step may have left the safe set.
        outside: A state is outside the safe set, beyond rounding.
        violated: A barrier value or a margin is below 0.
        passive: What passive safety against several partners is judged by; None without it.
        offers: Directions to choose from, one entry per partner; the rows are those of the chosen
            ones. Empty where no errors of measurement are stated.
    """

    uncovered: bool
    outside: bool = False
    violated: bool = False
    passive: PassiveScene | None = None
    offers: Sequence[list[Offer]] = ()


def build_ego_rows(
    ego: AgentSnapshot,
    partners: Sequence[AgentSnapshot],
    predicted: Sequence[AgentSnapshot],
    pairs: Sequence[PairParameters],
    authority: EgoAuthority,
    options: EgoOnlyOptions,
    shares: Sequence[float] | None = None,
    remembered: Sequence[Direction | None] = (),
) -> EgoRows:
    """Return the rows against all partners, given their last packets and them one step ahead.

    ``shares`` are the ego's shares of the rows; None if the partners do not cooperate.
    ``remembered`` are their directions where errors of measurement are stated.
    """
    a: list[list[float]] = []
    levels: list[float] = []
    barriers: list[float] = []
    margins: list[float] = []
    closings: list[float] = []
    rows = EgoRows(a, levels, barriers, margins, closings, ego.age_s > 0.0)
    p_ego, v_ego = ego.position_numbers, ego.velocity_numbers
    radius = ego.radius + options.margin_m
    jacobian, bias, planar = authority.jacobian, authority.bias, len(p_ego) == 2
    worst_push, measures = shares is None and options.prediction_error is None, options.measures
    for j, partner in enumerate(partners):
        pair = pairs[j]
        contact = radius + partner.radius
        p_partner, v_partner = partner.position_numbers, partner.velocity_numbers
        stale = partner.age_s > 0.0
        if stale:
            p_partner = partner.position_after(partner.age_s)
        normal, distance, closing, tangential = pair_geometry(p_ego, v_ego, p_partner, v_partner)
        margin = distance - contact
        if worst_push and predicted[j].velocity_numbers == v_partner:  # the common forecast
            push = pair.partner_accel
        else:
            push = 0.0 if shares else _push(rows, normal, partner, predicted[j], pair, options)
        if measures:
            level, h = 0.0, barrier_value(margin, closing, pair.alpha, pair.dt, pair.gamma)
            found, contradiction = offers_of(
                (p_ego, v_ego, p_partner, v_partner),
                normal,
                contact,
                partner.age_s,
                pair,
                push,
                authority.every_direction,
                options,
                remembered[j] if remembered else None,
            )
            rows.offers = (*rows.offers, found)
            too_old = partner.age_s > options.max_age_s * (1.0 + AGE_ROUNDING)
            rows.uncovered |= too_old or contradiction or not found[0].proved
        elif stale:
            geometry = (distance, contact, closing, tangential)
            share = shares[j] if shares else 1.0
            level, h = _stale_level(
                rows,
                geometry,
                partner.age_s,
                pair,
                authority,
                options,
                share=share,
                push=push,
                lone=len(partners) == 1,
            )
        else:
            level, h = row_level(distance, contact, closing, tangential, pair)
            level = (shares[j] * level if shares else level) - push
        if h < 0.0 or margin < 0.0:
            rows.violated = True
            if not (stale or measures) and (
                h < -CERTIFICATE_TOLERANCE or margin < -OVERLAP_TOLERANCE
            ):
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
    if ego.age_s > 0.0:  # what bounds an old measurement of the ego is not known
        rows.offers = [[o._replace(proved=False) for o in found] for found in rows.offers]
    return rows


def pair_barrier(
    ego: AgentSnapshot, partner: AgentSnapshot, pair: PairParameters, margin_m: float
) -> float:
    """Return h of one pair, m/s, as `build_ego_rows` reports it."""
    time_s = partner.age_s
    _, distance, closing, _ = pair_geometry(
        ego.position_numbers,
        ego.velocity_numbers,
        partner.position_after(time_s) if time_s > 0.0 else partner.position_numbers,
        partner.velocity_numbers,
    )
    contact = ego.radius + margin_m + partner.radius
    return barrier_value(distance - contact, closing, pair.alpha, pair.dt, pair.gamma)


def _push(
    rows: EgoRows,
    normal: list[float],
    partner: AgentSnapshot,
    forecast: AgentSnapshot,
    pair: PairParameters,
    options: EgoOnlyOptions,
) -> float:
    """Return the assumed partner acceleration along the normal, towards the ego, m/s^2."""
    now, ahead = partner.velocity_numbers, forecast.velocity_numbers
    push = 0.0
    if now != ahead:
        for n_k, v_now, v_ahead in zip(normal, now, ahead, strict=True):
            push += n_k * (v_ahead - v_now)
        push /= pair.dt + partner.age_s
    if options.prediction_error is not None:
        return push + options.prediction_error
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
    options: EgoOnlyOptions,
    *,
    share: float,
    push: float,
    lone: bool,
) -> tuple[float, float]:
    """Return level less push, m/s^2, and h, m/s, of a row whose partner is known from the past."""
    distance, contact, closing, tangential = geometry
    left_open = staleness(age_s, pair.partner_accel, pair.dt, distance, contact)
    # Both accelerations act along the true normal; the worst push needs no correction.
    tilting = authority.reach
    if options.prediction_error is not None:
        tilting += pair.partner_accel
    loss = push + tilting * left_open.tilt
    stale = stale_row_level(distance, contact, closing, tangential, pair, left_open)
    level = share * stale.level - loss
    if (
        age_s > options.max_age_s * (1.0 + AGE_ROUNDING)
        or stale.h_best < -CERTIFICATE_TOLERANCE
        or distance - contact + left_open.position < -OVERLAP_TOLERANCE
    ):
        rows.uncovered = True
    elif level < -authority.every_direction:
        level = -authority.every_direction
        # A state that started in the safe set cannot have left it: a lone row is always met.
        if not (options.always_feasible and lone and braking_meets_row(pair, contact)):
            rows.uncovered = True
    return level, stale.h
