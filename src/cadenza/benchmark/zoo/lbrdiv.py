"""Best-response diversity with multipliers: confederates whose best responses are not the others'.

With R_ij the return of confederate i beside best response j:
    maximise  Σ_i R_ii   subject to, for all i ≠ j,
    R_ii − R_ji ≥ τ  (multiplier v_ij)     and     R_ii − R_ij ≥ τ  (multiplier h_ij)
Diagonals are fixed at v_ii = h_ii = 1/2, so that a self-play return weighs 1. Every pair is played
in equally many copies; advantages are weighted within the clipped surrogate, by
    W_ii = Σ_k (v_ik + h_ik) K/2          W_ij = −(v_ji + h_ij) K / (2 (K − 1))
and the entropy bonus of both networks of i by max(Σ_k v_ik, Σ_k h_ik).

Multipliers follow after every update, with the best responses' new critics V_j(s; i), told who the
confederate is, and what their values were drawn to, G; means over all rows of a pair:
    rows (i, i), k ≠ i:   g^v_ik += mean(G − V_i(s; k)) − τ     g^h_ik += mean(G − V_k(s; i)) − τ
    rows (i, j), i ≠ j:   g^v_ji += mean(V_j(s; j) − G) − τ     g^h_ij += mean(V_i(s; i) − G) − τ
    v ← clip(v − η g^v, 0, cap),  h likewise: what is violated weighs more.

Source:      arXiv:2308.09595 (L-BRDiv); the confederates are BRDiv's, `brdiv`.
Departures:  a member's two networks weigh alike. Advantages are normalised over a seat's rollout,
             all members and pairs together, before the weights, not by minibatch. Gradients are
             clipped by member. Multipliers stop at `MULTIPLIER_CAP`. `restart` is ours: two members
             on one convention are a local optimum for any multiplier, which only a new member
             leaves.
Units:       τ is one of the discounted value-to-go, averaged over visited states. Rewards are
             scaled by one factor for everybody, since values of several critics are compared.
Axes:        K = members, T = steps, E = K² m environments, in the order (i, j, copy), O = state.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cadenza.benchmark.zoo.config import ZooConfig
from cadenza.benchmark.zoo.pairs import PairEnv
from cadenza.benchmark.zoo.stacked import (
    LearningPlayers,
    Population,
    new_learner,
    normalized,
    plain_policy,
    play,
)
from cadenza.core.arrays import Float32Array, FloatArray
from cadenza.learn.stacked.ppo import Estimate, StackedPPO
from cadenza.learn.stacked.rollout import StackedMoments, scale_rewards
from cadenza.partners.zoo_member import MemberPolicies

logger = logging.getLogger(__name__)

#: Largest multiplier: where τ cannot be reached they would grow without bound.
MULTIPLIER_CAP: Final = 10.0
#: Share of the training before which no member is drawn anew: policies differ little at first.
RESTART_AFTER: Final = 0.1


class Multipliers(NamedTuple):
    """v and h, (K, K) each, diagonals 1/2."""

    v: FloatArray
    h: FloatArray

    @classmethod
    def first(cls, count: int) -> "Multipliers":
        """Return those of the beginning: nothing is constrained yet."""
        return cls(0.5 * np.eye(count), 0.5 * np.eye(count))

    def pair_weights(self) -> FloatArray:
        """Return W, (K, K): what an advantage of confederate i beside best response j weighs."""
        count = len(self.v)
        weights = -(self.v.T + self.h) * count / (2.0 * (count - 1))
        np.fill_diagonal(weights, (self.v + self.h).sum(axis=1) * count / 2.0)
        return weights

    def bonuses(self) -> FloatArray:
        """Return what the entropy of each member's networks weighs, (K,)."""
        return np.maximum(self.v.sum(axis=1), self.h.sum(axis=1))

    def moved(self, slack: "Multipliers", rate: float) -> "Multipliers":
        """Return those after a step of ``rate`` against the constraints' ``slack``, (K, K) each."""

        def step(old: FloatArray, slack: FloatArray) -> FloatArray:
            new = np.clip(old - rate * slack, 0.0, MULTIPLIER_CAP)
            np.fill_diagonal(new, 0.5)
            return new

        return Multipliers(step(self.v, slack.v), step(self.h, slack.h))


def is_same_convention(returns: FloatArray, i: int, j: int, tolerance: float) -> bool:
    """Return whether members i and j do as well with each other's best response as with theirs.

    ``returns`` is R, (K, K); well is within ``tolerance``.
    """
    across, within = max(returns[i, j], returns[j, i]), min(returns[i, i], returns[j, j])
    return bool(across > within - tolerance)


