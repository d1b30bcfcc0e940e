"""Robots of the plane and points in space, as control-affine dynamics.

Units:   m, rad, s, kg, N; each class lists its state and action.
Source:  LaValle, Planning Algorithms, Cambridge 2006, sections 13.1.2 (unicycle, Dubins car) and
         13.2 (double integrator, acceleration-level extensions).
         Planar quadrotor: Steinhardt and Tedrake, Finite-time regional verification of stochastic
         nonlinear systems, doi:10.1177/0278364912444146; masses and lengths as in the simulator
         Drake.
"""

import math
from dataclasses import dataclass, field
from typing import Final

import torch
from torch import Tensor

from cadenza.core.checks import checked_integer, is_real, require_positive, shown
from cadenza.core.errors import ConfigurationError

#: Rates of `PlanarQuadrotor.brake`: of the speed, 1/s, and of the tilt, 1/s^2 and 1/s. The tilt
#: settles critically damped within 0.4 s, faster than the speed, as the cascade assumes.
_SPEED_RATE: Final = 1.0
_TILT_STIFFNESS: Final = 100.0
_TILT_DAMPING: Final = 20.0
#: Largest tilt that it asks for, rad, and the smallest cosine the vertical thrust is divided by.
_BRAKE_TILT: Final = 0.4
_SMALLEST_COSINE: Final = 0.3


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
        if not (is_real(self.damping) and 0.0 <= self.damping < math.inf):
            raise ConfigurationError(
                "DoubleIntegrator.damping: expected a finite rate >= 0 1/s, got "
                f"{shown(self.damping)}."
            )
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
        zero = torch.zeros_like(x[0])
        return torch.stack([x[3] * torch.cos(x[2]), x[3] * torch.sin(x[2]), zero, zero])

    def input_map(self, x: Tensor) -> Tensor:
        """Return the map that sends a to v' and w to th'."""
        zero, one = torch.zeros_like(x[0]), torch.ones_like(x[0])
        return torch.stack([zero, zero, zero, zero, zero, one, one, zero]).reshape(4, 2)

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
        zero, one = torch.zeros_like(x[0]), torch.ones_like(x[0])
        entries = [torch.cos(x[2]), zero, torch.sin(x[2]), zero, zero, one]
        return torch.stack(entries).reshape(3, 2)

    def brake(self, x: Tensor) -> Tensor:
        """Return zero speeds."""
        return torch.zeros_like(x[:2])

    def point_ahead(self, x: Tensor) -> Tensor:
        """Return a point before the axle, shape (2,), m, which both actions can move.

        As the position of a barrier it gives turning a part; the axle's centre does not.
        """
        return x[:2] + self.look_ahead_m * torch.stack([torch.cos(x[2]), torch.sin(x[2])])


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
        along, across = self.speed * torch.cos(x[2]), self.speed * torch.sin(x[2])
        return torch.stack([along, across, torch.zeros_like(x[2])])

    def input_map(self, x: Tensor) -> Tensor:
        """Return (0, 0, 1) as a column."""
        zero, one = torch.zeros_like(x[0]), torch.ones_like(x[0])
        return torch.stack([zero, zero, one]).unsqueeze(1)


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
        zero, one = torch.zeros_like(x[0]), torch.ones_like(x[0])
        sideways, up = -torch.sin(x[2]) / self.mass, torch.cos(x[2]) / self.mass
        turn = one * (self.arm_m / self.inertia)
        entries = [zero, zero, zero, zero, zero, zero, sideways, sideways, up, up, turn, -turn]
        return torch.stack(entries).reshape(6, 2)

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
