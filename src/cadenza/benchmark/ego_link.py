"""The link over which an ego hears of the other robots during an evaluation.

Every other robot sends its pose and velocity once per control step; what has arrived, with its true
age, is all that the ego's policy and its safety filter know of it. The env moves on with the truth,
partners see the truth, and contacts are judged by it.

Delay:   rounded to whole control steps, half to even: at 20 Hz a mean of 10 ms is none and one of
         30 ms is one step.
Luck:    the traces depend on the episode's seed and the robots' names alone, so conditions that
         differ in their link are paired.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Final, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from cadenza.comm.channels import PerLinkChannel
from cadenza.comm.degradation import Ordering
from cadenza.comm.packets import CommPacket
from cadenza.comm.profiles import URLLC_3GPP_R17, DegradationProfile
from cadenza.core.errors import ConfigurationError, did_you_mean
from cadenza.envs.listening import Listener
from cadenza.safety.runtime.env_hooks import EnvHooks
from cadenza.safety.snapshot import AgentSnapshot

#: Methods an env must have so that packets can describe the others to an ego.
LINK_HOOKS: Final = ("comm_state", "state_given")


class LinkConfig(BaseModel):
    """A preset of `cadenza.comm.URLLC_3GPP_R17`, and what is different.

    Attributes:
        profile: Name of the preset.
        latency_mean_ms: This and what follows up to ``bandwidth_kbps`` replace the preset's
            values, see `cadenza.comm.DegradationProfile`; None keeps them.
        latency_std_ms: Standard deviation of the delay, ms.
        drop_rate: Share of packets lost.
        burst_length: Mean length of a bad spell, packets.
        burst_loss: Probability of a loss within one.
        bandwidth_kbps: What a sender can send, kbit/s.
        ordering: Which arriving packet replaces the one that is known.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False
    )

    profile: str = "ideal"
    latency_mean_ms: float | None = None
    latency_std_ms: float | None = None
    drop_rate: float | None = None
    burst_length: float | None = None
    burst_loss: float | None = None
    bandwidth_kbps: float | None = None
    ordering: Ordering = Field(default="freshest")

    def to_profile(self) -> DegradationProfile:
        """Return what the link does.

        Raises:
            ConfigurationError: There is no such preset.
            InputError: A value is out of range.
        """
        if self.profile not in URLLC_3GPP_R17:
            known = ", ".join(URLLC_3GPP_R17)
            raise ConfigurationError(
                f"link.profile: expected one of {known}, got {self.profile!r}"
                f"{did_you_mean(self.profile, URLLC_3GPP_R17)}."
            )
        changes = self.model_dump(exclude={"profile", "ordering"}, exclude_none=True)
        return replace(URLLC_3GPP_R17[self.profile], **changes)

    @model_validator(mode="after")
    def _is_a_profile(self) -> Self:
        self.to_profile()
        return self


class EgoLink:
    """What the ego hears, one episode at a time.

    Raises:
        ConfigurationError: The env cannot say what packets carry.
    """

    def __init__(self, env: Any, config: LinkConfig) -> None:
        missing = [name for name in LINK_HOOKS if not callable(getattr(env, name, None))]
        if missing:
            raise ConfigurationError(
                f"link: expected an environment with {', '.join(LINK_HOOKS)}, got "
                f"{type(env).__name__} without {missing[0]}; drop the link or choose another task."
            )
        self._env, self._ego = env, env.ego_uid
        robots = getattr(env, "robot_uids", env.agent_uids)
        self._profile = config.to_profile()
        self._channel = PerLinkChannel(
            {uid: self._profile for uid in robots if uid != self._ego},
            receiver=self._ego,
            tick_period_ms=1e3 * env.control_timestep,
            ordering=config.ordering,
        )
        self._listener = Listener(env, self._channel)
        self._age_sum_s = self._age_peak_s = 0.0
        self._observations = 0

    def begin(self, seed: int, obs: Mapping[str, Any]) -> dict[str, Any]:
        """Start an episode; return what the ego sees of its first observation."""
        self._age_sum_s = self._age_peak_s = 0.0
        self._observations = 0
        return self._seen(obs, self._listener.begin(seed))

    def observe(self, obs: Mapping[str, Any]) -> dict[str, Any]:
        """Return ``obs`` with the ego's ``state`` as packets tell it, and the packet as ``comm``.

        Call it once per observation of the env.
        """
        return self._seen(obs, self._listener.listen())

    def _seen(self, obs: Mapping[str, Any], packet: CommPacket) -> dict[str, Any]:
        ages = self._listener.ages_s.values()
        self._age_sum_s += sum(ages) / len(ages)
        self._age_peak_s = max(self._age_peak_s, *ages)
        self._observations += 1
        agent = obs["agent"]
        state = self._env.state_given(self._ego, self._listener.known)
        seen = {**agent, self._ego: {**agent[self._ego], "state": state}}
        return {**obs, "agent": seen, "comm": packet}

    def snapshots(self) -> dict[str, AgentSnapshot]:
        """Return every robot as the ego knows it, with the age of what it knows."""
        return self._listener.snapshots()

    def hooks(self, hooks: EnvHooks) -> EnvHooks:
        """Return a driver's view of the env through the link: its snapshots, its mean delay."""
        bounds = replace(hooks.bounds, comm_latency_ms=self._profile.latency_mean_ms)
        return replace(hooks, snapshots=self.snapshots, bounds=bounds)

    def record(self) -> dict[str, float]:
        """Return ages of what the ego knew (s), and packets lost and delivered, of the episode."""
        stats = [link.stats for link in self._channel.links.values()]
        return {
            "age_mean_s": self._age_sum_s / self._observations,
            "age_peak_s": self._age_peak_s,
            "dropped": sum(entry.dropped for entry in stats),
            "delivered": sum(entry.delivered for entry in stats),
        }
