"""What a robot supplies to the control-affine filter, what else moves it, and ready robots.

Equation:  x' = f(x) + g(x) u + E(x) w,  |w| <= bound (Euclidean)
Cost:      min over w of (d psi / dx) E w = -bound |E^T grad psi|; the smooth upper bound
           sqrt(|E^T grad psi|^2 + eps^2) stands for the norm, so that it can be differentiated.
Axes:      n = state, k = action. Functions take one state; `torch.func.vmap` makes batches of them.
Limits:    f, g and E must be branch-free torch code: no ``if`` on a number of the state and no
           in-place change; `torch.where` instead. They are differentiated r times for degree r.
Units:     m, rad, s, kg, N; each robot lists its state and action.
Source:    Jankovic, Robust control barrier functions for constrained stabilization of nonlinear
           systems, doi:10.1016/j.automatica.2018.07.004. LaValle, Planning Algorithms, Cambridge
           2006, sections 13.1.2 (unicycle, Dubins car) and 13.2 (accelerations). Planar quadrotor:
           Steinhardt and Tedrake, doi:10.1177/0278364912444146; sizes as in the simulator Drake.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, cast, runtime_checkable

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from cadenza.core.arrays import FloatArray
from cadenza.core.checks import (
    checked_integer,
    is_real,
    real_array,
    require_callable,
    require_kinds,
    require_positive,
    shown,
)
from cadenza.core.errors import ConfigurationError, InputError, refuse

#: eps, in the unit of the norm. It costs at most bound * eps and keeps derivatives finite at zero.
_SMOOTHING: Final = 1e-9

#: Rates of `PlanarQuadrotor.brake`: of the speed, 1/s, and of the tilt, 1/s^2 and 1/s. The tilt
#: settles critically damped within 0.4 s, faster than the speed, as the cascade assumes.
_SPEED_RATE: Final = 1.0
_TILT_STIFFNESS: Final = 100.0
_TILT_DAMPING: Final = 20.0
#: Largest tilt that it asks for, rad, and the smallest cosine the vertical thrust is divided by.
_BRAKE_TILT: Final = 0.4
_SMALLEST_COSINE: Final = 0.3


@runtime_checkable
class ControlAffineDynamics(Protocol):
    """Motion of a robot whose action enters linearly."""

    @property
    def state_dim(self) -> int:
        """Number n of state components."""
        ...

    @property
    def action_dim(self) -> int:
        """Number k of action components."""
        ...

    def drift(self, x: Tensor) -> Tensor:
        """Return f(x), shape (n,), for a state of shape (n,)."""
        ...

    def input_map(self, x: Tensor) -> Tensor:
        """Return g(x), shape (n, k), for a state of shape (n,)."""
        ...


@runtime_checkable
class BrakingDynamics(ControlAffineDynamics, Protocol):
    """A robot that also knows how to come to rest."""

    def brake(self, x: Tensor) -> Tensor:
        """Return an action that slows the robot down, shape (k,); it may leave the box."""
        ...


def float_array(name: str, values: object) -> FloatArray:
    """Return real numbers as float64; ConfigurationError if they are none."""
    try:
        return np.array(real_array(name, values), dtype=np.float64)
    except InputError as error:
        raise ConfigurationError(str(error)) from error


def require_at_least_zero(name: str, value: object) -> None:
    """Refuse anything but a finite number >= 0."""
    if not (is_real(value) and 0.0 <= value < math.inf):
        refuse(ConfigurationError, name, expected="a finite number >= 0", got=shown(value))


def generic_states(state_dim: int, count: int = 64, reach: float = 2.0) -> Tensor:
    """Return well spread states of [-reach, reach]^n in general position, shape (count, n).

    An additive recurrence with the square roots of primes; the same points at every call.
    """
    primes: list[int] = []
    candidates = itertools.count(2)
    while len(primes) < state_dim:
        candidate = next(candidates)
        primes += [candidate] if all(candidate % prime for prime in primes) else []
    steps = torch.tensor(primes, dtype=torch.float64).sqrt()
    index = torch.arange(1, count + 1, dtype=torch.float64).unsqueeze(1)
    return reach * (2.0 * torch.remainder(index * steps, 1.0) - 1.0)


def require_dynamics(dynamics: ControlAffineDynamics, x: Tensor) -> None:
    """Raise ConfigurationError unless f and g have the shapes their dimensions promise at ``x``."""
    n, k = dynamics.state_dim, dynamics.action_dim
    owner = "ControlAffineDynamics"
    if n < 1 or k < 1:
        refuse(
            ConfigurationError,
            owner,
            expected="state_dim and action_dim >= 1",
            got=f"{n} and {k}",
        )
    f, g = dynamics.drift(x), dynamics.input_map(x)
    for name, value, shape in (("drift", f, (n,)), ("input_map", g, (n, k))):
        if tuple(value.shape) != shape or value.dtype != torch.float64:
            got = f"{value.dtype} {tuple(value.shape)}"
            refuse(ConfigurationError, f"{owner}.{name}", expected=f"float64 {shape}", got=got)


@dataclass(frozen=True, slots=True, eq=False)
class Disturbance:
    """A bounded disturbance of the state's rate.

    Attributes:
        bound: Largest Euclidean norm of w, in the unit of w, >= 0.
        matrix: E(x), shape (n, q), for a state of shape (n,).

    Raises:
        ConfigurationError: A bound that is negative or not finite.
    """

    bound: float
    matrix: Callable[[Tensor], Tensor]

    def __post_init__(self) -> None:
        require_at_least_zero("Disturbance.bound", self.bound)
        require_callable("Disturbance.matrix", self.matrix, "a function of a state")

    @classmethod
    def matched(cls, dynamics: ControlAffineDynamics, bound: float) -> "Disturbance":
        """Return a disturbance that enters where the action does: E = g."""
        return cls(bound, dynamics.input_map)

    @classmethod
    def through(cls, matrix: ArrayLike, bound: float) -> "Disturbance":
        """Return a disturbance through a constant matrix of finite numbers, shape (n, q)."""
        constant = float_array("Disturbance.through", matrix)
        if constant.ndim != 2 or not np.isfinite(constant).all():
            expected = "a matrix of finite numbers, shape (n, q)"
            got = f"shape {constant.shape}"
            refuse(ConfigurationError, "Disturbance.through", expected=expected, got=got)
        fixed = torch.as_tensor(constant)
        return cls(bound, lambda x: fixed.to(x.device))

    @classmethod
    def ball(cls, dynamics: ControlAffineDynamics, bound: float) -> "Disturbance":
        """Return a disturbance in any direction of the state space: E = I."""
        require_kinds("Disturbance.ball", dynamics=(dynamics, ControlAffineDynamics))
        return cls.through(np.eye(dynamics.state_dim), bound)


def total_cost(disturbances: Sequence[Disturbance], gradient: Tensor, x: Tensor) -> Tensor:
    """Return the most by which all w together lower the rate of a function with this gradient."""
    total = torch.zeros_like(gradient[0])
    for disturbance in disturbances:
        pushed = gradient @ disturbance.matrix(x)
        total = total + disturbance.bound * torch.sqrt(pushed @ pushed + _SMOOTHING**2)
    return total


class JointDynamics:
    """Agents side by side: their states one after the other, and the controlled agents' actions.

    It has `brake` where every controlled agent has it.

    Args:
        agents: Their dynamics, at least one.
        controlled: Which of them the filter commands; None commands all.

    Raises:
        ConfigurationError: No agent, none controlled, or a flag missing.
    """

    #: Returns the action that slows every controlled agent down, shape (k,).
    brake: Callable[[Tensor], Tensor]

    def __init__(
        self, agents: Sequence[ControlAffineDynamics], controlled: Sequence[bool] | None = None
    ) -> None:
        require_kinds(
            "JointDynamics",
            agents=(agents, [ControlAffineDynamics]),
            controlled=(controlled, Sequence | None),
        )
        self._agents = tuple(agents)
        self._controlled = (True,) * len(self._agents) if controlled is None else tuple(controlled)
        if len(self._controlled) != len(self._agents) or not any(self._controlled):
            expected = "one flag per agent and at least one controlled agent"
            got = f"{len(self._agents)} agents and flags {self._controlled}"
            refuse(ConfigurationError, "JointDynamics", expected=expected, got=got)
        self.state_dim: int = sum(agent.state_dim for agent in self._agents)
        pairs = zip(self._agents, self._controlled, strict=True)
        mine = [agent for agent, is_mine in pairs if is_mine]
        self.action_dim: int = sum(agent.action_dim for agent in mine)
        if all(isinstance(agent, BrakingDynamics) for agent in mine):
            self.brake = self._brakes

    def drift(self, x: Tensor) -> Tensor:
        """Return the agents' drifts, shape (n,)."""
        return torch.cat([one.drift(part) for one, _, part in self._parts(x)])

    def input_map(self, x: Tensor) -> Tensor:
        """Return the input maps of the controlled agents on the diagonal, shape (n, k)."""
        return self._blocks(x, wanted=True)

    def others(self, bound: float) -> Disturbance:
        """Return the disturbance made of the inputs of the agents that are not controlled.

        ``bound`` is the largest Euclidean norm of all their inputs together.

        Raises:
            ConfigurationError: Every agent is controlled.
        """
        if all(self._controlled):
            expected = "an agent that is not controlled"
            refuse(ConfigurationError, "JointDynamics.others", expected=expected, got="none")
        return Disturbance(bound, lambda x: self._blocks(x, wanted=False))

    def _brakes(self, x: Tensor) -> Tensor:
        brakes = [
            cast("BrakingDynamics", one).brake(part) for one, mine, part in self._parts(x) if mine
        ]
        return torch.cat(brakes)

    def _parts(self, x: Tensor) -> list[tuple[ControlAffineDynamics, bool, Tensor]]:
        """Return agents, flags and states."""
        states = torch.split(x, [agent.state_dim for agent in self._agents])
        return list(zip(self._agents, self._controlled, states, strict=True))

    def _blocks(self, x: Tensor, *, wanted: bool) -> Tensor:
        """Return the input maps of the agents with this flag as block columns."""
        columns: list[Tensor] = []
        before, after = 0, self.state_dim
        for agent, mine, part in self._parts(x):
            after -= agent.state_dim
            if mine is wanted:
                padding = (0, 0, before, after)  # rows of zeros for the other agents
                columns.append(torch.nn.functional.pad(agent.input_map(part), padding))
            before += agent.state_dim
        return torch.cat(columns, dim=1)


