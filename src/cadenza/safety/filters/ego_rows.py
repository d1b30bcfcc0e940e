"""Rows of the filter for unknown partners, before lambda.

Row j:   -n_j^T J u <= level_j + n_j @ bias - push_j
level_j: from `cadenza.safety.cbf`, by whether j's packet is old; along a remembered direction in
         place of n_j where errors of measurement are stated (docs/safety.md, step 9).
push_j:  acceleration towards the ego that partner j is assumed capable of, m/s^2.
Shared:  with a partner that runs the same filter, beta_j level_j replaces level_j - push_j.
Memory:  per partner the last direction along which the pair is known to be in its safe set. Whoever
         executes another action than the filter's makes the filter forget.
Units:   actions in the ego's action unit, everything else SI.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

from cadenza.core.errors import InputError
from cadenza.safety.authority import EgoAuthority
from cadenza.safety.cbf import (
    CERTIFICATE_TOLERANCE,
    OVERLAP_TOLERANCE,
    PairParameters,
    barrier_value,
    braking_meets_row,
    measurement_errors,
    next_closing_limit,
    pair_geometry,
    row_level,
    stale_row_level,
    staleness,
)
from cadenza.safety.filter_options import EgoOnlyOptions
from cadenza.safety.filters.projection import PairRows, residual
from cadenza.safety.passive import PassiveScene
from cadenza.safety.snapshot import AgentSnapshot

#: A unit vector, d numbers.
Direction: TypeAlias = tuple[float, ...]
#: Shortfall of a row, over 1 + |level|, with which solvers' answers are accepted.
ROW_MET: Final = 1e-9
#: Distance from 1 that rounding gives the length of a unit vector.
_UNIT: Final = 1e-9


class Offer(NamedTuple):
    """One way to keep a partner away."""

    direction: Direction  # k
    level: float  # Largest closing acceleration -k @ a_ego along it, m/s^2
    proved: bool  # The pair is known to be in the safe set of k


def offers_of(
    scene: tuple[Sequence[float], ...],
    normal: Sequence[float],
    contact_distance: float,
    age_s: float,
    pair: PairParameters,
    push: float,
    credit: float,
    options: EgoOnlyOptions,
    remembered: Direction | None,
) -> tuple[list[Offer], bool]:
    """Return the directions to choose from, and whether the measurements contradict the memory.

    Args:
        scene: Position and velocity of the ego, m and m/s, then of the extrapolated partner.
        normal: Unit vector from the partner to the ego, as measured.
        contact_distance: D, m.
        age_s: Age of the partner's packet, s.
        pair: The pair's constants.
        push: Acceleration towards the ego that is assumed of the partner, m/s^2.
        credit: Acceleration of the ego in every direction, m/s^2.
        options: The bounds of the errors.
        remembered: The direction of the last step; None if there is none.
    """
    p_ego, v_ego, p_partner, v_partner = scene
    offset = [a - b for a, b in zip(p_ego, p_partner, strict=True)]
    velocity = [a - b for a, b in zip(v_ego, v_partner, strict=True)]
    alpha, dt, gamma = pair.alpha, pair.dt, pair.gamma
    delta, sigma = measurement_errors(
        age_s, pair.partner_accel, dt, options.position_error, options.velocity_error
    )
    found: list[Offer] = []

    def level(excess: float, closing: float) -> float:
        limit = next_closing_limit(excess, closing, alpha, dt, gamma, pair.plant)
        return (limit - closing) / dt - push

    def bounds_along(k: Sequence[float]) -> tuple[float, float]:
        along = sum([k_i * x_i for k_i, x_i in zip(k, offset, strict=True)])
        separating = sum([k_i * v_i for k_i, v_i in zip(k, velocity, strict=True)])
        return along - delta - contact_distance, sigma - separating

    excess, closing = bounds_along(normal)
    if excess >= 0.0 and barrier_value(excess, closing, alpha, dt, gamma) >= 0.0:
        found.append(Offer(tuple(normal), max(level(excess, closing), -credit), True))
    contradiction = False
    if remembered is not None and len(remembered) == len(normal):
        least, fastest = bounds_along(remembered)
        most = least + 2.0 * delta
        h = barrier_value(max(most, 0.0), fastest - 2.0 * sigma, alpha, dt, gamma)
        contradiction = most < -OVERLAP_TOLERANCE or h < -CERTIFICATE_TOLERANCE
        if not contradiction:
            kept = max(level(max(least, 0.0), fastest), -credit)
            found.append(Offer(remembered, kept, True))
    return found or [Offer(tuple(normal), level(excess, closing), False)], contradiction


class DirectionMemory:
    """The remembered direction of each partner."""

    def __init__(self) -> None:
        #: Directions by partner id.
        self.kept: dict[str, Direction] = {}

    def forget(self) -> None:
        """Start over: the next measurements have to show a safe state by themselves."""
        self.kept = {}

    def take(
        self, uids: Sequence[str], chosen: Sequence[Offer], rows: PairRows, action: list[float]
    ) -> None:
        """Remember the directions of proved safe sets that the action does not leave."""
        for uid, offer, a, level in zip(uids, chosen, rows.a, rows.level, strict=True):
            if offer.proved and residual(a, level, action) <= ROW_MET * (1.0 + abs(level)):
                self.kept[uid] = offer.direction

    def state_dict(self) -> dict[str, list[float]]:
        """Return the directions by partner."""
        return {uid: list(direction) for uid, direction in self.kept.items()}

    def load_state_dict(self, payload: Mapping[str, Any]) -> None:
        """Continue from `state_dict`.

        Raises:
            InputError: A direction is no unit vector; nothing is changed then.
        """
        kept = {uid: tuple(map(float, entries)) for uid, entries in payload.items()}
        for uid, direction in kept.items():
            if not abs(math.hypot(*direction) - 1.0) <= _UNIT:
                raise InputError(f"directions: expected a unit vector of {uid!r}, got {direction}.")
        self.kept = kept


def choose(
    offers: Sequence[Sequence[Offer]],
    action: list[float],
    authority: EgoAuthority,
) -> tuple[list[Offer], list[list[float]], list[float]]:
    """Return the offer per partner that an action inside the box misses least, its row and level.

    The first of equals, which is the measured normal, wins.
    """
    chosen: list[Offer] = []
    rows: list[list[float]] = []
    levels: list[float] = []
    for of_partner in offers:
        found: list[tuple[float, Offer, list[float], float]] = []
        for offer in of_partner:
            k, level = offer.direction, offer.level
            row = authority.row(k)
            if authority.bias is not None:
                level += authority.drift(k)
            found.append((max(0.0, residual(row, level, action)), offer, row, level))
        _, offer, row, level = min(found, key=lambda entry: entry[0])
        chosen.append(offer)
        rows.append(row)
        levels.append(level)
    return chosen, rows, levels


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
    rows = EgoRows([], [], [], [], [], ego.age_s > 0.0)
    p_ego, v_ego = ego.position_numbers, ego.velocity_numbers
    radius = ego.radius + options.margin_m
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
            direction = remembered[j] if remembered else None
            scene = (p_ego, v_ego, p_partner, v_partner)
            age_s, credit = partner.age_s, authority.every_direction
            found, contradiction = offers_of(
                scene, normal, contact, age_s, pair, push, credit, options, direction
            )
            rows.offers = (*rows.offers, found)
            too_old = age_s > options.max_age_s * (1.0 + AGE_ROUNDING)
            rows.uncovered |= too_old or contradiction or not found[0].proved
        elif stale:
            geometry = (distance, contact, closing, tangential)
            share, lone = shares[j] if shares else 1.0, len(partners) == 1
            level, h = _stale_level(
                rows, geometry, partner.age_s, pair, authority, options, share, push, lone
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
        if authority.bias is not None:
            level += authority.drift(normal)
        rows.add(authority.row(normal), level, h, margin, closing)
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


def forecast_push(
    normal: list[float], partner: AgentSnapshot, forecast: AgentSnapshot, time_s: float
) -> float:
    """Return the mean acceleration along the normal within a time, as forecast, m/s^2."""
    now, ahead = partner.velocity_numbers, forecast.velocity_numbers
    gained = 0.0
    if now == ahead:
        return gained
    for n_k, v_now, v_ahead in zip(normal, now, ahead, strict=True):
        gained += n_k * (v_ahead - v_now)
    return gained / time_s


def _push(
    rows: EgoRows,
    normal: list[float],
    partner: AgentSnapshot,
    forecast: AgentSnapshot,
    pair: PairParameters,
    options: EgoOnlyOptions,
) -> float:
    """Return the assumed partner acceleration along the normal, towards the ego, m/s^2."""
    push = forecast_push(normal, partner, forecast, pair.dt + partner.age_s)
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
