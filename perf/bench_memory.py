"""Replay memory: sampling and adding, beside TorchRL, Stable-Baselines3 and cpprb.

Data:      observations (3,), actions (2,), float32, episodes of 200 steps. Every memory is full.
Task:      from stored steps to CPU tensors: observation, next observation, action, reward, done.
           Ours also gives the bootstrap mask; cpprb gives arrays, which are turned into tensors.
Peers:     TorchRL `TensorDictReplayBuffer` over `LazyTensorStorage`, with `RandomSampler` for
           single steps and `SliceSampler(cache_values=True)` for sequences; Stable-Baselines3
           `ReplayBuffer`; cpprb `ReplayBuffer`. The last two have no sequences.
Protocol:  one process, one thread. Each round times every memory in turn, so all share the
           machine's moods; a figure is the median over rounds of the rounds' medians. For the
           growth with the capacity a small and a large memory of ours take turns in the same way.

Usage:  python -m perf.bench_memory
"""

import gc
from collections.abc import Callable, Mapping
from functools import partial
from statistics import median
from typing import Any

import cpprb
import gymnasium as gym
import numpy as np
import torch
from stable_baselines3.common.buffers import ReplayBuffer
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, RandomSampler, SliceSampler, TensorDictReplayBuffer

from cadenza.core.spaces import BoxSpace, DictSpace, MDPSpace
from cadenza.learn.memory.builder import DictObsMemoryTable
from perf.timing import Row, measure, print_table

OBSERVATION, ACTION, EPISODE = 3, 2, 200
CAPACITIES = (100_000, 5_000_000)
#: Windows and steps per window.
CASES = ((256, 1), (2000, 1), (32, 64))
ROUNDS, CALLS, WARMUP = 7, 150, 20
#: Promised speed relative to the best peer, and growth of the time with the capacity relative to
#: the peer that grows least.
SEQUENCES_RATIO, ADD_RATIO, GROWTH_RATIO = 3.0, 2.0, 0.8
OURS, TORCHRL, SB3, CPPRB = "cadenza", "TorchRL", "Stable-Baselines3", "cpprb"

Timed = Callable[[], object]


def rows() -> list[Row]:
    """Return all measurements of the memory."""
    torch.set_num_threads(1)
    figures: dict[tuple[int, tuple[int, int]], dict[str, float]] = {}
    adding: dict[str, float] = {}
    ours: dict[str, DictObsMemoryTable] = {}
    for capacity in CAPACITIES:
        memories = Memories(capacity)
        ours[f"{capacity:,}"] = memories.ours
        for case in CASES:
            figures[capacity, case] = alternate(memories.samplers(*case))
        adding = alternate(memories.adders())
        del memories
        gc.collect()
    table = [
        row
        for (capacity, (count, length)), times in figures.items()
        for row in sample_rows(f"sample {count} x {length} of {capacity:,}", times, length)
    ]
    small, large = ours
    for case in CASES:
        times = alternate({name: partial(mine.sample, *case) for name, mine in ours.items()})
        name = f"sample {case[0]} x {case[1]}: {large} / {small}"
        before, after = (figures[capacity, case] for capacity in CAPACITIES)
        least = min(after[peer] / before[peer] for peer in (TORCHRL, SB3) if peer in after)
        growth, peer = times[large] / times[small], "growth of the peer that grows least, a or b"
        table.append(Row(name, growth, least, "times", aim=GROWTH_RATIO, peer_name=peer))
    table.extend(compare(f"add an episode of {EPISODE} steps", adding, aim=ADD_RATIO))
    return table


def sample_rows(name: str, times: Mapping[str, float], length: int) -> list[Row]:
    """Compare one way of sampling with the peers that can do it."""
    return compare(name, times, aim=SEQUENCES_RATIO if length > 1 else 1.0)


def compare(name: str, times: Mapping[str, float], *, aim: float) -> list[Row]:
    """Compare with each peer; we promise ``aim`` times the speed of the best one.

    The best is taken over TorchRL and Stable-Baselines3; cpprb, which gives arrays of compiled
    code, is shown beside them.
    """
    best = min(times[peer] for peer in (TORCHRL, SB3) if peer in times)
    return [
        Row(
            name,
            times[OURS],
            time,
            aim=aim if time == best else None,
            peer_name=peer,
        )
        for peer, time in times.items()
        if peer != OURS
    ]


def alternate(calls: Mapping[str, Timed]) -> dict[str, float]:
    """Return the median duration of each call, microseconds; they take turns."""
    rounds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            rounds[name].append(measure(call, CALLS, warmup=WARMUP).p50)
    return {name: median(times) for name, times in rounds.items()}


