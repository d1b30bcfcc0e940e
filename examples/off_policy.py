"""Off-policy training on a Gymnasium task: environments, replay memory, collector and trainer.

What the SAC, HL-Gauss and TD3 examples share; the algorithm comes in as a function.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from harness import Run
from numpy.typing import NDArray
from torch import nn

from cadenza.core.seeding import derive_substream
from cadenza.core.types import AgentId, DictObservation, DictResponse
from cadenza.learn import Callback, Trainer
from cadenza.learn.callbacks import BackPropStepsTerminator
from cadenza.learn.collectors.sync import SimpleGymCollector
from cadenza.learn.env.dict_gym_wrapper import DictGymWrapper
from cadenza.learn.env.replayable import ReplayableEnv
from cadenza.learn.memory import MemoryLoader, MemoryTableProxy
from cadenza.learn.memory.builder import DictObsMemoryTable
from cadenza.learn.proxies import GenericAgentProxy

EnvFactory = Callable[[], gymnasium.Env[Any, Any]]
Greedy = Callable[[NDArray[np.float32]], NDArray[np.float32]]

#: Points of a learning curve, and episodes that each is the mean of.
CURVE_POINTS = 50
CURVE_EPISODES = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One experiment.

    Attributes:
        env_steps: Environment steps in total.
        warmup_steps: Of those, steps before the first update.
        random_steps: Of those, steps with uniformly drawn actions.
        envs: Environments stepped together.
        hidden_dims: Widths of the hidden layers of every network.
        learning_rate: Of every network.
        batch_size: Rows per update.
        gamma: Discount per step.
        tau: Share that the target networks move per update.
        reward_scale: Factor on the rewards.
        memory: Transitions that the replay memory holds.
    """

    env_steps: int
    warmup_steps: int = 1_000
    random_steps: int = 0
    envs: int = 4
    hidden_dims: Sequence[int] = (256, 256)
    learning_rate: float = 1e-3
    batch_size: int = 256
    gamma: float = 0.99
    tau: float = 0.005
    reward_scale: float = 1.0
    memory: int = 200_000

    @property
    def updates(self) -> int:
        """One per environment step after the warm-up, at least one."""
        return max(1, self.env_steps - self.warmup_steps)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Algorithm:
    """What an algorithm brings to a training.

    Attributes:
        acting: Network that acts while training; greedy in evaluation mode.
        returns_log_probability: Whether it returns a log-probability, too.
        callbacks: Losses and targets, in order.
    """

    acting: nn.Module
    returns_log_probability: bool
    callbacks: Sequence[Callback]


#: Makes the algorithm from observation width, action width, settings and the run's seed.
AlgorithmFactory = Callable[[int, int, Settings, int], Algorithm]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Learned:
    """What a training returns.

    Attributes:
        policy: Greedy function of one observation.
        env_steps: Environment steps used.
        updates: Updates done.
    """

    policy: Greedy
    env_steps: int
    updates: int


class EpisodeReturns:
    """A memory proxy that notes the return of every finished episode on the way."""

    def __init__(self, inner: MemoryTableProxy) -> None:
        self._inner = inner
        self.returns: list[float] = []

    def add(
        self,
        observations: Mapping[AgentId, DictObservation],
        responses: Mapping[AgentId, DictResponse],
    ) -> None:
        """Note returns and pass everything on."""
        self._inner.add(observations, responses)
        for seen in observations.values():
            if seen.metadata is not None:
                self.returns.append(seen.metadata.info["episode/reward"])


