"""Seams of the safety stack: what an embodiment, a filter and an emergency controller offer.

Whose actions a pairwise filter may change.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Any, Protocol, TypeAlias, runtime_checkable

from cadenza.core.arrays import FloatArray
from cadenza.safety.bounds import Bounds
from cadenza.safety.snapshot import AgentSnapshot
from cadenza.safety.state import FilterInfo, SafetyState


@runtime_checkable
class AgentControlModel(Protocol):
    """Map between an agent's action and the Cartesian acceleration of its ball.

    Both maps are deterministic, linear in their second argument, and consistent: mapping an
    acceleration to an action and back returns it, within float tolerance, wherever it can be
    produced at all. An acceleration that does not vanish with the action is declared through
    `StateDependentControlModel`.
    """

    @property
    def uid(self) -> str:
        """Agent id."""
        ...

    @property
    def action_dim(self) -> int:
        """Number of action components."""
        ...

    @property
    def position_dim(self) -> int:
        """Cartesian dimension of the ball, 2 or 3."""
        ...

    def action_to_cartesian_accel(self, state: AgentSnapshot, action: FloatArray) -> FloatArray:
        """Return the acceleration, shape (position_dim,), m/s^2, of an action (action_dim,)."""
        ...

    def cartesian_accel_to_action(
        self, state: AgentSnapshot, cartesian_accel: FloatArray
    ) -> FloatArray:
        """Return an action, shape (action_dim,), that produces the acceleration."""
        ...

    def max_cartesian_accel(self, bounds: Bounds) -> float:
        """Return the largest Euclidean acceleration the agent is credited with, m/s^2."""
        ...


@runtime_checkable
class StateDependentControlModel(Protocol):
    """What a control model adds when its map depends on the state or is not linear but affine.

    The agent's acceleration is then ``a = jacobian(state) @ u + bias_accel(state)``, and the
    model's ``action_to_cartesian_accel`` is the linear part alone. A reader asks for each once
    per control step, however many partners the agent has.
    """

    def jacobian(self, state: AgentSnapshot) -> FloatArray:
        """Return J, shape (position_dim, action_dim)."""
        ...

    def bias_accel(self, state: AgentSnapshot) -> FloatArray:
        """Return the acceleration under a zero action, shape (position_dim,), m/s^2."""
        ...


@runtime_checkable
class EgoOnlySafetyFilter(Protocol):
    """A filter that decides the ego's action only; partners are disturbances."""

    def reset(self, *, seed: int | None = None) -> None:
        """Forget the past; ``seed`` feeds a filter that draws random numbers."""
        ...

    def filter(
        self,
        proposed_action: FloatArray,
        obs: Mapping[str, Any],
        state: SafetyState,
        bounds: Bounds,
        *,
        ego_uid: str,
        partner_predicted_states: dict[str, AgentSnapshot],
        dt: float,
    ) -> tuple[FloatArray, FilterInfo]:
        """Return the safe action, shape (action_dim,), and what happened."""
        ...


@runtime_checkable
class JointSafetyFilter(Protocol):
    """A filter that decides the action of every agent that proposes one."""

    def reset(self, *, seed: int | None = None) -> None:
        """Forget the past; ``seed`` feeds a filter that draws random numbers."""
        ...

    def filter(
        self,
        proposed_action: dict[str, FloatArray],
        obs: Mapping[str, Any],
        state: SafetyState,
        bounds: Bounds,
        *,
        ego_uid: str | None = None,
        partner_action_bound: float | None = None,
    ) -> tuple[dict[str, FloatArray], FilterInfo]:
        """Return the safe actions under the same ids, and what happened."""
        ...


#: Either filter, under the name that both had before they were told apart.
SafetyFilter: TypeAlias = EgoOnlySafetyFilter | JointSafetyFilter


@runtime_checkable
class EmergencyController(Protocol):
    """Turns "away from these agents" into an action of one embodiment."""

    def compute_override(
        self,
        agent_state: AgentSnapshot,
        pairwise_repulsion_vectors: list[FloatArray],
        bounds: Bounds,
    ) -> FloatArray:
        """Return the emergency action.

        Args:
            agent_state: Motion of the agent that acts.
            pairwise_repulsion_vectors: Unit vectors, each (d,), away from a dangerous partner.
            bounds: Envelope the action must stay in.

        Returns:
            Action in the agent's own action space.
        """
        ...


class SafetyMode(Enum):
    """The three answers; fixed when a filter is built.

    Changing it means a new filter and a new `SafetyState`, because the set of pairs differs:
    `cadenza.safety.pairs.make_ego_pair_keys` for the first, `make_pair_keys` for the others.

    Attributes:
        EGO_ONLY: The ego's action alone, against partners of whom only bounds are known. The
            mode for deployment.
        CENTRALIZED: Every agent's action. An oracle to compare with: partners obey it.
        SHARED_CONTROL: Every agent's action, a partner's within a given distance of the proposed
            one. For the laboratory: how much cooperation is worth.
    """

    EGO_ONLY = "ego_only"
    CENTRALIZED = "centralized"
    SHARED_CONTROL = "shared_control"
