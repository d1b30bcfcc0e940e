"""How a population trains: stacked PPO policies, rollouts of pairs, members as plain policies.

A method is a `Population`: it says which policies there are, who plays a rollout and what rewards
they learn from. `play` steps the environments; robots are driven by `Driver`s: `LearningPlayers`
are policies of a stack that learn from what they do, `FrozenPlayers` those that do not, and
`SeatedPartners` are no policies of a stack. `PairPlayers` is who learns in most methods.

Rows:        row r of policy k drives one robot of one environment, its place. An actor sees that
             robot's state and what it is told: as a rule which robot it is (one-hot) and, where a
             policy has several identities, which one (one-hot). Its critic sees both robots'
             states, which of them the row is of, and both identities.
Randomness:  a rollout begins with new episodes, whose seeds the method draws; policies keep their
             own generators in their state.
Bytes:       those of a policy do not depend on the others that it is stacked with, see
             `cadenza.learn.stacked`: its environments play the episodes of a batch of their own.
Resuming:    a state between two rollouts holds everything that later ones depend on.
Axes:        2 = ego and partner, G = blocks of environments, N = environments of a block, E = G N,
             K = policies, R = rows of each, T = steps, O = state, X = what actors are told, I =
             identities.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from cadenza.benchmark.zoo.config import ZooConfig
from cadenza.benchmark.zoo.pairs import PairEnv, PairStep
from cadenza.core.arrays import Float32Array, FloatArray
from cadenza.core.seeding import derive_substream
from cadenza.envs.vector_base import Snapshot
from cadenza.learn.agents.ppo import ADVANTAGE_EPSILON, MAPPOConfig
from cadenza.learn.nn.policy_networks import DiagonalGaussianHead, OrthogonalMlp
from cadenza.learn.nn.portable import Output, PortableNetwork, perceptron
from cadenza.learn.nn.running_normalizer import EPSILON, scaled
from cadenza.learn.stacked.ppo import StackedPPO
from cadenza.learn.stacked.rollout import Cut
from cadenza.partners.interface import FrozenPartner
from cadenza.partners.pool import PartnerPool
from cadenza.partners.zoo_member import MemberPolicies

#: Identities of both robots' players, (2, E), for policies that have several.
Labels = NDArray[np.int64]
#: Puts some environments at states of its own; returns the states of all, (2, E, O).
Restart = Callable[[NDArray[np.int64]], Float32Array]


@dataclass(slots=True, eq=False)
class Moment:
    """One step of a rollout.

    Attributes:
        t: Which.
        before: States, (2, E, O).
        actions: What is executed, (E, A_i) for each robot; drivers write it.
        step: What came of it; drivers do not know it yet when they act.
    """

    t: int
    before: Float32Array
    actions: Sequence[Float32Array]
    step: PairStep = field(init=False)


#: What both robots learn from in a step, (E,).
RewardRule = Callable[[Moment], FloatArray]


def shared_reward(moment: Moment) -> FloatArray:
    """Return the task's rewards, (E,)."""
    return moment.step.rewards


class Driver:
    """Drives some robots while `play` steps the environments."""

    def drive(self, moment: Moment) -> None:
        """Write what the driven robots do."""

    def observe(self, moment: Moment) -> None:
        """Take in what came of it."""


def play(
    env: PairEnv,
    drivers: Sequence[Driver],
    steps: int,
    *,
    seeds: int | Sequence[int],
    restart: Restart | None = None,
    once: bool = False,
) -> FloatArray:
    """Begin new episodes and play; return what the first one of each environment paid, (E,).

    Args:
        env: E environments.
        drivers: Act in this order; a later one may write over what an earlier one decided.
        steps: T.
        seeds: Of the episodes.
        restart: Where episodes begin; None begins them as the task does.
        once: Stop when every environment has ended its first episode.
    """
    total, running = np.zeros(env.num_envs), np.ones(env.num_envs, np.bool_)
    states = env.reset(seeds)
    if restart is not None:
        states = restart(np.arange(env.num_envs))
    for t in range(steps):
        actions = [np.zeros((env.num_envs, dim), np.float32) for dim in env.action_dims]
        moment = Moment(t, states, actions)
        for driver in drivers:
            driver.drive(moment)
        moment.step = env.step(actions)
        ended = moment.step.boundaries
        if restart is not None and ended.any():
            moment.step = moment.step._replace(states=restart(np.flatnonzero(ended)))
        for driver in drivers:
            driver.observe(moment)
        total += np.where(running, moment.step.rewards, 0.0)
        running &= ~ended
        states = moment.step.states
        if once and not running.any():
            break
    return total


