"""Where the batches of agents come from, those of teams too: a replay memory, or a rollout."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, TypeVar

from torch import Tensor

from cadenza.learn.agents.agent import Agent
from cadenza.learn.agents.on_policy_buffer import OnPolicyBuffer
from cadenza.learn.memory.builder import TransitionMemory
from cadenza.learn.settings import OffPolicyConfig, OnPolicyConfig

ReplayConfig = TypeVar("ReplayConfig", bound=OffPolicyConfig)
RolloutConfig = TypeVar("RolloutConfig", bound=OnPolicyConfig)


class ReplayLoop(Agent[ReplayConfig]):
    """Learns from batches of its memory, as often as each step calls for."""

    learner: Any  # with a state
    memory: TransitionMemory
    _due: int = 0  # updates that the steps so far call for

    @property
    def due(self) -> int:
        """Updates that are called for; none before an episode is in the memory."""
        return self._due if self._due and self.memory.size() > 0 else 0

    def _update(self, batch: Any) -> Mapping[str, Any]:
        annealed = self.learner.anneal(self.steps)
        return {**self._learn_from(batch), **annealed}

    @abstractmethod
    def _learn_from(self, batch: Any) -> Mapping[str, Any]:
        """Learn from a batch with the learning rate of now; return figures by name."""

    def batch(self) -> dict[str, Tensor]:
        """Return the columns of a batch for the update that is due next."""
        self._due -= 1
        return self.memory.sample(self.config.batch_size)

    @property
    def batch_rows(self) -> int:
        """Rows of a batch."""
        return self.config.batch_size

    def _call_for_updates(self, before: int) -> None:
        """Note how many updates the steps since ``before`` call for."""
        config = self.config
        if self.steps > config.warmup_steps:
            due = self.steps // config.train_every - before // config.train_every
            self._due += due * config.updates

    def forget(self) -> None:
        """Begin new episodes with the next step; the memory forgets those that have not ended."""
        super().forget()
        self.memory.drop_open_episodes()
        self.learner.normal.rewards.forget()

    def _learned_state(self) -> dict[str, Any]:
        return {
            "learner": self.learner.state_dict(),
            "memory": self.memory.state_dict(),
            "due": self._due,
        }

    def _without_memory(self, learned: dict[str, Any]) -> dict[str, Any]:
        return learned | {"memory": None, "due": 0}

    def _load_learned_state(self, state: Mapping[str, Any]) -> None:
        self.learner.load_state_dict(state["learner"])
        memory = state["memory"]
        if memory is not None and len(memory["open"]) == self.envs.num_envs:
            self.memory.load_state_dict(memory)
        elif memory is not None:  # their episodes do not go on here
            self.memory.load_state_dict({**memory, "open": self.memory.state_dict()["open"]})
        self._due = int(state["due"])


class RolloutLoop(Agent[RolloutConfig]):
    """Steps its environments until a rollout is complete, learns from it and forgets it."""

    learner: Any  # with `update`, as `OnPolicyLearner` has
    _buffer: OnPolicyBuffer

    @property
    def due(self) -> int:
        """One update when the rollout is complete."""
        return int(self._buffer.full)

    def is_halfway(self) -> bool:
        """Return whether a rollout has begun."""
        return self._buffer.length > 0

    def batch(self) -> OnPolicyBuffer:
        """Return the rollout, which the update will clear."""
        return self._buffer

    @property
    def batch_rows(self) -> int:
        """Decided steps of the rollout."""
        return int(self._buffer.valid[: self._buffer.length].sum())

    def forget(self) -> None:
        """Begin new episodes and a new rollout with the next step."""
        super().forget()
        self._buffer.clear()
        self.learner.normal.rewards.forget()

    def _update(self, batch: OnPolicyBuffer) -> Mapping[str, float]:
        done = self.steps - batch.length * self.envs.num_envs
        return self.learner.update(batch, done=done, total=self.target_steps)
