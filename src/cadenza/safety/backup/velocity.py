"""A base that takes velocity commands: when a command keeps stopping and fleeing possible.

Escape:    a plan is a unit vector n and a command r with n @ r >= v_p. It is clear after one step
           of u if, with x(.) under u for dt and under r for ever after,
               n @ (x(s) - p) - P(s) >= D    for all s >= 0,
           P being the partner's reach. n is chosen once and stays: nothing turns.
           Offered: the remembered plan, and n = today's normal with
               r = v1                                             if n @ v1 >= v_p,
               r = v_p n + T min(1, sqrt(V^2 - v_p^2) / |T|)      else,
           v1 the velocity after the step and T its part across n. r = V n where the base follows
           at once or with a lag.
Passive:   u is clear if, under u for dt and the command 0 after, n @ (x(s) - p_j) - P_j(s) >= D_j
           for every partner until the base rests; n is the normal here or at the point of rest.
Rows:      candidates only. For each partner the least n @ v1 that a plan allows if nothing moves
           across n; for each obstacle a line that keeps the stopping path clear.
Theorem:   B and A in docs/safety.md.
Axes:      d Cartesian dimensions.
Units:     m, m/s, m/s^2, s.
"""

import math
from collections.abc import Iterator
from typing import Final, Protocol

from cadenza.safety.backup.base import BaseSettings, Partner, Plan, Scene, Vector
from cadenza.safety.backup.reach import min_sep, reach, speed_after
from cadenza.safety.control_models.velocity import VelocityModel

#: Halvings of the search for a row's level: to 1/4096 of the speeds that one step can reach.
_HALVINGS: Final = 12
#: Distance of centers below which no direction leads from one to the other, m.
_COINCIDENT: Final = 1e-9
#: Separation that is rounding, m.
_ROUNDING_M: Final = 1e-10
#: Speed that is rounding, m/s.
_ROUNDING_SPEED: Final = 1e-9
#: Disagreement of a remembered plan with what was measured that is rounding, m.
_DISPROVED_M: Final = 1e-6
#: The plan of a robot without partners, and of one that answers them by stopping.
_STOPPING: Final = Plan((), ())

#: Duration of a piece and the speed along n at its ends; linear between them.
Piece = tuple[float, float, float]


def dot(a: Vector, b: Vector) -> float:
    """Return a @ b."""
    if len(a) == 2:
        return a[0] * b[0] + a[1] * b[1]
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]


def moved(a: Vector, b: Vector, share: float) -> Vector:
    """Return a + share b."""
    if len(a) == 2:
        return (a[0] + share * b[0], a[1] + share * b[1])
    return (a[0] + share * b[0], a[1] + share * b[1], a[2] + share * b[2])


def minus(a: Vector, b: Vector) -> Vector:
    """Return a - b."""
    if len(a) == 2:
        return (a[0] - b[0], a[1] - b[1])
    return (a[0] - b[0], a[1] - b[1], a[2] - b[2])


class Response(Protocol):
    """How a base's velocity follows a constant command."""

    def after(self, v: Vector, u: Vector, time_s: float) -> Vector:
        """Return the velocity after a time, m/s."""
        ...

    def travel(self, v: Vector, u: Vector, time_s: float) -> Vector:
        """Return the way within a time, m."""
        ...

    def pieces(self, n: Vector, v: Vector, u: Vector, time_s: float) -> list[Piece]:
        """Return bounds from below of the speed along n; for ever means until u is reached."""
        ...

    def escape(self, n: Vector, v1: Vector, cap: float) -> Vector:
        """Return the command that flees along n from ``v1`` on, n @ r >= ``cap``."""
        ...


