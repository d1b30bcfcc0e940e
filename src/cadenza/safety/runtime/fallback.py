"""Last known state of all agents, carried on while observations are unusable.

Ego:       moves by the actions it executes, p + v dt + a dt^2 / 2, the model's bias included.
Partners:  keep their last packet, which grows older by dt per step, so the rows widen with it.
Stop:      acceleration -v / `DEFAULT_STOP_TIME_S`, at most the capacity, mapped to an action and
           scaled as a whole into its box, so that its direction stays.
Units:     m, m/s, m/s^2, s.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from cadenza.core.arrays import FloatArray
from cadenza.core.errors import InputError
from cadenza.safety.bounds import Bounds
from cadenza.safety.emergency import DEFAULT_STOP_TIME_S, braking_accel, scale_into_box
from cadenza.safety.protocols import AgentControlModel, StateDependentControlModel
from cadenza.safety.runtime.forecasting import snapshot_from_dict, snapshot_to_dict
from cadenza.safety.snapshot import AgentSnapshot


def stop_action(model: AgentControlModel, ego: AgentSnapshot, bounds: Bounds) -> FloatArray:
    """Return the action that slows the ego down along its velocity, shape (action_dim,)."""
    accel = braking_accel(ego, bounds.cartesian_accel_capacity, DEFAULT_STOP_TIME_S)
    accel = accel - _bias(model, ego)
    action = np.array(model.cartesian_accel_to_action(ego, accel), dtype=np.float64)
    return scale_into_box(action, bounds.action_linf_component)


def _bias(model: AgentControlModel, ego: AgentSnapshot) -> FloatArray:
    """Return the ego's acceleration under a zero action, shape (d,), m/s^2."""
    if isinstance(model, StateDependentControlModel):
        return model.bias_accel(ego)
    return np.zeros_like(ego.velocity)


class LastKnownState:
    """The agents as last seen.

    Args:
        ego_uid: The guarded agent.
        model: How its action moves it.
        dt: Control step, s.
        uids: All agents; a state that is loaded must name exactly these. None accepts any.
    """

    def __init__(
        self,
        *,
        ego_uid: str,
        model: AgentControlModel,
        dt: float,
        uids: Collection[str] | None = None,
    ) -> None:
        self._ego_uid = ego_uid
        self._uids = None if uids is None else set(uids)
        self._model = model
        self._dt = dt
        self._agents: dict[str, AgentSnapshot] | None = None

    @property
    def agents(self) -> dict[str, AgentSnapshot] | None:
        """Every agent's estimated state; None before the first sound observation."""
        return self._agents

    def forget(self) -> None:
        """Know nothing."""
        self._agents = None

    def see(self, agents: Mapping[str, AgentSnapshot]) -> None:
        """Take over a sound observation."""
        self._agents = dict(agents)

    def carry_on(self, action: FloatArray) -> None:
        """Move on by one control step in which the ego executes ``action``.

        A state that leaves the range of accepted numbers is forgotten.
        """
        if self._agents is None:
            return
        try:
            self._agents = {
                uid: self._moved(uid, agent, action) for uid, agent in self._agents.items()
            }
        except InputError:
            self._agents = None

    def _moved(self, uid: str, agent: AgentSnapshot, action: FloatArray) -> AgentSnapshot:
        dt = self._dt
        if uid != self._ego_uid:
            return replace(agent, age_s=agent.age_s + dt)
        accel = self._model.action_to_cartesian_accel(agent, action) + _bias(self._model, agent)
        position = agent.position + agent.velocity * dt + 0.5 * dt * dt * accel
        return replace(agent, position=position, velocity=agent.velocity + dt * accel)

    def state_dict(self) -> dict[str, Any] | None:
        """Return the agents as JSON-able values."""
        if self._agents is None:
            return None
        return {uid: snapshot_to_dict(agent) for uid, agent in self._agents.items()}

    def load_state_dict(self, payload: Mapping[str, Any] | None) -> None:
        """Continue from `state_dict`.

        Raises:
            InputError: Of other agents or dimensions; nothing is changed then.
        """
        agents = None
        if payload is not None:
            agents = {uid: snapshot_from_dict(fields) for uid, fields in payload.items()}
            if self._uids is not None and agents.keys() != self._uids:
                raise InputError(
                    f"last state: expected {sorted(self._uids)}, got {sorted(agents)}."
                )
            dim = self._model.position_dim
            if any(len(agent.position_numbers) != dim for agent in agents.values()):
                raise InputError(f"last state: expected {dim} dimensions of every agent.")
        self._agents = agents
