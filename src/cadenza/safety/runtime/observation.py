"""What the runtime reads from an observation, checked before anything is changed.

Keys:       ``agent_states`` (AgentSnapshot by agent id), ``meta.partner_id`` (text, optional),
            ``comm.aoi`` (age of the visible packet per agent id, in ticks, optional).
Ages:       of the packet's own stamp (``AgentSnapshot.age_s``, > 0), of the communication layer,
            and with ``latency_floor`` the link's mean latency, for packets without a stamp. A
            stamp that agrees with the report within a control step stands.
Conflict:   otherwise the true age A is only known to lie in [lo, hi], the smallest and the largest.
            The partner's centre p + v A lies on a line, so the ball is put at p + v (lo + hi) / 2,
            as of hi, and widened by (|v| + a (hi + dt)) (hi - lo) / 2, a the partner's bound: the
            second term is what the velocity may change until the next packet.
Promise:    the widened ball holds every ball that is possible at the packet's velocity, but the
            safe set is proved for one known age: such a step is never certified.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

import numpy as np

from cadenza.core.arrays import FloatArray
from cadenza.core.checks import real_number
from cadenza.core.errors import InputError
from cadenza.safety.contracts import AgentControlModel, Bounds, canonical_pair_key
from cadenza.safety.errors import InputTypeError
from cadenza.safety.filters.arguments import require_action
from cadenza.safety.runtime.options import SafetyOptions
from cadenza.safety.snapshot import MAX_MAGNITUDE, AgentSnapshot


@dataclass(frozen=True, slots=True, eq=False)
class ObservedScene:
    """What an observation says."""

    agents: Mapping[str, Any]
    partner_id: str | None
    ages_s: Mapping[str, float]


def read_scene(obs: object, *, tick_s: float) -> ObservedScene:
    """Return the parts of ``obs`` that matter.

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


#: Relative excess of a difference of ages over one control step that is rounding.
_ROUNDING: Final = 1e-9


class PacketAges:
    """Watches how old what is known of each partner is."""

    def __init__(
        self,
        *,
        ego_uid: str,
        control_models: Mapping[str, AgentControlModel],
        bounds: Bounds,
        dt: float,
        options: SafetyOptions,
    ) -> None:
        self._ego_uid = ego_uid
        self._accels = {uid: m.max_cartesian_accel(bounds) for uid, m in control_models.items()}
        self._least = bounds.comm_latency_ms * 1e-3 if options.latency_floor else 0.0
        self._dt = dt
        self._jump = options.age_jump_s
        self.forget()

    def forget(self) -> None:
        """Take the next ages as they come."""
        self._reference: dict[str, float] = {}

    def all_current(self) -> bool:
        """Return whether every partner's packet was current when it was last seen."""
        return not any(self._reference.values())

    def applied(
        self, agents: dict[str, AgentSnapshot], ages_s: Mapping[str, float]
    ) -> tuple[dict[str, AgentSnapshot], bool]:
        """Return the agents as all sources of their age allow, and whether any contradicted.

        Raises:
            InputError: An age, or where it puts an agent, is out of range.
        """
        if not ages_s and self._least == 0.0:
            return agents, False
        aged = dict(agents)
        for uid, agent in agents.items():
            if uid != self._ego_uid:
                lowest, highest = self._span(agent.age_s, ages_s.get(uid))
                if lowest < highest:
                    aged[uid] = self._widened(uid, agent, lowest, highest)
        return aged, any(aged[uid] is not agent for uid, agent in agents.items())

    def _span(self, stated: float, reported: float | None) -> tuple[float, float]:
        """Return the smallest and the largest age a packet may have, s."""
        lowest = highest = stated
        if reported is not None and not self._agree(stated, reported):
            lowest, highest = min(stated, reported), max(stated, reported)
        return lowest, max(highest, self._least)

    def _agree(self, stated: float, reported: float) -> bool:
        return stated > 0.0 and abs(stated - reported) <= self._dt * (1.0 + _ROUNDING)

    def _widened(
        self, uid: str, agent: AgentSnapshot, lowest: float, highest: float
    ) -> AgentSnapshot:
        """Return the ball that holds the agent at every age in between, as of the largest."""
        half = 0.5 * (highest - lowest)
        speed = math.hypot(*agent.velocity_numbers)
        drift = self._accels[uid] * (highest + self._dt)
        return AgentSnapshot(
            agent.position - half * agent.velocity,
            agent.velocity,
            agent.radius + half * (speed + drift),
            highest,
        )

    def jumped(self, agents: Mapping[str, AgentSnapshot]) -> bool:
        """Return whether a partner's age rose by more than the limit since it last was lower.

        The age at the time of a jump counts as the new normal.
        """
        jumped = False
        for uid, agent in agents.items():
            age, reference = agent.age_s, self._reference.get(uid)
            if age == reference or uid == self._ego_uid:
                continue
            if reference is not None and age - reference > self._jump:
                jumped = True
            elif reference is not None and age > reference:
                continue
            self._reference[uid] = age
        return jumped

    def state_dict(self) -> dict[str, float]:
        """Return the normal age per partner, s."""
        return dict(self._reference)

    def load_state_dict(self, payload: Mapping[str, Any]) -> None:
        """Continue from `state_dict`.

        Raises:
            InputError: An age is out of range, or of no known agent; nothing is changed then.
        """
        reference = {uid: float(age) for uid, age in payload.items()}
        for uid, age in reference.items():
            if uid not in self._accels or not 0.0 <= age <= MAX_MAGNITUDE:
                raise InputError(f"packet ages: expected an age >= 0 s of a partner, got {age}.")
        self._reference = reference
