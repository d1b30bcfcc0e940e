"""HAPPO: a policy of its own for every robot, updated one after the other.

Actors are HARL's; the critic judges the joint state. See `happo_sequence` for the update.

Source:  arXiv:2109.11251; arXiv:2304.09870.
Axes:    T = steps of a rollout, N = environments, n = T N transitions, S = joint state,
         O_i, A_i = state and action of robot i.
Limits:  one shared reward.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cadenza.core.arrays import Float32Array
from cadenza.core.errors import InputError
from cadenza.core.seeding import derive_substream
from cadenza.learn.advantages import normalize_advantages
from cadenza.learn.algorithms.happo import (
    actor_optimizer,
    critic_optimizer,
    gaussian_log_prob,
    minibatch_bounds,
    update_critic,
)
from cadenza.learn.algorithms.happo_sequence import (
    RobotRollout,
    SequenceOptions,
    update_actors_in_sequence,
)
from cadenza.learn.algorithms.on_policy_buffer import BufferShape, Outcome
from cadenza.learn.algorithms.team_learner import OnPolicyTeamLearner
from cadenza.learn.algorithms.team_steps import TeamSteps
from cadenza.learn.algorithms.vector_learner import UpdateReport
from cadenza.learn.configs import HAPPOConfig, config_of
from cadenza.learn.generator_state import generator_state, set_generator_state
from cadenza.learn.nn.gaussian_actor import GaussianActor
from cadenza.learn.nn.value_critic import ValueCritic


@dataclass(frozen=True, slots=True, kw_only=True)
class HAPPOFigures:
    """Means over all minibatches of an update.

    Attributes:
        policy_loss: Clipped surrogate loss, over all robots.
        value_loss: Mean squared error of the critic.
        dist_entropy: Entropy of the robots' policies, nats.
        factor_mean: Mean ratio of the new joint policy to the old one; 1 if nothing moved.
    """

    policy_loss: float
    value_loss: float
    dist_entropy: float
    factor_mean: float

    def as_dict(self) -> dict[str, float]:
        """Return the figures by name."""
        return asdict(self)


#: What one update of HAPPO did.
HAPPOReport: TypeAlias = UpdateReport[HAPPOFigures]


class HAPPO(OnPolicyTeamLearner[HAPPOReport]):
    """Sequentially updated policies for a team.

    Args:
        env: See `TeamSteps`.
        uids: Robots that learn.
        config: Settings; the defaults if None.
        seed: Root of the streams ``learn.happo.torch``, ``learn.happo.order`` and of the episodes.

    Raises:
        InputError: ``config`` is that of something else.
    """

    STATE_VERSION = 1

    def __init__(
        self,
        env: Any,
        uids: Sequence[str],
        config: HAPPOConfig | None = None,
        *,
        seed: int = 0,
    ) -> None:
        config = config_of("HAPPO", config, HAPPOConfig)
        team = TeamSteps(env, uids)
        super().__init__(
            team,
            BufferShape(
                capacity=config.rollout_length,
                rows=team.num_envs,
                observation_dim=team.joint_dim,
                action_dim=sum(team.action_dims),
            ),
            reward_discount=config.gamma if config.normalize_rewards else None,
            stream="learn.happo",
            seed=seed,
        )
        self.config = config
        torch_seed = derive_substream("learn.happo.torch", root_seed=seed).integer_seed()
        self._generator = torch.Generator().manual_seed(torch_seed)
        self._rng = derive_substream("learn.happo.order", root_seed=seed).default_rng()
        self.actors = [
            GaussianActor(
                observations,
                actions,
                hidden_sizes=config.hidden_sizes,
                generator=self._generator,
                max_standard_deviation=self.config.max_action_std,
            )
            for observations, actions in zip(
                self.team.observation_dims, self.team.action_dims, strict=True
            )
        ]
        self.critic = ValueCritic(
            self.team.joint_dim, hidden_sizes=config.hidden_sizes, generator=self._generator
        )
        rate = self.config.learning_rate
        self._optimizers = [actor_optimizer(actor.parameters(), rate) for actor in self.actors]
        self._critic_optimizer = critic_optimizer(self.critic.parameters(), rate)

    @torch.no_grad()
    def policy(self, joint: NDArray[Any]) -> list[NDArray[Any]]:
        """Return every robot's mean action, (N, A_i), for joint states (N, S)."""
        states = self.team.split_state(np.asarray(joint, dtype=np.float32))
        return [
            actor(torch.tensor(state)).numpy()
            for actor, state in zip(self.actors, states, strict=True)
        ]

    def _learned_state(self) -> dict[str, Any]:
        return {
            "actors": [actor.state_dict() for actor in self.actors],
            "actor_optimizers": [optimizer.state_dict() for optimizer in self._optimizers],
            "critic": self.critic.state_dict(),
            "critic_optimizer": self._critic_optimizer.state_dict(),
            "generator": self._generator.get_state(),
            "order_generator": generator_state(self._rng),
        }

    def _load_learned_state(self, state: Mapping[str, Any]) -> None:
        for actor, stored in zip(self.actors, state["actors"], strict=True):
            actor.load_state_dict(stored)
        for optimizer, stored in zip(self._optimizers, state["actor_optimizers"], strict=True):
            optimizer.load_state_dict(stored)
        self.critic.load_state_dict(state["critic"])
        self._critic_optimizer.load_state_dict(state["critic_optimizer"])
        self._generator.set_state(state["generator"])
        set_generator_state(self._rng, state["order_generator"])

    @torch.no_grad()
    def _collect_step(self) -> None:
        joint = self._states()
        drawn: list[NDArray[Any]] = []
        for actor, state in zip(self.actors, self.team.split_state(joint), strict=True):
            mean = actor(torch.tensor(state))
            deviation = actor.standard_deviation().expand_as(mean)
            drawn.append(torch.normal(mean, deviation, generator=self._generator).numpy())
        step = self.team.step(drawn)
        self._buffer.stage(joint, np.concatenate(drawn, axis=-1))
        self._buffer.commit(
            Outcome(self._rewards(step), step.terminated, step.boundaries),
            step.states,
            step.cut,
            step.final_states,
        )
        self._advance(step)

    def _update(self, progress: float) -> HAPPOReport:
        del progress  # the step size stays
        config, length = self.config, self._buffer.length
        estimates = self._buffer.estimate(
            self._values, gamma=config.gamma, gae_lambda=config.gae_lambda
        )
        updates, factor = update_actors_in_sequence(
            self.actors,
            self._optimizers,
            self._robot_rollouts(length),
            torch.tensor(normalize_advantages(estimates.advantages)).reshape(-1, 1),
            SequenceOptions(
                epochs=config.epochs,
                batch_size=config.batch_size,
                clip_epsilon=config.clip_epsilon,
                entropy_coefficient=config.entropy_coefficient,
            ),
            self._rng,
        )
        states = torch.tensor(self._buffer.observations[:length]).flatten(0, 1)
        value_loss = self._update_critic(states, torch.tensor(estimates.returns).reshape(-1, 1))
        self._buffer.clear()
        self.updates += 1
        figures = HAPPOFigures(
            policy_loss=float(torch.stack([u.policy_loss for u in updates]).mean()),
            value_loss=value_loss,
            dist_entropy=float(torch.stack([u.entropy for u in updates]).mean()),
            factor_mean=float(factor.mean()),
        )
        if not np.isfinite(list(figures.as_dict().values())).all():
            raise InputError(
                f"HAPPO: expected a finite update, got {figures} at step {self.steps}; lower "
                "learning_rate or set normalize_rewards."
            )
        return HAPPOReport(
            steps=self.steps,
            updates=self.updates,
            figures=figures,
            episode_returns=self.team.take_finished(),
        )

    @torch.no_grad()
    def _robot_rollouts(self, length: int) -> list[RobotRollout]:
        states = self.team.split_state(self._buffer.observations[:length])
        ends = np.cumsum(self.team.action_dims)[:-1]
        actions = np.split(self._buffer.actions[:length], ends, axis=-1)
        rollouts: list[RobotRollout] = []
        for actor, state, action in zip(self.actors, states, actions, strict=True):
            observations = torch.tensor(state).flatten(0, 1)
            drawn = torch.tensor(action).flatten(0, 1)
            old = gaussian_log_prob(drawn, actor(observations), actor.standard_deviation())
            rollouts.append(
                RobotRollout(observations=observations, actions=drawn, old_log_probs=old)
            )
        return rollouts

    def _update_critic(self, states: Tensor, returns: Tensor) -> float:
        losses: list[Tensor] = []
        for _ in range(self.config.epochs):
            order = torch.as_tensor(self._rng.permutation(len(states)))
            for start, stop in minibatch_bounds(len(states), self.config.batch_size):
                rows = order[start:stop]
                losses.append(
                    update_critic(
                        self.critic,
                        self._critic_optimizer,
                        states.index_select(0, rows),
                        returns.index_select(0, rows),
                        max_gradient_norm=self.config.critic_max_gradient_norm,
                    )
                )
        return float(torch.stack(losses).mean())

    @torch.no_grad()
    def _values(self, rows: Float32Array) -> Float32Array:
        return self.critic(torch.tensor(rows)).squeeze(-1).numpy()
