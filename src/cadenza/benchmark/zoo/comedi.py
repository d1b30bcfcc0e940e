"""Cross-play optimised, mixed-play enforced: members one after another, unlike those before them.

With J_SP the return of a member with itself, J_XP the one with the earlier member x that it fits
best, and J_MP its self-play from states that mixed play came to,
    maximise   J_SP − α J_XP + β J_MP
In mixed play the partner's robot is driven at every step by x or by the member itself, a fair coin
deciding, so a member that would spoil an episode as soon as it notices x spoils its own, too.

Every update of a member plays four rollouts, each of new episodes: self-play; cross-play with x;
mixed play, of which nothing is learned; and self-play whose episodes begin at states of the mixed
play, drawn uniformly, clock included. Before that `EPISODES` episodes with each earlier member say
who x is: the one with the highest mean return. The first member has four rollouts of self-play.

Loss:        five blocks: both seats of self-play, cross-play, both seats of the last rollout. Each
             is normalised by itself; its weight, 1, −α or β, stands inside the clipped surrogate,
             where clipping holds back what the sign asks for.
Critic:      sees both robots' states, whose row it is, and who drives the other robot: n or x.
Source:      arXiv:2310.15414 (CoMeDi).
Departures:  seats alternate in cross-play; blocks are normalised over the rollout, not by
             minibatch, and count equally in every minibatch on average. Of the mixed play
             `STORED` states per environment are kept, drawn before it is played.
Axes:        2 = ego and partner, T = steps, N = environments, O = state, K = members, n = index of
             the member that learns.
"""

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from cadenza.benchmark.zoo.config import ZooConfig
from cadenza.benchmark.zoo.pairs import PairEnv, PairStep
from cadenza.benchmark.zoo.stacked import Population, plain_policy
from cadenza.core.arrays import Float32Array, FloatArray
from cadenza.core.seeding import derive_substream
from cadenza.envs.vector_base import Snapshot
from cadenza.learn.nn.portable import PortableNetwork
from cadenza.learn.stacked.ppo import Estimate, StackedPPO
from cadenza.learn.stacked.rollout import Cut, StackedRollout
from cadenza.partners.zoo_member import MemberPolicies

#: Episodes with every earlier member, by whose mean return x is chosen, before each update.
EPISODES: Final = 20
#: States of the mixed play that are kept, per environment.
STORED: Final = 8
#: Added to the standard deviation of advantages.
_EPSILON: Final = 1e-8
#: Both seats of a rollout.
_BOTH: Final = (0, 1)