class Memories:
    """The same steps in each memory."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.rng = np.random.default_rng(0)
        self.ours = self._ours()
        self.singles = self._torchrl_singles()
        self.slices = torchrl_buffer(
            self.singles.storage,
            SliceSampler(slice_len=CASES[-1][1], end_key=("next", "done"), cache_values=True),
        )
        self.sb3 = self._sb3()
        self.cpprb = self._cpprb()
        self.next_id = capacity

    def _ours(self) -> DictObsMemoryTable:
        spaces = MDPSpace(
            BoxSpace(np.float32, (1,)),
            BoxSpace(np.float32, (ACTION,)),
            DictSpace({"obs": BoxSpace(np.float32, (OBSERVATION,))}),
        )
        table = DictObsMemoryTable(spaces=spaces, maxlen=self.capacity, device=torch.device("cpu"))
        for identity in range(self.capacity // EPISODE):
            table.add_sequence(identity, self.episode())
        return table

    def episode(self) -> dict[str, np.ndarray]:
        """Return one episode in our form: one observation more than actions."""
        normal = partial(self.rng.standard_normal, dtype=np.float32)
        return {
            "obs": normal((EPISODE + 1, OBSERVATION)),
            "actions": normal((EPISODE, ACTION)),
            "rewards": normal((EPISODE, 1)),
        }

    def steps(self, episodes: int) -> dict[str, np.ndarray]:
        """Return steps in the form of the peers: observation and next observation."""
        normal = partial(self.rng.standard_normal, dtype=np.float32)
        count = episodes * EPISODE
        done = np.zeros((episodes, EPISODE), np.bool_)
        done[:, -1] = True
        observation = normal((count, OBSERVATION))
        return {
            "obs": observation,
            "next_obs": np.roll(observation, -1, axis=0),
            "act": normal((count, ACTION)),
            "rew": normal((count, 1)),
            "done": done.reshape(count, 1),
        }

    def _torchrl_singles(self) -> TensorDictReplayBuffer:
        buffer = torchrl_buffer(LazyTensorStorage(self.capacity), RandomSampler())
        for _ in range(self.capacity // (100 * EPISODE)):
            buffer.extend(tensordict(self.steps(100)))
        return buffer

    def _sb3(self) -> ReplayBuffer:
        box = gym.spaces.Box(-1.0, 1.0, (OBSERVATION,), np.float32)
        action = gym.spaces.Box(-1.0, 1.0, (ACTION,), np.float32)
        buffer = ReplayBuffer(
            self.capacity, box, action, device="cpu", handle_timeout_termination=False
        )
        steps = self.steps(self.capacity // EPISODE)
        buffer.observations[:, 0], buffer.next_observations[:, 0] = steps["obs"], steps["next_obs"]
        buffer.actions[:, 0], buffer.rewards[:] = steps["act"], steps["rew"]
        buffer.dones[:] = steps["done"]
        buffer.full = True
        return buffer

    def _cpprb(self) -> Any:
        buffer = cpprb.ReplayBuffer(
            self.capacity,
            {
                "obs": {"shape": OBSERVATION},
                "next_obs": {"shape": OBSERVATION},
                "act": {"shape": ACTION},
                "rew": {},
                "done": {},
            },
        )
        for _ in range(self.capacity // (100 * EPISODE)):
            buffer.add(**self.steps(100))
        return buffer

    def samplers(self, count: int, length: int) -> dict[str, Timed]:
        """Return one call per memory that samples ``count`` windows of ``length`` steps."""
        calls: dict[str, Timed] = {OURS: partial(self.ours.sample, count, length)}
        if length > 1:
            return calls | {TORCHRL: lambda: self.slices.sample(count * length)}
        return calls | {
            TORCHRL: partial(self.singles.sample, count),
            SB3: partial(self.sb3.sample, count),
            CPPRB: lambda: {k: torch.from_numpy(v) for k, v in self.cpprb.sample(count).items()},
        }

    def adders(self) -> dict[str, Timed]:
        """Return one call per memory that adds an episode; all memories are full."""
        episode, steps = self.episode(), self.steps(1)
        batch = tensordict(steps)
        infos: list[dict[str, Any]] = [{}]

        def ours() -> None:
            self.next_id += 1
            self.ours.add_sequence(self.next_id, episode)

        def sb3() -> None:
            for index in range(EPISODE):
                self.sb3.add(*(array[index] for array in steps.values()), infos)

        return {
            OURS: ours,
            TORCHRL: lambda: self.singles.extend(batch),
            SB3: sb3,
            CPPRB: lambda: self.cpprb.add(**steps),
        }


def torchrl_buffer(storage: Any, sampler: Any) -> TensorDictReplayBuffer:
    """Return a TorchRL memory without a batch size of its own."""
    return TensorDictReplayBuffer(storage=storage, sampler=sampler)


def tensordict(steps: Mapping[str, np.ndarray]) -> TensorDict:
    """Return steps as TorchRL stores them."""
    tensors = {name: torch.from_numpy(array) for name, array in steps.items()}
    return TensorDict(
        {
            "observation": tensors["obs"],
            "action": tensors["act"],
            "next": {
                "observation": tensors["next_obs"],
                "reward": tensors["rew"],
                "done": tensors["done"],
            },
        },
        batch_size=[len(steps["act"])],
    )


if __name__ == "__main__":
    print_table((__doc__ or "").splitlines()[0], rows())
