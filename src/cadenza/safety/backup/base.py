"""What `BackupFilter` asks a robot: which actions keep its backup commands possible.

There are two backups, and a robot answers for each of them:
    stop      the robot brakes, or commands zero: clear of every obstacle until it rests.
    escape    one constant command, remembered with a fixed direction n along which it keeps its
              distance from a lone partner for ever. Beside other partners, stopping is the answer
              to them too: clear of what each of them can reach until the robot rests.
An action is certified if after one step of it both are still possible.

Candidates come from rows: `nearest` is the point nearest to a wanted one that meets a few,
    min |z - target|^2  subject to  n_i @ z >= level_i, |n_i| = 1,
by the worst row alone in closed form, and where that breaks another one, by the solver. Whoever
executes a candidate checks it first.

Axes:   d Cartesian dimensions; actions have as many components as the robot's model says.
Units:  m, m/s, s.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from cadenza.safety.backup.statics import StaticScene
from cadenza.safety.geometry import Obstacles
from cadenza.safety.solvers import UNBOUNDED, QPSolver, SolveStatus

#: A point, a velocity or an action, as plain numbers: on two or three of them arrays cost more
#: than the arithmetic.
Vector: TypeAlias = tuple[float, ...]


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


class Partner(NamedTuple):
    """One partner at one step, bounded by what it declares.

    Attributes:
        position: Measured centre, m.
        velocity: Measured velocity, m/s.
        contact_m: D: distance of the centres that is kept, errors and margin included, m.
        max_speed: v_p, m/s.
        max_accel: a_p, m/s^2; may be infinite.
        age_s: A: time since it was measured, s.
    """

    position: Vector
    velocity: Vector
    contact_m: float
    max_speed: float
    max_accel: float
    age_s: float


class Scene(NamedTuple):
    """Everything one decision depends on besides the nominal action.

    Attributes:
        position: Center of the robot's disc or ball, m.
        velocity: Its velocity, m/s.
        heading: Direction a wheeled robot faces, rad; 0 for others.
        yaw_rate: Its rate of turn, rad/s; 0 for others.
        partners: Partners in the order of their bounds.
        obstacles: Shapes that stand still, or None.
        clearance_m: Distance of the robot's center from obstacles that is kept, m.
    """

    position: Vector
    velocity: Vector
    heading: float
    yaw_rate: float
    partners: tuple[Partner, ...]
    obstacles: Obstacles | None
    clearance_m: float


class Plan(NamedTuple):
    """A backup that stays possible: one constant command, and directions it keeps away in.

    Attributes:
        normals: n for every partner, a unit vector from it to the robot; none of a robot that
            answers its partner without a memory.
        command: The command to execute, in the unit of actions; 0 for a plan to stop.
    """

    normals: tuple[Vector, ...]
    command: Vector


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseSettings:
    """What a robot's answers depend on besides its model and the scene.

    Attributes:
        dt: Control step, s.
        passive: Stop beside partners rather than flee from a lone one.
        position_error_m: delta: largest error of a partner's position relative to the robot, m.
            `Partner.contact_m` contains it already.
        velocity_error: sigma: largest error of a partner's velocity, m/s.
        contact_speed: v_c: own speed at which a contact is tolerated by a passive robot, m/s.
    """

    dt: float
    passive: bool
    position_error_m: float = 0.0
    velocity_error: float = 0.0
    contact_speed: float = 0.0


#: Speed that is rounding, m/s, and share of a partner's top speed that is: in float32 a partner at
#: its top speed may seem faster by 1e-7 of it.
ROUNDING_SPEED: Final = 1e-9
ROUNDING_SHARE: Final = 1e-6


def fastest_seen(max_speed: Any, velocity_error: float) -> Any:
    """Return the largest speed, m/s, at which partners that keep their bound can be measured."""
    return max_speed * (1.0 + ROUNDING_SHARE) + velocity_error + ROUNDING_SPEED


class Base(ABC):
    """A robot, as `BackupFilter` sees it; `look` comes first in every step.

    The methods are pure functions of the last scene and their arguments: what is remembered from
    one step to the next lives in the filter, except commands that have not acted yet.
    """

    def __init__(self, settings: BaseSettings) -> None:
        self._settings, self._dt = settings, settings.dt
        #: The obstacles and the partners of the last scene.
        self._statics: StaticScene | None = None
        self._partners: tuple[Partner, ...] = ()

    @abstractmethod
    def look(self, scene: Scene) -> None:
        """Take in the scene of this step."""

    @abstractmethod
    def admissible(self, nominal: Vector) -> Vector:
        """Return ``nominal`` within the limits; the same object if it may be tried as it is."""

    @abstractmethod
    def static_clear(self, action: Vector) -> bool:
        """Return whether one step of ``action``, then stopping, stays clear of every obstacle."""

    @abstractmethod
    def partner_plan(self, action: Vector, held: Plan | None) -> Plan | None:
        """Return the plan that is still possible after one step of ``action``, or None.

        Args:
            action: One step of it is executed.
            held: The remembered plan; what is offered besides plans for the present state.
        """

    def still_holds(self, held: Plan) -> bool:
        """Return whether nothing measured in this step disproves the remembered plan.

        A plan that was clear along its normals stays so whatever partners do within their bounds:
        where the rest of it no longer is, even at the best that the packets allow (`best_bound`),
        something else happened.
        """
        del held
        return True

    @abstractmethod
    def candidates(self, nominal: Vector, held: Plan | None) -> Iterator[tuple[str, Vector]]:
        """Yield actions to try after the nominal one, each with its source, in order.

        The sources are "rows", "blend", "radial" and "escape". The last one is the robot's own
        answer to its partners: the remembered command, if there is one.
        """

    @abstractmethod
    def stop(self) -> Vector:
        """Return the action that begins to stop now."""

    @abstractmethod
    def separation(self, action: Vector) -> float:
        """Return how strongly ``action`` leads away from the nearest partner; larger is better.

        Of a passive robot: minus its speed, for stopping is its answer to partners.
        """

    def executed(self, action: Vector) -> None:
        """Take in what is executed: a base whose commands act later counts them."""
        del action

    def static_margins(self) -> tuple[float, ...]:
        """Return the gap to every obstacle, shape (K,), m."""
        return () if self._statics is None else self._statics.margins

    def too_close(self) -> bool:
        """Return whether an obstacle is nearer than the clearance, so that less is promised."""
        return self._statics is not None and self._statics.too_close

    def bounds_broken(self) -> bool:
        """Return whether a partner was measured to be faster than it declares."""
        error = self._settings.velocity_error
        return any(
            math.hypot(*one.velocity) > fastest_seen(one.max_speed, error) for one in self._partners
        )

    def state_dict(self) -> dict[str, object]:
        """Return what `executed` counted, as JSON can hold it."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict`.

        Raises:
            ValueError: It is none of this robot's.
        """
        del state


#: A unit normal n and a level: n @ z >= level.
Row: TypeAlias = tuple[Vector, float]
#: Shortfall of a row that is rounding.
MET: Final = 1e-12
#: Added to a level that is not met, so that rounding does not leave the answer on its wrong side.
INSIDE: Final = 1e-9


def nearest(target: Vector, rows: Sequence[Row], solver: QPSolver) -> Vector | None:
    """Return the point nearest to ``target`` that meets all rows; None if none does."""
    worst, normal = _worst(target, rows)
    if worst <= MET:
        return target
    point = moved(target, normal, worst + INSIDE)
    if _worst(point, rows)[0] <= MET:
        return point
    size = len(target)
    free = np.full(size, UNBOUNDED)
    solution = solver.run(
        np.ones(size),
        -np.array(target),
        -np.array([n for n, _ in rows]),
        -np.array([level + INSIDE for _, level in rows]),
        -free,
        free,
    )
    if solution.status is not SolveStatus.OPTIMAL:
        return None
    return tuple(solution.x.tolist())


def _worst(point: Vector, rows: Sequence[Row]) -> tuple[float, Vector]:
    """Return the largest shortfall, and the normal of its row."""
    worst, normal = 0.0, point
    for n, level in rows:
        short = level - dot(n, point)
        if short > worst:
            worst, normal = short, n
    return worst, normal
