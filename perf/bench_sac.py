"""Updates of SAC, TD3 and DQN per second, sampling included, beside Stable-Baselines3.

Task:      one gradient step of all networks and of their targets, on a batch of 256 drawn from a
           replay memory of 50 000 transitions. TD3's policy takes every second step, DQN has one
           network and nine actions.
Settings:  equal on both sides: hidden layers 256 x 256 with ReLU, Adam, discount, learned
           temperature, twin critics. Observations and actions are random.
Ours:      the learners that `cadenza train` runs; compiled means ``compile = true``, bf16
           ``precision = bf16``.
Bound:     the matrix products of one SAC update alone, in float32: forward, backward to inputs and
           to weights.
Protocol:  one process, one thread, alternating rounds; the median over rounds of the rates, and of
           the ratios within a round. Time is the thread's processor time, so that a busy machine
           takes part of its caches away and nothing else.

Usage:  python -m perf.bench_sac
"""

import time
from collections.abc import Callable
from itertools import pairwise
from statistics import median

import gymnasium as gym
import numpy as np
import torch
from stable_baselines3 import DQN, SAC, TD3
from stable_baselines3.common.logger import Logger

from cadenza.learn.agents.dqn import DQNLearner, action_grid
from cadenza.learn.agents.sac import SACLearner
from cadenza.learn.agents.td3 import TD3Learner
from cadenza.learn.configs import DQNConfig, SACConfig, TD3Config
from cadenza.learn.memory.builder import TransitionMemory
from perf.timing import Row, print_table

#: Widths of observation and action: a pendulum, a lander, a cheetah.
TASKS = (("3 observations, 1 action", 3, 1), ("8 and 2", 8, 2), ("17 and 6", 17, 6))
HIDDEN = (256, 256)
BATCH = 256
TRANSITIONS, EPISODE = 50_000, 200
LEARNING_RATE, GAMMA, TAU = 3e-4, 0.99, 0.005
CHOICES = 9
ROUNDS, UPDATES, WARMUP = 11, 40, 10
#: Ratios to the peer that we promise, and the share of the bound.
PROMISED_RATIO, PROMISED_COMPILED, PROMISED_SHARE = 1.3, 1.8, 0.7
PEERS = {"SAC": SAC, "TD3": TD3, "DQN": DQN}

Train = Callable[[int], None]


def rows() -> list[Row]:
    """Return the rows of every task and algorithm."""
    torch.set_num_threads(1)
    table: list[Row] = []
    for name, observation_dim, action_dim in TASKS:
        table += compared("SAC", name, observation_dim, action_dim)
    for algorithm in ("TD3", "DQN"):
        table += compared(algorithm, "17 and 6", 17, 1 if algorithm == "DQN" else 6)
    return table


def compared(algorithm: str, name: str, observation_dim: int, action_dim: int) -> list[Row]:
    """Return the rows of one algorithm on one task."""
    data = random_transitions(observation_dim, action_dim, np.random.default_rng(0))
    trainings = {
        "peer": peer(algorithm, data),
        "eager": ours(algorithm, data),
        "compiled": ours(algorithm, data, compile=True),
    }
    if algorithm == "SAC":
        trainings["bound"] = products(observation_dim, action_dim)
    if algorithm == "SAC" and torch.cpu._is_avx512_bf16_supported():  # noqa: SLF001 -- no public one
        trainings["bf16"] = ours(algorithm, data, precision="bf16")
        trainings["bf16, compiled"] = ours(algorithm, data, compile=True, precision="bf16")
    rates = alternate(trainings)
    name = f"{algorithm}, {name if algorithm != 'DQN' else '17 and 9 choices'}"
    promised = {"eager": PROMISED_RATIO, "compiled": PROMISED_COMPILED}
    table = [
        row(name if mode == "eager" else f"{name}, {mode}", rates, mode, "peer", promised.get(mode))
        for mode in trainings
        if mode not in ("peer", "bound")
    ]
    if "bound" in rates:
        table.append(row(f"{name}, compiled, of bound", rates, "compiled", "bound", PROMISED_SHARE))
    return table


def row(
    name: str, rates: dict[str, list[float]], mode: str, other: str, promised: float | None
) -> Row:
    """Return one line; its ratio is the median of the rounds' ratios."""
    rate = median(rates[mode])
    theirs = rate / median(a / b for a, b in zip(rates[mode], rates[other], strict=True))
    return Row(
        name,
        ours=rate,
        peer=theirs,
        aim=promised,
        unit="updates/s",
        better="higher",
        peer_name="Stable-Baselines3" if other == "peer" else "the matrix products alone (bound)",
    )


def alternate(trainings: dict[str, Train]) -> dict[str, list[float]]:
    """Return the rates of each training by round, in updates per second."""
    rates: dict[str, list[float]] = {name: [] for name in trainings}
    for train in trainings.values():
        train(WARMUP)
    for _ in range(ROUNDS):
        for name, train in trainings.items():
            start = time.thread_time()
            train(UPDATES)
            rates[name].append(UPDATES / (time.thread_time() - start))
    return rates


def random_transitions(
    observation_dim: int, action_dim: int, rng: np.random.Generator
) -> dict[str, np.ndarray]:
    """Return whole episodes: observations (E, L + 1, O), actions (E, L, A), rewards (E, L)."""
    episodes = TRANSITIONS // EPISODE
    shapes = {
        "obs": (episodes, EPISODE + 1, observation_dim),
        "actions": (episodes, EPISODE, action_dim),
        "rewards": (episodes, EPISODE),
    }
    data = {key: rng.standard_normal(shape).astype(np.float32) for key, shape in shapes.items()}
    data["actions"] = np.tanh(data["actions"])
    return data


