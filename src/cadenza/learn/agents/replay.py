"""The front door of the off-policy algorithms, which learn from a replay memory; see `agent`.

Axes:  N = environments, O = flattened observation, A = action components.
"""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Never, TypeAlias, Unpack, cast

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor, nn

from cadenza.core.errors import ConfigurationError
from cadenza.core.seeding import derive_substream
from cadenza.learn.agents.agent import Deployed, ReplayConfig, ReplayLoop, SoloAgent
from cadenza.learn.agents.dqn import DQNConfig, DQNLearner, DQNSettings, action_grid
from cadenza.learn.agents.hlgauss import HLGaussConfig, HLGaussLearner, HLGaussSettings
from cadenza.learn.agents.mbpo import MBPOConfig, MBPOLearner, MBPOSettings
from cadenza.learn.agents.sac import SACConfig, SACLearner, SACSettings
from cadenza.learn.agents.td3 import TD3Config, TD3Learner, TD3Settings
from cadenza.learn.agents.updates import Figures
from cadenza.learn.env.making import EnvLike
from cadenza.learn.env.stepping import ActionCodec, VectorStep
from cadenza.learn.loaded_state import RandomSource
from cadenza.learn.memory.builder import TransitionMemory
from cadenza.learn.nn.encoders import Network, is_image
from cadenza.learn.nn.layers import EncoderFactory
from cadenza.learn.nn.portable import Output

AnyLearner: TypeAlias = SACLearner | TD3Learner | DQNLearner


class ReplayAgent(SoloAgent[ReplayConfig], ReplayLoop[ReplayConfig]):
    """An agent that learns from a replay memory."""

    #: Makes the learner of continuous actions.
    Learner: ClassVar[Callable[..., AnyLearner]]
    learner: AnyLearner

    def _build(self) -> None:
        space = self.envs.space
        keeps_bytes = is_image(space) and space.dtype == np.uint8
        width = spaces.flatdim(space)
        self._port = ActionCodec(self.envs.action_space, owner=self.name, unit=True)
        self.learner = self._learner(width, self._encoder)
        self.memory: TransitionMemory = TransitionMemory(
            observation_dim=width,
            action_dim=self.learner.action_width,
            num_envs=self.envs.num_envs,
            max_transitions=self.config.memory_size,
            seed=derive_substream("learn.api.memory", root_seed=self.seed).integer_seed(),
            action_dtype=self.learner.action_dtype,
            observation_dtype=np.uint8 if keeps_bytes else np.float32,
        )
        self._begin_episodes()

    def _components(self) -> int:
        """Return A, or refuse an action space without components."""
        if self._port.components is None:
            raise ConfigurationError(
                f"{self.name}: expected continuous actions (a Box), got {self.envs.action_space}; "
                "use DQN or PPO."
            )
        return self._port.components

    def _learner(self, width: int, encoder: EncoderFactory | None) -> AnyLearner:
        """Return the learner for observations of ``width`` numbers."""
        return self.Learner(
            observation_dim=width,
            action_dim=self._components(),
            config=self.config,
            encoder=encoder,
            seed=self.seed,
        )

    def step(self) -> VectorStep:
        """Take a step in every environment and remember it."""
        if self._rows is None:
            seed = derive_substream(f"learn.api.env.{self.steps}", root_seed=self.seed)
            self._rows = self._flat(self._worlds.reset(seed.integer_seed()))
        rows, learner, before = self._rows, self.learner, self.steps
        if self.steps < self.config.warmup_steps:
            stored = learner.random_actions(len(rows))
        else:
            stored = learner.act(rows.astype(np.float32), frames=self.steps)
        step = self._worlds.step(self._to_env(stored))
        self.memory.add(
            rows,
            stored,
            step.rewards,
            terminated=step.terminated,
            boundaries=step.boundaries,
            next_observations=self._flat(step.following),
            valid=step.valid,
        )
        self._rows = self._flat(step.observations)
        self._count(step, step.boundaries)
        self._call_for_updates(before)
        return step

    def _flat(self, observations: NDArray[Any]) -> NDArray[Any]:
        rows = observations.reshape(len(observations), -1)
        return rows if rows.dtype == np.uint8 else rows.astype(np.float32)

    @property
    def _drawing(self) -> RandomSource:
        return self.learner.noise

    def _to_env(self, stored: NDArray[Any]) -> NDArray[Any]:
        """Return stored actions as the environments take them."""
        unit = self.learner.to_unit(stored)
        if self._port.choices is not None:
            return self._port.to_env(unit[:, 0].astype(np.int64))
        return self._port.to_env(unit)

    def _update(self, batch: Mapping[str, Any]) -> Figures:
        return self.learner.update(batch)

    def _actions(self, rows: NDArray[Any], *, deterministic: bool) -> NDArray[Any]:
        states = rows.astype(np.float32)
        if not deterministic:
            return self._to_env(self.learner.act(states, frames=self.steps))
        with torch.no_grad():
            greedy = self._greedy()(torch.from_numpy(states)).numpy()  # pyright: ignore[reportUnknownMemberType] # untyped in torch
        return self._port.to_env(greedy)

    def deployed(self) -> nn.Module:
        """Return a module from observations to greedy actions."""
        return Deployed(self._greedy(), self._port)

    def _greedy(self) -> nn.Module:
        """Return a module from flat observations to actions in [−1, 1], or to choices."""
        return self.learner.greedy

    def _learned_state(self) -> dict[str, Any]:
        return {**super()._learned_state(), **self._episodes()}

    def _without_memory(self, learned: dict[str, Any]) -> dict[str, Any]:
        return super()._without_memory(learned) | {"rows": None}

    def _load_learned_state(self, state: Mapping[str, Any]) -> None:
        super()._load_learned_state(state)
        self._load_episodes(state)


