"""A quadrotor that moves in a vertical plane.

Equations:  m x'' = -(T1 + T2) sin th,  m z'' = (T1 + T2) cos th - m g,  I th'' = r (T1 - T2)
Units:      m, rad, s, kg, N.
Source:     Steinhardt and Tedrake, Finite-time regional verification of stochastic nonlinear
            systems, doi:10.1177/0278364912444146; masses and lengths as in the planar quadrotor of
            the simulator Drake.
Limits:     rigid, no drag, no motor lag.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from cadenza.safety.affine.models import require_positive

#: Rates of `PlanarQuadrotor.brake`: of the speed, 1/s, and of the tilt, 1/s^2 and 1/s. The tilt
#: settles critically damped within 0.4 s, faster than the speed, as the cascade assumes.
_SPEED_RATE = 1.0
_TILT_STIFFNESS = 100.0
_TILT_DAMPING = 20.0
#: Largest tilt that `brake` asks for, rad.
_BRAKE_TILT = 0.4
#: Smallest cosine the vertical thrust is divided by.
_SMALLEST_COSINE = 0.3


@dataclass(frozen=True, slots=True)
class PlanarQuadrotor:
    """Planar quadrotor with two thrusts.

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

    def __post_init__(self) -> None:
        for name in ("mass", "inertia", "arm_m", "gravity"):
            require_positive(f"PlanarQuadrotor.{name}", getattr(self, name))

    @property
    def state_dim(self) -> int:
        """6."""
        return 6

    @property
    def action_dim(self) -> int:
        """2."""
        return 2

    @property
    def hover_thrust(self) -> float:
        """Thrust of each rotor that carries the weight, N."""
        return 0.5 * self.mass * self.gravity

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