class LagrangianConfederates(Population):
    """K confederates, the partner's place, and K best responses, the ego's, as one stack.

    Attributes:
        learner: The best responses, then the confederates.
        multipliers: v and h.
        returns: R of the last rollout, (K, K), as G averaged over visited states.
    """

    def __init__(self, config: ZooConfig, env: PairEnv, keys: Sequence[str]) -> None:
        super().__init__(config, env, keys)
        count = self.count = config.population
        self.iterations: int = count * config.iterations
        self._copies = env.num_envs // count**2
        self.multipliers: Multipliers = Multipliers.first(count)
        self.returns: FloatArray = np.zeros((count, count))
        self.learner: StackedPPO = self._drawn([f"learner.{k}" for k in range(2 * count)])
        self.stacks = [self.learner]
        places = np.arange(2 * env.num_envs).reshape(2, count, count, self._copies)
        by_network = np.concatenate((places[0].swapaxes(0, 1), places[1]))
        #: Critics are told whom every row of a network is beside, (K m, K).
        others = np.repeat(np.eye(count, dtype=np.float32), self._copies, axis=0)
        self._players = LearningPlayers(
            self.learner,
            env,
            by_network.reshape(2 * count, -1),
            config.ppo.rollout_length,
            others,
        )
        self._rollout = self._players.rollout
        self._rewards = StackedMoments(1, 1)
        self._warned = False

    def iterate(self, iteration: int) -> None:
        """Play a rollout, learn from it, move the multipliers, and draw a member anew if due."""
        config, (key,) = self.config, self.keys
        seeds = self.seed(key, f"rollout.{iteration}")
        play(self.env, [self._players], config.ppo.rollout_length, seeds=seeds)
        if config.ppo.normalize_rewards:
            self._scale_rewards()
        told = self._rollout.critic_observations[: self.count, :-1].copy()
        estimate = self.learner.estimate(self._rollout)
        steps = config.rollout_steps
        self.learner.update(
            estimate.with_advantages(self._weighted(estimate.advantages)),
            done=iteration * steps,
            total=self.iterations * steps,
            bonuses=np.tile(self.multipliers.bonuses(), 2),
        )
        self._move_multipliers(told, estimate)
        due = config.restart and (iteration + 1) % config.restart == 0
        if due and iteration + 1 >= RESTART_AFTER * self.iterations:
            self._restart(iteration)

    def member(self, index: int) -> MemberPolicies:
        """Return confederate ``index``, its best response in the ego's place."""
        places = (index, self.count + index)
        return MemberPolicies(
            *(
                plain_policy(self.learner, place, self.env, robot, np.eye(2)[robot])
                for robot, place in enumerate(places)
            )
        )

    def report(self) -> dict[str, Any]:
        """Return R, v and h of the last rollout, and the share of constraints that it violates."""
        own = np.diag(self.returns)[:, None]
        apart = ~np.eye(self.count, dtype=np.bool_)
        slack = [
            own - returns - self.config.tolerance for returns in (self.returns.T, self.returns)
        ]
        violated = [each[apart] < 0.0 for each in slack]
        return {
            "returns": self.returns.tolist(),
            "v": self.multipliers.v.tolist(),
            "h": self.multipliers.h.tolist(),
            "violated": float(np.mean(violated)),
        }

    def state_dict(self, place: int) -> dict[str, Any]:
        """Return everything later iterations depend on."""
        return {
            **super().state_dict(place),
            "rewards": self._rewards.member_state(0),
            "v": self.multipliers.v.tolist(),
            "h": self.multipliers.h.tolist(),
            "returns": self.returns.tolist(),
        }

    def load_state_dict(self, place: int, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken."""
        super().load_state_dict(place, state)
        self._rewards.load_member_state(0, state["rewards"])
        self.multipliers = Multipliers(np.array(state["v"]), np.array(state["h"]))
        self.returns = np.array(state["returns"])

    def _drawn(self, purposes: Sequence[str]) -> StackedPPO:
        """Return new networks, one per purpose of its seed."""
        return new_learner(
            self.config.ppo,
            self.env,
            told=2,
            judged=self.count,
            seeds=[self.seed(self.keys[0], purpose) for purpose in purposes],
            names=[f"{self.keys[0]} {purpose}" for purpose in purposes],
            normalize_rewards=False,  # see the module
            normalize_advantages=False,
        )

    def _scale_rewards(self) -> None:
        """Scale the rewards of the rollout by one factor for everybody."""
        rollout, shape = self._rollout, (1, -1, self.env.num_envs)
        # The confederates' rows are all environments, in their order.
        rewards = rollout.rewards[self.count :].swapaxes(0, 1).reshape(shape)
        ended = rollout.boundaries[self.count :].swapaxes(0, 1).reshape(shape)
        scaled = scale_rewards(rewards, ended, self._rewards, self.config.ppo.gamma)[0]
        rollout.rewards[...] = scaled[:, self._players.envs].swapaxes(0, 1)

    def _weighted(self, advantages: Float32Array) -> FloatArray:
        """Return advantages, (2 K, T, K m), normalised by seat, times their pairs' weights."""
        count, weights = self.count, self.multipliers.pair_weights()
        seats = advantages.reshape(2, count, -1, count, self._copies)
        if self.config.ppo.normalize_advantages:
            seats = normalized(seats, (1, 2, 3, 4))
        seats = seats * np.stack((weights.T, weights))[:, :, None, :, None]
        return seats.reshape(advantages.shape)

    def _move_multipliers(self, told: Float32Array, estimate: Estimate) -> None:
        """Compare pairs by the best responses' critics, whose rows ``told`` are (K, T, K m, S)."""
        count, tolerance = self.count, self.config.tolerance
        spread = self._rewards.spread[0, 0] if self.config.ppo.normalize_rewards else 1.0
        rows = told.reshape(count, -1, count, self._copies, told.shape[-1])  # (j, T, i, m, S)
        by_pair = rows.transpose(2, 0, 1, 3, 4).reshape(count, count, -1, told.shape[-1])
        drawn_to = estimate.returns[:count].reshape(count, -1, count, self._copies)
        returns = drawn_to.mean(axis=(1, 3), dtype=np.float64).T * spread  # (i, j)
        own = np.arange(count)
        equal = by_pair[own, own]  # rows (i, i)
        values = self._values(
            [
                self._as_told(np.repeat(equal[:, None], count, 1), own[None, :]),  # V_b(s_bb; k)
                self._as_told(np.repeat(equal[None], count, 0), own[None, :]),  # V_b(s_ii; i)
                self._as_told(by_pair.swapaxes(0, 1), own[:, None]),  # V_b(s_ib; b)
                self._as_told(by_pair, own[:, None]),  # V_b(s_bj; b)
            ]
        )
        if_v, if_h, at_v, at_h = values * spread
        kept = np.diag(returns)[:, None]
        self.multipliers = self.multipliers.moved(
            Multipliers(
                (kept - if_v - tolerance) + (at_v - returns.T - tolerance),
                (kept - if_h.T - tolerance) + (at_h - returns - tolerance),
            ),
            self.config.multiplier_rate,
        )
        self.returns = returns
        if max(map(np.max, self.multipliers)) >= MULTIPLIER_CAP and not self._warned:
            self._warned = True
            logger.warning(
                "%s: a multiplier reached its cap of %g, so returns do not differ by tolerance=%g "
                "between members; lower it, or train longer.",
                self.keys[0],
                MULTIPLIER_CAP,
                tolerance,
            )

    def _as_told(self, rows: Float32Array, labels: NDArray[np.int64]) -> Float32Array:
        """Return critics' rows, (K, K, n, S), with other confederates told, (K, K) or alike."""
        told = rows.copy()
        told[..., -self.count :] = np.eye(self.count, dtype=np.float32)[labels][..., None, :]
        return told

    def _values(self, sets: Sequence[Float32Array]) -> FloatArray:
        """Return mean values of rows, (K, K, n, S) per set, by each best response: (sets, K, K)."""
        rows = np.stack(sets, axis=1)  # (K, sets, K, n, S)
        flat = rows.reshape(self.count, -1, rows.shape[-1])
        judged = self.learner.judge(np.concatenate((flat, flat)))[: self.count]
        return judged.reshape(rows.shape[:-1]).mean(axis=-1, dtype=np.float64).swapaxes(0, 1)

    def _restart(self, iteration: int) -> None:
        """Draw one member anew that is on the convention of an earlier one, if there is any."""
        for j in range(1, self.count):
            if any(is_same_convention(self.returns, i, j, self.config.tolerance) for i in range(j)):
                places = (j, self.count + j)
                fresh = self._drawn([f"learner.{k}.restart.{iteration}" for k in places])
                for k, place in enumerate(places):
                    self.learner.load_member_state(place, fresh.member_state(k))
                return
