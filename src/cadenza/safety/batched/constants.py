"""Constants of the batched ego's rows: `cadenza.safety.authority` on tensors.

A double integrator has the same constants in every environment; any other ego brings its action
map a = J u + bias per environment and step, and with it its own authority.

Axes:  B environments, N partners, n action components, d Cartesian dimensions.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Final, cast

import numpy as np
import torch
from torch import Tensor

from cadenza.core.errors import ConfigurationError
from cadenza.safety.authority import (
    MAX_CORNERS_DIM,
    EgoAuthority,
    PairConstants,
    check_authority,
    measure_authority,
    no_passive_ego,
    pair_constants,
)
from cadenza.safety.batched.cbf import PairTensors, root
from cadenza.safety.bounds import MIN_BOUND, Bounds
from cadenza.safety.control_models import DoubleIntegratorControlModel
from cadenza.safety.filter_options import EgoOnlyOptions
from cadenza.safety.protocols import AgentControlModel
from cadenza.safety.snapshot import AgentSnapshot

#: Sine of the angle between two columns of J below which they count as parallel.
_PARALLEL: Final = 1e-12
#: Relative shortfall of a declared capacity that rounding explains.
_ROUNDING: Final = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EgoConstants:
    """What the rows of one step need besides the motion.

    Attributes:
        pair: Constants of the pairs, broadcasting to (B, N).
        shares: The ego's share of each row, shape (N,); None if the partners do not cooperate.
        reach: Bound on the ego's Euclidean acceleration, broadcasting to (B, N), m/s^2.
        every_direction: Acceleration the ego is credited with, broadcasting to (B, N), m/s^2.
        covered: Where the invariance certificate may hold, broadcasting to (B,).
        jacobian: J, shape (B, d, n); None when it is the identity.
        bias: Acceleration under a zero action, shape (B, d), m/s^2; None when it vanishes.
    """

    pair: PairTensors
    shares: Tensor | None
    reach: Tensor
    every_direction: Tensor
    covered: Tensor
    jacobian: Tensor | None
    bias: Tensor | None


@dataclass(frozen=True, slots=True, eq=False)
class ActionMap:
    """a = J u + bias per environment: J of shape (B, d, n), bias of shape (B, d), m/s^2."""

    jacobian: Tensor
    bias: Tensor | None


class ConstantsSource:
    """Makes the constants of every step of one filter.

    Args:
        ego_model: The ego's control model.
        partner_models: The partners' control models, in the order of the tensors.
        bounds: Box of the actions and shared capacity.
        options: The filter's options.
        dt: Control step, s.

    Raises:
        ConfigurationError: An agent has no authority left, or a combination is not offered.
    """

    def __init__(
        self,
        *,
        ego_model: AgentControlModel,
        partner_models: Sequence[AgentControlModel],
        bounds: Bounds,
        options: EgoOnlyOptions,
        dt: float,
    ) -> None:
        self.fixed_map = isinstance(ego_model, DoubleIntegratorControlModel)
        self._bounds, self._options, self._dt = bounds, options, dt
        self._capacity = ego_model.max_cartesian_accel(bounds)
        if options.passive and not self.fixed_map:
            raise no_passive_ego(ego_model)
        if options.strategy is not None and not all(
            isinstance(model, DoubleIntegratorControlModel)
            for model in (ego_model, *partner_models)
        ):
            raise ConfigurationError(
                "BatchedEgoFilter: budget_split needs double integrators on both sides, whose "
                "shares are the same in every environment; use the filter of one environment."
            )
        # Ages and contact distances are accounted for per environment, where radii are known.
        current = replace(options, max_age_s=0.0)
        origin = np.zeros(ego_model.position_dim)
        snapshot = AgentSnapshot(origin, origin, 1.0)
        if self.fixed_map:
            authority = measure_authority(ego_model, snapshot, bounds)
        else:
            # Stands in for the authority that each step brings; only the partners' part is kept.
            check_authority(ego_model, bounds)
            authority = EgoAuthority(None, None, self._capacity, self._capacity, self._capacity)
        self._authority = authority
        self._kept: dict[tuple[torch.dtype, torch.device], EgoConstants] = {}
        self._known: PairConstants = pair_constants(
            ego_model,
            authority,
            partner_models,
            [snapshot] * len(partner_models),
            [math.inf] * len(partner_models),
            bounds,
            current,
            dt=dt,
        )

    def of_step(self, like: Tensor, action_map: ActionMap | None) -> EgoConstants:
        """Return the constants of one step.

        Args:
            like: A tensor of the dtype and on the device of the step.
            action_map: The ego's map; None for a double integrator.
        """
        key = (like.dtype, like.device)
        if key not in self._kept:  # moved to the device once: a graph capture allows no copy
            self._kept[key] = self._on_device(like)
        kept = self._kept[key]
        return kept if action_map is None else self._of_map(kept.pair, action_map)

    def _on_device(self, like: Tensor) -> EgoConstants:
        """Return the constants that do not depend on the step."""
        known, authority = self._known, self._authority
        pair = PairTensors(
            alpha=_row(like, [pair.alpha for pair in known.parameters]),
            partner_accel=_row(like, [pair.partner_accel for pair in known.parameters]),
            relative_accel=_row(like, [pair.relative_accel for pair in known.parameters]),
            dt=self._dt,
            gamma=self._options.cbf_gamma,
            plant=self._options.plant,
            unheld_accel=_row(like, [pair.unheld_accel for pair in known.parameters]),
        )
        return EgoConstants(
            pair=pair,
            shares=None if known.shares is None else _row(like, known.shares),
            reach=_row(like, [authority.reach]),
            every_direction=_row(like, [authority.every_direction]),
            covered=torch.tensor([known.covered], device=like.device),
            jacobian=None,
            bias=None,
        )

    def _of_map(self, pair: PairTensors, action_map: ActionMap) -> EgoConstants:
        """Return the constants of egos whose authority depends on their state."""
        jacobian, bias, c = action_map.jacobian, action_map.bias, self._bounds.action_linf_component
        drift = torch.zeros_like(jacobian[:, :, 0]) if bias is None else bias
        weakest = weakest_support_batch(jacobian, drift, c).clamp_min(0.0)
        every_direction = weakest.clamp_max(self._capacity).unsqueeze(1)  # (B, 1)
        reach = reach_batch(jacobian, drift, c).unsqueeze(1)
        if not self._options.upstream:
            alpha = (every_direction - pair.partner_accel).clamp_min(MIN_BOUND)
            pair = replace(pair, alpha=alpha, relative_accel=reach + pair.partner_accel)
        certified = every_direction.squeeze(1) >= self._capacity * (1.0 - _ROUNDING)
        sampled = self._options.barrier == "sampled"
        return EgoConstants(
            pair=pair,
            shares=None,
            reach=reach,
            every_direction=every_direction,
            covered=certified & sampled,
            jacobian=jacobian,
            bias=bias,
        )


def weakest_support_batch(jacobian: Tensor, bias: Tensor, c: float) -> Tensor:
    """Return the least acceleration that the box |u_k| <= c reaches along any direction.

    Args:
        jacobian: J, shape (B, d, n), d = 2 or 3.
        bias: beta, shape (B, d), m/s^2.
        c: Half width of the box, action unit.

    Returns:
        Shape (B,), m/s^2; exact where it is >= 0; otherwise a number <= 0.
    """
    columns = jacobian.transpose(1, 2)  # (B, n, d)
    if jacobian.shape[1] == 2:
        normals = torch.stack((-columns[..., 1], columns[..., 0]), -1)
        lengths = _norms(normals, -1)
        facets = lengths > 0.0
    else:
        pairs = list(itertools.combinations(range(jacobian.shape[2]), 2))
        first = columns[:, [i for i, _ in pairs]]
        second = columns[:, [j for _, j in pairs]]
        normals = _cross(first, second)
        lengths = _norms(normals, -1)
        facets = lengths > _PARALLEL * _norms(first, -1) * _norms(second, -1)
    units = normals / torch.where(facets, lengths, 1.0).unsqueeze(-1)  # (B, K, d)
    support = c * (units @ jacobian).abs().sum(-1) - (units @ bias.unsqueeze(-1)).squeeze(-1).abs()
    least = torch.where(facets, support, torch.inf).amin(1)
    return torch.where(facets.any(1), least, -_norms(bias, -1))


def reach_batch(jacobian: Tensor, bias: Tensor, c: float) -> Tensor:
    """Return the largest Euclidean acceleration the box |u_k| <= c produces, shape (B,), m/s^2.

    Exact up to `MAX_CORNERS_DIM` components, by looking at all corners; beyond, an upper bound.
    """
    n = jacobian.shape[2]
    if n <= MAX_CORNERS_DIM:
        corners = _corners(n, jacobian.dtype, jacobian.device)  # (2^n, n)
        accelerations = c * (corners @ jacobian.transpose(1, 2)) + bias.unsqueeze(1)
        return root(accelerations.square().sum(-1).amax(1))
    column_sum = _norms(jacobian, 1).sum(-1)
    largest = cast("Tensor", torch.linalg.matrix_norm(jacobian, 2))  # pyright: ignore[reportUnknownMemberType] # torch leaves it untyped
    return c * torch.minimum(largest * n**0.5, column_sum) + _norms(bias, -1)


@cache
def _corners(n: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    signs = list(itertools.product((-1.0, 1.0), repeat=n))
    return torch.tensor(signs, dtype=dtype, device=device)


def _row(like: Tensor, values: Sequence[float]) -> Tensor:
    return torch.tensor(values, dtype=like.dtype, device=like.device)


def _norms(values: Tensor, dim: int) -> Tensor:
    return root(values.square().sum(dim))


def _cross(a: Tensor, c: Tensor) -> Tensor:
    (a0, a1, a2), (c0, c1, c2) = a.unbind(-1), c.unbind(-1)
    return torch.stack((a1 * c2 - a2 * c1, a2 * c0 - a0 * c2, a0 * c1 - a1 * c0), -1)
