"""Every barrier formula of one pair of balls, in the order of docs/safety.md.

The safe set and the row: steps 1 to 5. An old packet: step 6. The classical row is in
`cadenza.safety.filters.compat`.

Quantities of a pair (ego i, partner j):
    n     unit vector from the partner's centre to the ego's
    r     distance of the centres, m
    e     excess: r - R_i - R_j - safety margin, m
    w     closing speed -n @ (v_i - v_j), m/s; positive when approaching
    t     tangential speed |v_i - v_j + w n|, m/s
    a_p   bound on the partner's acceleration (Euclidean), m/s^2
    alpha braking authority that is left when the partner pushes: alpha_ego - a_p > 0, m/s^2

Safe set:  S = {e >= 0 and w^2 / (2 alpha) + w dt / 2 <= e}   (w <= 0: e >= 0)
           Braking by alpha from S stays in S: controlled invariant, at sampling instants and
           between them. As a barrier: h = w_safe(e) - w >= 0 with
           w_safe(e) = (-alpha dt + sqrt(alpha^2 dt^2 + 8 alpha e)) / 2.
Row:       the closing speed c after the step, along today's normal, obeys c + tau <= c_max:
           -n @ a_ego <= (c_max - tau - w) / dt - a_p + lambda
c_max:     exact zero-order hold, p' = p + v dt + a dt^2 / 2 (`plant="zoh"`), solves
               c^2 / (2 alpha) + c dt / 2 + max(c, (w + c) / 2) dt = e
           semi-implicit, v' = v + a dt, p' = p + v' dt (`plant="semi_implicit"`), solves
               c^2 / (2 alpha) + c dt / 2 + c dt = e
           and inside the margin (e < 0), where neither has a solution, c_max = gamma e.
tau:       zero-order hold only: what a turn of the tangential velocity within one step adds to
           the closing speed along the next normal. With A a bound on the relative acceleration,
               tau = dt / (2 R) max_{0 <= z <= A dt - t} z (t - kappa z)  <=  A^2 dt^3 / (16 R),
           R a lower bound of the next distance. It vanishes for t >= A dt.
kappa:     1 - a_p dt^2 / (12 D): what a partner gains by turning its push within the step; 1 for
           a partner that holds its acceleration.
Proof:     docs/safety.md.
Source:    sampled-data form of the safety barrier certificates of doi:10.1109/TRO.2017.2659727,
           whose h = sqrt(2 alpha e) - w is the limit dt -> 0 and is `pair_h_value` here.
Limits:    one pair at a time; several rows need not be feasible together.

Old packets: a packet of age A says where the partner was and how fast; since then it accelerated by
at most a_p, in a way nobody knows. Extrapolated at constant velocity,
    position   |p - (p_0 + v_0 A)| <= delta = a_p A (A + dt) / 2
    velocity   |v - v_0|           <= sigma = a_p A
    normal     its angle theta to the one measured obeys sin theta <= delta / max(r, D)
with r the extrapolated distance and D >= delta the contact distance, which the true distance
keeps. The term a_p A dt / 2 of delta is what a semi-implicit plant adds to a_p A^2 / 2.
Row:    the row of current packets at the worst of these states,
            e -> r - delta - D
            w -> sigma + max over theta of (w cos theta + t sin theta)
            t -> the speed within sigma + sin(theta) |v_rel| of t with the largest allowance
        less reach kappa, because the ego's own acceleration acts along the true normal:
        kappa = |n - n_measured| <= 2 sin(theta / 2).
alpha:  braking along the measured normal loses as much, so the safe set is built with
        alpha' = alpha - reach kappa(A_max): it must not change with the age of each packet.
Floor:  from the safe set, braking with all the ego is credited with meets the true row, so the
        level never needs to be lower than that; one row is feasible at every age up to A_max.
        Left out once no state of the uncertainty lies in the safe set.

Measurement errors: of a relative position at most delta, of a relative velocity at most sigma. For
any fixed unit vector k (docs/safety.md, step 9), with rel and vel as measured,
    e_k >= e^ = k @ rel - delta - D,    w_k <= w^ = sigma - k @ vel,
and whatever keeps e_k >= 0 keeps the balls apart. Nothing turns: no tau, no kappa, no tilt.
Row:    -k @ a_ego <= (c_max(max(e^, 0), w^) - w^) / dt - a_p, and never less than -alpha_ego.
k:      the measured normal where (e^, w^) along it lies in S, or the one remembered since then.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from cadenza.core.checks import is_real
from cadenza.core.errors import ConfigurationError, InputError
from cadenza.safety.contracts import MIN_BOUND
from cadenza.safety.snapshot import AgentSnapshot

#: How the plant integrates a constant acceleration over one control step.
Plant: TypeAlias = Literal["zoh", "semi_implicit"]

#: Distance of centres below which the direction between them is rounding noise, m. The normal is
#: then the +x axis: any fixed choice separates the balls.
COINCIDENT_DISTANCE: Final = 1e-9

#: Rate at which overlap must be undone, 1/s, and gain between a closing speed and lambda.
DEFAULT_CBF_GAMMA: Final = 5.0

#: How far outside the safe set rounding may put a state, m/s. Actions rounded to float32 move the
#: closing speed by about 1e-8 m/s per step; a safety margin of a millimetre covers this many times.
CERTIFICATE_TOLERANCE: Final = 1e-6
#: Overlap beyond the margin that such states may have, m.
OVERLAP_TOLERANCE: Final = 1e-6

#: Share of its authority with which an ego is credited against a partner stronger than itself.
LEAST_CREDIT: Final = 0.1

#: Smallest value of sqrt(2 alpha e) in `continuous_barrier`, m/s; keeps its derivative bounded.
PSI_FLOOR: Final = 1e-3


def pair_geometry(
    p_i: Sequence[float], v_i: Sequence[float], p_j: Sequence[float], v_j: Sequence[float]
) -> tuple[list[float], float, float, float]:
    """Return normal, distance, closing speed and tangential speed of a pair.

    Returns:
        ``n`` (d numbers), ``r`` (m), ``w`` (m/s), ``t`` (m/s); see the module's list.
    """
    if len(p_i) == 2:  # written out: the planar case is the common one on the hot path
        (x_i, y_i), (x_j, y_j), (u_i, w_i), (u_j, w_j) = p_i, p_j, v_i, v_j
        x, y, v_x, v_y = x_i - x_j, y_i - y_j, u_i - u_j, w_i - w_j
        distance = math.hypot(x, y)
        n_x, n_y = (x / distance, y / distance) if distance >= COINCIDENT_DISTANCE else (1.0, 0.0)
        return [n_x, n_y], distance, -(n_x * v_x + n_y * v_y), abs(n_x * v_y - n_y * v_x)
    offset = [a - b for a, b in zip(p_i, p_j, strict=True)]
    velocity = [a - b for a, b in zip(v_i, v_j, strict=True)]
    distance = math.hypot(*offset)
    if distance >= COINCIDENT_DISTANCE:
        normal = [a / distance for a in offset]
    else:
        normal = [1.0] + [0.0] * (len(offset) - 1)
    separating = sum(n * v for n, v in zip(normal, velocity, strict=True))
    tangent = [v - separating * n for v, n in zip(velocity, normal, strict=True)]
    return normal, distance, -separating, math.hypot(*tangent)


def geometry_of(
    snap_i: AgentSnapshot, snap_j: AgentSnapshot
) -> tuple[list[float], float, float, float]:
    """Return `pair_geometry` of two agents as of one instant.

    Raises:
        InputError: They move in different numbers of dimensions.
    """
    p_i, p_j = snap_i.position_numbers, snap_j.position_numbers
    if len(p_i) != len(p_j):
        raise InputError(
            f"pair of agents: expected both in the plane or both in space, got {len(p_i)} and "
            f"{len(p_j)} dimensions."
        )
    return pair_geometry(p_i, snap_i.velocity_numbers, p_j, snap_j.velocity_numbers)


def safe_closing_speed(excess: float, alpha: float, dt: float) -> float:
    """Return the largest closing speed in the safe set, m/s, for an excess >= 0 m.

    It solves w^2 / (2 alpha) + w dt / 2 = e.
    """
    reach = alpha * dt
    # The subtraction of the textbook root, rationalised: no cancellation for small e.
    return 4.0 * alpha * excess / (reach + math.sqrt(reach * reach + 8.0 * alpha * excess))


def barrier_value(
    excess: float, closing_speed: float, alpha: float, dt: float, gamma: float
) -> float:
    """Return h, m/s.

    For e >= 0 it is >= 0 exactly in the safe set. Inside the margin it is gamma e - w, the speed
    that is missing to undo the overlap at the rate gamma, and is >= 0 for balls that separate
    faster than that: no sign of h makes an overlap safe, so callers look at e as well.
    """
    if excess < 0.0:
        return gamma * excess - closing_speed
    return safe_closing_speed(excess, alpha, dt) - closing_speed


def next_closing_limit(
    excess: float, closing_speed: float, alpha: float, dt: float, gamma: float, plant: Plant
) -> float:
    """Return c_max, m/s: the largest closing speed after the step that stays in the safe set.

    The tangential allowance is not yet subtracted. From outside the safe set, where no next speed
    may be admissible, it is a value that no braking reaches.
    """
    if excess < 0.0:
        return gamma * excess
    three = 3.0 * alpha * dt
    limit = 4.0 * alpha * excess / (three + math.sqrt(three * three + 8.0 * alpha * excess))
    if plant == "semi_implicit" or closing_speed <= limit:
        return limit
    # Slowing down: the mean of old and new speed covers the step, not the new one alone.
    spare = 2.0 * (excess - 0.5 * closing_speed * dt) / alpha
    radicand = dt * dt + spare
    if radicand <= 0.0:
        return -alpha * dt
    return alpha * spare / (dt + math.sqrt(radicand))


def tangential_allowance(
    tangential_speed: float,
    relative_accel: float,
    next_distance: float,
    dt: float,
    kappa: float = 1.0,
) -> float:
    """Return tau, m/s: closing speed a turn of the tangential velocity may add in one step.

    Args:
        tangential_speed: t, m/s.
        relative_accel: A, bound on the relative acceleration, m/s^2.
        next_distance: R, lower bound of the distance after the step, m, > 0.
        dt: Control step, s.
        kappa: See `PairParameters.kappa`.
    """
    # Compared rather than by min(): several times shorter on the hot path.
    change = relative_accel * dt
    reversed_, most = 0.5 * tangential_speed / kappa, change - tangential_speed
    if most < reversed_:
        reversed_ = most
    if reversed_ <= 0.0:
        return 0.0
    gain, most = reversed_ * (tangential_speed - kappa * reversed_), 0.125 * change * change
    return 0.5 * dt * (most if most < gain else gain) / next_distance


def barrier_violation(h: float, excess: float, gamma: float) -> float:
    """Return how far a pair is outside the safe set, m/s; 0 inside.

    It is max(0, -h), and at least gamma |e| on overlap, however fast the balls separate.
    """
    # Compared rather than by max(): shorter on the hot path, and without a negative zero.
    violation = -h if h < 0.0 else 0.0
    return -gamma * excess if -gamma * excess > violation else violation


def time_left(margin: float, closing_speed: float) -> float:
    """Return the time until a margin, m, is used up at today's closing speed, s; inf if never."""
    return 0.0 if margin <= 0.0 else margin / closing_speed if closing_speed > 0.0 else math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class PairParameters:
    """Numbers of one pair that do not change from step to step.

    Attributes:
        alpha: Braking authority left against the worst partner, m/s^2, > 0.
        partner_accel: a_p, bound on the partner's acceleration, m/s^2, >= 0.
        relative_accel: A, bound on the relative acceleration, m/s^2.
        dt: Control step, s.
        gamma: Rate at which overlap is undone, 1/s.
        plant: How the plant integrates one step.
        unheld_accel: Bound on the acceleration that may change within a step, m/s^2: the partner's,
            or the error of its forecast; 0 for agents that hold theirs.
    """

    alpha: float
    partner_accel: float
    relative_accel: float
    dt: float
    gamma: float
    plant: Plant
    unheld_accel: float = 0.0

    def kappa(self, contact_distance: float) -> float:
        """Return kappa; never below 1/2, where `is_step_too_long` begins."""
        kappa = 1.0 - self.unheld_accel * self.dt * self.dt / (12.0 * contact_distance)
        return kappa if kappa > 0.5 else 0.5

    def is_step_too_long(self, contact_distance: float) -> bool:
        """Return whether a partner may outturn the ego within a step: a_p dt^2 > 6 D."""
        moved = self.unheld_accel * self.dt * self.dt
        return self.plant == "zoh" and moved > 6.0 * contact_distance


