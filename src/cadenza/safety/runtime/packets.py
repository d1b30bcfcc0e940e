"""Ages of the partners' packets: what is known of them, and whether one rose suddenly.

Sources:    the packet's own stamp (``AgentSnapshot.age_s``, > 0), the age the communication layer
            reports, and with ``latency_floor`` the link's mean latency, for packets without a
            stamp. A stamp that agrees with the report within a control step stands.
Conflict:   otherwise the true age A is only known to lie in [lo, hi], the smallest and the largest.
            What the partner did since grows with hi. Its centre p + v A lies on a line, so the ball
            is put at p + v (lo + hi) / 2 and widened by
                (|v| + a (hi + dt)) (hi - lo) / 2,
            a the partner's bound: the second term is what the velocity may change until the next
            packet, which may have any age in [lo, hi] again.
Promise:    the widened ball holds every ball that is possible at the packet's velocity, but the
            safe set is proved for one known age: such a step is never certified.
"""

import math
from collections.abc import Mapping
from typing import Any, Final

from cadenza.core.errors import InputError
from cadenza.safety.bounds import Bounds
from cadenza.safety.protocols import AgentControlModel
from cadenza.safety.runtime.options import SafetyOptions
from cadenza.safety.snapshot import MAX_MAGNITUDE, AgentSnapshot

#: Relative excess of a difference of ages over one control step that is rounding.
_ROUNDING: Final = 1e-9


class PacketAges:
    """Watches how old what is known of each partner is.

    Args:
        ego_uid: The guarded agent, whose own state is current.
        control_models: Model of every agent; says how fast a partner's velocity changes.
        bounds: Its ``comm_latency_ms`` is the floor if ``options.latency_floor`` is set.
        dt: Control step, s.
        options: Configuration.
    """

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

    def applied(
        self, agents: dict[str, AgentSnapshot], ages_s: Mapping[str, float]
    ) -> tuple[dict[str, AgentSnapshot], bool]:
        """Return the agents as all sources of their age allow, and whether any contradicted.

        Args:
            agents: Every agent, with the age its packet states.
            ages_s: Ages the communication layer reports, by agent, s.

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
