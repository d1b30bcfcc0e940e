"""Robots of the plane and points in space, as control-affine dynamics.

Units:   m, rad, s; each class lists its state and action.
Source:  LaValle, Planning Algorithms, Cambridge 2006, sections 13.1.2 (unicycle, Dubins car) and
         13.2 (double integrator, acceleration-level extensions).
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from cadenza.core.errors import ConfigurationError


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
        if self.dim < 1:
            raise ConfigurationError(f"DoubleIntegrator.dim: expected >= 1, got {self.dim}.")
        if not 0.0 <= self.damping < math.inf:
            raise ConfigurationError(
                f"DoubleIntegrator.damping: expected a finite rate >= 0 1/s, got {self.damping}."
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

    State (px, py, th, v), m, rad, m/s; action (a, w), m/s^2 and rad/s.

    Attributes:
        stop_time_s: Time constant of `brake`, s, > 0.

    Raises:
        ConfigurationError: A number out of range.
    """

    stop_time_s: float = 0.5

    def __post_init__(self) -> None:
        require_positive("AcceleratedUnicycle.stop_time_s", self.stop_time_s)

    @property
    def state_dim(self) -> int:
        """4."""
        return 4

    @property
    def action_dim(self) -> int:
        """2."""
        return 2

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

    State (px, py, th), m and rad; action (v, w), m/s and rad/s.

    Attributes:
        look_ahead_m: Distance of `point_ahead` before the axle, m, > 0.

    Raises:
        ConfigurationError: A number out of range.
    """

    look_ahead_m: float = 0.1

    def __post_init__(self) -> None:
        require_positive("KinematicUnicycle.look_ahead_m", self.look_ahead_m)

    @property
    def state_dim(self) -> int:
        """3."""
        return 3

    @property
    def action_dim(self) -> int:
        """2."""
        return 2

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
    """A vehicle of constant speed that only steers: p' = s (cos th, sin th), th' = w.

    State (px, py, th), m and rad; action (w,), rad/s. It cannot stop, so it has no `brake`.

    Attributes:
        speed: s, m/s, > 0.

    Raises:
        ConfigurationError: A number out of range.
    """

    speed: float = 1.0

    def __post_init__(self) -> None:
        require_positive("DubinsCar.speed", self.speed)

    @property
    def state_dim(self) -> int:
        """3."""
        return 3

    @property
    def action_dim(self) -> int:
        """1."""
        return 1

    def drift(self, x: Tensor) -> Tensor:
        """Return (s cos th, s sin th, 0)."""
        motion = [
            self.speed * torch.cos(x[2]),
            self.speed * torch.sin(x[2]),
            torch.zeros_like(x[2]),
        ]
        return torch.stack(motion)

    def input_map(self, x: Tensor) -> Tensor:
        """Return (0, 0, 1) as a column."""
        zero, one = torch.zeros_like(x[0]), torch.ones_like(x[0])
        return torch.stack([zero, zero, one]).unsqueeze(1)


def require_positive(name: str, value: float) -> None:
    """Raise ConfigurationError unless ``value`` is a finite number > 0."""
    if not 0.0 < value < math.inf:
        raise ConfigurationError(f"{name}: expected a finite number > 0, got {value}.")