class RateResponse:
    """Straight to the command at a rate; or each component for itself."""

    def __init__(self, model: VelocityModel) -> None:
        self._rate = model.max_accel
        self._top = model.max_speed
        self._by_axis = model.limit == "axis"

    def after(self, v: Vector, u: Vector, time_s: float) -> Vector:
        """Return the velocity after a time, m/s."""
        way, change = minus(u, v), self._rate * time_s
        if self._by_axis:
            return tuple([v[k] + max(-change, min(way[k], change)) for k in range(len(v))])
        length = math.hypot(*way)
        return u if length <= change else moved(v, way, change / length)

    def travel(self, v: Vector, u: Vector, time_s: float) -> Vector:
        """Return the way within a time, m."""
        if self._by_axis:
            return tuple([self._way(v[k], u[k], time_s) for k in range(len(v))])
        way = minus(u, v)
        length = math.hypot(*way)
        rise_s = min(length / self._rate, time_s)
        share = rise_s * self._rate / length if length > 0.0 else 0.0
        # The ramp reaches v + share way within rise_s, and holds it.
        return tuple(
            [
                (v[k] + share * way[k]) * time_s - 0.5 * share * way[k] * rise_s
                for k in range(len(v))
            ]
        )

    def _way(self, v: float, u: float, time_s: float) -> float:
        rise_s = min(abs(u - v) / self._rate, time_s)
        end = v + math.copysign(self._rate * rise_s, u - v)
        return end * time_s - 0.5 * (end - v) * rise_s

    def pieces(self, n: Vector, v: Vector, u: Vector, time_s: float) -> list[Piece]:
        """Return the speed along n, exactly."""
        way = minus(u, v)
        begin, end = dot(n, v), dot(n, u)
        if self._by_axis:
            return self._axis_pieces(n, way, begin, time_s)
        rise_s = math.hypot(*way) / self._rate
        if rise_s >= time_s:
            return [(time_s, begin, begin + (end - begin) * (time_s / rise_s))]
        if time_s == math.inf:
            return [(rise_s, begin, end)]
        return [(rise_s, begin, end), (time_s - rise_s, end, end)]

    def _axis_pieces(self, n: Vector, way: Vector, begin: float, time_s: float) -> list[Piece]:
        slopes = sorted(
            (abs(way[k]) / self._rate, math.copysign(self._rate * n[k], n[k] * way[k]))
            for k in range(len(n))
        )
        pieces: list[Piece] = []
        since, slope = 0.0, sum(rise for _, rise in slopes)
        for until, rise in slopes:
            span = min(until, time_s) - since
            if span > 0.0:
                pieces.append((span, begin, begin + slope * span))
                since, begin = since + span, begin + slope * span
            slope -= rise
        if since < time_s < math.inf:
            pieces.append((time_s - since, begin, begin))
        return pieces

    def escape(self, n: Vector, v1: Vector, cap: float) -> Vector:
        """Return the command nearest to ``v1`` with n @ r >= ``cap``."""
        along = dot(n, v1)
        across = moved(v1, n, -along)
        side = math.hypot(*across)
        if along >= cap and math.hypot(along, side) <= self._top:
            return v1
        along = min(max(along, cap), self._top)
        room = math.sqrt(max(self._top * self._top - along * along, 0.0))
        share = 1.0 if side <= room else room / side
        return tuple([along * n[k] + share * across[k] for k in range(len(n))])


class IdealResponse:
    """At once."""

    def __init__(self, model: VelocityModel) -> None:
        self._top = model.max_speed

    def after(self, v: Vector, u: Vector, time_s: float) -> Vector:
        """Return the velocity after a time, m/s."""
        del v, time_s
        return u

    def travel(self, v: Vector, u: Vector, time_s: float) -> Vector:
        """Return the way within a time, m."""
        del v
        return tuple([time_s * u_k for u_k in u])

    def pieces(self, n: Vector, v: Vector, u: Vector, time_s: float) -> list[Piece]:
        """Return the speed along n, exactly."""
        del v
        along = dot(n, u)
        return [] if time_s == math.inf else [(time_s, along, along)]

    def escape(self, n: Vector, v1: Vector, cap: float) -> Vector:
        """Return V n."""
        del v1, cap
        return tuple([self._top * n_k for n_k in n])


