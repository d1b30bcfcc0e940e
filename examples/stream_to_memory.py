"""Soft actor-critic on Pendulum-v1 from two producers that go on simulating while it trains.

python examples/stream_to_memory.py

Each of two processes steps two pendulums with the newest weights it was given. After 200 updates
training takes one more episode of 200 steps and publishes its weights; producers wait while four
episodes are unread, so there is one update per environment step and no episode is lost. When
episodes arrive depends on the machine, so equal seeds do not give equal bits here.
"""

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import SyncVectorEnv, VectorEnv
from harness import Run, evaluate_policy, main
from numpy.typing import NDArray
from off_policy import CURVE_EPISODES, CURVE_POINTS, Settings, greedy, torch_generator
from soft_actor_critic import soft_actor_critic
from torch import nn

from cadenza.core.spaces import BoxSpace, DictSpace, MDPSpace
from cadenza.learn import Callback, Trainer
from cadenza.learn.callbacks import BackPropStepsTerminator
from cadenza.learn.memory import MemoryLoader
from cadenza.learn.memory.builder import DictObsMemoryTable
from cadenza.learn.nn import GaussianMlpPolicy
from cadenza.stream import OnlineDataEngine, OnlineDataEngineCfg
from cadenza.stream.bridges.episodes import EpisodeReader
from cadenza.stream.bridges.memory import StreamToMemory
from cadenza.stream.serving import ServingCheck

ENV_ID = "Pendulum-v1"
OBSERVATION_DIM = 3
ACTION_DIM = 1
#: Steps of an episode, and updates between two episodes.
EPISODE_STEPS = 200
#: Widths of the policy's hidden layers, here and in the producers.
HIDDEN_DIMS = (256, 256)


def pendulums(num_envs: int) -> VectorEnv[Any, Any, Any]:
    """Return environments with actions in [-1, 1]; producers call it."""

    def make() -> gymnasium.Env[Any, Any]:
        one = np.float32(1.0)
        return gymnasium.wrappers.RescaleAction(gymnasium.make(ENV_ID), -one, one)

    return SyncVectorEnv([make] * num_envs)


class StreamActor:
    """Draws actions from a Gaussian policy whose weights the trainer publishes; for producers."""

    def __init__(self, env: VectorEnv[Any, Any, Any], seed: int) -> None:
        del env
        noise = torch_generator("stream.noise", seed)
        self._policy = GaussianMlpPolicy(
            OBSERVATION_DIM, ACTION_DIM, HIDDEN_DIMS, generator=noise, init_generator=noise
        )

    def act(self, observations: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return one action per environment."""
        with torch.no_grad():
            return self._policy(torch.as_tensor(observations))[0].numpy()

    def load_parameters(self, state_dict: Mapping[str, torch.Tensor]) -> None:
        """Act with these weights from now on."""
        self._policy.load_state_dict(state_dict)


class PublishWeights(Callback):
    """Sends the policy's weights to the producers once per episode's worth of updates."""

    def __init__(self, engine: OnlineDataEngine, policy: nn.Module) -> None:
        super().__init__(cycle=EPISODE_STEPS)
        self._engine = engine
        self._policy = policy

    def end_cycle(self) -> None:
        """Send them."""
        self._engine.publish_policy(self._policy.state_dict())


class CurveReporter(Callback):
    """Reports the mean return of the episodes that the memory got last."""

    def __init__(self, run: Run, feeder: StreamToMemory, table: DictObsMemoryTable) -> None:
        super().__init__(cycle=max(1, run.steps // CURVE_POINTS))
        self._run = run
        self._feeder = feeder
        self._table = table

    def end_cycle(self) -> None:
        """Add a point to the curve."""
        returns = list(self._feeder.windowed_scalar["stream/return"])[-CURVE_EPISODES:]
        self._run.report(self._table.size(), float(np.mean(returns)))


def train(run: Run) -> None:
    """Train one seed and evaluate it greedily."""
    settings = Settings(env_steps=run.steps, hidden_dims=HIDDEN_DIMS)
    algorithm = soft_actor_critic(OBSERVATION_DIM, ACTION_DIM, settings, run.seed)
    spaces = MDPSpace(
        rewards=None,
        actions=BoxSpace(np.float32, (ACTION_DIM,)),
        state=DictSpace({"obs": BoxSpace(np.float32, (OBSERVATION_DIM,))}),
    )
    table = DictObsMemoryTable(
        spaces=spaces,
        use_terminal_column=True,
        maxlen=settings.memory,
        device="cpu",
        seed=run.seed,
    )
    cfg = OnlineDataEngineCfg(
        buffer_size=8,
        max_episode_steps=EPISODE_STEPS,
        gym_config={"factory": "stream_to_memory:pendulums", "num_envs": 2},
        policy={"factory": "stream_to_memory:StreamActor"},
        producers=2,
        mode="continuous",
        high_water=4,
        seed=run.seed,
    )
    with OnlineDataEngine(cfg) as engine:
        reader = EpisodeReader(engine.store)
        feeder = StreamToMemory(
            reader,
            table,
            warmup_steps=settings.warmup_steps,
            check=ServingCheck(engine.store).require,
            cycle=EPISODE_STEPS,
            episodes_per_cycle=1,
        )
        callbacks = [
            *algorithm.callbacks,
            feeder,
            PublishWeights(engine, algorithm.acting),
            CurveReporter(run, feeder, table),
            BackPropStepsTerminator(settings.updates),
        ]
        Trainer(callbacks, MemoryLoader(table, settings.batch_size, 1, "batch_size")).train()
    policy = greedy(algorithm.acting, lambda: gymnasium.make(ENV_ID))
    returns = evaluate_policy(policy, ENV_ID, run.evaluation_episodes, run.seed)
    run.finish(returns, env_steps=table.size(), updates=settings.updates)


if __name__ == "__main__":
    main(train, name="stream_to_memory", steps=10_000, smoke_steps=1_500, evaluation_episodes=50)
