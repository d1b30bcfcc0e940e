"""Populations in training: K members as one stack, beside the same members one after another.

Task:     self-play on `foraging` (choices) and `crossing` (numbers), whole iterations: episodes,
          rollout, estimates, update.
Settings: "peer" = 8 copies, rollout 128, 15 epochs, 4 minibatches of 512, rate 1e-4; "default" =
          those of `cadenza zoo train`.
Peer:     `PPOLearner` with a buffer of its own and environments of its own, as populations trained
          before they were stacked.
Protocol: steps per processor second (a step is one of one copy for one member), one torch thread,
          by turns in one process; medians. Processor time, as other processes take the wall's.

Usage:  python -m perf.bench_zoo [--repeats 3] [--members 1 4 20]
"""

import argparse
import statistics
import time
from collections.abc import Callable
from contextlib import closing

import numpy as np

from cadenza.benchmark.zoo.config import ZooConfig
from cadenza.benchmark.zoo.fcp import SelfPlay
from cadenza.benchmark.zoo.pairs import PairEnv, open_pairs
from cadenza.core.arrays import Float32Array
from cadenza.core.device import single_torch_thread
from cadenza.learn.agents.on_policy_buffer import BufferShape, OnPolicyBuffer, Outcome
from cadenza.learn.agents.ppo import MAPPOConfig, PPOLearner
from perf.timing import Row, print_table

REPEATS = 3
MEMBERS = (1, 4, 20)
#: Least ratios to the members one by one that we promise, by settings and K.
AIMS = {("peer", 4): 3.0, ("peer", 20): 3.5, ("default", 4): 1.9}
PEER = MAPPOConfig(
    rollout_length=128,
    batch_size=512,
    epochs=15,
    learning_rate=1e-4,
    gamma=0.97,
    max_gradient_norm=10.0,
    normalize_rewards=True,
    initial_log_std=-0.5,
)


class UnstackedMember:
    """One policy that plays both robots, and learns by autograd."""

    def __init__(self, config: ZooConfig, env: PairEnv, seed: int) -> None:
        self._config, self._env, self._seed = config, env, seed
        dim = env.observation_dim
        sizes = {"observation_dim": dim + 2, "critic_dim": 2 * dim + 2}
        self._learner = PPOLearner(
            config.ppo, choices=env.choices, action_dim=env.action_dim, seed=seed, **sizes
        )
        self._buffer = OnPolicyBuffer(
            BufferShape(
                capacity=config.ppo.rollout_length,
                rows=2 * env.num_envs,
                action_dim=env.action_dim,
                **sizes,
            )
        )
        self._marks = np.repeat(np.eye(2, dtype=np.float32), env.num_envs, axis=0)

    def iterate(self, iteration: int) -> None:
        """Play a rollout and learn from it."""
        env, learner, length = self._env, self._learner, self._config.ppo.rollout_length
        count = env.num_envs
        states = env.reset(self._seed * 100_000 + iteration * 1_000)
        for t in range(length):
            decided = learner.act(self._rows(states))
            self._buffer.stage(self._rows(states), decided, self._critic_rows(states))
            parted = decided.reshape(2, count, *decided.shape[1:])
            step = env.step([env.scaled(robot, parted[robot]) for robot in range(2)])
            ends = np.tile(step.boundaries, 2)
            rewards = np.tile(step.rewards, 2)
            cut = np.concatenate((step.cut, step.cut + count))
            self._buffer.commit(
                Outcome(
                    learner.normal.rewards.scale(rewards, ends | (t == length - 1)),
                    np.tile(step.terminated, 2),
                    ends,
                ),
                self._critic_rows(step.states),
                cut,
                self._critic_rows(step.following)[cut],
            )
            states = step.states
        learner.update(self._buffer)

    def _rows(self, states: Float32Array) -> Float32Array:
        return np.concatenate((states.reshape(-1, states.shape[2]), self._marks), axis=1)

    def _critic_rows(self, states: Float32Array) -> Float32Array:
        both = np.tile(np.concatenate((*states,), axis=1), (2, 1))
        return np.concatenate((both, self._marks), axis=1)


def processor_seconds(task: Callable[[], None]) -> float:
    """Return how much processor time ``task`` took."""
    start = time.process_time()
    task()
    return time.process_time() - start


def settings_of(task: str, name: str, members: int) -> ZooConfig:
    """Return the settings of a population, without a limit of steps."""
    changes = {"num_envs": 8, "ppo": PEER} if name == "peer" else {}
    return ZooConfig(method="fcp", task=task, population=members, **changes)


def bench(task: str, name: str, members: int, repeats: int) -> Row:
    """An iteration of all members, stacked, beside one of one member; the first pair warms up."""
    config = settings_of(task, name, members)
    copies = config.num_envs
    with (
        closing(open_pairs(config, copies * members, stride=copies)) as env,
        closing(open_pairs(config, copies)) as other,
    ):
        stacked = SelfPlay(config, env, [f"bench-{k}" for k in range(members)])
        alone = UnstackedMember(config, other, 0)
        ours: list[float] = []
        peer: list[float] = []
        for repeat in range(repeats + 1):
            ours.append(processor_seconds(lambda r=repeat: stacked.iterate(r)) / members)
            peer.append(processor_seconds(lambda r=repeat: alone.iterate(r)))
    return Row(
        f"{task}, {name} settings, K = {members}",
        ours=config.rollout_steps / statistics.median(ours[1:]),
        peer=config.rollout_steps / statistics.median(peer[1:]),
        unit="steps/s of processor",
        aim=AIMS.get((name, members)),
        better="higher",
        peer_name="one member after another",
    )


def rows(repeats: int = REPEATS, members: tuple[int, ...] = MEMBERS) -> list[Row]:
    """Return every measurement of this file."""
    with single_torch_thread():
        return [
            bench(task, name, count, repeats)
            for task in ("foraging", "crossing")
            for name in ("peer", "default")
            for count in members
        ]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--members", type=int, nargs="+", default=MEMBERS)
    arguments = parser.parse_args()
    print_table("Populations", rows(arguments.repeats, tuple(arguments.members)))


if __name__ == "__main__":
    main()
