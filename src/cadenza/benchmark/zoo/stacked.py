"""How a population trains: stacked PPO policies, rollouts of pairs, members as plain policies.

A method is a `Population`: it says which policies there are, who plays a rollout and what rewards
they learn from. `PairPlayers` are policies of equal sizes that play and learn as one, perhaps each
beside a partner that does not learn (`SeatedPartners`).

Rows:        a policy's row is a robot's state, which robot it is (one-hot) and, where a policy has
             several identities, which one (one-hot). Its critic sees both robots' states, which of
             them the row is of, and both identities.
Randomness:  a rollout begins with new episodes, whose seeds the method draws; policies keep their
             own generators in their state.
Bytes:       those of a policy do not depend on the others that it is stacked with, see
             `cadenza.learn.stacked`: its environments play the episodes of a batch of their own.
Resuming:    a state between two rollouts holds everything that later ones depend on.
Axes:        2 = ego and partner, G = blocks of environments, N = environments of a block, E = G N,
             K = policies, P = robots that each plays, R = robots that learn, T = steps, O = state,
             I = identities.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray

from cadenza.benchmark.zoo.config import ZooConfig
from cadenza.benchmark.zoo.pairs import PairEnv, PairStep
from cadenza.core.arrays import Float32Array, FloatArray
from cadenza.core.seeding import derive_substream
from cadenza.learn.nn.policy_networks import DiagonalGaussianHead, OrthogonalMlp, Policy
from cadenza.learn.nn.portable import Output, PortableNetwork, perceptron
from cadenza.learn.nn.running_normalizer import EPSILON, scaled
from cadenza.learn.stacked.ppo import StackedPPO
from cadenza.learn.stacked.rollout import Cut
from cadenza.partners.interface import FrozenPartner
from cadenza.partners.pool import PartnerPool
from cadenza.partners.zoo_member import MemberPolicies

#: Identities of both robots' players, (2, E), for policies that have several.
Labels = NDArray[np.int64]


class Moment(NamedTuple):
    """One step of a rollout.

    Attributes:
        before: States, (2, E, O).
        decided: Decisions, (R, E, ...): unit actions before clipping, or numbers of choices.
        actions: What was executed, (E, A_i) for each robot.
        step: What came of it.
    """

    before: Float32Array
    decided: NDArray[Any]
    actions: Sequence[Float32Array]
    step: PairStep


#: What both robots learn from in a step, (2, E).
RewardRule = Callable[[Moment], NDArray[Any]]


def shared_reward(moment: Moment) -> NDArray[Any]:
    """Return the task's rewards, which both robots share, (2, E)."""
    return np.stack((moment.step.rewards, moment.step.rewards))


class SeatedPartners:
    """Partners in the second robot's seat, each in as many environments of its own.

    The draws of one depend on its own rows alone.
    """

    def __init__(self, env: PairEnv, partners: Sequence[FrozenPartner], each: int) -> None:
        self._env, self._each, self._count = env, each, len(partners)
        self._pool = PartnerPool(partners, rows=self._count * each)

    def begin(self, seeds: Sequence[int]) -> None:
        """Begin episodes in all environments, with a seed for each partner."""
        streams = [derive_substream("zoo.response.partner", root_seed=seed) for seed in seeds]
        self._rngs = [stream.default_rng() for stream in streams]
        self._pool.reset(seed=seeds[0])
        self.begin_rows(np.arange(self._count * self._each, dtype=np.int64))

    def begin_rows(self, rows: NDArray[np.int64]) -> None:
        """Begin episodes in some, in ascending order."""
        members = rows // self._each
        own: list[int] = np.bincount(members, minlength=self._count).tolist()
        pairs = zip(self._rngs, own, strict=True)
        seeds = [int(rng.integers(2**31 - 1)) for rng, n in pairs for _ in range(n)]
        self._pool.begin(rows.tolist(), members.tolist(), seeds)

    def act(self, states: Float32Array) -> Float32Array:
        """Return their actions, (E, A), for both robots' states, (2, E, O)."""
        return self._pool.act(self._env.observation(states))


