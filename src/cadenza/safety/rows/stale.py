"""What an old packet still tells about a partner, and the row that covers all of it.

A packet of age A says where the partner was and how fast. Since then it accelerated by at most
a_p, in a way nobody knows; the ego's own state is current. Extrapolated at constant velocity,
    position   |p - (p_0 + v_0 A)| <= delta = a_p A (A + dt) / 2
    velocity   |v - v_0|           <= sigma = a_p A
    normal     its angle theta to the one measured obeys sin theta <= delta / max(r, D)
with r the extrapolated distance and D >= delta the contact distance, which the true distance
keeps. The term a_p A dt / 2 of delta is what a semi-implicit plant adds to a_p A^2 / 2.

Row:    the row of `cadenza.safety.rows.barrier` at the worst of these states,
            e -> r - delta - D
            w -> sigma + max over theta of (w cos theta + t sin theta)
            t -> the speed within sigma + sin(theta) |v_rel| of t with the largest allowance
        less reach kappa, because the ego's own acceleration acts along the true normal:
        kappa = |n - n_measured| <= 2 sin(theta / 2).
alpha:  braking along the measured normal loses as much, so the safe set is built with
        alpha' = alpha - reach kappa(A_max): it must not change with the age of each packet.
Floor:  from the safe set, braking with all the ego is credited with meets the true row, so the
        level never needs to be lower than that. One row is therefore feasible at every age up to
        A_max. The floor is left out once no state of the uncertainty lies in the safe set.
Proof:  docs/safety.md. At A = 0 (and A_max = 0) every formula is the one of `barrier`.
Axes:   scalars of one pair; units m, m/s, m/s^2, s.
"""

import math
from dataclasses import replace
from typing import NamedTuple

from cadenza.core.errors import ConfigurationError
from cadenza.safety.bounds import MIN_BOUND
from cadenza.safety.rows.barrier import PairParameters, barrier_value, row_level


class Staleness(NamedTuple):  # a tuple, because one is built per row and step
    """How far the true state of a pair may be from the extrapolated one.

    Attributes:
        position: delta, m.
        velocity: sigma, m/s.
        sine: sin of the largest angle between true and measured normal, in [0, 1].
        cosine: cos of that angle.
        tilt: kappa, largest distance of the two unit normals.
    """

    position: float
    velocity: float
    sine: float
    cosine: float
    tilt: float


class StaleLevel(NamedTuple):
    """Row of a pair whose partner is known from an old packet.

    Attributes:
        level: Level of the row at the worst state, m/s^2, before the partner's push.
        h: Barrier value at the extrapolated state, m/s.
        h_best: Largest barrier value in the uncertainty, m/s; below 0, the state is unsafe for
            sure.
    """

    level: float
    h: float
    h_best: float


def staleness(
    age_s: float, partner_accel: float, dt: float, distance: float, contact_distance: float
) -> Staleness:
    """Return the uncertainty that an age leaves.

    Args:
        age_s: A, s.
        partner_accel: a_p, m/s^2.
        dt: Control step, s.
        distance: Distance to the extrapolated centre, m.
        contact_distance: Sum of the radii and the safety margin, m, > 0.
    """
    velocity = partner_accel * age_s
    position = 0.5 * velocity * (age_s + dt)
    sine = min(1.0, position / max(distance, contact_distance))
    cosine = math.sqrt((1.0 - sine) * (1.0 + sine))
    tilt = sine / math.sqrt(0.5 * (1.0 + cosine))  # 2 sin(theta / 2), without cancellation
    return Staleness(position, velocity, sine, cosine, tilt)


def worst_closing_speed(
    closing_speed: float, tangential_speed: float, uncertainty: Staleness
) -> float:
    """Return the largest closing speed along any normal and velocity of the uncertainty, m/s."""
    sine, cosine = uncertainty.sine, uncertainty.cosine
    if tangential_speed * cosine >= closing_speed * sine:
        turned = closing_speed * cosine + tangential_speed * sine
    else:  # some tilt within the bound aligns the normal with the whole velocity
        turned = math.hypot(closing_speed, tangential_speed)
    return uncertainty.velocity + turned


