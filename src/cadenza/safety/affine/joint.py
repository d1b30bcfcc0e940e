"""Several robots as one control-affine system.

State:   the states of the agents one after the other.
Action:  the actions of the controlled agents, likewise. What the others do is a disturbance.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from cadenza.core.errors import ConfigurationError
from cadenza.safety.affine.disturbances import Disturbance
from cadenza.safety.affine.dynamics import ControlAffineDynamics


class JointDynamics:
    """Agents side by side.

    Args:
        agents: Their dynamics, at least one.
        controlled: Which of them the filter commands; None commands all.

    Raises:
        ConfigurationError: No agent, none controlled, or a flag missing.
    """

    def __init__(
        self, agents: Sequence[ControlAffineDynamics], controlled: Sequence[bool] | None = None
    ) -> None:
        self._agents = tuple(agents)
        self._controlled = (True,) * len(self._agents) if controlled is None else tuple(controlled)
        if len(self._controlled) != len(self._agents) or not any(self._controlled):
            raise ConfigurationError(
                "JointDynamics: expected one flag per agent and at least one controlled agent, got "
                f"{len(self._agents)} agents and flags {self._controlled}."
            )

    @property
    def state_dim(self) -> int:
        """Sum of the agents' state dimensions."""
        return sum(agent.state_dim for agent in self._agents)

    @property
    def action_dim(self) -> int:
        """Sum of the controlled agents' action dimensions."""
        pairs = zip(self._agents, self._controlled, strict=True)
        return sum(agent.action_dim for agent, mine in pairs if mine)

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
