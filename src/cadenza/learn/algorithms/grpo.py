"""Group-relative policy optimisation over `gymnasium.vector` environments: PPO without a critic.

Several environments start from the same state, and each return is judged by those of its group at
the same step. Collecting, time limits and the clipped surrogate are PPO's; the group takes the
critic's place.

Source:      arXiv:2402.03300, section 4.1.
Axes:        N = environments, M = members of a group, O = flattened observation, A = action
             components.
Determinism: one seed fixes policy, actions, minibatches and, through the resets, the environments:
             equal seeds give equal bytes on the CPU.
Resume:      `GRPO.state_dict` holds everything, the running rollout included: its actions are done
             again from the seeds of its start, and must lead to the same observations. Without
             ``reset_every_rollout`` environments come back as those of
             `cadenza.learn.algorithms.ppo.PPO` do.
Limits:      without ``tail_value`` a cut-off episode is worth what was collected of it: fair while
             the members of a group are cut at the same step.
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import torch
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from cadenza.core.arrays import Float32Array
from cadenza.core.errors import CheckpointError, ConfigurationError
from cadenza.learn.algorithms.group_reset import group_seeds, reset_groups
from cadenza.learn.algorithms.grpo_agent import GRPOAgent, GRPOFigures, TailValue
from cadenza.learn.algorithms.vector_learner import UpdateReport, VectorLearner
from cadenza.learn.algorithms.vector_steps import require_vector_env
from cadenza.learn.configs import GRPOConfig, config_of
from cadenza.learn.nn.encoding import EncoderFactory

#: What one update of GRPO did.
GRPOReport: TypeAlias = UpdateReport[GRPOFigures]


class GRPO(VectorLearner[GRPOAgent, GRPOFigures]):
    """GRPO with environments of its own.

    Args:
        envs: Vector environment with Box observations and Discrete or Box actions; environments
            g M ... g M + M − 1 form group g and must start alike when seeded alike; a first
            observation that differs raises `GroupResetError`.
        config: Settings; the defaults if None.
        tail_value: See `GRPOAgent`.
        seed: Root of every random stream.
        device: Where the policy lives.
        encoder: See `GRPOAgent`.

    Raises:
        ConfigurationError: ``envs`` is no vector environment, a space is of another kind, or the
            environments are no whole number of groups.
        InputError: ``config`` is that of something else.
    """

    STATE_VERSION = 1

    def __init__(
        self,
        envs: VectorEnv[Any, Any, Any],
        config: GRPOConfig | None = None,
        *,
        tail_value: TailValue | None = None,
        seed: int = 0,
        device: torch.device | str = "cpu",
        encoder: EncoderFactory | None = None,
    ) -> None:
        self.config = config_of("GRPO", config, GRPOConfig)
        require_vector_env("GRPO", envs)
        if envs.num_envs % self.config.group_size:
            raise ConfigurationError(
                "GRPO: expected a number of environments that group_size = "
                f"{self.config.group_size} divides, got {envs.num_envs}; change either."
            )
        super().__init__(
            envs,
            rollout_length=self.config.rollout_length,
            squash_actions=self.config.squash_actions,
            seed=seed,
        )
        self.agent = GRPOAgent(
            self.config,
            observation_dim=self._observation_dim,
            choices=self.actions.choices,
            action_dim=self.actions.components,
            tail_value=tail_value,
            seed=seed,
            device=device,
            encoder=encoder,
        )
        self._ended: NDArray[np.bool_] = np.zeros(envs.num_envs, np.bool_)  # in this rollout

    @property
    def updates(self) -> int:
        """Updates so far."""
        return self.agent.updates

    @property
    def rollout_complete(self) -> bool:
        """Whether there is nothing more to learn from this rollout."""
        return super().rollout_complete or (
            self.config.truncate_at_first_done and bool(self._ended.all())
        )

    def _begin_episodes(self) -> Float32Array:
        """Begin every episode from the seed of its group; return the first observations, (N, O)."""
        seeds = group_seeds(
            f"learn.grpo.env.{self._rollout_start()}",
            environments=self.envs.num_envs,
            group_size=self.config.group_size,
            root_seed=self._seed,
        )
        first = reset_groups(self._steps_of, seeds, self.config.group_size)
        self._returns[:] = 0.0
        return self._seen(first, learn=True)

    def forget_rollout(self) -> None:
        """Give up the running rollout; the next step begins new episodes."""
        super().forget_rollout()
        self._ended[:] = False

    def _note_ends(self, boundaries: NDArray[np.bool_]) -> NDArray[np.bool_]:
        learned_from = boundaries
        if self.config.truncate_at_first_done:
            learned_from = boundaries & ~self._ended
        self._ended |= boundaries
        return learned_from

    def _after_update(self) -> int:
        self._ended[:] = False
        if self.config.reset_every_rollout:
            self._observations = None
        return self.updates

    def _own_state(self) -> dict[str, Any]:
        return {"envs": None if self.config.reset_every_rollout else self._steps_of.state_dict()}

    def _load_own_state(self, state: Mapping[str, Any]) -> None:
        del state  # the buffer tells who has ended
        self._ended = np.logical_or.reduce(self._buffer.boundaries[: self._buffer.length], axis=0)

    def _continue_episodes(self, saved: Float32Array, replays: Mapping[str, Any] | None) -> None:
        if self.config.reset_every_rollout:
            self._repeat_rollout(saved)
        else:
            super()._continue_episodes(saved, replays)

    def _repeat_rollout(self, saved: Float32Array) -> None:
        """Bring the environments to where the running rollout had taken them."""
        returns = self._returns.copy()
        reached = self._begin_episodes()
        for actions in self._buffer.actions[: self._buffer.length]:
            reached = self._seen(
                self._steps_of.step(self.actions.to_env(actions)).observations, learn=True
            )
        if not np.array_equal(reached, saved):
            raise CheckpointError(
                f"GRPO: expected {self._buffer.length} repeated steps to reach the saved "
                "observations, got others; the environments are not deterministic or have other "
                "parameters than when they were saved. Load a state that was taken right after an "
                "update."
            )
        self._returns = returns
        self._observations = saved
