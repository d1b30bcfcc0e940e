"""Collection in the training loop: act, step, remember.

Resume:   put the collector and the memory proxy among the restorees of `Checkpointer` and
          `CheckpointLoader`, and wrap every environment in `ReplayableEnv`: the restored run is
          then the unbroken one, bit for bit. Other environments begin new episodes, and those that
          were running end as interrupted.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import torch

from cadenza.core.checks import checked_integer, checked_optional_integer, whole_number
from cadenza.core.errors import NotReadyError
from cadenza.core.types import AgentId, DictObservation, DictResponse, EpisodeState, MetaData
from cadenza.learn.callback import Callback
from cadenza.learn.callbacks.logging_mixin import LoggingMixin
from cadenza.learn.env.dict_gym_wrapper import DictGymWrapper
from cadenza.learn.loaded_state import require_parts
from cadenza.learn.proxies import ENDINGS, AgentProxy, MemoryProxy

_LOGGER = logging.getLogger(__name__)

_STATE_KEYS: Final = ("environment", "observations", "inf_step", "policy_noise")
#: How torch names what a module keeps besides tensors: here, the state of its noise.
_EXTRA_STATE: Final = "_extra_state"
#: Key of the mean return of the episodes that ended in one step.
EPISODE_REWARD: Final = "episode/reward"


class GymCollector(LoggingMixin, Callback):
    """Lets an agent act in environments and a memory remember; subclasses decide when.

    `begin_training` tries one step, so that wiring errors show up at once, and then collects
    ``warmup_steps`` times. A collector restored from a checkpoint does neither.
    """

    def __init__(
        self,
        env: DictGymWrapper,
        agent: AgentProxy,
        memory: MemoryProxy,
        render: bool = True,
        warmup_steps: int = 0,
        *,
        cycle: int | None = None,
        max_episode_steps: int | None = None,
        name: str | None = None,
    ) -> None:
        """Keep the parts.

        Args:
            env: N environments.
            agent: What acts.
            memory: What remembers.
            render: Draw environment 0 at every call, if the environments were made with a picture.
            warmup_steps: Calls of `collect_data` before training, each of N steps.
            cycle: Steps between `begin_cycle` calls of subclasses.
            max_episode_steps: Cut longer episodes off, for tasks that never end by themselves;
                their last transition bootstraps.
            name: Name in logs and checkpoints; the class's name if None.
        """
        kind = type(self).__name__
        checked_integer(f"{kind}.warmup_steps", warmup_steps, least=0)
        checked_optional_integer(f"{kind}.max_episode_steps", max_episode_steps)
        super().__init__(cycle=cycle)
        self._env = env
        self._agent = agent
        self._policy = agent.policy
        self._memory = memory
        self._render = render
        self._warmup_steps = warmup_steps
        self._max_episode_steps = max_episode_steps
        self._observations: dict[AgentId, DictObservation] = {}
        #: Transitions collected so far, those of the warm-up included.
        self.inf_step: int = 0
        self._is_restored = False
        self.name: str = name or self.name

    def collect_data(self) -> int:
        """Act once in every environment and remember it; return the transitions made.

        That is N, less the environments that only were reset in next-step mode.
        """
        if not self._env.is_reset:
            raise NotReadyError(f"{self.name}.collect_data: expected begin_training() first.")
        responses = self._act(self._observations)
        following, info = self._env.dict_step(responses, max_episode_steps=self._max_episode_steps)
        self._memory.add(self._observations, responses)
        self._observations = following
        self.inf_step += len(responses)
        if "reward" in info:
            self._log_episodes(info["reward"])
        if self._render:
            self._env.render()
        return len(responses)

    def _act(self, observations: dict[AgentId, DictObservation]) -> dict[AgentId, DictResponse]:
        """Return what the agent does; it is not asked when every episode has just ended."""
        if all(observation.episode_state in ENDINGS for observation in observations.values()):
            return {}
        return self._agent(observations)

    def _log_episodes(self, mean_return: float) -> None:
        """Log the mean return of the episodes that ended in one step."""
        self.log_scalar(EPISODE_REWARD, mean_return)

    def collect_multiple(self, count: int) -> int:
        """Call `collect_data` ``count`` >= 0 times and return the transitions made."""
        whole_number(f"{self.name}.collect_multiple: count", count, least=0)
        return sum(self.collect_data() for _ in range(count))

    def begin_training(self) -> dict[str, Any]:
        """Try one step and warm up, or go on where the checkpoint was written."""
        if not self._is_restored:
            self._env.dict_step(self._agent(self._env.dict_reset()))
            self._observations = self._env.dict_reset()
            self.collect_multiple(self._warmup_steps)
        elif not self._env.is_reset:
            self._interrupt_running()
            self._observations = self._env.dict_reset()
        return {"inf_step": self.inf_step}

    def end_training(self) -> None:
        """Forget that the state came from a checkpoint, so that a new training starts anew."""
        self._is_restored = False

    def state_dict(self) -> dict[str, Any]:
        """Return logs, environments, what each agent saw last, counts, and the policy's noise.

        The policy's weights are left to the loss that trains it.
        """
        weights = self._policy.state_dict()
        return super().state_dict() | {
            "environment": self._env.state_dict(),
            "observations": observations_state(self._observations),
            "inf_step": self.inf_step,
            "policy_noise": {k: v for k, v in weights.items() if k.endswith(_EXTRA_STATE)},
        }

    def _load_rest(self, state: Mapping[str, Any]) -> None:
        super()._load_rest(state)
        require_parts(self.name, state, _STATE_KEYS)
        self._env.load_state_dict(state["environment"])
        self._observations = observations_from_state(state["observations"])
        self.inf_step = int(state["inf_step"])
        self._policy.load_state_dict(state["policy_noise"], strict=False)
        self._is_restored = True

    def _interrupt_running(self) -> None:
        """End the episodes that cannot go on, as interrupted by something outside."""
        ended: dict[AgentId, DictObservation] = {}
        running: dict[AgentId, DictObservation] = {}
        for agent, seen in self._observations.items():
            if seen.episode_state is EpisodeState.RUNNING:
                running[agent] = replace(seen, episode_state=EpisodeState.INTERRUPTED)
            elif seen.episode_state in ENDINGS:
                ended[agent] = seen
        told = "%s: the environments cannot be replayed, so %d running episodes end as interrupted "
        told += "and new ones begin; wrap each environment in ReplayableEnv to continue exactly."
        _LOGGER.warning(told, self.name, len(running))
        if running or ended:
            self._memory.add(ended | running, {})


class SimpleGymCollector(GymCollector):
    """Collects in the training loop, in every step that ``bp_steps_per_inf`` divides."""

    def __init__(
        self,
        env: DictGymWrapper,
        agent: AgentProxy,
        memory: MemoryProxy,
        render: bool = True,
        warmup_steps: int = 0,
        bp_steps_per_inf: int = 10,
        *,
        calls_per_inf: int = 1,
        max_episode_steps: int | None = None,
        name: str | None = None,
    ) -> None:
        """Collect ``calls_per_inf`` times every ``bp_steps_per_inf`` steps; see `GymCollector`."""
        super().__init__(
            env, agent, memory, render, warmup_steps, max_episode_steps=max_episode_steps, name=name
        )
        kind = "SimpleGymCollector"
        self._bp_steps_per_inf = checked_integer(f"{kind}.bp_steps_per_inf", bp_steps_per_inf)
        self._calls_per_inf = checked_integer(f"{kind}.calls_per_inf", calls_per_inf)

    def begin_batch(self, bp_step: int) -> dict[str, Any]:
        """Collect if it is time, and count transitions."""
        if bp_step % self._bp_steps_per_inf == 0:
            self.collect_multiple(self._calls_per_inf)
        return {"inf_step": self.inf_step}


def observations_state(observations: Mapping[AgentId, DictObservation]) -> list[dict[str, Any]]:
    """Return observations as tensors, numbers and strings; their order is kept."""
    return [
        {
            "agent": agent,
            "rewards": dict(seen.rewards),
            "episode_state": seen.episode_state.name,
            "array_data": {
                key: torch.as_tensor(np.array(value)) for key, value in seen.array_data.items()
            },
            "metadata": None
            if seen.metadata is None
            else {
                "info": dict(seen.metadata.info),
                "info_lists": {k: list(v) for k, v in seen.metadata.info_lists.items()},
            },
        }
        for agent, seen in observations.items()
    ]


def observations_from_state(state: Sequence[Mapping[str, Any]]) -> dict[AgentId, DictObservation]:
    """Return what `observations_state` was given."""
    return {
        int(entry["agent"]): DictObservation(
            dict(entry["rewards"]),
            EpisodeState[entry["episode_state"]],
            {key: value.numpy().copy() for key, value in entry["array_data"].items()},
            None if entry["metadata"] is None else MetaData(**entry["metadata"]),
        )
        for entry in state
    }
