"""Soft actor-critic on Pendulum-v1 from two producers that go on simulating while it trains.

python examples/stream_to_memory.py

Each of two processes steps two pendulums with the newest weights it was given. After 200 updates
training takes one more episode of 200 steps and publishes its weights; producers wait while four
episodes are unread, so there is one update per environment step and no episode is lost. When
episodes arrive depends on the machine, so equal seeds do not give equal bits here.
"""

import logging
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import torch
import typer
from gymnasium.vector import SyncVectorEnv, VectorEnv
from numpy.typing import NDArray
from torch import nn

from cadenza.core.spaces import BoxSpace, DictSpace, MDPSpace
from cadenza.learn import Callback, Trainer
from cadenza.learn.agents.judging import evaluate_policy
from cadenza.learn.algorithms.sac import QLoss, soft_actor_critic
from cadenza.learn.callbacks import BackPropStepsTerminator, TerminalLogger
from cadenza.learn.configs import SACConfig
from cadenza.learn.memory import MemoryLoader
from cadenza.learn.memory.builder import DictObsMemoryTable
from cadenza.learn.nn import ActionValueMlp, GaussianMlpPolicy
from cadenza.learn.optimizers import adam
from cadenza.stream import OnlineDataEngine, OnlineDataEngineCfg
from cadenza.stream.bridges.episodes import EpisodeReader
from cadenza.stream.bridges.memory import StreamToMemory
from cadenza.stream.serving import ServingCheck

OBSERVATIONS, ACTIONS = 3, 1
#: Steps of an episode, and updates between two episodes.
EPISODE_STEPS = 200
#: Environment steps before the first update.
WARMUP_STEPS = 1_000
CONFIG = SACConfig(learning_rate=1e-3, initial_alpha=1.0, memory_size=200_000)


def pendulum() -> gymnasium.Env[Any, Any]:
    """Return the task with actions in [-1, 1]."""
    one = np.float32(1.0)
    return gymnasium.wrappers.RescaleAction(gymnasium.make("Pendulum-v1"), -one, one)


def pendulums(num_envs: int) -> VectorEnv[Any, Any, Any]:
    """Return environments side by side; producers call it."""
    return SyncVectorEnv([pendulum] * num_envs)


def new_policy(generator: torch.Generator) -> GaussianMlpPolicy:
    """Return a policy, here and in the producers."""
    return GaussianMlpPolicy(
        OBSERVATIONS,
        ACTIONS,
        CONFIG.hidden_sizes,
        generator=generator,
        init_generator=generator,
    )


class StreamActor:
    """Draws actions from a policy whose weights the trainer publishes; for producers."""

    def __init__(self, env: VectorEnv[Any, Any, Any], seed: int) -> None:
        del env
        self._policy = new_policy(torch.Generator().manual_seed(seed))

    def act(self, observations: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return one action per environment."""
        with torch.no_grad():
            return self._policy(torch.as_tensor(observations))[0].numpy()

    def load_parameters(self, state_dict: Mapping[str, torch.Tensor]) -> None:
        """Act with these weights from now on."""
        self._policy.load_state_dict(state_dict)


class PublishWeights(Callback):
    """Sends the policy's weights to the producers."""

    def __init__(self, engine: OnlineDataEngine, policy: nn.Module) -> None:
        super().__init__(cycle=EPISODE_STEPS)
        self._engine, self._policy = engine, policy

    def end_cycle(self) -> None:
        """Send the weights."""
        self._engine.publish_policy(self._policy.state_dict())


def main(seed: int = 0, steps: int = 10_000, episodes: int = 50) -> None:
    """Train one policy and judge it greedily."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")  # what TerminalLogger writes
    torch.set_num_threads(1)  # networks are small: threads would wait for one another
    generator = torch.Generator().manual_seed(seed)
    policy = new_policy(generator)
    critics = [
        ActionValueMlp(OBSERVATIONS, ACTIONS, CONFIG.hidden_sizes, generator=generator)
        for _ in range(2)
    ]
    algorithm = soft_actor_critic(
        policy,
        [
            QLoss(name=f"q{i}", q=critic, opt=adam(critic, CONFIG.learning_rate))
            for i, critic in enumerate(critics)
        ],
        torch.zeros(1, requires_grad=True),
        ACTIONS,
        CONFIG,
    )
    table = DictObsMemoryTable(
        spaces=MDPSpace(
            rewards=None,
            actions=BoxSpace(np.float32, (ACTIONS,)),
            state=DictSpace({"obs": BoxSpace(np.float32, (OBSERVATIONS,))}),
        ),
        use_terminal_column=True,
        maxlen=CONFIG.memory_size,
        device="cpu",
        seed=seed,
    )
    updates = steps - WARMUP_STEPS
    engine_config = OnlineDataEngineCfg(
        buffer_size=8,
        max_episode_steps=EPISODE_STEPS,
        gym_config={"factory": "stream_to_memory:pendulums", "num_envs": 2},
        policy={"factory": "stream_to_memory:StreamActor"},
        producers=2,
        mode="continuous",
        high_water=4,
        seed=seed,
    )
    with OnlineDataEngine(engine_config) as engine:
        feeder = StreamToMemory(
            EpisodeReader(engine.store),
            table,
            warmup_steps=WARMUP_STEPS,
            check=ServingCheck(engine.store).require,
            cycle=EPISODE_STEPS,
            episodes_per_cycle=1,
        )
        callbacks = [
            *algorithm,
            feeder,
            PublishWeights(engine, policy),
            TerminalLogger([feeder], log_interval=1_000),
            BackPropStepsTerminator(updates),
        ]
        Trainer(callbacks, MemoryLoader(table, CONFIG.batch_size, 1, "batch_size")).train()
    policy.eval()

    @torch.no_grad()
    def greedy(observation: NDArray[np.float32]) -> NDArray[np.float32]:
        return policy(torch.as_tensor(observation)[None])[0].numpy()

    print(evaluate_policy(greedy, pendulum(), episodes, seed=seed))


if __name__ == "__main__":
    typer.run(main)
