"""Margin for an action that is held for a whole control step.

Why:       a row c(x, u) >= 0 is met when u is chosen; while u is held, x moves on and c with it. If
           c falls by at most ``rate`` per second, c(x, u) >= rate dt at the start keeps it >= 0 for
           the whole step, and the continuous-time promise of the barrier holds between samples too.
Bound:     the rate is the caller's to prove. `estimate_rates` looks at states and corners of the
           box; the largest value seen there times a factor is an estimate and no proof.
Source:    after Breeden, Garg and Panagou, Control barrier functions in sampled-data systems,
           arXiv:2103.03677; here with a given bound of the row's own rate.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import torch
from torch import Tensor

from cadenza.core.arrays import FloatArray
from cadenza.core.errors import ConfigurationError, InputError
from cadenza.safety.affine.disturbances import Disturbance, total_cost
from cadenza.safety.affine.dynamics import ControlAffineDynamics
from cadenza.safety.affine.lifting import LiftedBarrier

#: Most action components whose 2^k box corners `estimate_rates` visits.
_MAX_CORNER_DIM: Final = 10


@dataclass(frozen=True, slots=True)
class SampledData:
    """How long an action is held, and how fast each row can fall meanwhile.

    Attributes:
        dt: Control step, s, > 0.
        rates: By barrier name, the largest rate at which c = gain @ u + level can fall in the
            region and box of use, in the unit of c per second, >= 0.

    Raises:
        ConfigurationError: A number out of range.
    """

    dt: float
    rates: Mapping[str, float] = field(default_factory=dict[str, float])

    def __post_init__(self) -> None:
        if not 0.0 < self.dt < math.inf:
            raise ConfigurationError(
                f"SampledData.dt: expected a finite control step > 0 s, got {self.dt}."
            )
        for name, rate in self.rates.items():
            if not 0.0 <= rate < math.inf:
                raise ConfigurationError(
                    f"SampledData.rates[{name!r}]: expected a finite rate >= 0, got {rate}."
                )

    def margins(self, names: Sequence[str]) -> list[float]:
        """Return rate dt for each barrier.

        Raises:
            ConfigurationError: The rates are not those of exactly these barriers.
        """
        if set(self.rates) != set(names):
            raise ConfigurationError(
                f"SampledData.rates: expected one rate for each of {sorted(names)}, got "
                f"{sorted(self.rates)}."
            )
        return [self.dt * self.rates[name] for name in names]


def estimate_rates(
    lifted: Sequence[LiftedBarrier],
    dynamics: ControlAffineDynamics,
    states: Tensor,
    lower: FloatArray,
    upper: FloatArray,
    *,
    disturbances: Sequence[Disturbance] = (),
    factor: float = 2.0,
) -> dict[str, float]:
    """Return by name the fastest fall of each row over states and box corners, times a factor.

    An estimate: between the states, inside the box and beyond them the rate may be larger.

    Args:
        lifted: The barriers, see `AffineCBFFilter.lifted`.
        dynamics: The robot.
        states: States of the region of use, shape (M, n), float64.
        lower: Lower bounds of the action, shape (k,), finite.
        upper: Upper bounds, likewise.
        disturbances: What else moves the robot.
        factor: Room for what the states do not show, >= 1.

    Raises:
        InputError: Malformed states, a box that is not finite, or more than ten components.
        ConfigurationError: A factor below 1.
    """
    if not 1.0 <= factor < math.inf:
        raise ConfigurationError(
            f"estimate_rates: factor: expected a finite number >= 1, got {factor}."
        )
    shaped = states.ndim == 2 and states.shape[0] > 0 and states.shape[1] == dynamics.state_dim
    if not (shaped and bool(torch.isfinite(states).all())):
        raise InputError(
            f"estimate_rates: states: expected finite states, shape (M, {dynamics.state_dim}), got "
            f"shape {tuple(states.shape)}."
        )
    corners = _corners(lower, upper, dynamics.action_dim)
    rates: dict[str, float] = {}
    for barrier in lifted:
        fall = _fall(barrier, dynamics, disturbances)
        pairs = torch.func.vmap(torch.func.vmap(fall, in_dims=(None, 0)), in_dims=(0, None))
        rates[barrier.name] = factor * max(0.0, float(pairs(states, corners).max()))
    return rates


def _fall(
    barrier: LiftedBarrier, dynamics: ControlAffineDynamics, disturbances: Sequence[Disturbance]
) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the function of state and held action that says how fast the row's value falls."""

    def value(x: Tensor, u: Tensor) -> Tensor:
        row = barrier.row(x)
        return row.gain @ u + row.level

    def fall(x: Tensor, u: Tensor) -> Tensor:
        gradient = torch.func.grad(value)(x, u)
        motion = dynamics.drift(x) + dynamics.input_map(x) @ u
        return total_cost(disturbances, gradient, x) - gradient @ motion

    return fall


def _corners(lower: FloatArray, upper: FloatArray, k: int) -> Tensor:
    """Return the corners of the box, shape (2^k, k)."""
    low, high = (
        torch.as_tensor(lower, dtype=torch.float64),
        torch.as_tensor(upper, dtype=torch.float64),
    )
    shaped = low.shape == (k,) and high.shape == (k,) and k <= _MAX_CORNER_DIM
    if not (shaped and bool(torch.isfinite(low).all() and torch.isfinite(high).all())):
        raise InputError(
            f"estimate_rates: expected finite bounds of shape ({k},) and at most "
            f"{_MAX_CORNER_DIM} components, got shapes {tuple(low.shape)} and {tuple(high.shape)}."
        )
    choices = list(itertools.product((False, True), repeat=k))
    return torch.where(torch.tensor(choices), high, low)