class ExploringAgent(GenericAgentProxy):
    """Draws its first ``random_steps`` actions uniformly from [-1, 1], then asks the policy."""

    def __init__(
        self, *args: Any, random_steps: int, rng: np.random.Generator, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self._random_steps = random_steps
        self._rng = rng

    def __call__(
        self, observations: Mapping[AgentId, DictObservation]
    ) -> dict[AgentId, DictResponse]:
        """Return one response for every agent whose episode goes on."""
        responses = super().__call__(observations)
        if self._random_steps > 0:
            self._random_steps -= len(responses)
            for response in responses.values():
                shape = np.shape(response.list_data["actions"])
                drawn = self._rng.uniform(-1.0, 1.0, shape).astype(np.float32)
                response.list_data["actions"] = drawn
        return responses


class CurveReporter(Callback):
    """Reports the mean return of the last episodes every ``cycle`` updates."""

    def __init__(self, run: Run, memory: EpisodeReturns, cycle: int) -> None:
        super().__init__(cycle=cycle)
        self._run = run
        self._memory = memory

    def end_cycle(self, inf_step: int) -> None:
        """Add a point to the curve."""
        if self._memory.returns:
            recent = self._memory.returns[-CURVE_EPISODES:]
            self._run.report(inf_step, float(np.mean(recent)))


def train_off_policy(
    make_env: EnvFactory, settings: Settings, run: Run, make_algorithm: AlgorithmFactory
) -> Learned:
    """Collect and learn in turn.

    Args:
        make_env: Makes an environment with one box of observations and one of actions.
        settings: The experiment.
        run: Gives the seed and takes the learning curve.
        make_algorithm: Makes the algorithm.
    """
    env = make_envs(make_env, settings.envs, run.seed)
    space = env.dict_space
    widths = space.state.spaces["obs"].shape[0], space.actions.shape[0]
    algorithm = make_algorithm(*widths, settings, run.seed)
    table = DictObsMemoryTable(
        spaces=space,
        use_terminal_column=True,
        maxlen=settings.memory,
        device="cpu",
        seed=run.seed,
    )
    memory = EpisodeReturns(MemoryTableProxy(table, minimum_length_threshold=1, use_terminal=True))
    agent = ExploringAgent(
        algorithm.acting,
        "cpu",
        ("obs",),
        ("actions",),
        uses_logprobs=algorithm.returns_log_probability,
        spaces=space,
        random_steps=settings.random_steps,
        rng=derive_substream("off_policy.random_steps", root_seed=run.seed).default_rng(),
    )
    collector = SimpleGymCollector(
        env,
        agent,
        memory,
        render=False,
        warmup_steps=settings.warmup_steps // settings.envs,
        bp_steps_per_inf=settings.envs,
    )
    updates = settings.updates
    reporter = CurveReporter(run, memory, cycle=max(1, updates // CURVE_POINTS))
    stop = BackPropStepsTerminator(updates)
    loader = MemoryLoader(table, settings.batch_size, 1, "batch_size")
    Trainer([*algorithm.callbacks, collector, reporter, stop], loader).train()
    env.close()
    return Learned(
        policy=greedy(algorithm.acting, make_env), env_steps=collector.inf_step, updates=updates
    )


def make_envs(make_env: EnvFactory, count: int, seed: int) -> DictGymWrapper:
    """Return ``count`` environments with actions in [-1, 1], their episodes seeded by ``seed``."""

    def make(index: int) -> gymnasium.Env[Any, Any]:
        one = np.float32(1.0)
        scaled = gymnasium.wrappers.RescaleAction(make_env(), -one, one)
        # MuJoCo speaks float64, networks float32.
        scaled = gymnasium.wrappers.DtypeObservation(scaled, np.float32)
        return ReplayableEnv(scaled, root_seed=seed, index=index)

    return DictGymWrapper(
        SyncVectorEnv(
            [lambda index=index: make(index) for index in range(count)],
            autoreset_mode=AutoresetMode.SAME_STEP,
        )
    )


def torch_generator(purpose: str, seed: int) -> torch.Generator:
    """Return the stream of ``purpose`` under ``seed``."""
    stream = derive_substream(f"examples.{purpose}", root_seed=seed)
    return torch.Generator().manual_seed(stream.integer_seed())


def greedy(policy: nn.Module, make_env: EnvFactory) -> Greedy:
    """Return the policy's decision for one observation, in the environment's own action range."""
    space = make_env().action_space
    if not isinstance(space, gymnasium.spaces.Box):
        raise TypeError(f"expected a Box of actions, got {space}.")
    middle, half = (space.high + space.low) / 2.0, (space.high - space.low) / 2.0
    policy.eval()

    def decide(observation: NDArray[np.float32]) -> NDArray[np.float32]:
        with torch.no_grad():
            action = policy(torch.as_tensor(observation, dtype=torch.float32)[None])[0].numpy()
        return middle + half * action

    return decide