def heading(x: Tensor) -> Tensor:
    """Return the unit vector that a robot with the state (px, py, th, ...) faces, shape (2,)."""
    return torch.stack([torch.cos(x[2]), torch.sin(x[2])])


@dataclass(frozen=True, slots=True)
class DoubleIntegrator:
    """A point whose action is its acceleration: p' = v, v' = u - damping v.

    State (position, velocity), 2 dim numbers, m and m/s; action dim numbers, m/s^2.

    Attributes:
        dim: Cartesian dimension, >= 1.
        damping: Viscous friction per mass, 1/s, >= 0.
        stop_time_s: Time constant of `brake`, s, > 0.

    Raises:
        ConfigurationError: A number out of range.
    """

    dim: int = 2
    damping: float = 0.0
    stop_time_s: float = 0.5

    def __post_init__(self) -> None:
        checked_integer("DoubleIntegrator.dim", self.dim)
        require_at_least_zero("DoubleIntegrator.damping", self.damping)
        require_positive("DoubleIntegrator.stop_time_s", self.stop_time_s)

    @property
    def state_dim(self) -> int:
        """2 dim."""
        return 2 * self.dim

    @property
    def action_dim(self) -> int:
        """One acceleration per dimension."""
        return self.dim

    def drift(self, x: Tensor) -> Tensor:
        """Return (v, -damping v)."""
        v = x[self.dim :]
        return torch.cat([v, -self.damping * v])

    def input_map(self, x: Tensor) -> Tensor:
        """Return (0; I)."""
        eye = torch.eye(self.dim, dtype=x.dtype, device=x.device)
        return torch.cat([torch.zeros_like(eye), eye])

    def brake(self, x: Tensor) -> Tensor:
        """Return the acceleration that takes the velocity to zero with the stop time."""
        return (self.damping - 1.0 / self.stop_time_s) * x[self.dim :]


