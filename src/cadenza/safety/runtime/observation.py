"""What the runtime reads from an observation, checked before anything is changed.

Keys:   ``agent_states`` (AgentSnapshot by agent id), ``meta.partner_id`` (text, optional),
        ``comm.aoi`` (age of the visible packet per agent id, in ticks, optional).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from cadenza.core.arrays import FloatArray
from cadenza.core.checks import real_number
from cadenza.core.errors import InputError
from cadenza.safety.errors import InputTypeError
from cadenza.safety.filters.arguments import require_action
from cadenza.safety.pairs import canonical_pair_key
from cadenza.safety.protocols import AgentControlModel
from cadenza.safety.snapshot import MAX_MAGNITUDE, AgentSnapshot


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
    partner_id = require_partner_id(partner_id, 'obs["meta"]["partner_id"]')
    comm = _mapping('obs["comm"]', entries.get("comm", {}))
    ages: dict[str, float] = {}
    for uid, age in _mapping('obs["comm"]["aoi"]', comm.get("aoi", {})).items():
        ages[uid] = _age(uid, age) * tick_s
    return ObservedScene(agents, partner_id, ages)


def require_agents(
    snapshots: object, models: Mapping[str, AgentControlModel], *, dim: int
) -> dict[str, AgentSnapshot]:
    """Return the snapshots of exactly the agents that have a control model.

    Raises:
        InputError: No mapping, an agent is missing or unknown, or what stands for it is no
            snapshot of ``dim`` dimensions.
    """
    agents = (
        cast("dict[str, Any]", snapshots)
        if type(snapshots) is dict
        else _mapping("snapshots", snapshots)
    )
    if agents.keys() != models.keys():
        missing = sorted(models.keys() - agents.keys())
        unknown = sorted(agents.keys() - models.keys(), key=repr)
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


def require_reach(agents: Mapping[str, AgentSnapshot], look_ahead_s: float) -> None:
    """Raise unless every agent stays in the range of numbers until what is forecast of it.

    Args:
        agents: Every agent.
        look_ahead_s: How far ahead of now forecasts reach, s.

    Raises:
        InputError: One does not.
    """
    for uid, agent in agents.items():
        time_s = agent.age_s + look_ahead_s
        v = agent.velocity_numbers
        for k, p_k in enumerate(agent.position_numbers):
            if abs(p_k) + abs(v[k]) * time_s > MAX_MAGNITUDE:
                raise InputError(
                    f"safety: expected {uid!r} to stay within {MAX_MAGNITUDE:.0e} m for "
                    f"{time_s:.4g} s, got {p_k} m at {v[k]} m/s."
                )


def require_array(action: object, name: str = "nominal action") -> "np.ndarray[Any, Any]":
    """Return ``action`` if it is an array; a policy that returns none is broken.

    Raises:
        InputTypeError: It is not.
    """
    if not isinstance(action, np.ndarray):
        raise InputTypeError(f"safety: {name} must be an array, got {type(action).__name__}.")
    return cast("np.ndarray[Any, Any]", action)


def require_partner_id(partner_id: object, name: str = "partner_id") -> str | None:
    """Return the partner's identity.

    Raises:
        InputError: Neither text nor None.
    """
    if not (partner_id is None or isinstance(partner_id, str)):
        raise InputError(f"{name}: expected text or None, got {partner_id!r}.")
    return partner_id


def comparable(nominal: object, action: FloatArray) -> FloatArray:
    """Return the nominal action to compare ``action`` with: zeros where it is malformed."""
    try:
        return np.array(require_action(require_array(nominal), len(action)), dtype=np.float64)
    except InputError:
        return np.zeros_like(action)


def require_forces(
    contact_forces: object, models: Mapping[str, AgentControlModel]
) -> dict[tuple[str, str], float] | None:
    """Return contact forces by canonical pair, N.

    Raises:
        InputError: No mapping, a key that is no pair of known agents, or a force that is no
            number, negative or not finite.
    """
    if contact_forces is None:
        return None
    checked: dict[tuple[str, str], float] = {}
    for pair, force in _mapping("contact forces", contact_forces).items():
        key = _known_pair(pair, models)
        number = real_number(f"contact force of {key}", force)
        if not 0.0 <= number < math.inf:
            raise InputError(f"contact force of {key}: expected a finite force >= 0 N, got {force}")
        checked[key] = number
    return checked


def _known_pair(pair: object, models: Mapping[str, AgentControlModel]) -> tuple[str, str]:
    ids = cast("tuple[object, ...]", pair) if isinstance(pair, tuple) else ()
    if len(ids) != 2 or not all(isinstance(uid, str) and uid in models for uid in ids):
        raise InputError(
            f"contact force of {pair!r}: expected agents of {sorted(models)}, two of them."
        )
    return canonical_pair_key(*cast("tuple[str, str]", ids))


def _mapping(name: str, value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise InputError(f"safety: {name}: expected a mapping, got {type(value).__name__}.")
    return cast("Mapping[str, Any]", value)


def _age(uid: str, value: object) -> float:
    name = f'obs["comm"]["aoi"][{uid!r}]'
    age = real_number(name, value)
    if not 0.0 <= age < math.inf:
        raise InputError(f"{name}: expected a finite age >= 0, got {age}.")
    return age
