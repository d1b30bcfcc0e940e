"""What the runtime makes of an observation: read and checked, dated, compared with declarations.

What is read is checked before anything is changed.
Keys:      ``agent_states`` (AgentSnapshot by agent id), ``meta.partner_id`` (text, optional),
           ``comm.aoi`` (age of the visible packet per agent id, in ticks, optional).
Ages:      of the packet's own stamp (``AgentSnapshot.age_s``, > 0), of the communication layer,
           and with ``latency_floor`` the link's mean latency, for packets without a stamp. A
           stamp that agrees with the report within a control step stands.
Conflict:  otherwise the true age A is only known to lie in [lo, hi], the smallest and the largest.
           The partner's centre p + v A lies on a line, so the ball is put at p + v (lo + hi) / 2,
           as of hi, and widened by (|v| + a (hi + dt)) (hi - lo) / 2, a the partner's bound: the
           second term is what the velocity may change until the next packet.
Promise:   the widened ball holds every ball that is possible at the packet's velocity, but the
           safe set is proved for one known age: such a step is never certified.

Does everyone move as declared? What two observations say about the acceleration in between.
Partner:   with |a| <= a_p during the time T between two packets, whose positions and velocities are
           wrong by at most delta and sigma,
               |v_2 - v_1|  <= a_p T + 2 sigma
               |p_2 - p_1|  <= |v_1| T + a_p T (T + dt) / 2 + 2 delta + sigma T,
           where T dt / 2 is what a semi-implicit plant adds. The acceleration that was needed is
           the smallest a_p that fulfils both.
Ego:       the same of what is left once the acceleration of its last action, by its control model,
           is taken off. A model that depends on the state is asked at both ends of the step: their
           mean is expected, and their difference allowed.
After:     a declaration that was disproved is not believed again before the episode ends or another
           partner comes. Every step until then is uncertified, and built on the largest
           acceleration seen; what the ego misses, at most all it has, counts as a push of every
           partner.
Limits:    packets of doubtful age and steps without a sound observation are not looked at.
"""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import hypot
from typing import Any, Final, cast

import numpy as np

from cadenza.core.arrays import FloatArray, require_shape
from cadenza.core.checks import real_number
from cadenza.core.errors import InputError
from cadenza.safety.authority import measure_authority
from cadenza.safety.contracts import (
    AgentControlModel,
    StateDependentControlModel,
    canonical_pair_key,
)
from cadenza.safety.control_models import DoubleIntegratorControlModel
from cadenza.safety.errors import InputTypeError
from cadenza.safety.filters.arguments import require_action
from cadenza.safety.filters.ego_rows import AGE_ROUNDING
from cadenza.safety.runtime.options import RuntimeSetup
from cadenza.safety.runtime.predictors import (
    SAME_TIME_S,
    Observation,
    snapshot_from_dict,
    snapshot_to_dict,
)
from cadenza.safety.snapshot import MAX_MAGNITUDE, AgentSnapshot