@dataclass(frozen=True, slots=True)
class AcceleratedUnicycle:
    """A wheeled robot that cannot slide: p' = v (cos th, sin th), th' = w, v' = a.

    State (px, py, th, v), m, rad, m/s; action (a, w), m/s^2 and rad/s. ``stop_time_s``, s, > 0, is
    the time constant of `brake`.
    """

    stop_time_s: float = 0.5
    state_dim: int = field(default=4, init=False)
    action_dim: int = field(default=2, init=False)

    def __post_init__(self) -> None:
        require_positive("AcceleratedUnicycle.stop_time_s", self.stop_time_s)

    def drift(self, x: Tensor) -> Tensor:
        """Return (v cos th, v sin th, 0, 0)."""
        return torch.cat([x[3] * heading(x), torch.zeros_like(x[:2])])

    def input_map(self, x: Tensor) -> Tensor:
        """Return the map that sends a to v' and w to th'."""
        return torch.eye(4, dtype=x.dtype, device=x.device)[:, [3, 2]]

    def brake(self, x: Tensor) -> Tensor:
        """Return (-v / stop time, 0)."""
        return torch.stack([-x[3] / self.stop_time_s, torch.zeros_like(x[3])])


@dataclass(frozen=True, slots=True)
class KinematicUnicycle:
    """A wheeled robot that follows speeds at once: p' = v (cos th, sin th), th' = w.

    State (px, py, th), m and rad; action (v, w), m/s and rad/s. ``look_ahead_m``, m, > 0, is the
    distance of `point_ahead` before the axle.
    """

    look_ahead_m: float = 0.1
    state_dim: int = field(default=3, init=False)
    action_dim: int = field(default=2, init=False)

    def __post_init__(self) -> None:
        require_positive("KinematicUnicycle.look_ahead_m", self.look_ahead_m)

    def drift(self, x: Tensor) -> Tensor:
        """Return zero: the robot stands still without an action."""
        return torch.zeros_like(x)

    def input_map(self, x: Tensor) -> Tensor:
        """Return ((cos th, 0), (sin th, 0), (0, 1))."""
        zero, one = torch.zeros_like(x[:1]), torch.ones_like(x[:1])
        columns = [torch.cat([heading(x), zero]), torch.cat([zero, zero, one])]
        return torch.stack(columns, dim=1)

    def brake(self, x: Tensor) -> Tensor:
        """Return zero speeds."""
        return torch.zeros_like(x[:2])

    def point_ahead(self, x: Tensor) -> Tensor:
        """Return a point before the axle, shape (2,), m, which both actions can move.

        As the position of a barrier it gives turning a part; the axle's centre does not.
        """
        return x[:2] + self.look_ahead_m * heading(x)