def braking_meets_row(pair: Any, contact_distance: Any) -> Any:
    """Return whether full braking meets the row in every state of the safe set.

    Args:
        pair: `PairParameters`, or its tensors.
        contact_distance: D, m; a number, or a tensor.
    """
    turn = pair.relative_accel**2 * pair.dt**3 if pair.plant == "zoh" else 0.0
    room = (2.0 * contact_distance / pair.alpha) ** 0.5 - 0.5 * pair.dt
    spare = (pair.alpha * pair.dt) ** 2 - (turn / (16.0 * contact_distance)) ** 2
    return (room > 0.0) & (0.125 * turn <= room * spare)


def row_level(
    distance: float,
    contact_distance: float,
    closing_speed: float,
    tangential_speed: float,
    pair: PairParameters,
) -> tuple[float, float]:
    """Return the level of a pair's row from r, D, w and t, m/s^2, and its barrier value, m/s.

    The level, (c_max - tau - w) / dt, becomes the right-hand side of the row once the partner's
    push is subtracted and lambda added.
    """
    alpha, dt, gamma = pair.alpha, pair.dt, pair.gamma
    excess = distance - contact_distance
    limit = next_closing_limit(excess, closing_speed, alpha, dt, gamma, pair.plant)
    if 0.0 < tangential_speed < pair.relative_accel * dt and pair.plant == "zoh":
        nearest = distance - 0.5 * dt * (closing_speed + limit)
        limit -= tangential_allowance(
            tangential_speed,
            pair.relative_accel,
            nearest if nearest > contact_distance else contact_distance,
            dt,
            pair.kappa(contact_distance),
        )
    h = barrier_value(excess, closing_speed, alpha, dt, gamma)
    return (limit - closing_speed) / dt, h