def read_scene(
    obs: object, *, tick_s: float
) -> tuple[Mapping[str, Any], str | None, Mapping[str, float]]:
    """Return the agents, the partner's id and the packets' ages, s, that ``obs`` tells.

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
    return agents, partner_id, ages


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


class PacketAges:
    """Watches how old what is known of each partner is."""

    def __init__(self, setup: RuntimeSetup) -> None:
        bounds, options = setup.bounds, setup.options
        self._ego_uid, self._dt = setup.ego_uid, setup.dt
        self._accels = {uid: m.max_cartesian_accel(bounds) for uid, m in setup.models.items()}
        self._least = bounds.comm_latency_ms * 1e-3 if options.latency_floor else 0.0
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
        return stated > 0.0 and abs(stated - reported) <= self._dt * (1.0 + AGE_ROUNDING)

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


_log = logging.getLogger(__name__)

#: Rounding of observed positions and velocities, m and m/s per 1 + their size: some units in
#: float32's last place.
ROUNDING: Final = 1e-6
#: Excess over a declared acceleration that is rounding, relative.
ACCEL_ROUNDING: Final = 1e-6
#: Deviation of the ego that is rounding, relative to its acceleration and to the box: actions are
#: translated and rounded to float32 on their way.
EGO_ROUNDING: Final = 1e-5

#: What was seen of an agent and what was declared, m/s^2; of the ego: how far off its model.
Breach = tuple[float, float]


def needed_accel(
    missed: tuple[Any, Any],
    lapse: float,
    dt: float,
    errors: tuple[float, float],
    size: tuple[Any, Any],
) -> tuple[Any, Any]:
    """Return the accelerations that velocities and positions ask for, m/s^2; below 0 for none.

    Args:
        missed: |v_2 - v_1|, m/s, and |p_2 - p_1| - |v_1| T, m; numbers or arrays.
        lapse: T, s.
        dt: Control step, s.
        errors: delta, m, and sigma, m/s.
        size: Largest components of the velocities and positions, of which rounding is a share.
    """
    (changed, moved), (delta, sigma), (speed, place) = missed, errors, size
    moved = moved - 2.0 * delta - sigma * lapse - ROUNDING * (1.0 + place)
    changed = changed - 2.0 * sigma - ROUNDING * (1.0 + speed)
    return changed / lapse, 2.0 * moved / (lapse * (lapse + dt))


@dataclass(slots=True)
class UsualMotion:
    """What `ordinary_agents` compares with."""

    uids: Sequence[str]  # The ego, then its partners
    before: Sequence[AgentSnapshot]  # Their current packets one control step ago
    limits: Sequence[tuple[float, float]]  # Squares of what may change, m^2/s^2, and stray, m^2
    near: float  # Largest coordinate, m
    slow: float  # Largest component of a velocity, m/s
    dt: float  # Control step, s


def ordinary_agents(
    snapshots: Mapping[str, AgentSnapshot], usual: UsualMotion, action: Sequence[float]
) -> list[AgentSnapshot] | None:
    """Return everyone in the plane, who moved as declared while the ego accelerated by ``action``.

    Flat, because every step passes here. None where something is doubtful, which is then for
    `MotionWatch.look`; that allows a little more.
    """
    near, slow, dt = usual.near, usual.slow, usual.dt
    w_x, w_y = action[0] * dt, action[1] * dt  # what the action adds to the velocity
    found: list[AgentSnapshot] = []
    for uid, last, (change, detour) in zip(usual.uids, usual.before, usual.limits, strict=True):
        agent = snapshots.get(uid)
        if type(agent) is not AgentSnapshot or len(agent.position_numbers) != 2:
            return None
        (p_x, p_y), (v_x, v_y) = agent.position_numbers, agent.velocity_numbers
        if not (-near <= p_x <= near and -near <= p_y <= near):
            return None
        if not (-slow <= v_x <= slow and -slow <= v_y <= slow):
            return None
        (q_x, q_y), (u_x, u_y) = last.position_numbers, last.velocity_numbers
        x, y = v_x - u_x - w_x, v_y - u_y - w_y
        if x * x + y * y > change:
            return None
        x, y = p_x - q_x - (u_x + 0.5 * w_x) * dt, p_y - q_y - (u_y + 0.5 * w_y) * dt
        if x * x + y * y > detour:
            room = (hypot(u_x, u_y) + hypot(w_x, w_y)) * dt + detour**0.5
            if hypot(p_x - q_x, p_y - q_y) > room:
                return None
        w_x = w_y = 0.0
        found.append(agent)
    return found


def broken_words(broken: Mapping[str, Breach], ego_uid: str) -> str:
    """Return which declarations were disproved, and by what; empty if none was."""
    return "; ".join(
        f"the ego {uid!r} moved {seen:.3g} m/s^2 off its control model"
        if uid == ego_uid
        else f"{uid!r} accelerated at {seen:.3g} m/s^2, declared {bound:.3g}"
        for uid, (seen, bound) in sorted(broken.items())
    )


def tell(broken: Mapping[str, Breach], ego_uid: str, told: set[str]) -> None:
    """Log what was disproved of agents of whom nothing was ``told`` yet."""
    new = {uid: breach for uid, breach in broken.items() if uid not in told}
    if new:
        told.update(new)
        _log.warning(
            "safety: %s. The steps of such an episode are uncertified and use the observed motion; "
            "declare what agents can really do.",
            broken_words(new, ego_uid),
        )


def _size(numbers: Sequence[float]) -> float:
    return max(map(abs, numbers))


def needed_accels(
    now: tuple[FloatArray, FloatArray],
    before: tuple[FloatArray, FloatArray],
    known: FloatArray,
    dt: float,
    errors: tuple[float, float],
) -> FloatArray:
    """Return what `MotionWatch` finds of many agents in one control step, shape (...), m/s^2.

    ``now`` and ``before`` are positions and velocities, ``known`` what is known of the
    accelerations, shape (..., d).
    """
    (p, v), (q, u) = now, before
    changed, moved, speed, size = (
        np.sqrt((x * x).sum(-1)) for x in (v - u - known * dt, p - q, u, known)
    )
    by_velocity, by_position = needed_accel(
        (changed, moved - speed * dt), dt, dt, errors, (np.abs(v).max(-1), np.abs(p).max(-1))
    )
    return np.maximum(by_velocity, by_position - size)


class MotionWatch:
    """Compares what agents of one episode do with what was declared of them."""

    def __init__(self, setup: RuntimeSetup) -> None:
        self._ego_uid, self._models, options = setup.ego_uid, setup.models, setup.options
        self._bounds, self._dt, self._options = setup.bounds, setup.dt, options
        self._errors = options.position_error, options.velocity_error
        self._is_point = type(setup.ego) is DoubleIntegratorControlModel
        self._usual: UsualMotion | None = None
        self.forget()

    @property
    def reason(self) -> str:
        """Which declarations were disproved, and by what; empty while none was."""
        return broken_words(self.broken, self._ego_uid) if self.broken else ""

    def forget(self) -> None:
        """Believe everyone again."""
        #: Disproved declarations by agent.
        self.broken: dict[str, Breach] = {}
        #: The ego one step ago, its action since then, and the acceleration of that there; None if
        #: it is not known.
        self.own: tuple[AgentSnapshot, FloatArray, list[float]] | None = None
        self._doubtful: set[str] = set()

    def look(
        self,
        agents: Mapping[str, AgentSnapshot],
        now_s: float,
        last_of: Callable[[str], Observation | None],
        *,
        doubtful: bool,
    ) -> dict[str, Breach]:
        """Return who disproved a declaration since its last packet.

        ``doubtful`` says that the partners' ages are, so that nothing follows from their packets.
        """
        found: dict[str, Breach] = {}
        for uid, agent in agents.items():
            if uid == self._ego_uid:
                breach = self._of_ego(agent)
            elif doubtful:
                self._doubtful.add(uid)
                continue
            else:
                last = last_of(uid)
                if last is None or uid in self._doubtful:
                    self._doubtful.discard(uid)
                    continue
                lapse = now_s - agent.age_s - last.time_s
                if lapse <= SAME_TIME_S:
                    continue
                breach = self._of_partner(uid, last.snapshot, agent, lapse)
            if breach is not None:
                found[uid] = breach
                if breach[0] > self.broken.get(uid, breach)[0] or uid not in self.broken:
                    self.broken[uid] = breach
        return found

    def note(self, ego: AgentSnapshot, action: FloatArray) -> None:
        """Take in what the ego executes next."""
        self.own = None if ego.age_s > 0.0 else (ego, action, self._accel(ego, action))

    def usual(self, partners: Sequence[str], look_ahead_s: float) -> UsualMotion:
        """Return what `ordinary_agents` compares with; the last answer is kept."""
        usual = self._usual
        if usual is None or usual.uids[1:] != partners:
            limits = [(ROUNDING**2, ROUNDING**2)]
            for uid in partners:
                change = self._models[uid].max_cartesian_accel(self._bounds) * self._dt
                limits.append(((change + ROUNDING) ** 2, (change * self._dt + ROUNDING) ** 2))
            uids, near = [self._ego_uid, *partners], 0.25 * MAX_MAGNITUDE
            slow = near / max(1.0, look_ahead_s)
            usual = self._usual = UsualMotion(uids, (), limits, near, slow, self._dt)
        return usual

    def expected(self) -> dict[str, float]:
        """Return what to expect of partners, m/s^2; nothing while all declarations hold."""
        capacity = self._models[self._ego_uid].max_cartesian_accel(self._bounds)
        missing = min(capacity, self.broken.get(self._ego_uid, (0.0, 0.0))[0])
        partners = [uid for uid in self._models if self.broken and uid != self._ego_uid]
        return {
            uid: missing
            + max(
                self.broken.get(uid, (0.0, 0.0))[0],
                self._models[uid].max_cartesian_accel(self._bounds),
            )
            for uid in partners
        }

    def _of_partner(
        self, uid: str, before: AgentSnapshot, now: AgentSnapshot, lapse: float
    ) -> Breach | None:
        """Return the acceleration a partner needed, and its bound, m/s^2; None within that."""
        model = self._models[uid]
        bound = model.max_cartesian_accel(self._bounds)
        if self._options.budget_split is not None:  # it may use its whole box
            bound = measure_authority(model, now, self._bounds).reach
        changed = math.dist(now.velocity_numbers, before.velocity_numbers)
        moved = math.dist(now.position_numbers, before.position_numbers)
        moved -= hypot(*before.velocity_numbers) * lapse
        if changed <= bound * lapse and moved <= 0.5 * bound * lapse * lapse:
            return None
        size = _size(now.velocity_numbers), _size(now.position_numbers)
        seen = max(needed_accel((changed, moved), lapse, self._dt, self._errors, size))
        return (seen, bound) if seen > bound * (1.0 + ACCEL_ROUNDING) else None

    def _of_ego(self, now: AgentSnapshot) -> Breach | None:
        """Return how far the ego was off its model, and the allowed, m/s^2; None within that."""
        if self.own is None or now.age_s > 0.0:
            return None
        (before, action, mean), dt, spread = self.own, self._dt, 0.0
        if not self._is_point:
            ended = self._accel(now, action)
            spread = math.dist(mean, ended)
            mean = [0.5 * (a + b) for a, b in zip(mean, ended, strict=True)]
        u, size = before.velocity_numbers, hypot(*mean)
        planned = [u_k + mean[k] * dt for k, u_k in enumerate(u)]
        changed = math.dist(now.velocity_numbers, planned)
        moved = math.dist(now.position_numbers, before.position_numbers)
        moved -= (hypot(*u) + size * dt) * dt
        if changed <= ROUNDING and moved <= 0.0:
            return None
        scale = _size(now.velocity_numbers), _size(now.position_numbers)
        seen = max(needed_accel((changed, moved), dt, dt, self._errors, scale))
        allowed = spread + EGO_ROUNDING * (size + self._bounds.action_linf_component)
        return (seen, allowed) if seen > allowed else None

    def _accel(self, ego: AgentSnapshot, action: FloatArray) -> list[float]:
        """Return the ego's acceleration under an action by its control model, m/s^2."""
        model = self._models[self._ego_uid]
        if self._is_point:
            return action.tolist()
        accel = model.action_to_cartesian_accel(ego, action)
        if isinstance(model, StateDependentControlModel):
            accel = accel + model.bias_accel(ego)
        return accel.tolist()

    def state_dict(self) -> dict[str, Any]:
        """Return everything as JSON-able values; floats survive exactly."""
        own = self.own
        return {
            "broken": {uid: list(breach) for uid, breach in self.broken.items()},
            "doubtful": sorted(self._doubtful),
            "own": None if own is None else [snapshot_to_dict(own[0]), own[1].tolist(), own[2]],
        }

    def load_state_dict(self, payload: Mapping[str, Any]) -> None:
        """Continue from `state_dict`.

        Raises:
            InputError: Of unknown agents, or not finite; nothing is changed then.
        """
        broken = {uid: (float(a), float(b)) for uid, (a, b) in payload["broken"].items()}
        own, doubtful = payload["own"], set(payload["doubtful"])
        numbers = [x for breach in broken.values() for x in breach]
        if own is not None:
            action, accel = (np.array(entries, dtype=np.float64) for entries in own[1:])
            model, ego = self._models[self._ego_uid], snapshot_from_dict(own[0])
            require_shape("motion: action", action, (model.action_dim,))
            for vector in (accel, ego.position):
                require_shape("motion: ego", vector, (model.position_dim,))
            own = ego, action, accel.tolist()
            numbers += [*action.tolist(), *own[2]]
        if not {*broken, *doubtful} <= self._models.keys() or not all(map(math.isfinite, numbers)):
            raise InputError("motion: expected finite numbers of known agents, got others.")
        self.broken, self.own, self._doubtful = broken, own, doubtful
