"""Ages of the partners' packets: the largest of what is known, and whether one rose suddenly."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from cadenza.core.errors import InputError
from cadenza.safety.bounds import Bounds
from cadenza.safety.options import SafetyOptions
from cadenza.safety.snapshot import AgentSnapshot


class PacketAges:
    """Watches how old what is known of each partner is.

    Args:
        ego_uid: The guarded agent, whose own state is current.
        bounds: Its ``comm_latency_ms`` is the least age if ``options.latency_floor`` is set.
        options: Configuration.
    """

    def __init__(self, ego_uid: str, bounds: Bounds, options: SafetyOptions) -> None:
        self._ego_uid = ego_uid
        self._least = bounds.comm_latency_ms * 1e-3 if options.latency_floor else 0.0
        self._jump = options.age_jump_s
        self.forget()

    def forget(self) -> None:
        """Take the next ages as they come."""
        self._reference: dict[str, float] = {}

    def applied(
        self, agents: dict[str, AgentSnapshot], ages_s: Mapping[str, float]
    ) -> dict[str, AgentSnapshot]:
        """Return the agents with each partner's age raised to all that is known of it, s."""
        if not ages_s and self._least == 0.0:
            return agents
        aged = agents
        for uid, agent in agents.items():
            age = max(agent.age_s, self._least, ages_s.get(uid, 0.0))
            if uid != self._ego_uid and age > agent.age_s:
                if aged is agents:
                    aged = dict(agents)
                aged[uid] = replace(agent, age_s=age)
        return aged

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
            InputError: Malformed; nothing is changed then.
        """
        try:
            reference = {str(uid): float(age) for uid, age in cast("Any", payload).items()}
        except (TypeError, ValueError, AttributeError) as error:
            raise InputError(f"packet ages: expected a complete record: {error!r}") from error
        self._reference = reference
