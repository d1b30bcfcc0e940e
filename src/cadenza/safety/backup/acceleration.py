"""An acceleration-commanded robot beside obstacles, alone or with partners.

Robot:     p'' = u, held for one control step, |u_i| <= c; alpha_b <= c reaches all directions.
Brake:     beta(v) = -alpha_b v / |v|, and -v / dt in the last step: straight, without memory. From
           a speed s it covers at most d_b(s) = (s^2 - s_r^2) / (2 alpha_b) + s_r dt / 2, with s_r
           the speed at the start of the last step.
Path of u: one step, then braking: within the hulls of
               {x, x + v dt / 2, x1, x1'}   and   {x1, x_s, x1', x_s'},
           x1 = x + v dt + u dt^2 / 2 exact zero-order hold, x1' = x1 + u dt^2 / 2 semi-implicit;
           x_s and x_s' are d_b(|v1|) v1 / |v1| farther, v1 = v + u dt. Sub-stepped plants lie
           between. u is clear if its path keeps clear of all obstacles.
Partners:  u is certified beside a lone one if it meets its row, or is exactly alpha_b n; beside
           several if it meets all rows. Passive: if braking after it is clear of what they reach.
Rows:      candidates only. Of an obstacle with excess e, normal n and closing speed w = -n @ v
               -n @ u <= (min((e - w dt / 2) / (T + dt / 2), e / (T + dt)) - w) / dt,
           T = max(|v|, |v_nom|) / (2 alpha_b) + dt / 2, which suffices while |v1| is at most the
           speed in T. Of a partner: `cadenza.safety.cbf`.
Theorem:   A and A2 in docs/safety.md.
Axes:      d Cartesian dimensions.
Units:     m, m/s, m/s^2, s.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from cadenza.core.arrays import FloatArray
from cadenza.safety.backup.base import (
    Base,
    BaseSettings,
    Plan,
    Row,
    Scene,
    Vector,
    dot,
    minus,
    moved,
    nearest,
)
from cadenza.safety.backup.statics import TOLERANCE_M, Piece, StaticScene
from cadenza.safety.passive import MEASURED_REST, PassiveScene, is_clear
from cadenza.safety.solvers import ROUNDING, DaqpSolver, QPSolver

#: Parts of the projection that are blended with braking.
_SHARES: Final = (0.75, 0.5, 0.25)
#: Room that a candidate leaves to partners' reach, m; see `cadenza.safety.passive`.
_ROOM_M: Final = 1e-3
#: Speed that rounding leaves of a standstill, m/s.
_REST: Final = 1e-12
#: The plan of a robot whose promise needs no remembered command.
_KEPT: Final = Plan((), ())


class PartnerRow(NamedTuple):
    """Row of one partner: ``-normal @ u <= level``.

    Attributes:
        normal: n, from the partner to the robot.
        level: m/s^2.
        sound: The state is in the safe set, so that an action which meets the row keeps it there.
        radial: So does a push along n with all that the robot is credited with.
    """

    normal: Vector
    level: float
    sound: bool
    radial: bool


def brake_distance(speed: float, accel: float, dt: float) -> float:
    """Return d_b, m: the way to rest, braking in whole control steps."""
    rest = speed - math.floor(speed / (accel * dt)) * accel * dt
    return (speed * speed - rest * rest) / (2.0 * accel) + 0.5 * rest * dt


class AccelerationBase(Base):
    """An acceleration-commanded robot, as the filter asks it; see `Base`.

    Args:
        limit: c, largest size of each component of the action, m/s^2.
        credit: alpha_b, acceleration reached in every direction, m/s^2, at most ``limit``.
        settings: Control step, and what is promised about partners.
        solver: Solves several active rows; None means DAQP.
    """

    def __init__(
        self,
        limit: float,
        credit: float,
        settings: BaseSettings,
        *,
        solver: QPSolver | None = None,
    ) -> None:
        super().__init__(settings)
        self._limit, self._credit = limit, credit
        self._solver: QPSolver = DaqpSolver() if solver is None else solver
        self._rows: Sequence[PartnerRow] = ()
        self._reached: PassiveScene | None = None
        self._x: Vector = ()
        self._v: Vector = ()
        self._brake: Vector = ()

    def look(
        self,
        scene: Scene,
        rows: Sequence[PartnerRow] = (),
        reached: PassiveScene | None = None,
    ) -> None:
        """Take in the scene, and partners by their rows, the nearest first, and by their reach.

        Args:
            scene: Position, velocity, obstacles and clearance are read.
            rows: Propose actions, and certify them.
            reached: What partners reach, which certifies in place of the rows.
        """
        self._rows, self._reached = rows, reached
        self._x, self._v = scene.position, scene.velocity
        obstacles = scene.obstacles
        self._statics = (
            None if obstacles is None else StaticScene(obstacles, self._x, scene.clearance_m)
        )
        speed = math.hypot(*self._v)
        full = self._credit * self._dt
        rate = -self._credit / speed if speed > full else -1.0 / self._dt
        self._brake = tuple([rate * v for v in self._v])

    def admissible(self, nominal: Vector) -> Vector:
        """Return the action with each component clipped to its limit."""
        limit = self._limit
        for u in nominal:
            if not -limit <= u <= limit:
                return tuple([max(-limit, min(limit, u)) for u in nominal])
        return nominal

    def static_clear(self, action: Vector) -> bool:
        """Return whether one step of ``action``, then braking, is clear of every obstacle."""
        statics = self._statics
        if statics is None:
            return True
        dt, v = self._dt, self._v
        after = moved(v, action, dt)
        speed = math.hypot(*after)
        brake = brake_distance(speed, self._credit, dt) if speed > 0.0 else 0.0
        length = (math.hypot(*v) + math.hypot(*action) * dt) * dt + brake
        if statics.room >= length:
            return True
        half = moved(self._x, v, 0.5 * dt)
        turn = 0.5 * dt * dt
        exact = moved(moved(self._x, v, dt), action, turn)
        implicit = moved(exact, action, turn)
        share = brake / speed if speed > 0.0 else 0.0
        pieces: tuple[Piece, Piece] = (
            (self._x, half, exact, implicit),
            (exact, moved(exact, after, share), implicit, moved(implicit, after, share)),
        )
        # Whether braking is clear decides what is reported, never what is done.
        spare = TOLERANCE_M if action is self._brake else 0.0
        return statics.is_clear(pieces, length, spare)

    def partner_plan(self, action: Vector, held: Plan | None) -> Plan | None:
        """Return a plan if ``action`` keeps what is promised about the partners."""
        del held  # the promise depends on the state alone
        if self._reached is not None:
            return _KEPT if self._passive(action, self._reached) else None
        if len(self._rows) == 1 and self._rows[0].radial and action == self._push(self._rows[0]):
            return _KEPT
        for row in self._rows:
            missed = -dot(row.normal, action) - row.level
            if not row.sound or missed > ROUNDING * (1.0 + abs(row.level)):
                return None
        return _KEPT

    def _push(self, row: PartnerRow) -> Vector:
        return tuple([self._credit * n for n in row.normal])

    def _passive(self, action: Vector, reached: PassiveScene) -> bool:
        """Return whether the robot is slow enough, or clear of its partners' reach until it is."""
        allowed, after = reached.contact_speed, moved(self._v, action, self._dt)
        if (
            math.hypot(*self._v) <= allowed + MEASURED_REST
            and math.hypot(*after) <= allowed + _REST
        ):
            return True
        braking = action is self._brake
        if not braking:
            reached = reached._replace(contact=reached.contact + _ROOM_M)
        return bool(is_clear(np, reached, np.array(action), look=True, braking=braking))

    def candidates(self, nominal: Vector, held: Plan | None) -> Iterator[tuple[str, Vector]]:
        """Yield the projection on all rows, its blends with braking, and a push off the partner."""
        del held
        walls = self._wall_rows(nominal)
        box = self._box()
        partners = [(row.normal, -row.level) for row in self._rows]
        best = nearest(nominal, [*walls, *partners, *box], self._solver)
        if best is None:
            best = nearest(nominal, [*walls, *box], self._solver)
        if best is not None:
            best = self.admissible(best)
            yield "rows", best
            for share in _SHARES:
                yield "blend", moved(self._brake, minus(best, self._brake), share)
        if len(self._rows) == 1:
            yield "radial", self._push(self._rows[0])

    def _box(self) -> list[Row]:
        """Return the limits of the action as rows."""
        axes = np.eye(len(self._v)).tolist()
        return [
            (tuple([sign * e for e in axis]), -self._limit) for axis in axes for sign in (1.0, -1.0)
        ]

    def _wall_rows(self, nominal: Vector) -> list[Row]:
        """Return the rows of the obstacles within reach."""
        if self._statics is None:
            return []
        dt, v = self._dt, self._v
        speed = math.hypot(*v)
        fastest = speed + math.sqrt(len(v)) * self._limit * dt
        length = fastest * dt + brake_distance(fastest, self._credit, dt)
        wanted = math.hypot(*moved(v, nominal, dt))
        brake_s = max(speed, wanted) / (2.0 * self._credit) + 0.5 * dt
        rows: list[Row] = []
        for excess, normal in self._statics.near(length):
            room, closing = max(excess, 0.0), -dot(normal, v)
            after = min((room - 0.5 * closing * dt) / (brake_s + 0.5 * dt), room / (brake_s + dt))
            rows.append((normal, (closing - after) / dt))
        return rows

    def stop(self) -> Vector:
        """Return beta(v)."""
        return self._brake

    def separation(self, action: Vector) -> float:
        """Return n @ u for the nearest partner, m/s^2; where it is to rest, minus its speed."""
        if self._reached is not None:
            return -math.hypot(*moved(self._v, action, self._dt))
        return dot(self._rows[0].normal, action) if self._rows else 0.0

    @property
    def static_excess(self) -> FloatArray:
        """The gap to every obstacle as an array, shape (K,), m."""
        return np.zeros(0) if self._statics is None else self._statics.excess

    def bounds_broken(self) -> bool:
        """Return False: whoever watches accelerations knows."""
        return False