@dataclass(frozen=True, slots=True)
class DubinsCar:
    """A vehicle of constant speed s that only steers: p' = s (cos th, sin th), th' = w.

    State (px, py, th), m and rad; action (w,), rad/s; ``speed`` is s, m/s, > 0. It cannot stop, so
    it has no `brake`.
    """

    speed: float = 1.0
    state_dim: int = field(default=3, init=False)
    action_dim: int = field(default=1, init=False)

    def __post_init__(self) -> None:
        require_positive("DubinsCar.speed", self.speed)

    def drift(self, x: Tensor) -> Tensor:
        """Return (s cos th, s sin th, 0)."""
        return torch.cat([self.speed * heading(x), torch.zeros_like(x[:1])])

    def input_map(self, x: Tensor) -> Tensor:
        """Return (0, 0, 1) as a column."""
        return torch.eye(3, dtype=x.dtype, device=x.device)[:, 2:]


@dataclass(frozen=True, slots=True)
class PlanarQuadrotor:
    """A rigid quadrotor in a vertical plane, with two thrusts, without drag or motor lag.

    m x'' = -(T1 + T2) sin th,  m z'' = (T1 + T2) cos th - m g,  I th'' = r (T1 - T2)
    State (x, z, th, vx, vz, w), z up, th > 0 tilts the thrust towards -x; action (T1, T2), N.

    Attributes:
        mass: m, kg, > 0.
        inertia: I, kg m^2, > 0.
        arm_m: r, from the centre to a rotor, m, > 0.
        gravity: g, m/s^2, > 0.

    Raises:
        ConfigurationError: A number out of range.
    """

    mass: float = 0.486
    inertia: float = 0.00383
    arm_m: float = 0.25
    gravity: float = 9.81
    state_dim: int = field(default=6, init=False)
    action_dim: int = field(default=2, init=False)

    def __post_init__(self) -> None:
        for name in ("mass", "inertia", "arm_m", "gravity"):
            require_positive(f"PlanarQuadrotor.{name}", getattr(self, name))

    def drift(self, x: Tensor) -> Tensor:
        """Return (vx, vz, w, 0, -g, 0)."""
        zero = torch.zeros_like(x[0])
        return torch.stack([x[3], x[4], x[5], zero, zero - self.gravity, zero])

    def input_map(self, x: Tensor) -> Tensor:
        """Return the map from the two thrusts to the rates of the velocities."""
        push = torch.stack([-torch.sin(x[2]), torch.cos(x[2])]) / self.mass
        turn = torch.ones_like(x[:1]) * (self.arm_m / self.inertia)
        thrusts = [torch.cat([torch.zeros_like(x[:3]), push, side]) for side in (turn, -turn)]
        return torch.stack(thrusts, dim=1)

    def brake(self, x: Tensor) -> Tensor:
        """Return thrusts that level the robot and slow it down, tilting against its velocity.

        A cascade: the speed asks for a tilt, the tilt for a difference of the thrusts; their sum
        carries the weight and takes the vertical speed out.
        """
        wanted = torch.clamp(_SPEED_RATE / self.gravity * x[3], -_BRAKE_TILT, _BRAKE_TILT)
        lift = self.mass * (self.gravity - _SPEED_RATE * x[4])
        total = lift / torch.clamp(torch.cos(x[2]), min=_SMALLEST_COSINE)
        turn = -_TILT_STIFFNESS * (x[2] - wanted) - _TILT_DAMPING * x[5]
        difference = turn * (self.inertia / self.arm_m)
        return torch.stack([0.5 * (total + difference), 0.5 * (total - difference)])