def best_closing_speed(
    closing_speed: float, tangential_speed: float, uncertainty: Staleness
) -> float:
    """Return the smallest closing speed along any normal and velocity of the uncertainty, m/s."""
    return -worst_closing_speed(-closing_speed, tangential_speed, uncertainty)


def worst_tangential_speed(
    closing_speed: float, tangential_speed: float, speed_change: float, uncertainty: Staleness
) -> float:
    """Return the tangential speed within the uncertainty that needs the largest allowance, m/s.

    `barrier.tangential_allowance` reaches its largest value at t = 3/4 A dt, whatever kappa is.

    Args:
        closing_speed: w at the extrapolated state, m/s.
        tangential_speed: t there, m/s.
        speed_change: A dt, bound on the change of the relative velocity in one step, m/s.
        uncertainty: What the age leaves open.
    """
    room = uncertainty.velocity + uncertainty.sine * math.hypot(closing_speed, tangential_speed)
    lowest = max(0.0, tangential_speed - room)
    return min(max(0.75 * speed_change, lowest), tangential_speed + room)


def stale_row_level(
    distance: float,
    contact_distance: float,
    closing_speed: float,
    tangential_speed: float,
    pair: PairParameters,
    uncertainty: Staleness,
) -> StaleLevel:
    """Return the level of a row that covers every state of the uncertainty.

    Args:
        distance: r to the extrapolated centre, m.
        contact_distance: D, m.
        closing_speed: w at the extrapolated state, m/s.
        tangential_speed: t there, m/s.
        pair: The pair's constants, ``alpha`` already derated.
        uncertainty: What the age leaves open.
    """
    closing = worst_closing_speed(closing_speed, tangential_speed, uncertainty)
    tangential = worst_tangential_speed(
        closing_speed, tangential_speed, pair.relative_accel * pair.dt, uncertainty
    )
    nearest = distance - uncertainty.position
    level, _ = row_level(nearest, contact_distance, closing, tangential, pair)
    if nearest < contact_distance:
        # The true excess may be 0 as well as less, and then asks for its own limit.
        touching, _ = row_level(contact_distance, contact_distance, closing, tangential, pair)
        level = min(level, touching)
    excess = distance - contact_distance
    alpha, dt, gamma = pair.alpha, pair.dt, pair.gamma
    return StaleLevel(
        level=level,
        h=barrier_value(excess, closing_speed, alpha, dt, gamma),
        h_best=barrier_value(
            excess + uncertainty.position,
            best_closing_speed(closing_speed, tangential_speed, uncertainty),
            alpha,
            dt,
            gamma,
        ),
    )


def derated(
    pair: PairParameters,
    reach: float,
    contact_distance: float,
    max_age_s: float,
    *,
    refuse: bool = True,
) -> PairParameters:
    """Return the pair's constants for packets up to a declared age: alpha' in place of alpha.

    Args:
        pair: Constants for current packets.
        reach: Largest Euclidean acceleration of the ego, m/s^2.
        contact_distance: D, m.
        max_age_s: Declared bound on the age, s; 0 returns ``pair`` itself.
        refuse: Raise when nothing is left of the authority; otherwise return the smallest alpha,
            whose row asks for all the box can give.

    Raises:
        ConfigurationError: Nothing is left of the ego's authority.
    """
    if max_age_s == 0.0:
        return pair
    uncertainty = staleness(max_age_s, pair.partner_accel, pair.dt, 0.0, contact_distance)
    alpha = pair.alpha - reach * uncertainty.tilt
    if not (alpha >= MIN_BOUND and uncertainty.sine < 1.0):
        if not refuse:
            return replace(pair, alpha=MIN_BOUND)
        raise ConfigurationError(
            f"ego-only filter: expected authority left at max_age_s = {max_age_s:.4g} s, got "
            f"{alpha:.4g} m/s^2: by then a partner of {pair.partner_accel:.4g} m/s^2 is only known "
            f"to {uncertainty.position:.4g} m at a contact distance of {contact_distance:.4g} m; "
            "lower max_age_s or the partner's bound, or raise margin_m."
        )
    return replace(pair, alpha=alpha)