def planar_row_level(
    p_i: Sequence[float],
    v_i: Sequence[float],
    p_j: Sequence[float],
    v_j: Sequence[float],
    contact_distance: float,
    pair: PairParameters,
) -> tuple[float, float, float, float, float, float]:
    """Return `pair_geometry` and `row_level` of a pair in the plane, to the bit.

    One flat function, because every step of the filter passes here once per partner; a test
    compares it with those two.

    Returns:
        Both components of n; e, m; w, m/s; and what `row_level` returns.
    """
    (x_i, y_i), (u_i, w_i), (x_j, y_j), (u_j, w_j) = p_i, v_i, p_j, v_j
    x, y, v_x, v_y = x_i - x_j, y_i - y_j, u_i - u_j, w_i - w_j
    distance = math.hypot(x, y)
    n_x, n_y = (x / distance, y / distance) if distance >= COINCIDENT_DISTANCE else (1.0, 0.0)
    closing, tangential = -(n_x * v_x + n_y * v_y), abs(n_x * v_y - n_y * v_x)
    alpha, dt, excess = pair.alpha, pair.dt, distance - contact_distance
    if excess < 0.0:
        safe = limit = pair.gamma * excess
    else:  # both limits share their terms
        numerator, inner = 4.0 * alpha * excess, 8.0 * alpha * excess
        reach, three = alpha * dt, 3.0 * alpha * dt
        safe = numerator / (reach + math.sqrt(reach * reach + inner))
        limit = numerator / (three + math.sqrt(three * three + inner))
        if closing > limit:
            limit = next_closing_limit(excess, closing, alpha, dt, pair.gamma, pair.plant)
    accel = pair.relative_accel
    if 0.0 < tangential < accel * dt and pair.plant == "zoh":
        nearest = distance - 0.5 * dt * (closing + limit)
        if nearest < contact_distance:
            nearest = contact_distance
        kappa = pair.kappa(contact_distance)
        limit -= tangential_allowance(tangential, accel, nearest, dt, kappa)
    return n_x, n_y, excess, closing, (limit - closing) / dt, safe - closing


