"""What a robot supplies to the control-affine filter, what else moves it, and several as one.

Equation:  x' = f(x) + g(x) u + E(x) w,  |w| <= bound (Euclidean)
Cost:      min over w of (d psi / dx) E w = -bound |E^T grad psi|; the smooth upper bound
           sqrt(|E^T grad psi|^2 + eps^2) stands for the norm, so that it can be differentiated.
Axes:      n = state, k = action. Functions take one state; `torch.func.vmap` makes batches of them.
Limits:    f, g and E must be branch-free torch code: no ``if`` on a number of the state and no
           in-place change; `torch.where` instead. They are differentiated r times for degree r.
Source:    Jankovic, Robust control barrier functions for constrained stabilization of nonlinear
           systems, doi:10.1016/j.automatica.2018.07.004.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, cast, runtime_checkable

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from cadenza.core.arrays import FloatArray
from cadenza.core.checks import is_real, real_array, require_callable, require_kinds, shown
from cadenza.core.errors import ConfigurationError, InputError

#: eps, in the unit of the norm. It costs at most bound * eps and keeps derivatives finite at zero.
_SMOOTHING: Final = 1e-9


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
        if not (is_real(self.bound) and 0.0 <= self.bound < math.inf):
            raise ConfigurationError(
                f"Disturbance.bound: expected a finite number >= 0, got {shown(self.bound)}."
            )
        require_callable("Disturbance.matrix", self.matrix, "a function of a state")

    @classmethod
    def matched(cls, dynamics: ControlAffineDynamics, bound: float) -> "Disturbance":
        """Return a disturbance that enters where the action does: E = g."""
        return cls(bound, dynamics.input_map)

    @classmethod
    def through(cls, matrix: ArrayLike, bound: float) -> "Disturbance":
        """Return a disturbance through a constant matrix, shape (n, q).

        Raises:
            ConfigurationError: No matrix of finite numbers.
        """
        constant = float_array("Disturbance.through", matrix)
        if constant.ndim != 2 or not np.isfinite(constant).all():
            raise ConfigurationError(
                "Disturbance.through: expected a matrix of finite numbers, shape (n, q), got "
                f"shape {constant.shape}."
            )
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
            raise ConfigurationError(
                "JointDynamics: expected one flag per agent and at least one controlled agent, got "
                f"{len(self._agents)} agents and flags {self._controlled}."
            )
        self.state_dim: int = sum(agent.state_dim for agent in self._agents)
        pairs = zip(self._agents, self._controlled, strict=True)
        mine = [agent for agent, is_mine in pairs if is_mine]
        self.action_dim: int = sum(agent.action_dim for agent in mine)
        if all(isinstance(agent, BrakingDynamics) for agent in mine):
            self.brake = self._brakes

    def drift(self, x: Tensor) -> Tensor:
        """Return the agents' drifts, shape (n,)."""
        parts = zip(self._agents, self._split(x), strict=True)
        return torch.cat([agent.drift(part) for agent, part in parts])

    def input_map(self, x: Tensor) -> Tensor:
        """Return the input maps of the controlled agents on the diagonal, shape (n, k)."""
        return self._blocks(x, wanted=True)

    def others(self, bound: float) -> Disturbance:
        """Return the disturbance made of the inputs of the agents that are not controlled.

        Args:
            bound: Largest Euclidean norm of all their inputs together.

        Raises:
            ConfigurationError: Every agent is controlled.
        """
        if all(self._controlled):
            raise ConfigurationError(
                "JointDynamics.others: expected an agent that is not controlled, got none."
            )
        return Disturbance(bound, lambda x: self._blocks(x, wanted=False))

    def _brakes(self, x: Tensor) -> Tensor:
        parts = zip(self._agents, self._controlled, self._split(x), strict=True)
        return torch.cat(
            [cast("BrakingDynamics", agent).brake(part) for agent, mine, part in parts if mine]
        )

    def _split(self, x: Tensor) -> tuple[Tensor, ...]:
        return torch.split(x, [agent.state_dim for agent in self._agents])

    def _blocks(self, x: Tensor, *, wanted: bool) -> Tensor:
        """Return the input maps of the agents with this flag as block columns."""
        parts = self._split(x)
        columns: list[Tensor] = []
        for i, (agent, mine) in enumerate(zip(self._agents, self._controlled, strict=True)):
            if mine is not wanted:
                continue
            block = agent.input_map(parts[i])
            rows = [
                block if j == i else block.new_zeros(part.shape[0], block.shape[1])
                for j, part in enumerate(parts)
            ]
            columns.append(torch.cat(rows))
        return torch.cat(columns, dim=1)
