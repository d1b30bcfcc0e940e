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

from collections.abc import Callable, Mapping, Sequence
from math import ceil
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from cadenza.benchmark.zoo.config import ZooConfig
from cadenza.benchmark.zoo.pairs import PairEnv
from cadenza.benchmark.zoo.stacked import (
    Driver,
    FrozenPlayers,
    Keeper,
    LearningPlayers,
    Population,
    new_learner,
    normalized,
    plain_policy,
    play,
)
from cadenza.core.arrays import FloatArray
from cadenza.core.seeding import derive_substream
from cadenza.learn.stacked.ppo import Estimate, StackedPPO
from cadenza.partners.zoo_member import MemberPolicies

#: Episodes with every earlier member, by whose mean return x is chosen, before each update.
EPISODES: Final = 20
#: States of the mixed play that are kept, per environment.
STORED: Final = 8
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
        self.learners: list[StackedPPO] = [
            new_learner(
                config.ppo,
                env,
                told=2,
                judged=2 + count,
                seeds=[self.seed(keys[0], f"learner.{k}")],
                names=[f"{keys[0]} member {k}"],
                normalize_advantages=False,  # blocks are, see the module
            )
            for k in range(count)
        ]
        self.stacks = self.learners

    def iterate(self, iteration: int) -> None:
        """Play the rollouts of one update of the member whose turn it is, and learn from them."""
        config = self.config
        index, turn = divmod(iteration, config.iterations)
        if index == 0:
            games = [_Game(self, index, f"{iteration}.self.{k}") for k in range(4)]
            estimates = [self._weighted(game.rollout(_BOTH), 1.0) for game in games]
        else:
            estimates = self._against_earlier(index, turn % 2, str(iteration))
        self.learners[index].update(
            *estimates,
            done=turn * config.rollout_steps,
            total=config.iterations * config.rollout_steps,
        )

    def member(self, index: int) -> MemberPolicies:
        """Return member ``index`` as it is now, before its turn as it was drawn."""
        learner, marks = self.learners[index], np.eye(2)
        own = (plain_policy(learner, 0, self.env, robot, marks[robot]) for robot in _BOTH)
        return MemberPolicies(*own)

    def report(self) -> dict[str, Any]:
        """Return ``cross_play`` and ``chosen`` below the diagonal, a list per member."""
        return {
            "cross_play": [self.cross_play[k, :k].tolist() for k in range(self.count)],
            "chosen": [self.chosen[k, :k].tolist() for k in range(self.count)],
        }

    def state_dict(self, place: int) -> dict[str, Any]:
        """Return everything later iterations depend on."""
        return {
            **super().state_dict(place),
            "cross_play": self.cross_play.tolist(),
            "chosen": self.chosen.tolist(),
        }

    def load_state_dict(self, place: int, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken."""
        super().load_state_dict(place, state)
        self.cross_play = np.array(state["cross_play"])
        self.chosen = np.array(state["chosen"])

    def _against_earlier(self, index: int, seat: int, purpose: str) -> list[Estimate]:
        """Return what member ``index`` learns, being robot ``seat`` beside an earlier one."""
        returns = self._returns(index, seat, f"{purpose}.choice")
        other = int(np.argmax(returns))
        self.cross_play[index, :index] = returns
        self.chosen[index, other] += 1
        alone = _Game(self, index, f"{purpose}.self").rollout(_BOTH)
        across = _Game(self, index, f"{purpose}.cross").rollout((seat,), other=other)
        kept = _Game(self, index, f"{purpose}.mixed").mixed(seat, other)
        again = _Game(self, index, f"{purpose}.again").rollout(_BOTH, kept=kept)
        return [
            self._weighted(alone, 1.0),
            self._weighted(across, -self.config.cross_weight),
            self._weighted(again, self.config.mixed_weight),
        ]

    def _weighted(self, played: LearningPlayers, weight: float) -> Estimate:
        """Return a rollout's estimates, its advantages normalised by seat, times ``weight``."""
        estimate = played.learner.estimate(played.rollout)
        _, steps, rows = estimate.shape
        blocks = estimate.advantages.astype(np.float64)
        blocks = blocks.reshape(steps, -1, self.config.num_envs)
        if self.config.ppo.normalize_advantages:
            blocks = normalized(blocks, (0, 2))
        return estimate.with_advantages((weight * blocks).reshape(1, steps, rows))

    def _returns(self, index: int, seat: int, purpose: str) -> FloatArray:
        """Return mean returns of a member beside each earlier one, (index,)."""
        totals, counts = np.zeros(index), np.zeros(index)
        copies = np.arange(self.config.num_envs)
        for k in range(ceil(EPISODES * index / self.config.num_envs)):
            others = (copies + k * self.config.num_envs) % index
            played = _Game(self, index, f"{purpose}.{k}").returns(seat, others)
            np.add.at(totals, others, played)
            np.add.at(counts, others, 1.0)
        return totals / np.maximum(counts, 1.0)


class _Game:
    """Rollouts of a member, of new episodes and of draws that the purpose names."""

    def __init__(self, population: DiverseMembers, index: int, purpose: str) -> None:
        self._population, self._index, self._env = population, index, population.env
        self._purpose = f"zoo.{population.keys[0]}.{purpose}"
        self._root = population.config.seed
        self._seed = population.seed(population.keys[0], f"{purpose}.episodes")
        self._rng = derive_substream(self._purpose, root_seed=self._root).default_rng()
        self._length = population.config.ppo.rollout_length
        self._places = np.arange(2 * self._env.num_envs).reshape(2, -1)

    def rollout(
        self, seats: Sequence[int], *, other: int | None = None, kept: Keeper | None = None
    ) -> LearningPlayers:
        """Play what the member is to learn from as the robots ``seats``.

        An ``other`` earlier member drives the other robot. Episodes begin at ``kept`` states.
        """
        learner = self._population.learners[self._index]
        places = self._places[list(seats)].reshape(1, -1)
        told = np.eye(2 + self._population.count, dtype=np.float32)
        beside = self._index if other is None else other
        judged = told[places // self._env.num_envs] + told[2 + beside]
        own = LearningPlayers(learner, self._env, places, self._length, judged)
        drivers: list[Driver] = [own]
        if other is not None:
            drivers.append(self._drawn(other, 1 - seats[0], self._length))
        play(
            self._env,
            drivers,
            self._length,
            seeds=self._seed,
            restart=None if kept is None else kept.restart(self._uniform),
        )
        return own

    def mixed(self, seat: int, other: int) -> Keeper:
        """Play with a robot that is the member's or the other's by a coin; keep some states."""
        env, index, length = self._env, self._index, self._length
        size = min(length, STORED) * env.num_envs
        places = np.sort(self._rng.choice(length * env.num_envs, size=size, replace=False))
        kept = Keeper(env, lambda t: (places[places // env.num_envs == t] % env.num_envs).tolist())
        own = [self._drawn(index, robot, length, stream=robot) for robot in _BOTH]
        theirs = self._drawn(
            other, 1 - seat, length, where=lambda _: self._rng.random((1, env.num_envs)) < 0.5
        )
        play(env, [kept, *own, theirs], length, seeds=self._seed)
        return kept

    def returns(self, seat: int, others: NDArray[np.int64]) -> FloatArray:
        """Return what one episode of every environment pays beside the members ``others``, (N,)."""
        horizon = self._population.config.horizon
        theirs = [
            self._drawn(k, 1 - seat, horizon, where=lambda _, met=others == k: met[None])
            for k in np.unique(others).tolist()
        ]
        own = self._drawn(self._index, seat, horizon)
        return play(self._env, [own, *theirs], horizon, seeds=self._seed, once=True)

    def _uniform(self, rows: NDArray[np.int64], kept: int) -> NDArray[np.int64]:
        """Draw one of so many kept states for every row."""
        return self._rng.integers(kept, size=len(rows))

    def _drawn(
        self,
        member: int,
        robot: int,
        steps: int,
        *,
        stream: int = 0,
        where: Callable[[int], NDArray[np.bool_]] | None = None,
    ) -> FrozenPlayers:
        """Return a member that draws, from a stream of its own, and learns nothing of it."""
        name = f"{self._purpose}.noise.{member}.{stream}"
        seed = derive_substream(name, root_seed=self._root).integer_seed()
        learner = self._population.learners[member]
        noise = learner.draw_noise(steps, self._env.num_envs, seed)
        place = self._places[robot, None]
        return FrozenPlayers(learner, self._env, place, noise.__getitem__, where)
