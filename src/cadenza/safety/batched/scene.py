"""The agents of many environments, split into the ego and its partners, as tensors."""

from typing import NamedTuple

import torch
from torch import Tensor

from cadenza.core.errors import InputError
from cadenza.safety.runtime.agent_batch import AgentBatch


class Scene(NamedTuple):
    """Motion of B egos and their N partners each, float64.

    Attributes:
        ego_position: Shape (B, d), m.
        ego_velocity: Shape (B, d), m/s.
        ego_radius: m.
        partner_positions: Shape (B, N, d), m.
        partner_velocities: Shape (B, N, d), m/s.
        partner_radii: Shape (N,), m.
    """

    ego_position: Tensor
    ego_velocity: Tensor
    ego_radius: float
    partner_positions: Tensor
    partner_velocities: Tensor
    partner_radii: Tensor


def scene_of(agents: AgentBatch, ego_uid: str, partner_uids: tuple[str, ...]) -> Scene:
    """Return the ego and the partners in the given order.

    Raises:
        InputError: The agents are others than these.
    """
    if set(agents.uids) != {ego_uid, *partner_uids}:
        raise InputError(
            f"BatchedSafetyDriver: expected the agents {[ego_uid, *partner_uids]}, got "
            f"{list(agents.uids)}."
        )
    ego = agents.uids.index(ego_uid)
    partners = [agents.uids.index(uid) for uid in partner_uids]
    positions = torch.as_tensor(agents.positions)
    velocities = torch.as_tensor(agents.velocities)
    return Scene(
        ego_position=positions[:, ego],
        ego_velocity=velocities[:, ego],
        ego_radius=float(agents.radii[ego]),
        partner_positions=positions[:, partners],
        partner_velocities=velocities[:, partners],
        partner_radii=torch.as_tensor(agents.radii[partners]),
    )
