"""How a population trains: players with one PPO policy each, rollouts of pairs, snapshots.

A method is a `Population`: it says which players there are, who plays a rollout and what rewards
they learn from. Everything else is here.

Rows:        a player's row is a robot's state, which robot it is (one-hot) and, where a player has
             several identities, which one (one-hot). Its critic sees both robots' states, which of
             them the row is of, and both identities.
Randomness:  rollout t of a job begins with new episodes, from the stream ``zoo.<job>.rollout.<t>``
             of the root seed; learners keep their own generators in their state.
Resuming:    a state between two rollouts holds everything that later ones depend on.
Axes:        2 = ego and partner, N = environments, O = state, K = identities, R = rows.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cadenza.benchmark.zoo.config import ZooConfig
from cadenza.benchmark.zoo.pairs import PairEnv, PairStep
from cadenza.benchmark.zoo.stacked import (
    Labels,
    Moment,
    Population,
    RewardRule,
    plain_policy,
)
from cadenza.core.arrays import Float32Array
from cadenza.learn.agents.on_policy_buffer import BufferShape, OnPolicyBuffer, Outcome
from cadenza.learn.agents.ppo import PPOLearner
from cadenza.learn.loaded_state import learner_state
from cadenza.learn.nn.portable import PortableNetwork
from cadenza.partners.zoo_member import MemberPolicies


class PairPlayer:
    """One PPO policy that plays one robot or both, and learns from what it played."""

    def __init__(
        self,
        config: ZooConfig,
        env: PairEnv,
        *,
        robots: tuple[int, ...] = (0, 1),
        identities: int = 1,
        seed: int,
    ) -> None:
        self.robots: tuple[int, ...] = robots
        self._env = env
        self._identities = identities if identities > 1 else 0
        rows = len(robots) * env.num_envs
        width = env.observation_dim + 2 + self._identities
        critic_dim = 2 * env.observation_dim + 2 + 2 * self._identities
        self.learner: PPOLearner = PPOLearner(
            config.ppo,
            observation_dim=width,
            choices=env.choices,
            action_dim=env.action_dim,
            critic_dim=critic_dim,
            seed=seed,
        )
        self._buffer = OnPolicyBuffer(
            BufferShape(
                capacity=config.ppo.rollout_length,
                rows=rows,
                observation_dim=width,
                critic_dim=critic_dim,
                action_dim=env.action_dim,
            )
        )

    def rows(self, states: Float32Array, labels: Labels | None = None) -> Float32Array:
        """Return one row per own robot and environment, robot by robot, (R, O + 2 + K)."""
        return np.concatenate(
            [self._robot_rows(states, robot, labels) for robot in self.robots], dtype=np.float32
        )

    def decide(self, states: Float32Array, labels: Labels | None) -> NDArray[Any]:
        """Return drawn decisions, (robots, N, ...), and remember them for `learn_from`."""
        seen = self.learner.scale(self.rows(states, labels), learn=True)
        judged = self.learner.scale_critic(self._critic_rows(states, labels), learn=True)
        decided = self.learner.act(seen)
        self._buffer.stage(seen, decided, judged)
        return decided.reshape(len(self.robots), self._env.num_envs, *decided.shape[1:])

    def learn_from(self, rewards: NDArray[Any], step: PairStep, labels: Labels | None) -> None:
        """Complete the step that `decide` began; ``rewards`` are the own robots', (robots, N)."""
        count, envs = len(self.robots), self._env.num_envs
        ends = np.tile(step.boundaries, count)
        # Running returns begin anew with every rollout, as its episodes do.
        last = self._buffer.length + 1 == self._buffer.shape.capacity
        learned = self.learner.normal.rewards.scale(rewards.reshape(-1), ends | last)
        cut = (np.arange(count)[:, None] * envs + step.cut).reshape(-1)
        final = self._critic_rows(step.following, labels)[cut]
        self._buffer.commit(
            Outcome(learned, np.tile(step.terminated, count), ends),
            self.learner.scale_critic(self._critic_rows(step.states, labels), learn=False),
            cut,
            self.learner.scale_critic(final, learn=False),
        )

    def update(self, done: int, total: int) -> None:
        """Learn from the rollout, after ``done`` environment steps of ``total``."""
        self.learner.update(self._buffer, done=done, total=total)

    @torch.no_grad()
    def log_density(self, rows: Float32Array, decided: NDArray[Any]) -> Tensor:
        """Return log π(a|s), (R,), of decisions (R, ...) for rows, (R, O + 2 + K)."""
        seen = torch.tensor(self.learner.scale(rows, learn=False))
        return self.learner.network.log_prob(seen, torch.tensor(decided))

    def policy(self, robot: int, identity: int = 0) -> PortableNetwork:
        """Return what it plays for ``robot``, as plain data."""
        told = np.zeros(2 + self._identities)
        told[robot] = 1.0
        if self._identities:
            told[2 + identity] = 1.0
        known = self.learner.observation_moments
        return plain_policy(
            self.learner.network,
            self._env,
            robot,
            told,
            activation=self.learner.config.activation,
            moments=None if known is None else np.stack(known),
        )

    def state_dict(self) -> dict[str, Any]:
        """Return everything the future depends on, between two rollouts."""
        return {"learner": self.learner.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken."""
        self.learner.load_state_dict(learner_state(state))

    def _robot_rows(
        self, states: Float32Array, robot: int, labels: Labels | None
    ) -> NDArray[np.float32]:
        columns = [states[robot], _marks(robot, states.shape[1])]
        if labels is not None:
            columns.append(_one_hot(labels[robot], self._identities))
        return np.concatenate(columns, axis=1, dtype=np.float32)

    def _critic_rows(self, states: Float32Array, labels: Labels | None) -> NDArray[np.float32]:
        """Return both robots' states, whose row it is and both identities, (R, S)."""
        both: list[Float32Array] = []
        if labels is not None:
            both = [_one_hot(labels[robot], self._identities) for robot in range(2)]
        envs = states.shape[1]
        parts = [
            np.concatenate((*states, _marks(robot, envs), *both), axis=1) for robot in self.robots
        ]
        return np.concatenate(parts, dtype=np.float32)


def _marks(robot: int, envs: int) -> NDArray[np.float32]:
    """Return which robot the rows of one are of, (N, 2)."""
    return np.tile(np.eye(2, dtype=np.float32)[robot], (envs, 1))


def _one_hot(labels: Labels, count: int) -> NDArray[np.float32]:
    return np.eye(count, dtype=np.float32)[labels]


class Cast(NamedTuple):
    """Who plays a rollout: one player for both robots, or the ego's and the partner's.

    Attributes:
        players: In the order of their robots.
        labels: Identities, (2, N); None for players without.
    """

    players: Sequence[PairPlayer]
    labels: Labels | None = None


def play_rollout(env: PairEnv, cast: Cast, rule: RewardRule, *, length: int, seed: int) -> None:
    """Begin new episodes and play ``length`` steps; the players keep them for their update."""
    states = env.reset(seed)
    for _ in range(length):
        decided = np.concatenate([player.decide(states, cast.labels) for player in cast.players])
        actions = [env.scaled(robot, rows) for robot, rows in enumerate(decided)]
        step = env.step(actions)
        rewards = rule(Moment(states, decided, actions, step))
        for player in cast.players:
            player.learn_from(rewards[list(player.robots)], step, cast.labels)
        states = step.states


class CastPopulation(Population):
    """One job whose players take turns."""

    players: list[PairPlayer]

    def own_seed(self, purpose: str) -> int:
        """Return the seed of one purpose of the job."""
        return self.seed(self.keys[0], purpose)

    @abstractmethod
    def cast(self, iteration: int) -> Cast:
        """Return who plays a rollout."""

    @abstractmethod
    def rewards(self, cast: Cast) -> RewardRule:
        """Return what they learn from."""

    def iterate(self, iteration: int) -> None:
        """Play a rollout and learn from it."""
        cast, length = self.cast(iteration), self.config.ppo.rollout_length
        steps = length * self.env.num_envs
        play_rollout(
            self.env,
            cast,
            self.rewards(cast),
            length=length,
            seed=self.own_seed(f"rollout.{iteration}"),
        )
        for player in cast.players:
            player.update(iteration * steps, self.iterations * steps)

    def state_dict(self, place: int) -> dict[str, Any]:
        """Return everything later iterations depend on."""
        del place
        return {"players": [player.state_dict() for player in self.players]}

    def load_state_dict(self, place: int, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken."""
        del place
        for player, saved in zip(self.players, state["players"], strict=True):
            player.load_state_dict(saved)


def member_of(ego: PairPlayer, partner: PairPlayer, identity: int = 0) -> MemberPolicies:
    """Return the policies of two players, or of one that plays both robots."""
    return MemberPolicies(ego.policy(0, identity), partner.policy(1, identity))
