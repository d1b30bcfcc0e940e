"""What a robot supplies to the control-affine filter, and one step of its motion.

Equation:  x' = f(x) + g(x) u
Axes:      n = state, k = action. Functions take one state; `torch.func.vmap` makes batches of them.
Limits:    f and g must be branch-free torch code: no ``if`` on a number of the state, no in-place
           change; `torch.where` instead. They are differentiated r times for relative degree r.
"""

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from cadenza.core.errors import ConfigurationError


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


def rk4_step(
    dynamics: ControlAffineDynamics, x: Tensor, u: Tensor, dt: float, push: Tensor | None = None
) -> Tensor:
    """Return the state after ``dt`` with the action held, by one classical Runge-Kutta step.

    Args:
        dynamics: The robot.
        x: State, shape (n,).
        u: Held action, shape (k,).
        dt: Time, s.
        push: Disturbance of the state's rate, held as well, shape (n,); None for none.
    """

    def rate(state: Tensor) -> Tensor:
        motion = dynamics.drift(state) + dynamics.input_map(state) @ u
        return motion if push is None else motion + push

    k1 = rate(x)
    k2 = rate(x + 0.5 * dt * k1)
    k3 = rate(x + 0.5 * dt * k2)
    k4 = rate(x + dt * k3)
    return x + dt / 6.0 * (k1 + 2.0 * k2 + 2.0 * k3 + k4)


def generic_states(state_dim: int, count: int = 64, reach: float = 2.0) -> Tensor:
    """Return well spread states of [-reach, reach]^n in general position, shape (count, n).

    An additive recurrence with the square roots of primes; the same points at every call.
    """
    primes: list[int] = []
    candidate = 2
    while len(primes) < state_dim:
        if all(candidate % prime for prime in primes):
            primes.append(candidate)
        candidate += 1
    steps = torch.tensor(primes, dtype=torch.float64).sqrt()
    index = torch.arange(1, count + 1, dtype=torch.float64).unsqueeze(1)
    return reach * (2.0 * torch.remainder(index * steps, 1.0) - 1.0)


def require_dynamics(dynamics: ControlAffineDynamics, x: Tensor) -> None:
    """Raise ConfigurationError unless f and g have the shapes their dimensions promise at ``x``."""
    n, k = dynamics.state_dim, dynamics.action_dim
    if n < 1 or k < 1:
        raise ConfigurationError(
            f"ControlAffineDynamics: expected state_dim and action_dim >= 1, got {n} and {k}."
        )
    f, g = dynamics.drift(x), dynamics.input_map(x)
    for name, value, shape in (("drift", f, (n,)), ("input_map", g, (n, k))):
        if tuple(value.shape) != shape or value.dtype != torch.float64:
            raise ConfigurationError(
                f"ControlAffineDynamics.{name}: expected float64 {shape}, got "
                f"{value.dtype} {tuple(value.shape)}."
            )
