"""Proximal policy optimisation over `gymnasium.vector` environments.

Collects ``rollout_length`` steps of every environment, learns from them in `PPOAgent.update`,
forgets them. Time limits bootstrap with the value of the true last observation, in every autoreset
mode.

Source:      arXiv:1707.06347; generalised advantages arXiv:1506.02438.
Axes:        N = environments, O = flattened observation, A = action components.
Determinism: one seed fixes networks, actions, minibatches and, through the first reset, the
             environments: equal seeds give equal bytes on the CPU.
Resume:      `PPO.state_dict` holds everything, the running rollout included. Environments come back
             to the middle of their episodes if each is a
             `cadenza.learn.env.replayable.ReplayableEnv`; others begin new episodes.
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

import torch
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from cadenza.core.arrays import Float32Array
from cadenza.core.seeding import derive_substream
from cadenza.learn.algorithms.ppo_agent import PPOAgent, PPOFigures
from cadenza.learn.algorithms.vector_learner import UpdateReport, VectorLearner
from cadenza.learn.algorithms.vector_steps import VectorStep
from cadenza.learn.configs import PPOConfig, config_of
from cadenza.learn.nn.encoding import EncoderFactory
from cadenza.learn.running_normalizer import RewardScaler

#: What one update of PPO did.
PPOReport: TypeAlias = UpdateReport[PPOFigures]


class PPO(VectorLearner[PPOAgent, PPOFigures]):
    """PPO with environments of its own.

    Args:
        envs: Vector environment with Box observations and Discrete or Box actions.
        config: Settings; the defaults if None.
        seed: Root of every random stream.
        device: Where the networks live.
        encoder: See `PPOAgent`.

    Attributes:
        updates: Updates so far.

    Raises:
        ConfigurationError: ``envs`` is no vector environment, or a space is of another kind.
        InputError: ``config`` is that of something else.
    """

    STATE_VERSION = 1

    def __init__(
        self,
        envs: VectorEnv[Any, Any, Any],
        config: PPOConfig | None = None,
        *,
        seed: int = 0,
        device: torch.device | str = "cpu",
        encoder: EncoderFactory | None = None,
    ) -> None:
        self.config = config_of("PPO", config, PPOConfig)
        super().__init__(
            envs,
            rollout_length=self.config.rollout_length,
            squash_actions=self.config.squash_actions,
            seed=seed,
        )
        self.agent = PPOAgent(
            self.config,
            observation_dim=self._observation_dim,
            choices=self.actions.choices,
            action_dim=self.actions.components,
            seed=seed,
            device=device,
            encoder=encoder,
        )
        self._scaler = (
            RewardScaler(envs.num_envs, self.config.gamma)
            if self.config.normalize_rewards
            else None
        )
        self.updates = 0

    def _begin_episodes(self) -> Float32Array:
        name = f"learn.ppo.env.{self.steps}" if self.steps else "learn.ppo.env"
        seed = derive_substream(name, root_seed=self._seed).integer_seed()
        return self._seen(self._steps_of.reset(seed), learn=True)

    def _seen(self, observations: NDArray[Any], *, learn: bool) -> Float32Array:
        return self.agent.scale(self._flat(observations), learn=learn)

    def _learned_rewards(self, step: VectorStep) -> NDArray[Any]:
        if self._scaler is None:
            return step.rewards
        return self._scaler.scale(step.rewards, step.boundaries)

    def _after_update(self) -> int:
        self.updates += 1
        return self.updates

    def _own_state(self) -> dict[str, Any]:
        return {
            "scaler": None if self._scaler is None else self._scaler.state_dict(),
            "updates": self.updates,
            "envs": self._steps_of.state_dict(),
        }

    def _load_own_state(self, state: Mapping[str, Any]) -> None:
        if self._scaler is not None:
            self._scaler.load_state_dict(state["scaler"])
        self.updates = int(state["updates"])
