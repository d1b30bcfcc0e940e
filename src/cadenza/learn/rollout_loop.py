"""Collecting and learning in turn, for agents on one seat and for teams."""

from abc import abstractmethod
from collections.abc import Generator, Mapping
from typing import Any, TypeVar

from cadenza.learn.algorithms.on_policy_buffer import OnPolicyBuffer
from cadenza.learn.api import Agent
from cadenza.learn.configs import OnPolicyConfig

RolloutConfig = TypeVar("RolloutConfig", bound=OnPolicyConfig)


class RolloutLoop(Agent[RolloutConfig]):
    """Steps its environments until a rollout is complete, learns from it and forgets it."""

    learner: Any  # with `update`, as `OnPolicyLearner` has
    _buffer: OnPolicyBuffer

    @abstractmethod
    def _step(self) -> None:
        """Take one step in every environment and put it into the buffer."""

    @abstractmethod
    def _forget_episodes(self) -> None:
        """Begin new episodes with the next step, and a new rollout."""

    def _rollout_is_complete(self) -> bool:
        return self._buffer.full

    def _batches(self) -> Generator[dict[str, Any]]:
        while self.steps < self.target_steps:
            while not self._rollout_is_complete():
                try:
                    self._step()
                except BaseException:  # e.g. Ctrl-C: nobody knows where the environments are
                    self._forget_episodes()
                    raise
                self._show()
            size = int(self._buffer.valid[: self._buffer.length].sum())
            yield {"batch_size": size, "inf_step": self.steps}

    def _update(self, batch: Mapping[str, Any]) -> Mapping[str, float]:
        del batch  # the agent holds its rollout
        done = self.steps - self._buffer.length * self.envs.vector.num_envs
        return self.learner.update(self._buffer, done=done, total=self.target_steps)