def planar_barrier(
    p_i: Sequence[float],
    v_i: Sequence[float],
    p_j: Sequence[float],
    v_j: Sequence[float],
    contact_distance: float,
    pair: PairParameters,
) -> float:
    """Return the h of `planar_row_level` alone, m/s, to the bit."""
    x, y = p_i[0] - p_j[0], p_i[1] - p_j[1]
    distance = math.hypot(x, y)
    n_x, n_y = (x / distance, y / distance) if distance >= COINCIDENT_DISTANCE else (1.0, 0.0)
    closing, alpha = -(n_x * (v_i[0] - v_j[0]) + n_y * (v_i[1] - v_j[1])), pair.alpha
    excess, reach = distance - contact_distance, alpha * pair.dt
    if excess < 0.0:
        return pair.gamma * excess - closing
    root = math.sqrt(reach * reach + 8.0 * alpha * excess)
    return 4.0 * alpha * excess / (reach + root) - closing


def continuous_barrier(excess: float, closing_speed: float, alpha: float) -> float:
    """Return the limit dt -> 0 of the barrier, m/s: sqrt(2 alpha e) - w; -w in contact.

    The root is at least 1e-3 m/s outside of contact, so h jumps by that at e = 0.
    """
    if excess <= 0.0:
        return -closing_speed
    return max(math.sqrt(2.0 * alpha * excess), PSI_FLOOR) - closing_speed


