"""Rows along remembered directions: what one filter does where errors of measurement are stated.

Proof:   docs/safety.md, step 9; formulas in `cadenza.safety.cbf`, twins in
         `cadenza.safety.batched.cbf`.
Memory:  per partner the last direction along which the pair is known to be in its safe set. Whoever
         executes another action than the filter's makes the filter forget.
Units:   m, m/s, m/s^2; d Cartesian dimensions.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from cadenza.core.errors import InputError
from cadenza.safety.authority import EgoAuthority
from cadenza.safety.cbf import (
    CERTIFICATE_TOLERANCE,
    OVERLAP_TOLERANCE,
    PairParameters,
    barrier_value,
    measurement_errors,
    next_closing_limit,
)
from cadenza.safety.filter_options import EgoOnlyOptions
from cadenza.safety.filters.projection import PairRows, residual

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
            if authority.jacobian is None:
                row = [-k_i for k_i in k]
            else:
                row = (-(authority.jacobian.T @ k)).tolist()
            if authority.bias is not None:
                level += sum([k_i * b_i for k_i, b_i in zip(k, authority.bias, strict=True)])
            found.append((max(0.0, residual(row, level, action)), offer, row, level))
        _, offer, row, level = min(found, key=lambda entry: entry[0])
        chosen.append(offer)
        rows.append(row)
        levels.append(level)
    return chosen, rows, levels