class SeatedPartners(Driver):
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

    def drive(self, moment: Moment) -> None:
        """See `Driver`."""
        moment.actions[1][...] = self.act(moment.before)

    def observe(self, moment: Moment) -> None:
        """Begin anew where an episode ended."""
        self.begin_rows(np.flatnonzero(moment.step.boundaries))


class Keeper(Driver):
    """Drives nobody and keeps states on the way, of the environments ``rows(t)`` before step t."""

    def __init__(self, env: PairEnv, rows: Callable[[int], Sequence[int]]) -> None:
        self._env, self._rows = env, rows
        self._kept: list[Snapshot] = []

    def drive(self, moment: Moment) -> None:
        """See `Driver`."""
        if len(rows := self._rows(moment.t)):
            self._kept.append(self._env.snapshot(rows))

    def restart(self, draw: Callable[[NDArray[np.int64], int], NDArray[np.int64]]) -> Restart:
        """Return how to begin at kept states: ``draw`` says which of how many, for some rows."""
        kept = {name: np.concatenate([k[name] for k in self._kept]) for name in self._kept[0]}
        count = len(next(iter(kept.values())))

        def begin(rows: NDArray[np.int64]) -> Float32Array:
            drawn = draw(rows, count)
            states = {name: each[drawn] for name, each in kept.items()}
            return self._env.restore(rows.tolist(), states)

        return begin


class _Players(Driver):
    """Policies of a stack in their places.

    Args:
        learner: The stack.
        env: What is played.
        places: Row by row the robot and the environment, as robot times E plus environment, (K, R).
        told: What actors are told after the state, (K, R, X); by default which robot they are.
    """

    def __init__(
        self,
        learner: StackedPPO,
        env: PairEnv,
        places: NDArray[np.int64],
        told: Float32Array | None = None,
    ) -> None:
        self.learner: StackedPPO = learner
        self._env, self._places = env, places
        self.robots, self.envs = np.divmod(places, env.num_envs)
        self._told = np.eye(2, dtype=np.float32)[self.robots] if told is None else told
        self._own = [np.nonzero(self.robots == robot) for robot in range(2)]

    def _see(self, states: Float32Array) -> Float32Array:
        """Return the states that actors see, (K, R, O)."""
        return states.reshape(-1, states.shape[2])[self._places]

    def _execute(
        self,
        decided: NDArray[Any],
        actions: Sequence[Float32Array],
        where: NDArray[np.bool_] | None = None,
    ) -> None:
        """Write decisions, (K, R, ...), into both robots' actions."""
        for robot, acted in enumerate(actions):
            own = self._own[robot]
            if where is not None:
                own = np.nonzero((self.robots == robot) & where)
            acted[self.envs[own]] = self._env.scaled(robot, decided[own])


class FrozenPlayers(_Players):
    """Policies of a stack that learn nothing, with ``noise`` of others at step t, (K, R, A).

    ``where`` says which rows drive at step t, (K, R); by default all do. See
    `StackedPPO.draw_noise` and `_Players`.
    """

    def __init__(
        self,
        learner: StackedPPO,
        env: PairEnv,
        places: NDArray[np.int64],
        noise: Callable[[int], torch.Tensor],
        where: Callable[[int], NDArray[np.bool_]] | None = None,
        told: Float32Array | None = None,
    ) -> None:
        super().__init__(learner, env, places, told)
        self._noise, self._where = noise, where

    def drive(self, moment: Moment) -> None:
        """See `Driver`."""
        rows = np.concatenate((self._see(moment.before), self._told), axis=-1)
        rows = self.learner.scale(rows, learn=False)
        decided = self.learner.act(rows, noise=self._noise(moment.t))
        where = None if self._where is None else self._where(moment.t)
        self._execute(decided, moment.actions, where)


