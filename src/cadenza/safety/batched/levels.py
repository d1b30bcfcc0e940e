"""Levels of the rows of many pairs at once: `cadenza.safety.rows.barrier` and `wae` on tensors.

Gradients:  finite everywhere, also where a branch is not taken: each square root and quotient sees
            an argument that is valid in the branch it serves.
Axes:       all arguments broadcast to one shape, for example (B environments, P pairs).
Capture:    no branch depends on data; options are Python values.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

import torch
from torch import Tensor

from cadenza.safety.rows.barrier import COINCIDENT_DISTANCE, PSI_FLOOR, Plant
from cadenza.safety.rows.wae import COINCIDENT_LEVEL, CbfPower

#: Smallest argument of a square root that is differentiated; its derivative stays finite, and the
#: roots of everything below are below 1e-150 (float32: 1e-18).
_TINY: Final = {torch.float64: 1e-300, torch.float32: 1e-37}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PairTensors:
    """Constants of pairs: `cadenza.safety.rows.barrier.PairParameters` with tensors.

    Attributes:
        alpha: Braking authority left against the worst partner, m/s^2, > 0.
        partner_accel: a_p, bound on the partner's acceleration, m/s^2, >= 0.
        relative_accel: A, bound on the relative acceleration, m/s^2.
        dt: Control step, s.
        gamma: Rate at which overlap is undone, 1/s; or gain of the classical row.
        plant: How the plant integrates one step.
        unheld_accel: Bound on the acceleration that may change within a step, m/s^2.
    """

    alpha: Tensor
    partner_accel: Tensor
    relative_accel: Tensor
    dt: float
    gamma: float
    plant: Plant
    unheld_accel: Tensor | float = 0.0


#: Level of rows, m/s^2, and barrier values, m/s, from r, D, w, t and the pairs' constants.
BatchLevelFunction: TypeAlias = Callable[
    [Tensor, Tensor, Tensor, Tensor, PairTensors], tuple[Tensor, Tensor]
]


def sampled_level(
    distance: Tensor, contact: Tensor, closing: Tensor, tangential: Tensor, pair: PairTensors
) -> tuple[Tensor, Tensor]:
    """Return the level and barrier value of `cadenza.safety.rows.barrier.row_level`.

    Args:
        distance: r, m.
        contact: D, sum of the radii and the safety margin, m.
        closing: w, m/s.
        tangential: t, m/s.
        pair: The pairs' constants.
    """
    alpha, dt = pair.alpha, pair.dt
    excess = distance - contact
    limit = _next_closing_limit(excess, closing, pair)
    if pair.plant == "zoh":
        nearest = torch.maximum(contact, distance - 0.5 * dt * (closing + limit))
        change = pair.relative_accel * dt
        kappa = (1.0 - pair.unheld_accel * dt * dt / (12.0 * contact)).clamp_min(0.5)
        back = torch.minimum(0.5 * tangential / kappa, change - tangential).clamp_min(0.0)
        gain = torch.minimum(back * (tangential - kappa * back), 0.125 * change * change)
        limit = limit - 0.5 * dt * gain / nearest
    return (limit - closing) / dt, barrier_values(excess, closing, alpha, dt, pair.gamma)


def barrier_values(
    excess: Tensor, closing: Tensor, alpha: Tensor, dt: float, gamma: float
) -> Tensor:
    """Return h, m/s; for e < 0 its sign says nothing, see `cadenza.safety.rows.barrier`."""
    e = excess.clamp_min(0.0)
    reach = alpha * dt
    fastest = 4.0 * alpha * e / (reach + root(reach * reach + 8.0 * alpha * e))
    return torch.where(excess < 0.0, gamma * excess, fastest) - closing


def _next_closing_limit(excess: Tensor, closing: Tensor, pair: PairTensors) -> Tensor:
    """Return c_max before the tangential allowance, m/s; inside the margin gamma e."""
    alpha, dt = pair.alpha, pair.dt
    e = excess.clamp_min(0.0)
    three = 3.0 * alpha * dt
    limit = 4.0 * alpha * e / (three + root(three * three + 8.0 * alpha * e))
    if pair.plant == "zoh":
        spare = 2.0 * (e - 0.5 * closing * dt) / alpha
        radicand = dt * dt + spare
        slowing = alpha * spare / (dt + root(radicand))
        slowing = torch.where(radicand <= 0.0, -alpha * dt, slowing)
        limit = torch.where(closing <= limit, limit, slowing)
    return torch.where(excess < 0.0, pair.gamma * excess, limit)


def wae_level_batch(power: CbfPower) -> BatchLevelFunction:
    """Return the classical row of `cadenza.safety.rows.wae` for one exponent."""

    def level_of(
        distance: Tensor, contact: Tensor, closing: Tensor, tangential: Tensor, pair: PairTensors
    ) -> tuple[Tensor, Tensor]:
        excess = distance - contact
        free, apart = excess > 0.0, distance >= COINCIDENT_DISTANCE
        psi = root(2.0 * pair.alpha * excess).clamp_min(PSI_FLOOR)
        h = torch.where(free, psi, 0.0) - closing
        level = tangential * tangential / torch.where(apart, distance, 1.0)
        level = level + pair.gamma * (h if power == 1 else h**3)
        level = level - torch.where(free, pair.alpha * closing / psi, 0.0)
        return torch.where(apart, level, COINCIDENT_LEVEL), torch.where(apart, h, -contact)

    return level_of


def root(values: Tensor) -> Tensor:
    """Return the square root, 0 for negative numbers.

    Its gradients are finite. Not by `torch.sqrt`: on a CPU that wakes all threads even for small
    arrays, which takes milliseconds where other processes compute.
    """
    tiny = _TINY[values.dtype]
    positive = values.clamp_min(tiny)
    inverse = positive.rsqrt()
    rough = positive * inverse  # to two units in the last place; one Newton step rounds it well
    exact = rough + 0.5 * inverse * (positive - rough * rough)
    return torch.where(values > tiny, exact, 0.0)
