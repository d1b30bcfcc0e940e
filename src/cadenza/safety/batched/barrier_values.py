"""Barrier values of many environments without rows: what the conformal layer scores.

Axes:   B = environments, N = partners, d = Cartesian dimension.
Units:  m, m/s.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from cadenza.safety.batched.constants import ConstantsSource
from cadenza.safety.batched.levels import sampled_level, wae_level_batch
from cadenza.safety.batched.rows import pair_geometry_batch
from cadenza.safety.batched.scene import Scene
from cadenza.safety.bounds import Bounds
from cadenza.safety.control_models import DoubleIntegratorControlModel
from cadenza.safety.filters.ego_options import EgoOnlyOptions
from cadenza.safety.protocols import AgentControlModel


class BarrierValues:
    """h of the ego's pairs, with the geometry and constants of the filter's rows.

    Args:
        ego_model: A double integrator, whose constants are the same in every environment.
        partner_models: In the order of the tensors.
        bounds: Box of the actions and shared capacity.
        options: Those of the filter.
        dt: Control step, s.

    Raises:
        ConfigurationError: The ego has no authority against a partner.
    """

    def __init__(
        self,
        *,
        ego_model: DoubleIntegratorControlModel,
        partner_models: Sequence[AgentControlModel],
        bounds: Bounds,
        options: EgoOnlyOptions,
        dt: float,
    ) -> None:
        source = ConstantsSource(
            ego_model=ego_model,
            partner_models=partner_models,
            bounds=bounds,
            options=options,
            dt=dt,
        )
        self._pair = source.of_step(torch.zeros(0, dtype=torch.float64), None).pair
        sampled = options.barrier == "sampled"
        self._level = sampled_level if sampled else wae_level_batch(options.cbf_power)
        self._margin_m = options.margin_m

    def of(self, scene: Scene, positions: Tensor, velocities: Tensor) -> Tensor:
        """Return h of the egos of ``scene`` with partners elsewhere, shape (B, N), m/s.

        Args:
            scene: Supplies egos and radii.
            positions: Centres of the partners, shape (B, N, d), m.
            velocities: Their velocities, shape (B, N, d), m/s.
        """
        normal, distance, closing, tangential = pair_geometry_batch(
            scene.ego_position.unsqueeze(1) - positions,
            scene.ego_velocity.unsqueeze(1) - velocities,
        )
        del normal
        contact = (scene.ego_radius + self._margin_m + scene.partner_radii).expand_as(distance)
        _, h = self._level(distance, contact, closing, tangential, self._pair)
        return h
