"""Last known state of all agents while observations are unusable, and the saved state.

Ego:       moves by the actions it executes, p + v dt + a dt^2 / 2, the model's bias included.
Partners:  keep their last packet, which grows older by dt per step, so the rows widen with it.
Stop:      acceleration -v / `DEFAULT_STOP_TIME_S`, at most the capacity, mapped to an action and
           scaled as a whole into its box, so that its direction stays.
Loading:   every part reads its record into a copy of itself; only when all succeeded do the parts
           take over what was read. ``load_state_dict`` therefore assigns whole attributes.
"""

import copy
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, Final, Protocol, cast

import numpy as np

from cadenza.core.arrays import FloatArray
from cadenza.core.errors import InputError
from cadenza.safety.bounds import Bounds
from cadenza.safety.emergency import DEFAULT_STOP_TIME_S, braking_accel, scale_into_box
from cadenza.safety.filters.arguments import require_action
from cadenza.safety.protocols import AgentControlModel, StateDependentControlModel
from cadenza.safety.runtime.observation import require_array
from cadenza.safety.runtime.predictors import snapshot_from_dict, snapshot_to_dict
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
    """The agents as last seen; a state that is loaded must name exactly ``uids``, if given."""

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
        #: Every agent's estimated state; None before the first sound observation.
        self.agents: dict[str, AgentSnapshot] | None = None

    def forget(self) -> None:
        """Know nothing."""
        self.agents = None

    def see(self, agents: Mapping[str, AgentSnapshot]) -> None:
        """Take over a sound observation."""
        self.agents = dict(agents)

    def carry_on(self, action: FloatArray) -> None:
        """Move on by one control step in which the ego executes ``action``.

        A state that leaves the range of accepted numbers is forgotten.
        """
        if self.agents is None:
            return
        try:
            self.agents = {
                uid: self._moved(uid, agent, action) for uid, agent in self.agents.items()
            }
        except InputError:
            self.agents = None

    def _moved(self, uid: str, agent: AgentSnapshot, action: FloatArray) -> AgentSnapshot:
        dt = self._dt
        if uid != self._ego_uid:
            return replace(agent, age_s=agent.age_s + dt)
        accel = self._model.action_to_cartesian_accel(agent, action) + _bias(self._model, agent)
        position = agent.position + agent.velocity * dt + 0.5 * dt * dt * accel
        return replace(agent, position=position, velocity=agent.velocity + dt * accel)

    def state_dict(self) -> dict[str, Any] | None:
        """Return the agents as JSON-able values."""
        if self.agents is None:
            return None
        return {uid: snapshot_to_dict(agent) for uid, agent in self.agents.items()}

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
        self.agents = agents


#: Version of `SafetyRuntime.state_dict`; a reader refuses any other.
RUNTIME_STATE_VERSION: Final = 2

#: What errors call a part whose name alone would not say it.
_WORDS: Final = {
    "adaptation": "adaptation state",
    "forecaster": "forecasts",
    "ages": "packet ages",
    "last": "last state",
    "previous_action": "previous action",
    "brakes": "braking pairs",
}
#: Parts that older records lack; they start as at the beginning of an episode.
_LATER: Final = frozenset({"motion", "directions"})
#: What reading a malformed record may raise.
_MALFORMED: Final = (
    KeyError,
    IndexError,
    TypeError,
    AttributeError,
    ValueError,
    ArithmeticError,
)


class Stateful(Protocol):
    """A part of the runtime with a memory."""

    def state_dict(self) -> Any:
        """Return the memory as JSON-able values."""
        ...

    def load_state_dict(self, payload: Any) -> None:
        """Take the memory back, by assigning whole attributes."""
        ...


def save(parts: Mapping[str, Stateful]) -> dict[str, Any]:
    """Return the records of all parts, with the version."""
    records: dict[str, Any] = {"version": RUNTIME_STATE_VERSION}
    for name, part in parts.items():
        records[name] = part.state_dict()
    return records


def load(parts: Mapping[str, Stateful], payload: object) -> None:
    """Let all parts take back their records.

    Raises:
        InputError: Unknown version or malformed content; no part has changed then.
    """
    if not isinstance(payload, Mapping):
        raise InputError(f"SafetyRuntime state: expected a mapping, got {type(payload).__name__}.")
    records = cast("Mapping[str, Any]", payload)
    if records.get("version") != RUNTIME_STATE_VERSION:
        raise InputError(
            f"SafetyRuntime state: expected version {RUNTIME_STATE_VERSION}, "
            f"got {records.get('version')!r}."
        )
    missing = sorted(parts.keys() - records.keys() - _LATER)
    if missing:
        raise InputError(f"SafetyRuntime state: expected a complete record, missing {missing}.")
    loaded = {name: copy.copy(part) for name, part in parts.items()}
    for name, part in loaded.items():
        if name not in records:
            cast("Any", part).forget()
            continue
        try:
            part.load_state_dict(records[name])
        except InputError:
            raise
        except _MALFORMED as error:
            words = _WORDS.get(name, name)
            raise InputError(f"{words}: expected a complete record: {error!r}") from error
    for name, part in parts.items():
        vars(part).update(vars(loaded[name]))


class ExecutedAction:
    """The action executed in the last step, from which the rate limit starts."""

    def __init__(self, size: int) -> None:
        self._size = size
        self.value: FloatArray | None = None

    def note(self, action: object) -> None:
        """Take in an action that was executed, shape (size,).

        Raises:
            InputError: Malformed; what was known stays.
        """
        array = require_array(action, "executed action")
        require_action(array, self._size, "executed action")
        self.value = np.array(array, dtype=np.float64)

    def state_dict(self) -> list[float] | None:
        """Return the action's numbers."""
        return None if self.value is None else self.value.tolist()

    def load_state_dict(self, payload: Any) -> None:
        """Continue from `state_dict`.

        Raises:
            InputError: Malformed.
        """
        if payload is None:
            self.value = None
        else:
            self.note(np.array(payload, dtype=np.float64))
