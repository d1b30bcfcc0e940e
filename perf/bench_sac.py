"""Updates of soft actor-critic per second, sampling included, beside Stable-Baselines3.

Task:      one gradient step of two critics, policy and temperature, and of the target networks, on
           a batch of 256 drawn from a full replay memory of 50 000 transitions.
Settings:  equal on both sides: hidden layers 256 x 256 with ReLU, Adam, discount, learned
           temperature, twin critics in the policy loss. Observations and actions are random.
Ours:      the shipped parts in a `Trainer`: memory table, loader, five callbacks.
Protocol:  one process, one thread, alternating rounds; the median over rounds.

Usage:  python -m perf.bench_sac
"""

import time
from collections.abc import Callable
from statistics import median

import gymnasium as gym
import numpy as np
import torch
from stable_baselines3 import SAC
from stable_baselines3.common.logger import Logger

from cadenza.core.spaces import BoxSpace, DictSpace, MDPSpace
from cadenza.learn import Callback, Trainer
from cadenza.learn.algorithms.sac import QLoss
from cadenza.learn.algorithms.sac_assembly import ActorCriticNumbers, adam, soft_actor_critic
from cadenza.learn.callbacks import BackPropStepsTerminator
from cadenza.learn.memory import MemoryLoader
from cadenza.learn.memory.builder import DictObsMemoryTable
from cadenza.learn.nn import ActionValueMlp, GaussianMlpPolicy
from perf.timing import Row, print_table

#: Widths of observation and action: a pendulum, a lander, a cheetah.
TASKS = (("3 observations, 1 action", 3, 1), ("8 and 2", 8, 2), ("17 and 6", 17, 6))
HIDDEN = (256, 256)
BATCH = 256
TRANSITIONS, EPISODE = 50_000, 200
LEARNING_RATE, GAMMA, TAU = 3e-4, 0.99, 0.005
ROUNDS, UPDATES, WARMUP = 7, 60, 20
#: Ratio to the peer we promise.
PROMISED_RATIO = 1.3


def rows() -> list[Row]:
    """Return one row per task."""
    torch.set_num_threads(1)
    table: list[Row] = []
    for name, observation_dim, action_dim in TASKS:
        data = random_transitions(observation_dim, action_dim, np.random.default_rng(0))
        ours, peer = Ours(data), Peer(data)
        rates = alternate({"ours": ours.train, "peer": peer.train})
        table.append(
            Row(
                name,
                ours=rates["ours"],
                peer=rates["peer"],
                budget=PROMISED_RATIO * rates["peer"],
                unit="updates/s",
                better="higher",
                peer_name="Stable-Baselines3 SAC",
            )
        )
    return table


def alternate(trainings: dict[str, Callable[[int], None]]) -> dict[str, float]:
    """Return the median rate of each training, in updates per second."""
    rates: dict[str, list[float]] = {name: [] for name in trainings}
    for train in trainings.values():
        train(WARMUP)
    for _ in range(ROUNDS):
        for name, train in trainings.items():
            start = time.perf_counter()
            train(UPDATES)
            rates[name].append(UPDATES / (time.perf_counter() - start))
    return {name: median(values) for name, values in rates.items()}


def random_transitions(
    observation_dim: int, action_dim: int, rng: np.random.Generator
) -> dict[str, np.ndarray]:
    """Return whole episodes: observations (E, L + 1, O), actions (E, L, A), rewards (E, L, 1)."""
    episodes = TRANSITIONS // EPISODE
    shapes = {
        "obs": (episodes, EPISODE + 1, observation_dim),
        "actions": (episodes, EPISODE, action_dim),
        "rewards": (episodes, EPISODE, 1),
    }
    data = {key: rng.standard_normal(shape).astype(np.float32) for key, shape in shapes.items()}
    data["actions"] = np.tanh(data["actions"])
    return data


class Ours:
    """The package's parts, wired as in the examples."""

    def __init__(self, data: dict[str, np.ndarray]) -> None:
        observation_dim, action_dim = data["obs"].shape[-1], data["actions"].shape[-1]
        box = lambda width: BoxSpace(np.float32, (width,))  # noqa: E731
        spaces = MDPSpace(box(1), box(action_dim), DictSpace({"obs": box(observation_dim)}))
        table = DictObsMemoryTable(
            spaces=spaces, use_terminal_column=True, maxlen=TRANSITIONS, device="cpu"
        )
        for index in range(len(data["actions"])):
            sequence = {key: values[index] for key, values in data.items()}
            table.add_sequence(index, {**sequence, "terminal": np.ones(1, np.float32)})
        self.loader = MemoryLoader(table, BATCH, 1, "batch_size")
        self.losses = self.callbacks(observation_dim, action_dim)

    def callbacks(self, observation_dim: int, action_dim: int) -> list[Callback]:
        """Return the parts of soft actor-critic."""
        q1, q2 = (ActionValueMlp(observation_dim, action_dim, HIDDEN) for _ in range(2))
        policy = GaussianMlpPolicy(observation_dim, action_dim, HIDDEN)
        ln_alpha = torch.zeros(1, requires_grad=True)
        critics = [
            QLoss(name=name, q=q, opt=adam(q, LEARNING_RATE))
            for name, q in (("q1", q1), ("q2", q2))
        ]
        numbers = ActorCriticNumbers(learning_rate=LEARNING_RATE, gamma=GAMMA, tau=TAU)
        return soft_actor_critic(policy, critics, ln_alpha, action_dim, numbers)

    def train(self, updates: int) -> None:
        """Do ``updates`` updates."""
        Trainer([*self.losses, BackPropStepsTerminator(updates)], self.loader).train()


class Peer:
    """Stable-Baselines3's implementation, given the same transitions."""

    def __init__(self, data: dict[str, np.ndarray]) -> None:
        env = RandomEnv(data["obs"].shape[-1], data["actions"].shape[-1])
        self.model = SAC(
            "MlpPolicy",
            env,
            learning_rate=LEARNING_RATE,
            buffer_size=TRANSITIONS,
            batch_size=BATCH,
            gamma=GAMMA,
            tau=TAU,
            policy_kwargs={"net_arch": list(HIDDEN)},
            device="cpu",
            seed=0,
        )
        self.model.set_logger(Logger(None, []))
        obs, actions, rewards = data["obs"], data["actions"], data["rewards"]
        for episode in range(len(actions)):
            for step in range(EPISODE):
                self.model.replay_buffer.add(
                    obs[episode, step][None],
                    obs[episode, step + 1][None],
                    actions[episode, step][None],
                    rewards[episode, step],
                    np.array([step == EPISODE - 1]),
                    [{"TimeLimit.truncated": True}],
                )

    def train(self, updates: int) -> None:
        """Do ``updates`` updates."""
        self.model.train(gradient_steps=updates, batch_size=BATCH)


class RandomEnv(gym.Env):
    """Spaces without a simulator behind them; the peer wants an environment."""

    def __init__(self, observation_dim: int, action_dim: int) -> None:
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (observation_dim,), np.float32)
        self.action_space = gym.spaces.Box(-1.0, 1.0, (action_dim,), np.float32)

    def reset(self, *, seed=None, options=None):  # noqa: ARG002 -- the signature of gymnasium
        """Start nothing."""
        super().reset(seed=seed)
        return np.zeros(self.observation_space.shape, np.float32), {}

    def step(self, action):  # noqa: ARG002 -- the signature of gymnasium
        """Go nowhere."""
        return np.zeros(self.observation_space.shape, np.float32), 0.0, False, False, {}


if __name__ == "__main__":
    print_table((__doc__ or "").splitlines()[0], rows())