class DiverseMembers(Population):
    """K members, one after another, each both robots' policy.

    Attributes:
        learners: One per member, each a stack of its own.
        cross_play: Mean return of each member with each earlier one when it last chose, (K, K); NaN
            where they never met.
        chosen: How often a member chose an earlier one, (K, K).
    """

    def __init__(self, config: ZooConfig, env: PairEnv, keys: Sequence[str]) -> None:
        super().__init__(config, env, keys)
        count = self.count = config.population
        self.iterations: int = count * config.iterations
        self.cross_play: FloatArray = np.full((count, count), np.nan)
        self.chosen: NDArray[np.int64] = np.zeros((count, count), np.int64)
        settings = {"normalize_advantages": False}  # blocks are, see the module
        self.learners: list[StackedPPO] = [
            StackedPPO(
                config.ppo.model_copy(update=settings),
                observation_dim=env.observation_dim + 2,
                critic_dim=2 * env.observation_dim + 2 + count,
                choices=env.choices,
                action_dim=env.action_dim,
                seeds=[self.seed(keys[0], f"learner.{k}")],
                names=[f"{keys[0]} member {k}"],
            )
            for k in range(count)
        ]

    def iterate(self, iteration: int) -> None:
        """Play the rollouts of one update of the member whose turn it is, and learn from them."""
        config = self.config
        index, turn = divmod(iteration, config.iterations)
        if index == 0:
            plays = [_Play(self, index, f"{iteration}.self.{k}") for k in range(4)]
            estimates = [self._weighted(play.rollout(_BOTH), 1.0) for play in plays]
        else:
            estimates = self._against_earlier(index, turn % 2, str(iteration))
        self.learners[index].update(
            *estimates,
            done=turn * config.rollout_steps,
            total=config.iterations * config.rollout_steps,
        )

    def member(self, index: int) -> MemberPolicies:
        """Return member ``index`` as it is now, before its turn as it was drawn."""
        return MemberPolicies(self._policy(index, 0), self._policy(index, 1))

    def report(self) -> dict[str, Any]:
        """Return ``cross_play`` and ``chosen`` below the diagonal, a list per member."""
        return {
            "cross_play": [self.cross_play[k, :k].tolist() for k in range(self.count)],
            "chosen": [self.chosen[k, :k].tolist() for k in range(self.count)],
        }

    def state_dict(self, place: int) -> dict[str, Any]:
        """Return everything later iterations depend on."""
        del place
        return {
            "learners": [learner.member_state(0) for learner in self.learners],
            "cross_play": self.cross_play.tolist(),
            "chosen": self.chosen.tolist(),
        }

    def load_state_dict(self, place: int, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken."""
        del place
        for learner, saved in zip(self.learners, state["learners"], strict=True):
            learner.load_member_state(0, saved)
        self.cross_play = np.array(state["cross_play"])
        self.chosen = np.array(state["chosen"])

    def _against_earlier(self, index: int, seat: int, purpose: str) -> list[Estimate]:
        """Return what member ``index`` learns, being robot ``seat`` beside an earlier one."""
        returns = self._returns(index, seat, f"{purpose}.choice")
        other = int(np.argmax(returns))
        self.cross_play[index, :index] = returns
        self.chosen[index, other] += 1
        alone = _Play(self, index, f"{purpose}.self").rollout(_BOTH)
        across = _Play(self, index, f"{purpose}.cross", other=other).rollout((seat,))
        kept = _Play(self, index, f"{purpose}.mixed", other=other).mixed(seat)
        again = _Play(self, index, f"{purpose}.again", kept=kept).rollout(_BOTH)
        return [
            self._weighted(alone, 1.0),
            self._weighted(across, -self.config.cross_weight),
            self._weighted(again, self.config.mixed_weight),
        ]

    def _weighted(self, rollout: tuple[int, StackedRollout], weight: float) -> Estimate:
        """Return a rollout's estimates, its advantages normalised by seat, times ``weight``."""
        index, played = rollout
        estimate = self.learners[index].estimate(played)
        _, steps, rows = estimate.shape
        blocks = estimate.advantages.astype(np.float64).reshape(steps, -1, self.config.num_envs)
        if self.config.ppo.normalize_advantages:
            centred = blocks - blocks.mean(axis=(0, 2), keepdims=True)
            blocks = centred / (blocks.std(axis=(0, 2), keepdims=True) + _EPSILON)
        return estimate.with_advantages((weight * blocks).reshape(1, steps, rows))

    def _returns(self, index: int, seat: int, purpose: str) -> FloatArray:
        """Return mean returns of a member beside each earlier one, (index,)."""
        totals, counts = np.zeros(index), np.zeros(index)
        copies = np.arange(self.config.num_envs)
        for k in range(ceil(EPISODES * index / self.config.num_envs)):
            others = (copies + k * self.config.num_envs) % index
            played = _Play(self, index, f"{purpose}.{k}").returns(seat, others)
            np.add.at(totals, others, played)
            np.add.at(counts, others, 1.0)
        return totals / np.maximum(counts, 1.0)

    def _policy(self, index: int, robot: int) -> PortableNetwork:
        learner = self.learners[index]
        moments = learner.observation_moments(0)
        return plain_policy(
            learner.policy(0),
            self.env,
            robot,
            np.eye(2)[robot],
            activation=self.config.ppo.activation,
            moments=None if moments is None else np.stack(moments),
        )


class _Play:
    """One rollout of a member, of new episodes and of draws that the purpose names.

    Args:
        population: Whose.
        index: The member.
        purpose: Names the streams.
        other: The earlier member that it meets; None meets nobody.
        kept: States at which episodes begin; None begins new ones.
    """

    def __init__(
        self,
        population: DiverseMembers,
        index: int,
        purpose: str,
        *,
        other: int | None = None,
        kept: Snapshot | None = None,
    ) -> None:
        self._population, self._index, self._other, self._kept = population, index, other, kept
        self._env, self._learner = population.env, population.learners[index]
        self._purpose = f"zoo.{population.keys[0]}.{purpose}"
        self._root = population.config.seed
        self._seed = population.seed(population.keys[0], f"{purpose}.episodes")
        self._rng = derive_substream(self._purpose, root_seed=self._root).default_rng()
        self._length = population.config.ppo.rollout_length

    def rollout(self, seats: Sequence[int]) -> tuple[int, StackedRollout]:
        """Play; return who, and what it is to learn as the robots ``seats``."""
        env, learner, count = self._env, self._learner, self._env.num_envs
        rollout = learner.new_rollout(steps=self._length, rows=len(seats) * count)
        beside = self._index if self._other is None else self._other
        noise = {} if self._other is None else {self._other: self._noise(self._other, self._length)}
        states = self._begin()
        for t in range(self._length):
            rows = self._rows(states)
            own = rows[list(seats)].reshape(1, -1, rows.shape[-1])
            rollout.observations[:, t] = learner.scale(own, learn=True)
            acted = learner.act(rollout.observations[:, t])
            rollout.decisions[:, t] = acted
            decided = dict(
                zip(seats, acted.reshape(len(seats), count, *acted.shape[2:]), strict=True)
            )
            for member, drawn in noise.items():
                seat = 1 - seats[0]
                decided[seat] = self._drawn(member, rows[seat], drawn[t])
            rollout.critic_observations[0, t] = self._judged(states, seats, beside)
            step = env.step([env.scaled(robot, decided[robot]) for robot in _BOTH])
            rollout.rewards[0, t] = np.tile(step.rewards, len(seats))
            rollout.boundaries[0, t] = np.tile(step.boundaries, len(seats))
            if len(step.cut):
                places = (np.arange(len(seats))[:, None] * count + step.cut).reshape(-1)
                final = self._judged(step.following, seats, beside)[places]
                rollout.cuts.append(Cut(0, t, places, final))
            states = self._following(step)
        rollout.critic_observations[0, -1] = self._judged(states, seats, beside)
        return self._index, rollout

    def mixed(self, seat: int) -> Snapshot:
        """Play with a robot that is the member's or the other's by a coin; return some states."""
        env, index = self._env, self._index
        other = 0 if self._other is None else self._other
        size = min(self._length, STORED) * env.num_envs
        places = np.sort(self._rng.choice(self._length * env.num_envs, size=size, replace=False))
        noise = [self._noise(index, self._length, robot) for robot in _BOTH]
        noise.append(self._noise(other, self._length))
        kept: list[Snapshot] = []
        states = self._begin()
        for t in range(self._length):
            here = places[places // env.num_envs == t] % env.num_envs
            if len(here):
                kept.append(env.snapshot(here.tolist()))
            rows = self._rows(states)
            decided = [self._drawn(index, rows[robot], noise[robot][t]) for robot in _BOTH]
            theirs = self._drawn(other, rows[1 - seat], noise[2][t])
            coin = self._rng.random(env.num_envs) < 0.5
            decided[1 - seat][coin] = theirs[coin]
            states = env.step([env.scaled(robot, decided[robot]) for robot in _BOTH]).states
        return {name: np.concatenate([one[name] for one in kept]) for name in kept[0]}

    def returns(self, seat: int, others: NDArray[np.int64]) -> FloatArray:
        """Return what one episode of every environment pays beside the members ``others``, (N,)."""
        env, horizon = self._env, self._population.config.horizon
        members = sorted({self._index, *others.tolist()})
        noise = {k: self._noise(k, horizon) for k in members}
        running, total = np.ones(env.num_envs, np.bool_), np.zeros(env.num_envs)
        states = self._begin()
        for t in range(horizon):
            rows = self._rows(states)
            own = self._drawn(self._index, rows[seat], noise[self._index][t])
            theirs = np.empty_like(own)
            for k in np.unique(others).tolist():
                met = others == k
                theirs[met] = self._drawn(k, rows[1 - seat], noise[k][t])[met]
            both = (own, theirs) if seat == 0 else (theirs, own)
            step = env.step([env.scaled(robot, each) for robot, each in enumerate(both)])
            total += np.where(running, step.rewards, 0.0)
            running &= ~step.boundaries
            states = step.states
            if not running.any():
                break
        return total

    def _begin(self) -> Float32Array:
        """Begin every episode; return states, (2, N, O)."""
        states = self._env.reset(self._seed)
        return states if self._kept is None else self._restart(np.arange(self._env.num_envs))

    def _following(self, step: PairStep) -> Float32Array:
        """Return what the next decisions are made on."""
        if self._kept is None or not step.boundaries.any():
            return step.states
        return self._restart(np.flatnonzero(step.boundaries))

    def _restart(self, rows: NDArray[np.int64]) -> Float32Array:
        """Put environments at drawn states; return states of all, (2, N, O)."""
        kept: Snapshot = {} if self._kept is None else self._kept
        drawn = self._rng.integers(len(next(iter(kept.values()))), size=len(rows))
        return self._env.restore(rows.tolist(), {name: each[drawn] for name, each in kept.items()})

    def _rows(self, states: Float32Array) -> Float32Array:
        """Return what actors see, (2, N, O + 2), before scaling."""
        marks = np.repeat(np.eye(2, dtype=np.float32)[:, None], states.shape[1], axis=1)
        return np.concatenate((states, marks), axis=-1)

    def _judged(self, states: Float32Array, seats: Sequence[int], beside: int) -> Float32Array:
        """Return what critics see, (seats N, 2 O + 2 + K)."""
        count = states.shape[1]
        told = np.zeros((len(seats), count, 2 + self._population.count), np.float32)
        for place, seat in enumerate(seats):
            told[place, :, seat] = 1.0
        told[..., 2 + beside] = 1.0
        both = np.broadcast_to(
            np.concatenate(states, axis=1), (len(seats), count, 2 * states.shape[2])
        )
        return np.concatenate((both, told), axis=-1).reshape(len(seats) * count, -1)

    def _noise(self, member: int, steps: int, robot: int = 0) -> torch.Tensor:
        """Return noise of a member's decisions, (T, 1, N, A), from a stream of its own."""
        name = f"{self._purpose}.noise.{member}.{robot}"
        seed = derive_substream(name, root_seed=self._root).integer_seed()
        return self._population.learners[member].draw_noise(steps, self._env.num_envs, seed)

    def _drawn(self, member: int, rows: Float32Array, noise: torch.Tensor) -> NDArray[Any]:
        """Return what a member draws for rows (N, O + 2), of which it learns nothing, (N, ...)."""
        learner = self._population.learners[member]
        return learner.act(learner.scale(rows[None], learn=False), noise=noise)[0]
