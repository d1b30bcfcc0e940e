"""A user's program as an editor sees it: what pyright must know, and what it must refuse."""

from pathlib import Path
from typing import assert_type

import gymnasium as gym
import numpy as np

import cadenza
from cadenza import learn, safety
from cadenza.learn.configs import PPOConfig, SACConfig


class Greeting(learn.Callback):
    """A callback of the user's own."""


def training(folder: Path) -> None:
    """Train, save, load, and read settings."""
    agent = cadenza.SAC("Pendulum-v1", seed=0, learning_rate=1e-3)
    assert_type(agent, cadenza.SAC)
    assert_type(agent.learn(1_000, callbacks=[Greeting()], folder=folder), cadenza.SAC)
    assert_type(agent.config.tau, float)
    assert_type(cadenza.SAC.Config, type[SACConfig])
    assert_type(cadenza.PPO.load(folder / "last"), cadenza.PPO)
    loaded = cadenza.load(folder / "last")
    loaded.predict(np.zeros(3, np.float32))
    assert isinstance(loaded, cadenza.PPO)
    loaded.learn(1_000)
    assert_type(cadenza.PPO.Config().batch_size, int)
    assert_type(PPOConfig().gamma, float)
    action = agent.predict(np.zeros(3, np.float32))
    gym.make("Pendulum-v1").step(action)


def guarding() -> None:
    """Put the filter around an environment."""
    guarded = cadenza.guard("cadenza/Crossing-v1")
    guarded.reset(seed=0)
    safety.Bounds()  # pyright: ignore[reportCallIssue]


def mistakes() -> None:
    """Write what an editor must underline."""
    cadenza.SAC("Pendulum-v1", learning_rat=1e-3)  # pyright: ignore[reportCallIssue]
    cadenza.SAC("Pendulum-v1", learning_rate="fast")  # pyright: ignore[reportArgumentType]
    cadenza.PPO("Pendulum-v1", tau=0.1)  # pyright: ignore[reportCallIssue]
    cadenza.TD3("Pendulum-v1").learn("many")  # pyright: ignore[reportArgumentType]