class PairPlayers:
    """K policies that play as one, each both robots of its block, or two of them one robot each.

    Beside ``partners`` each plays the first robot of its block.

    Args:
        config: The zoo's.
        env: G blocks of N copies; ``config.num_envs`` is N.
        seeds: One per policy: G of them if each plays both robots, else 2 G, those of a block's ego
            and partner one after the other.
        names: Policies in messages.
        identities: I; 1 for policies without.
        partners: Who plays the second robot of each block and does not learn.

    Attributes:
        learner: All K.
        rows: What their actors saw in this rollout before scaling, (K, T, P N, O + 2 + I).
    """

    def __init__(
        self,
        config: ZooConfig,
        env: PairEnv,
        *,
        seeds: Sequence[int],
        names: Sequence[str],
        identities: int = 1,
        partners: SeatedPartners | None = None,
    ) -> None:
        self._config, self._env, self._partners = config, env, partners
        self._identities = identities if identities > 1 else 0
        self._blocks = env.num_envs // config.num_envs
        self._learning = 2 if partners is None else 1  # robots
        self._is_one = len(seeds) < self._learning * self._blocks  # policy for both robots
        dim, length = env.observation_dim, config.ppo.rollout_length
        self.learner: StackedPPO = StackedPPO(
            config.ppo,
            observation_dim=dim + 2 + self._identities,
            critic_dim=2 * dim + 2 + 2 * self._identities,
            choices=env.choices,
            action_dim=env.action_dim,
            seeds=seeds,
            names=names,
        )
        robots = 2 if self._is_one else 1
        self.rollout = self.learner.new_rollout(steps=length, rows=robots * config.num_envs)
        self.rows: Float32Array = self.rollout.observations
        if config.ppo.normalize_observations:
            self.rows = np.zeros_like(self.rows)
        self._states = np.zeros((length + 1, 2, env.num_envs, dim), np.float32)
        for robot in range(self._learning):  # which one a row is of
            self._by_block(self.rows)[:, robot, ..., dim + robot] = 1.0

    def play(self, seeds: Sequence[int], rule: RewardRule, labels: Labels | None = None) -> None:
        """Begin new episodes, one of each seed, (E,), and play a rollout."""
        env, rollout = self._env, self.rollout
        if labels is not None:
            self._identify(labels)
        rows = self._by_block(self.rows)
        results = [self._by_block(each) for each in (rollout.rewards, rollout.boundaries)]
        states = env.reset(seeds)
        if self._partners is not None:
            self._partners.begin(seeds[:: self._config.num_envs])
        for t in range(self._config.ppo.rollout_length):
            self._states[t] = states
            rows[:, :, t, :, : env.observation_dim] = self._block(states)
            if self.rows is not rollout.observations:
                rollout.observations[:, t] = self.learner.scale(self.rows[:, t], learn=True)
            acted = self.learner.act(rollout.observations[:, t])
            rollout.decisions[:, t] = acted
            decided = self._robots(acted)
            actions = [env.scaled(robot, each) for robot, each in enumerate(decided)]
            if self._partners is not None:
                actions.append(self._partners.act(states))
            step = env.step(actions)
            rewards = rule(Moment(states, decided, actions, step))
            both = (self._block(each) for each in (rewards, step.boundaries))
            for result, values in zip(results, both, strict=True):
                result[:, :, t] = values
            self._cut(t, step, labels)
            if self._partners is not None:
                self._partners.begin_rows(np.flatnonzero(step.boundaries))
            states = step.states
        self._states[-1] = states
        self._judge()

    def update(self, done: int, total: int) -> list[dict[str, float]]:
        """Learn from the rollout, after ``done`` steps of ``total`` of each; return figures."""
        return self.learner.update(self.rollout, done=done, total=total)

    def policy(self, member: int, robot: int, identity: int = 0) -> PortableNetwork:
        """Return what a policy plays for ``robot``, as plain data."""
        told = np.zeros(2 + self._identities)
        told[robot] = 1.0
        if self._identities:
            told[2 + identity] = 1.0
        moments = self.learner.observation_moments(member)
        return plain_policy(
            self.learner.policy(member),
            self._env,
            robot,
            told,
            activation=self._config.ppo.activation,
            moments=None if moments is None else np.stack(moments),
        )

    def _by_block(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return an array of the rollout, (K, T, P N, ...), as a view (G, R, T, N, ...)."""
        blocks, count, steps = self._blocks, self._config.num_envs, values.shape[1]
        if self._is_one:
            parted = values.reshape(blocks, steps, 2, count, *values.shape[3:])
            return parted.swapaxes(1, 2)
        return values.reshape(blocks, self._learning, steps, count, *values.shape[3:])

    def _block(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return what both robots have, (2, E, ...), or share, (E,), as (G, R or 1, N, ...)."""
        blocks, count = self._blocks, self._config.num_envs
        if values.ndim == 1:
            return values.reshape(blocks, 1, count)
        both = values.reshape(2, blocks, count, *values.shape[2:]).swapaxes(0, 1)
        return both[:, : self._learning]

    def _robots(self, decisions: NDArray[Any]) -> NDArray[Any]:
        """Return decisions, (K, P N, ...), as (R, E, ...)."""
        shape, robots = decisions.shape[2:], self._learning
        parted = decisions.reshape(self._blocks, robots, self._config.num_envs, *shape)
        return parted.swapaxes(0, 1).reshape(robots, self._env.num_envs, *shape)

    def _identify(self, labels: Labels) -> None:
        """Write who everybody is into the rows of this rollout."""
        dim, count = self._env.observation_dim, self._identities
        told = self._block(np.eye(count, dtype=np.float32)[labels])  # (G, 2, N, I)
        self._by_block(self.rows)[..., dim + 2 :] = told[:, :, None]
        judged = self._by_block(self.rollout.critic_observations)
        for robot in range(2):
            first = 2 * dim + 2 + robot * count
            judged[..., first : first + count] = told[:, None, None, robot]

    def _judge(self) -> None:
        """Write what the critics are to see: both robots' states, and after the last step, too."""
        dim, steps = self._env.observation_dim, len(self._states)
        judged = self._by_block(self.rollout.critic_observations)
        for robot in range(2):
            own = self._states[:, robot].reshape(steps, self._blocks, -1, dim).swapaxes(0, 1)
            judged[..., robot * dim : (robot + 1) * dim] = own[:, None]
        judged[..., 2 * dim : 2 * dim + 2] = np.eye(2)[: self._learning, None, None]

    def _cut(self, t: int, step: PairStep, labels: Labels | None) -> None:
        """Note what critics would have seen where a time limit ended an episode."""
        if not len(step.cut):
            return
        count = self._config.num_envs
        for block in np.unique(step.cut // count):
            envs = step.cut[step.cut // count == block]
            marks = np.repeat(np.eye(2, dtype=np.float32)[:, None], len(envs), axis=1)
            columns = [*np.repeat(step.following[:, None, envs], 2, axis=1), marks]
            if labels is not None:
                known = np.eye(self._identities, dtype=np.float32)[labels[:, envs]]
                columns += [np.repeat(own[None], 2, axis=0) for own in known]
            seen = np.concatenate(columns, axis=-1)  # (2, C, S)
            rows = envs - block * count
            if self._is_one:
                both = np.concatenate((rows, rows + count))
                self.rollout.cuts.append(Cut(int(block), t, both, seen.reshape(len(both), -1)))
            else:
                for robot in range(self._learning):
                    policy = self._learning * int(block) + robot
                    self.rollout.cuts.append(Cut(policy, t, rows, seen[robot]))


def plain_policy(
    policy: Policy,
    env: PairEnv,
    robot: int,
    told: FloatArray,
    *,
    activation: str,
    moments: FloatArray | None = None,
) -> PortableNetwork:
    """Return what ``policy`` plays for ``robot``, as plain data.

    What it is ``told`` after the state, (2 + I,), is constant, so it becomes part of the first
    bias, and the scaling to the robot's bounds becomes part of the last layer. ``moments`` of its
    rows are mean and variance, (2, O + 2 + I).
    """
    actor = cast("OrthogonalMlp", policy.actor)
    dim, width = env.observation_dims[robot], env.observation_dim
    weights = [p.detach().double() for layer in actor.layers for p in layer.parameters()]
    constant = torch.tensor(told)
    known = None if moments is None else torch.tensor(moments)
    if known is not None:
        constant = scaled(constant, known[:, width:]).double()
    weights[1] = weights[1] + weights[0][:, width:] @ constant
    weights[0] = weights[0][:, :dim]
    low, high = torch.tensor(env.low[robot]), torch.tensor(env.high[robot])
    if env.choices is None:
        half = (high - low).double() / 2.0
        actions = len(half)
        weights[-2] = weights[-2][:actions] * half[:, None]
        weights[-1] = weights[-1][:actions] * half + (high + low).double() / 2.0
        head = cast("DiagonalGaussianHead", policy.head)
        log_std = (head.log_std.detach()[:actions].double() + half.log()).float()
        output = Output(kind="mean", low=low.numpy(), high=high.numpy(), log_std=log_std)
    else:
        choices = np.arange(env.choices, dtype=np.float32)[:, None] + env.low[robot]
        output = Output(kind="choice", choices=choices)
    standardised = None
    if known is not None:
        standardised = known[0, :dim], torch.sqrt(known[1, :dim] + EPSILON)
    return perceptron(
        [weight.float() for weight in weights],
        activation,
        output,
        standardised=standardised,
        contract=env.contracts[robot],
    )


class Population(ABC):
    """What trains together: the members of one job or of several, ``count`` of each.

    Members stand job by job: member m belongs to ``keys[m // count]``.
    """

    count: int
    iterations: int

    def __init__(self, config: ZooConfig, env: PairEnv, keys: Sequence[str]) -> None:
        self.config: ZooConfig = config
        self.env: PairEnv = env
        self.keys: tuple[str, ...] = tuple(keys)

    def seed(self, key: str, purpose: str) -> int:
        """Return the seed of one purpose of a job."""
        return derive_substream(f"zoo.{key}.{purpose}", root_seed=self.config.seed).integer_seed()

    @abstractmethod
    def iterate(self, iteration: int) -> None:
        """Play a rollout and learn from it."""

    @abstractmethod
    def member(self, index: int) -> MemberPolicies:
        """Return member ``index`` as it is now."""

    def report(self) -> dict[str, Any]:
        """Return what a finished job tells of its training besides its members, as JSON values."""
        return {}

    @abstractmethod
    def state_dict(self, place: int) -> dict[str, Any]:
        """Return everything later iterations of ``keys[place]`` depend on."""

    @abstractmethod
    def load_state_dict(self, place: int, state: Mapping[str, Any]) -> None:
        """Let ``keys[place]`` continue where `state_dict` was taken."""


def member_of(players: PairPlayers, ego: int, partner: int, identity: int = 0) -> MemberPolicies:
    """Return the policies of two players, or of one that plays both robots."""
    return MemberPolicies(players.policy(ego, 0, identity), players.policy(partner, 1, identity))