def choices_of(actions: np.ndarray) -> np.ndarray:
    """Return actions in (-1, 1) as numbers of choices."""
    return ((actions + 1.0) * 0.5 * CHOICES).astype(np.int64)


def ours(algorithm: str, data: dict[str, np.ndarray], **mode: bool | str) -> Train:
    """Return our learner's updates."""
    observation_dim, action_dim = data["obs"].shape[-1], data["actions"].shape[-1]
    settings = {
        "learning_rate": LEARNING_RATE,
        "gamma": GAMMA,
        "tau": TAU,
        "batch_size": BATCH,
        "hidden_sizes": HIDDEN,
        **mode,
    }
    if algorithm == "DQN":
        learner = DQNLearner(
            observation_dim=observation_dim,
            choices=action_grid(1, CHOICES),
            config=DQNConfig(**settings, double=False),
        )
    else:
        kind, config = (SACLearner, SACConfig) if algorithm == "SAC" else (TD3Learner, TD3Config)
        learner = kind(
            observation_dim=observation_dim, action_dim=action_dim, config=config(**settings)
        )
    actions = data["actions"] if algorithm != "DQN" else choices_of(data["actions"])
    episodes = len(actions)
    memory = TransitionMemory(
        observation_dim=observation_dim,
        action_dim=learner.action_width,
        num_envs=episodes,
        max_transitions=TRANSITIONS,
        seed=0,
        action_dtype=learner.action_dtype,
    )
    for step in range(EPISODE):
        memory.add(
            data["obs"][:, step],
            actions[:, step],
            data["rewards"][:, step],
            terminated=np.zeros(episodes, bool),
            boundaries=np.full(episodes, step == EPISODE - 1),
            next_observations=data["obs"][:, step + 1],
        )

    def train(updates: int) -> None:
        for _ in range(updates):
            learner.learn(memory)

    return train


def peer(algorithm: str, data: dict[str, np.ndarray]) -> Train:
    """Return the updates of Stable-Baselines3's implementation, given the same transitions."""
    actions = data["actions"] if algorithm != "DQN" else choices_of(data["actions"])
    env = RandomEnv(data["obs"].shape[-1], actions.shape[-1], discrete=algorithm == "DQN")
    model = PEERS[algorithm](
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
    model.set_logger(Logger(None, []))
    for episode in range(len(actions)):
        for step in range(EPISODE):
            model.replay_buffer.add(
                data["obs"][episode, step][None],
                data["obs"][episode, step + 1][None],
                actions[episode, step][None],
                data["rewards"][episode, step],
                np.array([step == EPISODE - 1]),
                [{"TimeLimit.truncated": True}],
            )

    def train(updates: int) -> None:
        model.train(gradient_steps=updates, batch_size=BATCH)

    return train


def products(observation_dim: int, action_dim: int) -> Train:
    """Return the matrix products of SAC's updates, in float32, and nothing else."""
    rng = torch.Generator().manual_seed(0)

    def weights(inputs: int, outputs: int) -> list[torch.Tensor]:
        widths = [inputs, *HIDDEN, outputs]
        return [torch.randn(shape, generator=rng) / shape[0] ** 0.5 for shape in pairwise(widths)]

    policy = weights(observation_dim, 2 * action_dim)
    critics = [weights(observation_dim + action_dim, 1) for _ in range(2)]
    state = torch.randn((BATCH, observation_dim), generator=rng)
    both = torch.randn((BATCH, observation_dim + action_dim), generator=rng)

    def forward(net: list[torch.Tensor], x: torch.Tensor) -> list[torch.Tensor]:
        values = [x]
        for weight in net:
            values.append(values[-1] @ weight)
        return values

    def backward(
        net: list[torch.Tensor], values: list[torch.Tensor], *, to_weights: bool, to_input: bool
    ) -> None:
        gradient = values[-1]
        for layer in reversed(range(len(net))):
            if to_weights:
                values[layer].t() @ gradient
            if layer or to_input:
                gradient = gradient @ net[layer].t()

    def train(updates: int) -> None:
        for _ in range(updates):
            for net, x in ((policy, state), (critics[0], both), (critics[1], both)):
                forward(net, x)  # targets
            for critic in critics:
                backward(critic, forward(critic, both), to_weights=True, to_input=False)
            acted = forward(policy, state)
            for critic in critics:
                backward(critic, forward(critic, both), to_weights=False, to_input=True)
            backward(policy, acted, to_weights=True, to_input=False)

    return train


class RandomEnv(gym.Env):
    """Spaces without a simulator behind them; the peer wants an environment."""

    def __init__(self, observation_dim: int, action_dim: int, *, discrete: bool) -> None:
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (observation_dim,), np.float32)
        self.action_space = gym.spaces.Box(-1.0, 1.0, (action_dim,), np.float32)
        if discrete:
            self.action_space = gym.spaces.Discrete(CHOICES)

    def reset(self, *, seed=None, options=None):  # noqa: ARG002 -- the signature of gymnasium
        """Start nothing."""
        super().reset(seed=seed)
        return np.zeros(self.observation_space.shape, np.float32), {}

    def step(self, action):  # noqa: ARG002 -- the signature of gymnasium
        """Go nowhere."""
        return np.zeros(self.observation_space.shape, np.float32), 0.0, False, False, {}


if __name__ == "__main__":
    print_table((__doc__ or "").splitlines()[0], rows())
