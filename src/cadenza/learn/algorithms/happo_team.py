"""HAPPO: a policy of its own for every robot, updated one after the other.

Actors are HARL's; the critic judges the joint state. See `happo_sequence` for the update.

Source:  arXiv:2109.11251; arXiv:2304.09870.
Axes:    T = steps of a rollout, N = environments, n = T N transitions, S = joint state,
         O_i, A_i = state and action of robot i.
Limits:  one shared reward.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cadenza.core.arrays import Float32Array
from cadenza.core.errors import InputError
from cadenza.core.seeding import derive_substream
from cadenza.learn.advantages import normalize_advantages
from cadenza.learn.algorithms.happo import (
    ENTROPY_COEFFICIENT,
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
from cadenza.learn.algorithms.setting_checks import (
    require_counts,
    require_fractions,
    require_not_negative,
    require_positive,
    require_positive_or_none,
    settings_of,
)
from cadenza.learn.algorithms.team_learner import OnPolicyTeamLearner
from cadenza.learn.algorithms.team_steps import TeamSteps
from cadenza.learn.generator_state import generator_state, set_generator_state
from cadenza.learn.nn.gaussian_actor import MAX_STANDARD_DEVIATION, GaussianActor
from cadenza.learn.nn.value_critic import ValueCritic


@dataclass(frozen=True, slots=True, kw_only=True)
class HAPPOSettings:
    """Numbers of HAPPO.

    Attributes:
        rollout_length: Steps per environment between updates, >= 1.
        batch_size: Smallest minibatch, >= 1.
        epochs: Passes of every actor and of the critic over a rollout, >= 1.
        learning_rate: Adam's step size, > 0.
        gamma: Discount per step, in [0, 1].
        gae_lambda: Weight of longer advantage estimates, in [0, 1].
        clip_epsilon: Half-width of the trusted ratio interval, > 0.
        entropy_coefficient: Weight of the entropy bonus, >= 0.
        critic_max_gradient_norm: Global norm for the critic's gradient, > 0; None leaves it.
        max_action_std: Bound of the actions' standard deviation, in units of the action, > 0.
        hidden_dim: Width of the two hidden layers of every network, >= 1.
        normalize_rewards: Divide rewards by the running spread of the discounted return.
    """

    rollout_length: int = 200
    batch_size: int = 256
    epochs: int = 5
    learning_rate: float = 5e-4
    gamma: float = 0.99
    gae_lambda: float = 0.95
    clip_epsilon: float = 0.2
    entropy_coefficient: float = ENTROPY_COEFFICIENT
    critic_max_gradient_norm: float | None = 10.0
    max_action_std: float = MAX_STANDARD_DEVIATION
    hidden_dim: int = 64
    normalize_rewards: bool = False

    def __post_init__(self) -> None:
        """Check every number; NaN fails too."""
        require_counts(self, "rollout_length", "batch_size", "epochs", "hidden_dim")
        require_positive(self, "learning_rate", "clip_epsilon", "max_action_std")
        require_positive_or_none(self, "critic_max_gradient_norm")
        require_not_negative(self, "entropy_coefficient")
        require_fractions(self, "gamma", "gae_lambda")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HAPPOReport:
    """What one update did.

    Attributes:
        steps: Environment steps so far.
        updates: Updates so far.
        policy_loss: Mean over all robots and minibatches.
        value_loss: Mean squared error of the critic.
        dist_entropy: Mean entropy of the robots' policies, nats.
        factor_mean: Mean ratio of the new joint policy to the old one; 1 if nothing moved.
        episode_returns: Returns of the episodes that ended in this rollout.
    """

    steps: int
    updates: int
    policy_loss: float
    value_loss: float
    dist_entropy: float
    factor_mean: float
    episode_returns: list[float]


class HAPPO(OnPolicyTeamLearner[HAPPOReport]):
    """Sequentially updated policies for a team.

    Args:
        env: See `TeamSteps`.
        uids: Robots that learn.
        settings: Numbers of HAPPO; the defaults if None.
        seed: Root of the streams ``learn.happo.torch``, ``learn.happo.order`` and of the episodes.

    Raises:
        InputError: ``settings`` are those of something else.
    """

    STATE_VERSION = 1

    def __init__(
        self,
        env: Any,
        uids: Sequence[str],
        settings: HAPPOSettings | None = None,
        *,
        seed: int = 0,
    ) -> None:
        settings = settings_of("HAPPO", settings, HAPPOSettings)
        team = TeamSteps(env, uids)
        super().__init__(
            team,
            BufferShape(
                capacity=settings.rollout_length,
                rows=team.num_envs,
                observation_dim=team.joint_dim,
                action_dim=sum(team.action_dims),
            ),
            reward_discount=settings.gamma if settings.normalize_rewards else None,
            stream="learn.happo",
            seed=seed,
        )
        self.settings = settings
        width = self.settings.hidden_dim
        torch_seed = derive_substream("learn.happo.torch", root_seed=seed).integer_seed()
        self._generator = torch.Generator().manual_seed(torch_seed)
        self._rng = derive_substream("learn.happo.order", root_seed=seed).default_rng()
        self.actors = [
            GaussianActor(
                observations,
                actions,
                hidden_sizes=(width, width),
                generator=self._generator,
                max_standard_deviation=self.settings.max_action_std,
            )
            for observations, actions in zip(
                self.team.observation_dims, self.team.action_dims, strict=True
            )
        ]
        self.critic = ValueCritic(self.team.joint_dim, hidden_dim=width, generator=self._generator)
        rate = self.settings.learning_rate
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
        settings, length = self.settings, self._buffer.length
        estimates = self._buffer.estimate(
            self._values, gamma=settings.gamma, gae_lambda=settings.gae_lambda
        )
        updates, factor = update_actors_in_sequence(
            self.actors,
            self._optimizers,
            self._robot_rollouts(length),
            torch.tensor(normalize_advantages(estimates.advantages)).reshape(-1, 1),
            SequenceOptions(
                epochs=settings.epochs,
                batch_size=settings.batch_size,
                clip_epsilon=settings.clip_epsilon,
                entropy_coefficient=settings.entropy_coefficient,
            ),
            self._rng,
        )
        states = torch.tensor(self._buffer.observations[:length]).flatten(0, 1)
        value_loss = self._update_critic(states, torch.tensor(estimates.returns).reshape(-1, 1))
        self._buffer.clear()
        self.updates += 1
        report = HAPPOReport(
            steps=self.steps,
            updates=self.updates,
            policy_loss=float(torch.stack([u.policy_loss for u in updates]).mean()),
            value_loss=value_loss,
            dist_entropy=float(torch.stack([u.entropy for u in updates]).mean()),
            factor_mean=float(factor.mean()),
            episode_returns=self.team.take_finished(),
        )
        figures = (report.policy_loss, report.value_loss, report.factor_mean)
        if not np.isfinite(figures).all():
            raise InputError(
                f"HAPPO: expected a finite update, got policy loss, value loss and factor "
                f"{figures} at step {self.steps}; lower learning_rate or set normalize_rewards."
            )
        return report

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
        for _ in range(self.settings.epochs):
            order = torch.as_tensor(self._rng.permutation(len(states)))
            for start, stop in minibatch_bounds(len(states), self.settings.batch_size):
                rows = order[start:stop]
                losses.append(
                    update_critic(
                        self.critic,
                        self._critic_optimizer,
                        states.index_select(0, rows),
                        returns.index_select(0, rows),
                        max_gradient_norm=self.settings.critic_max_gradient_norm,
                    )
                )
        return float(torch.stack(losses).mean())

    @torch.no_grad()
    def _values(self, rows: Float32Array) -> Float32Array:
        return self.critic(torch.tensor(rows)).squeeze(-1).numpy()
