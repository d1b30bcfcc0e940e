"""How far a partner can come, and how close it can get to a robot that flees along one direction.

Partner:    |p'| <= v_p and |p''| <= a_p at every instant. Along a fixed unit vector n it moves
            within the time s at most
                P(s) = int_0^s min(pi + a_p t, v_p) dt,    pi = n @ p',
            whatever it does. Reach nests: what it moved in a step, plus P from its state then, is
            at most P from its state now.
Separation: e + int_0^s (sigma(t) - P'(t)) dt, with e = n @ (x - p) - D and sigma the robot's speed
            along n. Where sigma is piecewise linear this is piecewise quadratic, so its least value
            over all s >= 0 is found exactly on finitely many pieces.
Age:        a packet of age A bounds the partner by P(A + s): P(A) comes off e, and pi rises.
Source:     docs/safety.md, theorem B.
Units:      m, m/s, m/s^2, s.
"""

import math
from collections.abc import Iterable
from typing import Final, NamedTuple, TypeAlias

from cadenza.safety.backup.base import BaseSettings, Partner, Vector, dot, minus

#: Duration of a piece, s, and sigma at its begin and end, m/s; linear between them.
Piece: TypeAlias = tuple[float, float, float]
#: How much slower than its partner a robot may flee, m/s: the rounding of a speed of 1e3 m/s.
SLOWER: Final = 1e-12
#: Separation that is rounding, m.
ROUNDING_M: Final = 1e-10
#: Disagreement of a remembered plan with what was measured that is rounding, m.
DISPROVED_M: Final = 1e-6
#: Distance of centers below which no direction leads from one to the other, m.
COINCIDENT: Final = 1e-9


class Bound(NamedTuple):
    """A partner along one direction.

    Attributes:
        normal: n.
        excess: e = n @ (x - p) - D, m.
        speed: pi = n @ p', at most ``cap``, m/s.
        accel: a_p, m/s^2, >= 0; may be infinite.
        cap: v_p, m/s.
    """

    normal: Vector
    excess: float
    speed: float
    accel: float
    cap: float

    def reach(self, time_s: float) -> float:
        """Return P(s), m: the largest way along n within a time."""
        if time_s <= 0.0:
            return 0.0
        _, _, speed, accel, cap = self
        rise = cap - speed
        if rise <= accel * time_s:
            return cap * time_s - (0.5 * rise * rise / accel if accel > 0.0 else 0.0)
        return (speed + 0.5 * accel * time_s) * time_s

    def furthest_reach(self, time_s: float) -> float:
        """Return the largest P over [0, s], m: it falls first where the partner moves away."""
        return max(0.0, self.reach(time_s))

    def later(self, time_s: float) -> "Bound":
        """Return the partner after a time > 0, at the worst."""
        normal, excess, speed, accel, cap = self
        speed = min(speed + accel * time_s, cap)
        return Bound(normal, excess - self.reach(time_s), speed, accel, cap)


def normal_from(partner: Partner, point: Vector) -> Vector:
    """Return the unit vector from a partner to a point; the first axis where there is none."""
    offset = minus(point, partner.position)
    distance = math.hypot(*offset)
    if distance < COINCIDENT:
        return (1.0, *(0.0 for _ in offset[1:]))
    if len(offset) == 2:  # written out: every step asks for it
        return offset[0] / distance, offset[1] / distance
    return tuple([offset_k / distance for offset_k in offset])


def worst_bound(n: Vector, point: Vector, partner: Partner, settings: BaseSettings) -> Bound:
    """Return the partner along n as seen from ``point``, at the worst that it was measured."""
    position, velocity, contact, cap, accel, age = partner
    excess, speed = dot(n, minus(point, position)) - contact, dot(n, velocity)
    bound = Bound(n, excess, min(speed + settings.velocity_error, cap), accel, cap)
    return bound.later(age) if age > 0.0 else bound


def best_bound(n: Vector, point: Vector, partner: Partner, settings: BaseSettings) -> Bound:
    """Return the partner along n at the least that contradicts a plan made before this step.

    What the plan rests on was measured a step ago or earlier, but maybe later than this packet:
    until a step ago the partner may have fled, and only since then it is taken at its worst.
    """
    position, velocity, contact, cap, accel, age = partner
    since = min(age, settings.dt)
    fled_s = age - since
    excess = dot(n, minus(point, position)) - contact
    excess += 2.0 * settings.position_error_m + cap * fled_s + DISPROVED_M
    speed = dot(n, velocity) - settings.velocity_error
    speed -= accel * fled_s if fled_s > 0.0 else 0.0
    bound = Bound(n, excess, min(max(speed, -cap), cap), accel, cap)
    return bound.later(since) if age > 0.0 else bound


def escape_gap(bound: Bound, along: float, rate: float) -> float:
    """Return Psi, m: the least e from which a robot gets away by gathering speed along n.

    Psi = max over s of int_0^s (P'(t) - min(sigma + c_e t, v_p)) dt. Until the partner is at its
    cap the closing speed w = pi - sigma changes at the rate a_p - c_e, after that it falls at c_e.

    Args:
        bound: The partner now; its excess does not count.
        along: sigma, the robot's speed along n, m/s.
        rate: c_e, the rate at which sigma grows, m/s^2, > 0.
    """
    _, _, speed, accel, cap = bound
    if along >= cap:
        return 0.0
    if accel == math.inf:
        speed = cap
    closing = speed - along
    rise_s = (cap - speed) / accel if accel > 0.0 else (math.inf if speed < cap else 0.0)
    if rate > accel and closing <= (rate - accel) * rise_s:
        return 0.5 * closing * closing / (rate - accel) if closing > 0.0 else 0.0
    more = accel - rate if rise_s > 0.0 else 0.0
    fastest = closing + more * rise_s
    if fastest <= 0.0:
        return 0.0
    way = closing * rise_s + 0.5 * more * rise_s * rise_s if rise_s > 0.0 else 0.0
    return max(0.0, way + 0.5 * fastest * fastest / rate)


def min_sep(bound: Bound, pieces: Iterable[Piece], final: float) -> float:
    """Return the least separation over all times, m; -inf if it falls for ever.

    Args:
        bound: The partner now.
        pieces: Pieces on which sigma is linear, in order.
        final: sigma for ever after the last piece, m/s; infinite if nothing counts after it.
    """
    _, excess, speed, accel, cap = bound
    if final < cap - SLOWER:
        return -math.inf
    if accel == math.inf:
        speed = cap
    least = excess
    for duration, begin, end in pieces:
        if duration <= 0.0:
            continue
        left, first = duration, begin
        if speed < cap:
            rise_s = (cap - speed) / accel if accel > 0.0 else math.inf
            if rise_s < left:  # the partner is at its cap within this piece
                middle = begin + (end - begin) * rise_s / duration
                least, excess = _fall(least, excess, rise_s, speed - begin, cap - middle)
                left, first, speed = left - rise_s, middle, cap
            else:
                faster = min(speed + accel * left, cap)
                least, excess = _fall(least, excess, left, speed - begin, faster - end)
                speed = faster
                continue
        least, excess = _fall(least, excess, left, cap - first, cap - end)
    return least


def _fall(
    least: float, excess: float, duration: float, begin: float, end: float
) -> tuple[float, float]:
    """Return the least separation so far, and the one after a piece of linear closing speed, m."""
    after = excess - 0.5 * (begin + end) * duration
    if begin > 0.0 > end:  # the lowest point lies inside
        inside = excess - 0.5 * begin * begin * duration / (begin - end)
        return min(least, inside), after
    return min(least, after), after