class SAC(ReplayAgent[SACConfig]):
    """Soft actor-critic, for continuous actions; arXiv:1812.05905, `SACConfig`."""

    Config = SACConfig
    Learner: ClassVar[Callable[..., AnyLearner]] = SACLearner

    def __init__(
        self,
        env: EnvLike,
        *others: Never,
        seed: int = 0,
        num_envs: int | None = None,
        network: Network | None = None,
        **settings: Unpack[SACSettings],
    ) -> None:
        super().__init__(env, *others, seed=seed, num_envs=num_envs, network=network, **settings)


class HLGauss(ReplayAgent[HLGaussConfig]):
    """Soft actor-critic with critics that predict histograms; arXiv:2403.03950, `HLGaussConfig`."""

    Config = HLGaussConfig
    Learner: ClassVar[Callable[..., AnyLearner]] = HLGaussLearner

    def __init__(
        self,
        env: EnvLike,
        *others: Never,
        seed: int = 0,
        num_envs: int | None = None,
        network: Network | None = None,
        **settings: Unpack[HLGaussSettings],
    ) -> None:
        super().__init__(env, *others, seed=seed, num_envs=num_envs, network=network, **settings)


class MBPO(ReplayAgent[MBPOConfig]):
    """Soft actor-critic that also learns from a model; arXiv:1906.08253, `MBPOConfig`."""

    Config = MBPOConfig
    Learner: ClassVar[Callable[..., AnyLearner]] = MBPOLearner

    def __init__(
        self,
        env: EnvLike,
        *others: Never,
        seed: int = 0,
        num_envs: int | None = None,
        network: Network | None = None,
        **settings: Unpack[MBPOSettings],
    ) -> None:
        super().__init__(env, *others, seed=seed, num_envs=num_envs, network=network, **settings)

    def _update(self, batch: Mapping[str, Any]) -> Figures:
        learner = cast("MBPOLearner", self.learner)
        return learner.learn_from(batch, self.memory)


class TD3(ReplayAgent[TD3Config]):
    """Twin delayed deep deterministic policy gradient; arXiv:1802.09477, `TD3Config`."""

    Config = TD3Config
    Learner: ClassVar[Callable[..., AnyLearner]] = TD3Learner

    def __init__(
        self,
        env: EnvLike,
        *others: Never,
        seed: int = 0,
        num_envs: int | None = None,
        network: Network | None = None,
        **settings: Unpack[TD3Settings],
    ) -> None:
        super().__init__(env, *others, seed=seed, num_envs=num_envs, network=network, **settings)


class DQN(ReplayAgent[DQNConfig]):
    """Deep Q-learning, on choices or a grid of actions; arXiv:1509.06461, `DQNConfig`."""

    Config = DQNConfig

    def __init__(
        self,
        env: EnvLike,
        *others: Never,
        seed: int = 0,
        num_envs: int | None = None,
        network: Network | None = None,
        **settings: Unpack[DQNSettings],
    ) -> None:
        super().__init__(env, *others, seed=seed, num_envs=num_envs, network=network, **settings)

    def _learner(self, width: int, encoder: EncoderFactory | None) -> AnyLearner:
        if self._port.choices is None:
            self._choices = action_grid(self._components(), self.config.action_bins)
        else:
            self._choices = np.arange(self._port.choices, dtype=np.float32)[:, None]
        return DQNLearner(
            observation_dim=width,
            choices=self._choices,
            config=self.config,
            encoder=encoder,
            seed=self.seed,
        )

    def _greedy(self) -> nn.Module:
        best = self.learner.greedy
        return best if self._port.choices is not None else nn.Sequential(best, _Grid(self._choices))

    def _output(self) -> Output:
        if self._port.choices is not None:
            return super()._output()
        return Output(kind="choice", choices=self._port.to_env(self._choices))


class _Grid(nn.Module):
    """Numbers of choices, (B,), to their actions in [−1, 1], (B, A)."""

    def __init__(self, choices: NDArray[np.float32]) -> None:
        super().__init__()
        self.register_buffer("choices", torch.tensor(choices), persistent=False)

    def forward(self, best: Tensor) -> Tensor:
        """Return actions, (B, A)."""
        return self.get_buffer("choices")[best]