class LearningPlayers(_Players):
    """Policies of a stack, and the rollout of T steps that they are to learn from.

    Critics are told ``judged`` after both robots' states, (K, R, ...) or alike. See `_Players`.

    Attributes:
        rollout: What happened, complete after `play`.
        rows: What actors saw before scaling, (K, T, R, O + X).
        rule: What is learned from; the task's rewards at first.
    """

    def __init__(
        self,
        learner: StackedPPO,
        env: PairEnv,
        places: NDArray[np.int64],
        steps: int,
        judged: Float32Array,
        told: Float32Array | None = None,
    ) -> None:
        super().__init__(learner, env, places, told)
        self._judged, self.rule = judged, shared_reward
        self.rollout = learner.new_rollout(steps=steps, rows=places.shape[1])
        self.rows: Float32Array = self.rollout.observations
        if learner.config.normalize_observations:
            self.rows = np.zeros_like(self.rows)

    def drive(self, moment: Moment) -> None:
        """See `Driver`."""
        rollout, t, dim = self.rollout, moment.t, self._env.observation_dim
        if t == 0:  # what does not change in a rollout
            self.rows[..., dim:] = self._told[:, None]
            told = np.broadcast_to(self._judged, (*self.robots.shape, self._judged.shape[-1]))
            rollout.critic_observations[..., 2 * dim :] = told[:, None]
        self.rows[:, t, :, :dim] = self._see(moment.before)
        rollout.observations[:, t] = self.learner.scale(self.rows[:, t], learn=True)
        rollout.decisions[:, t] = decided = self.learner.act(rollout.observations[:, t])
        self._judge(rollout.critic_observations[:, t], moment.before)
        self._execute(decided, moment.actions)

    def observe(self, moment: Moment) -> None:
        """Note results, and what critics would have seen where a time limit ended an episode."""
        rollout, t, step = self.rollout, moment.t, moment.step
        rollout.rewards[:, t] = self.rule(moment)[self.envs]
        rollout.boundaries[:, t] = step.boundaries[self.envs]
        if t + 1 == rollout.rewards.shape[1]:
            self._judge(rollout.critic_observations[:, -1], step.states)
        if not len(step.cut):
            return
        ended = np.isin(self.envs, step.cut)
        seen = rollout.critic_observations[:, t].copy()
        self._judge(seen, step.following)
        for k in np.flatnonzero(ended.any(axis=1)).tolist():
            own = np.flatnonzero(ended[k])
            rollout.cuts.append(Cut(k, t, own, seen[k, own]))

    def _judge(self, rows: Float32Array, states: Float32Array) -> None:
        """Write the states that critics are to see, into (K, R, S)."""
        rows[..., : 2 * states.shape[2]] = np.concatenate(states, axis=1)[self.envs]