def pair_h_value(snap_i: AgentSnapshot, snap_j: AgentSnapshot, *, alpha_pair: float) -> float:
    """Return the continuous-time barrier of a pair, m/s.

    h = max(sqrt(2 alpha e), 1e-3) - w for e > 0, -w in contact. When the centres coincide it is
    minus the sum of the radii, a length; kept because recorded losses were computed so.

    Args:
        snap_i: One agent.
        snap_j: The other; swapping them changes nothing.
        alpha_pair: Relative braking the pair is credited with, m/s^2.

    Raises:
        InputError: ``alpha_pair`` is negative or not finite.
    """
    if not (is_real(alpha_pair) and 0.0 <= alpha_pair < math.inf):
        raise InputError(
            f"pair_h_value: alpha_pair: expected an acceleration >= 0 m/s^2, got {alpha_pair!r}."
        )
    _, distance, closing_speed, _ = geometry_of(snap_i, snap_j)
    contact_distance = snap_i.radius + snap_j.radius
    if distance < COINCIDENT_DISTANCE:
        return -contact_distance
    return continuous_barrier(distance - contact_distance, closing_speed, alpha_pair)


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

    `tangential_allowance` reaches its largest value at t = 3/4 A dt, whatever kappa is.
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


def measurement_errors(
    age_s: Any, partner_accel: Any, dt: float, position_error: float, velocity_error: float
) -> tuple[Any, Any]:
    """Return delta, m, and sigma, m/s, of an extrapolated partner; of numbers or tensors."""
    moved = velocity_error * age_s + 0.5 * partner_accel * age_s * (age_s + dt)
    return position_error + moved, velocity_error + partner_accel * age_s


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


def expecting(pair: PairParameters, credit: float, accel: float) -> PairParameters:
    """Return the constants against a partner that showed more than it declared, ``accel``, m/s^2.

    Nothing is proved with them. An ego without authority left is credited with a share of its
    ``credit``, m/s^2, so that its row asks for little where the partner is far away.
    """
    more = accel - pair.partner_accel
    if more <= 0.0:
        return pair
    return replace(
        pair,
        alpha=min(pair.alpha, max(credit - accel, LEAST_CREDIT * credit)),
        partner_accel=accel,
        relative_accel=pair.relative_accel + more,
        unheld_accel=max(pair.unheld_accel, accel),
    )