class VelocityBase:
    """A velocity-commanded base, as the filter asks it; see `Base`."""

    def __init__(self, model: VelocityModel, settings: BaseSettings) -> None:
        self._model, self._settings = model, settings
        self._dt = settings.dt
        self._top = model.max_speed
        self._response: Response = RateResponse(model) if model.has_rate else IdealResponse(model)
        self._rest: Vector = (0.0,) * model.dim
        self._x = self._v = self._rest
        self._scene: Scene | None = None
        self._normals: list[Vector] = []
        self._bounds: list[tuple[float, float]] = []

    def look(self, scene: Scene) -> None:
        """Take in the scene: e and pi of every partner along today's normals."""
        self._scene = scene
        self._x, self._v = scene.position, scene.velocity
        self._normals, self._bounds = [], []
        for partner in scene.partners:
            offset = minus(self._x, partner.position)
            distance = math.hypot(*offset)
            if distance < _COINCIDENT:
                n: Vector = (1.0, *self._rest[1:])
            else:
                n = tuple([offset_k / distance for offset_k in offset])
            self._normals.append(n)
            self._bounds.append(self._along(n, partner))

    def _along(self, n: Vector, partner: Partner) -> tuple[float, float]:
        """Return e, m, and pi, m/s, along n: the worst that the measurement allows."""
        excess = dot(n, minus(self._x, partner.position)) - partner.contact_m
        speed = dot(n, partner.velocity) + self._settings.velocity_error
        return self._aged(excess, min(speed, partner.max_speed), partner)

    def _aged(self, excess: float, speed: float, partner: Partner) -> tuple[float, float]:
        age, accel, cap = partner.age_s, partner.max_accel, partner.max_speed
        if age <= 0.0:
            return excess, speed
        return excess - reach(speed, accel, cap, age), speed_after(speed, accel, cap, age)

    def admissible(self, nominal: Vector) -> Vector:
        """Return the command, scaled to the top speed where it is faster."""
        size = math.hypot(*nominal)
        return nominal if size <= self._top else tuple([x * (self._top / size) for x in nominal])

    def static_clear(self, action: Vector) -> bool:
        """Return whether one step of ``action``, then the command 0, is clear of obstacles."""
        del action  # free space: there are none
        return True

    def partner_plan(self, action: Vector, held: Plan | None) -> Plan | None:
        """Return a plan that is clear after one step of ``action``; see the module."""
        if not self._normals:
            return _STOPPING
        partner, n = self._partners[0], self._normals[0]
        command = self._response.escape(
            n, self._response.after(self._v, action, self._dt), partner.max_speed
        )
        if self._separates(n, command, action, self._bounds[0], partner):
            return Plan(n, command)
        if (
            held
            and held.normal
            and self._separates(
                held.normal, held.command, action, self._along(held.normal, partner), partner
            )
        ):
            return held
        return None

    @property
    def _partners(self) -> tuple[Partner, ...]:
        return () if self._scene is None else self._scene.partners

    def _separates(
        self, n: Vector, r: Vector, u: Vector, bound: tuple[float, float], partner: Partner
    ) -> bool:
        """Return whether the plan (n, r) is clear after one step of u."""
        response = self._response
        pieces = response.pieces(n, self._v, u, self._dt)
        pieces += response.pieces(n, response.after(self._v, u, self._dt), r, math.inf)
        excess, speed = bound
        least = min_sep(
            excess,
            pieces,
            dot(n, r),
            speed=speed,
            accel=partner.max_accel,
            cap=partner.max_speed,
        )
        return least >= -_ROUNDING_M

    def still_holds(self, held: Plan) -> bool:
        """Return whether the measurement leaves the plan possible at all; see `Base`."""
        if not held.normal:
            return True
        partner = self._partners[0]
        settings, age = self._settings, partner.age_s
        # The partner at its farthest and slowest, within the errors and the packet's age.
        speed = dot(held.normal, partner.velocity) - settings.velocity_error
        speed -= partner.max_accel * age if age > 0.0 else 0.0
        excess = dot(held.normal, minus(self._x, partner.position)) - partner.contact_m
        excess += 2.0 * settings.position_error_m + partner.max_speed * age + _DISPROVED_M
        bound = (excess, min(max(speed, -partner.max_speed), partner.max_speed))
        return self._separates(held.normal, held.command, held.command, bound, partner)

    def candidates(self, nominal: Vector, held: Plan | None) -> Iterator[tuple[str, Vector]]:
        """Yield the projection on the rows, its blends with the backup, and the escape."""
        escape = self._answer(held)
        if self._normals:
            best = self._projected(nominal)
            yield "rows", best
            for share in (0.75, 0.5, 0.25):
                yield (
                    "blend",
                    tuple([share * best[k] + (1.0 - share) * escape[k] for k in range(len(best))]),
                )
            yield "escape", escape

    def _answer(self, held: Plan | None) -> Vector:
        if held and held.normal:
            return held.command
        if not self._normals:
            return self._rest
        return self._response.escape(self._normals[0], self._v, self._partners[0].max_speed)

    def _projected(self, nominal: Vector) -> Vector:
        """Return the command whose velocity after the step meets the partner's row."""
        v1 = self._response.after(self._v, nominal, self._dt)
        n, partner, bound = self._normals[0], self._partners[0], self._bounds[0]

        def clear(along: float) -> bool:
            u = moved(v1, n, along - dot(n, v1))
            after = self._response.after(self._v, u, self._dt)
            r = self._response.escape(n, after, partner.max_speed)
            return self._separates(n, r, u, bound, partner)

        low, high = dot(n, v1), self._top
        if clear(low):
            return nominal
        for _ in range(_HALVINGS):
            middle = 0.5 * (low + high)
            if clear(middle):
                high = middle
            else:
                low = middle
        return self.admissible(moved(v1, n, high - dot(n, v1)))

    def stop(self) -> Vector:
        """Return the command 0."""
        return self._rest

    def separation(self, action: Vector) -> float:
        """Return n @ u for the nearest partner, m/s."""
        if not self._normals:
            return 0.0
        nearest = min(range(len(self._bounds)), key=lambda j: self._bounds[j][0])
        return dot(self._normals[nearest], action)

    def executed(self, action: Vector) -> None:
        """Nothing acts later."""

    def static_margins(self) -> tuple[float, ...]:
        """Return the gap to every obstacle, m."""
        return ()

    def too_close(self) -> bool:
        """Return whether an obstacle is nearer than the clearance."""
        return False

    def bounds_broken(self) -> bool:
        """Return whether a partner was measured to be faster than it declares."""
        return any(
            math.hypot(*partner.velocity)
            > partner.max_speed + self._settings.velocity_error + _ROUNDING_SPEED
            for partner in self._partners
        )

    def state_dict(self) -> dict[str, object]:
        """Return the commands that have not acted yet."""
        return {}

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Continue from `state_dict`."""