class PairPlayers(LearningPlayers):
    """K policies that learn as one, each both robots of its block, or two of them one robot each.

    Beside ``partners`` each plays the first robot of its block.

    Args:
        config: The zoo's.
        env: G blocks of N copies; ``config.num_envs`` is N.
        seeds: One per policy: G of them if each plays both robots, else 2 G, those of a block's ego
            and partner one after the other.
        names: Policies in messages.
        identities: I; 1 for policies without.
        partners: Who plays the second robot of each block and does not learn.
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
        self._config, self._partners = config, partners
        self._identities = identities if identities > 1 else 0
        learner = new_learner(
            config.ppo,
            env,
            told=2 + self._identities,
            judged=2 + 2 * self._identities,
            seeds=seeds,
            names=names,
        )
        places = np.arange(2 * env.num_envs).reshape(2, -1, config.num_envs)
        learning = places[: 2 if partners is None else 1].swapaxes(0, 1).reshape(len(seeds), -1)
        marks = np.eye(2, dtype=np.float32)[learning // env.num_envs]
        super().__init__(learner, env, learning, config.ppo.rollout_length, marks)

    def play(self, firsts: Sequence[int], rule: RewardRule, labels: Labels | None = None) -> None:
        """Begin new episodes and play a rollout; seeds of a block count up from its first, (G,)."""
        if labels is not None:
            marks = np.eye(2, dtype=np.float32)[self.robots]
            known = np.eye(self._identities, dtype=np.float32)
            both = known[labels[:, self.envs]]
            self._told = np.concatenate((marks, known[labels[self.robots, self.envs]]), axis=-1)
            self._judged = np.concatenate((marks, both[0], both[1]), axis=-1)
        self.rule = rule
        drivers: list[Driver] = [self]
        if self._partners is not None:
            self._partners.begin(firsts)
            drivers.append(self._partners)
        seeds = [first + i for first in firsts for i in range(self._config.num_envs)]
        play(self._env, drivers, self._config.ppo.rollout_length, seeds=seeds)

    def update(self, iteration: int, iterations: int) -> None:
        """Learn from the rollout, the one number ``iteration`` of so many."""
        steps = self._config.rollout_steps
        self.learner.update(self.rollout, done=iteration * steps, total=iterations * steps)

    def policy(self, member: int, robot: int, identity: int = 0) -> PortableNetwork:
        """Return what a policy plays for ``robot``, as plain data."""
        told = np.zeros(2 + self._identities)
        told[robot] = 1.0
        if self._identities:
            told[2 + identity] = 1.0
        return plain_policy(self.learner, member, self._env, robot, told)

    def member(self, ego: int, partner: int, identity: int = 0) -> MemberPolicies:
        """Return the policies of two players, or of one that plays both robots."""
        return MemberPolicies(self.policy(ego, 0, identity), self.policy(partner, 1, identity))


def new_learner(
    ppo: MAPPOConfig,
    env: PairEnv,
    *,
    told: int,
    judged: int,
    seeds: Sequence[int],
    names: Sequence[str],
    **settings: bool,
) -> StackedPPO:
    """Return policies for one robot, told so many numbers, with critics of both robots' states.

    ``settings`` are those of ``ppo`` that a method has in one way only.
    """
    return StackedPPO(
        ppo.model_copy(update=settings),
        observation_dim=env.observation_dim + told,
        critic_dim=2 * env.observation_dim + judged,
        choices=env.choices,
        action_dim=env.action_dim,
        seeds=seeds,
        names=names,
    )


def normalized(advantages: NDArray[Any], axes: tuple[int, ...]) -> FloatArray:
    """Return advantages with mean 0 and deviation 1 over ``axes``, as float64."""
    values = advantages.astype(np.float64)
    centered = values - values.mean(axis=axes, keepdims=True)
    return centered / (values.std(axis=axes, keepdims=True) + ADVANTAGE_EPSILON)


def plain_policy(
    learner: StackedPPO, member: int, env: PairEnv, robot: int, told: FloatArray
) -> PortableNetwork:
    """Return what a policy of a stack plays for ``robot``, as plain data.

    What it is ``told`` after the state, (X,), is constant, so it becomes part of the first bias,
    and the scaling to the robot's bounds becomes part of the last layer.
    """
    policy, moments = learner.policy(member), learner.observation_moments(member)
    actor = cast("OrthogonalMlp", policy.actor)
    dim, width = env.observation_dims[robot], env.observation_dim
    weights = [p.detach().double() for layer in actor.layers for p in layer.parameters()]
    constant = torch.tensor(told)
    known = None if moments is None else torch.tensor(np.stack(moments))  # (2, O + X)
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
    standardized = None
    if known is not None:
        standardized = known[0, :dim], torch.sqrt(known[1, :dim] + EPSILON)
    return perceptron(
        [weight.float() for weight in weights],
        learner.config.activation,
        output,
        standardized=standardized,
        contract=env.contracts[robot],
    )


class Population(ABC):
    """What trains together: the members of one job or of several, ``count`` of each.

    Members stand job by job: member m belongs to ``keys[m // count]``.

    Attributes:
        count: See above.
        iterations: Rollouts, and updates.
        stacks: Whoever learns, job by job, equally many in each.
    """

    count: int
    iterations: int
    stacks: Sequence[StackedPPO]

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

    def state_dict(self, place: int) -> dict[str, Any]:
        """Return everything later iterations of ``keys[place]`` depend on."""
        return {"learners": [stack.member_state(k) for stack, k in self._learning(place)]}

    def load_state_dict(self, place: int, state: Mapping[str, Any]) -> None:
        """Let ``keys[place]`` continue where `state_dict` was taken."""
        for (stack, k), saved in zip(self._learning(place), state["learners"], strict=True):
            stack.load_member_state(k, saved)

    def _learning(self, place: int) -> list[tuple[StackedPPO, int]]:
        """Return who learns in a job."""
        everybody = [(stack, k) for stack in self.stacks for k in range(stack.members)]
        size = len(everybody) // len(self.keys)
        return everybody[place * size : (place + 1) * size]
