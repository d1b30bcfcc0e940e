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

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cadenza.benchmark.zoo.config import ZooConfig
from cadenza.benchmark.zoo.pairs import PairEnv, PairStep
from cadenza.core.arrays import Float32Array
from cadenza.core.seeding import derive_substream
from cadenza.learn.agents.on_policy_buffer import BufferShape, OnPolicyBuffer, Outcome
from cadenza.learn.agents.ppo import PPOLearner
from cadenza.learn.loaded_state import learner_state
from cadenza.learn.nn.policy_networks import DiagonalGaussianHead, OrthogonalMlp
from cadenza.learn.nn.portable import Output, PortableNetwork, perceptron
from cadenza.learn.nn.running_normalizer import EPSILON, scaled
from cadenza.partners.zoo_member import MemberPolicies

#: Identities of both robots' players, (2, N), for players that have several.
Labels = NDArray[np.int64]


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
        """Return what it plays for ``robot``, as plain data.

        Which robot and identity it is are constant inputs, so they become part of the first bias,
        and the scaling to the robot's bounds becomes part of the last layer.
        """
        env, actor = self._env, cast("OrthogonalMlp", self.learner.network.actor)
        dim, width = env.observation_dims[robot], env.observation_dim
        weights = [p.detach().double() for layer in actor.layers for p in layer.parameters()]
        constant = torch.zeros(2 + self._identities, dtype=torch.float64)
        constant[robot] = 1.0
        if self._identities:
            constant[2 + identity] = 1.0
        known = self.learner.observation_moments
        moments = None if known is None else torch.tensor(np.stack(known))
        if moments is not None:
            constant = scaled(constant, moments[:, width:]).double()
        weights[1] = weights[1] + weights[0][:, width:] @ constant
        weights[0] = weights[0][:, :dim]
        low, high = torch.tensor(env.low[robot]), torch.tensor(env.high[robot])
        if env.choices is None:
            half = (high - low).double() / 2.0
            actions = len(half)
            weights[-2] = weights[-2][:actions] * half[:, None]
            weights[-1] = weights[-1][:actions] * half + (high + low).double() / 2.0
            head = cast("DiagonalGaussianHead", self.learner.network.head)
            log_std = (head.log_std.detach()[:actions].double() + half.log()).float()
            output = Output(kind="mean", low=low.numpy(), high=high.numpy(), log_std=log_std)
        else:
            choices = np.arange(env.choices, dtype=np.float32)[:, None] + env.low[robot]
            output = Output(kind="choice", choices=choices)
        known_scale = None
        if moments is not None:
            known_scale = moments[0, :dim], torch.sqrt(moments[1, :dim] + EPSILON)
        return perceptron(
            [weight.float() for weight in weights],
            self.learner.config.activation,
            output,
            standardised=known_scale,
            contract=env.contracts[robot],
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


class Moment(NamedTuple):
    """One step of a rollout.

    Attributes:
        before: States, (2, N, O).
        decided: Decisions, (2, N, ...): unit actions before clipping, or numbers of choices.
        actions: What was executed, (N, A_i) for each robot.
        step: What came of it.
    """

    before: Float32Array
    decided: NDArray[Any]
    actions: Sequence[Float32Array]
    step: PairStep


#: What both robots learn from in a step, (2, N).
RewardRule = Callable[[Moment], NDArray[Any]]


def shared_reward(moment: Moment) -> NDArray[Any]:
    """Return the task's reward for both robots, (2, N)."""
    return np.stack((moment.step.rewards,) * 2)


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


class Population(ABC):
    """What trains together in one job."""

    players: list[PairPlayer]
    count: int
    iterations: int

    def __init__(self, config: ZooConfig, env: PairEnv, job: str) -> None:
        self.config: ZooConfig = config
        self.env: PairEnv = env
        self.job: str = job

    def seed(self, purpose: str) -> int:
        """Return the seed of one purpose of this job."""
        return derive_substream(
            f"zoo.{self.job}.{purpose}", root_seed=self.config.seed
        ).integer_seed()

    @abstractmethod
    def cast(self, iteration: int) -> Cast:
        """Return who plays a rollout."""

    @abstractmethod
    def rewards(self, cast: Cast) -> RewardRule:
        """Return what they learn from."""

    @abstractmethod
    def member(self, index: int) -> MemberPolicies:
        """Return member ``index`` as it is now."""

    def iterate(self, iteration: int) -> None:
        """Play a rollout and learn from it."""
        cast, length = self.cast(iteration), self.config.ppo.rollout_length
        steps = length * self.env.num_envs
        play_rollout(
            self.env,
            cast,
            self.rewards(cast),
            length=length,
            seed=self.seed(f"rollout.{iteration}"),
        )
        for player in cast.players:
            player.update(iteration * steps, self.iterations * steps)

    def state_dict(self) -> dict[str, Any]:
        """Return everything later iterations depend on."""
        return {"players": [player.state_dict() for player in self.players]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken."""
        for player, saved in zip(self.players, state["players"], strict=True):
            player.load_state_dict(saved)


def member_of(ego: PairPlayer, partner: PairPlayer, identity: int = 0) -> MemberPolicies:
    """Return the policies of two players, or of one that plays both robots."""
    return MemberPolicies(ego.policy(0, identity), partner.policy(1, identity))
