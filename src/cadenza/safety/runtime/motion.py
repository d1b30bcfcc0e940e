"""Does everyone move as declared? What two observations say about the acceleration in between.

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
from typing import Any, Final

import numpy as np

from cadenza.core.arrays import FloatArray, require_shape
from cadenza.core.errors import InputError
from cadenza.safety.authority import measure_authority
from cadenza.safety.contracts import AgentControlModel, Bounds, StateDependentControlModel
from cadenza.safety.control_models import DoubleIntegratorControlModel
from cadenza.safety.runtime.options import SafetyOptions
from cadenza.safety.runtime.predictors import Observation, snapshot_from_dict, snapshot_to_dict
from cadenza.safety.snapshot import AgentSnapshot

_log = logging.getLogger(__name__)

#: Rounding of observed positions and velocities, m and m/s per 1 + their size: some units in
#: float32's last place.
ROUNDING: Final = 1e-6
#: Excess over a declared acceleration that is rounding, relative.
ACCEL_ROUNDING: Final = 1e-6
#: Deviation of the ego that is rounding, relative to its acceleration and to the box: actions are
#: translated and rounded to float32 on their way.
EGO_ROUNDING: Final = 1e-5
#: Two packets measured closer than this are the same one, s.
_SAME_TIME_S: Final = 1e-9

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

    def __init__(
        self,
        *,
        ego_uid: str,
        control_models: Mapping[str, AgentControlModel],
        bounds: Bounds,
        dt: float,
        options: SafetyOptions,
    ) -> None:
        self._ego_uid, self._models = ego_uid, dict(control_models)
        self._bounds, self._dt, self._options = bounds, dt, options
        self._errors = options.position_error, options.velocity_error
        self._is_point = type(self._models[ego_uid]) is DoubleIntegratorControlModel
        self.forget()

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
                if lapse <= _SAME_TIME_S:
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

    def limits(self, uids: Sequence[str]) -> list[tuple[float, float]]:
        """Return `UsualMotion.limits` of the ego and these partners."""
        found = [(ROUNDING**2, ROUNDING**2)]
        for uid in uids:
            change = self._models[uid].max_cartesian_accel(self._bounds) * self._dt
            found.append(((change + ROUNDING) ** 2, (change * self._dt + ROUNDING) ** 2))
        return found

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
