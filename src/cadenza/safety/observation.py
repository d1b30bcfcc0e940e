"""What the runtime reads from an observation, checked before anything is changed.

Keys:   ``agent_states`` (AgentSnapshot by agent id), ``meta.partner_id`` (text, optional),
        ``comm.aoi`` (age of the visible packet per agent id, in ticks, optional).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from cadenza.core.errors import InputError
from cadenza.safety.pairs import canonical_pair_key
from cadenza.safety.protocols import AgentControlModel
from cadenza.safety.snapshot import AgentSnapshot


@dataclass(frozen=True, slots=True, eq=False)
class ObservedScene:
    """What an observation says.

    Attributes:
        agents: Snapshots by id, not yet checked.
        partner_id: Identity of the partner; None if unknown.
        ages_s: Age of each agent's packet that the communication layer knows of, s.
    """

    agents: Mapping[str, Any]
    partner_id: str | None
    ages_s: Mapping[str, float]


def read_scene(obs: object, *, tick_s: float) -> ObservedScene:
    """Return the parts of ``obs`` that matter.

    Args:
        obs: Observation; see the module's keys.
        tick_s: Time that one unit of age means, s.

    Raises:
        InputError: A part is missing or malformed.
    """
    entries = _mapping("obs", obs)
    agents = _mapping('obs["agent_states"]', entries.get("agent_states"))
    partner_id = _mapping('obs["meta"]', entries.get("meta", {})).get("partner_id")
    if not (partner_id is None or isinstance(partner_id, str)):
        raise InputError(f'obs["meta"]["partner_id"]: expected text or None, got {partner_id!r}.')
    comm = _mapping('obs["comm"]', entries.get("comm", {}))
    ages: dict[str, float] = {}
    for uid, age in _mapping('obs["comm"]["aoi"]', comm.get("aoi", {})).items():
        ages[uid] = _age(uid, age) * tick_s
    return ObservedScene(agents, partner_id, ages)


def require_agents(
    agents: Mapping[str, Any], models: Mapping[str, AgentControlModel], *, dim: int
) -> dict[str, AgentSnapshot]:
    """Return the snapshots of exactly the agents that have a control model.

    Raises:
        InputError: An agent is missing or unknown, or what stands for it is no snapshot of
            ``dim`` dimensions.
    """
    if agents.keys() != models.keys():
        missing, unknown = sorted(models.keys() - agents.keys()), sorted(agents.keys() - models)
        raise InputError(
            f"safety: expected a snapshot of each of {sorted(models)}, got {missing} missing and "
            f"{unknown} without a control model."
        )
    for uid, agent in agents.items():
        if not isinstance(agent, AgentSnapshot):
            raise InputError(
                f"safety: expected an AgentSnapshot of {uid!r}, got {type(agent).__name__}."
            )
        if len(agent.position_numbers) != dim:
            raise InputError(
                f"safety: expected {dim} dimensions of {uid!r}, got {len(agent.position_numbers)}."
            )
    return cast("dict[str, AgentSnapshot]", dict(agents))


def require_array(action: object) -> None:
    """Raise TypeError unless ``action`` is an array; a policy that returns none is broken."""
    if not isinstance(action, np.ndarray):
        raise TypeError(f"safety: nominal action must be an array, got {type(action).__name__}.")


def require_forces(
    forces: Mapping[tuple[str, str], float] | None, models: Mapping[str, AgentControlModel]
) -> dict[tuple[str, str], float] | None:
    """Return contact forces by canonical pair, N.

    Raises:
        InputError: A force that is negative or not finite, or of an unknown agent.
    """
    if forces is None:
        return None
    checked: dict[tuple[str, str], float] = {}
    for (a, b), force in forces.items():
        key = canonical_pair_key(a, b)
        if not (a in models and b in models):
            raise InputError(f"contact force of {key}: expected agents of {sorted(models)}.")
        if not 0.0 <= force < math.inf:
            raise InputError(f"contact force of {key}: expected a finite force >= 0 N, got {force}")
        checked[key] = float(force)
    return checked


def _mapping(name: str, value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise InputError(f"safety: {name}: expected a mapping, got {type(value).__name__}.")
    return cast("Mapping[str, Any]", value)


def _age(uid: str, value: object) -> float:
    name = f'obs["comm"]["aoi"][{uid!r}]'
    try:
        age = float(cast("float", value))
    except (TypeError, ValueError) as error:
        raise InputError(f"{name}: expected a number, got {value!r}.") from error
    if not 0.0 <= age < math.inf:
        raise InputError(f"{name}: expected a finite age >= 0, got {age}.")
    return age
