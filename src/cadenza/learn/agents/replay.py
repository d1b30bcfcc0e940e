"""Agents that learn from a replay memory: what all off-policy algorithms share; see `agent`.

Axes:  N = environments, O = flattened observation, A = action components.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Never, TypeVar

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor, nn

from cadenza.core.arrays import Float32Array
from cadenza.core.episodes import Episode
from cadenza.core.errors import ConfigurationError
from cadenza.core.seeding import derive_substream
from cadenza.learn.agents.batches import ReplayLoop
from cadenza.learn.agents.demonstrations import (
    Demonstrations,
    Source,
    decision_rows,
    joined,
    remember,
)
from cadenza.learn.agents.hindsight import Hindsight
from cadenza.learn.agents.off_policy import OffPolicyLearner, update_priorities
from cadenza.learn.agents.solo import Deployed, SoloAgent, SoloKeywords
from cadenza.learn.agents.updates import Figures
from cadenza.learn.env.making import EnvLike
from cadenza.learn.env.stepping import ActionCodec, VectorStep
from cadenza.learn.loaded_state import RandomSource, learner_state
from cadenza.learn.memory.builder import TransitionMemory
from cadenza.learn.nn.encoders import is_image
from cadenza.learn.nn.layers import EncoderFactory
from cadenza.learn.settings import SoloReplayConfig

ReplayConfig = TypeVar("ReplayConfig", bound=SoloReplayConfig)


class ReplayKeywords(SoloKeywords, total=False):
    """Keywords of a `ReplayAgent`."""

    demonstrations: Demonstrations | None
    demonstration_share: float


class ReplayAgent(SoloAgent[ReplayConfig], ReplayLoop[ReplayConfig]):
    """An agent that learns from a replay memory, and from demonstrations if there are any.

    ``demonstrations`` are a path for `read_episodes`, or what it returns; they need rewards. Every
    batch has the share ``demonstration_share`` of them, half as in RLPD (arXiv:2302.02948); with 0
    they are the first transitions in the memory. A saved agent knows their path, and refuses to go
    on with other contents.
    """

    #: Demonstrations, once they are read, if batches have a share of them.
    _shown: TransitionMemory | None = None
    #: Makes the learner of continuous actions.
    Learner: ClassVar[Callable[..., OffPolicyLearner[Any]]]
    learner: OffPolicyLearner[Any]

    def __init__(
        self,
        env: EnvLike,
        *others: Never,
        demonstrations: Demonstrations | None = None,
        demonstration_share: float = 0.5,
        **options: Any,
    ) -> None:
        if not 0.0 <= demonstration_share < 1.0:
            raise ConfigurationError(
                f"{type(self).__name__}: demonstration_share: expected a share in [0, 1), got "
                f"{demonstration_share}."
            )
        self._source, self._share = Source(demonstrations), float(demonstration_share)
        self._shown_before: Mapping[str, Any] | None = None  # where a file's draws were
        super().__init__(env, *others, **options)
        preference = self.config.memory_options.get("priority_exponent")
        if self._source.is_told and self._share and preference:
            raise ConfigurationError(
                f"{self.name}: expected priority_exponent = 0 beside a share of demonstrations, "
                f"whose priorities are not comparable, got {preference}; set "
                "demonstration_share=0, which puts them first into the memory."
            )

    def _build(self) -> None:
        self._port = ActionCodec(self.envs.action_space, owner=self.name, unit=True)
        self._keeps_bytes = is_image(self.envs.features) and self.envs.features.dtype == np.uint8
        self.learner = self._learner(spaces.flatdim(self.envs.features), self._encoder)
        self.memory: TransitionMemory = self._new_memory(
            "learn.api.memory", self.envs.num_envs, self.config.memory_size
        )
        self._hindsight: Hindsight | None = None
        if self.config.hindsight:
            self._hindsight = Hindsight(self.name, self.envs, self.config.hindsight, self.seed)
        self._begin_episodes()

    def _new_memory(self, stream: str, num_envs: int, size: int) -> TransitionMemory:
        return TransitionMemory(
            observation_dim=spaces.flatdim(self.envs.features) + self.envs.masks,
            action_dim=self.learner.action_width,
            num_envs=num_envs,
            max_transitions=size,
            seed=derive_substream(stream, root_seed=self.seed).integer_seed(),
            action_dtype=self.learner.action_dtype,
            observation_dtype=np.uint8 if self._keeps_bytes else np.float32,
            **self.config.memory_options,
        )

    def begin(self, steps: int) -> None:
        """Read the demonstrations, if there are any, and aim at ``steps`` more steps."""
        if self._source.is_told and self._shown is None:
            self._read()
        super().begin(steps)

    def _read(self) -> None:
        """Read the demonstrations: into a memory of their own, or first into the agent's."""
        episodes, memory = self._source.read(self.name), self.memory
        if self._share:
            size = 2 * sum(len(episode) for episode in episodes)
            memory = self._new_memory("learn.api.demonstrations", 1, size)
        if memory.size() == 0:
            remember(memory, episodes, self.envs.space, self._stored, self.name)
        if self._share:
            self._shown = memory
            if self._shown_before is not None:
                memory.sampler.load_state(self._shown_before)

    def _stored(self, episode: Episode) -> NDArray[Any]:
        """Return demonstrated actions as the memory stores them, (L, W)."""
        decided = decision_rows(episode, self.envs.action_space, self._port, self.name)
        return decided if decided.ndim > 1 else decided[:, None].astype(self.learner.action_dtype)

    def batch(self) -> dict[str, Tensor]:
        """Return the columns of a batch for the update that is due next."""
        if self._shown is None:
            return super().batch()
        self._due -= 1
        size = self.config.batch_size
        shown = min(math.ceil(self._share * size), size - 1)
        return joined(self.memory.sample(size - shown), self._shown.sample(shown))

    def _components(self) -> int:
        """Return A, or refuse an action space without components."""
        if self._port.components is None:
            raise ConfigurationError(
                f"{self.name}: expected continuous actions (a Box), got {self.envs.action_space}; "
                "use DQN or PPO."
            )
        return self._port.components

    def _learner(self, width: int, encoder: EncoderFactory | None) -> OffPolicyLearner[Any]:
        """Return the learner for observations of ``width`` numbers."""
        return self.Learner(
            observation_dim=width,
            action_dim=self._components(),
            config=self.config,
            encoder=encoder,
            seed=self.seed,
            device=self.device,
        )

    def step(self) -> VectorStep:
        """Take a step in every environment and remember it."""
        if self._rows is None:
            seed = derive_substream(f"learn.api.env.{self.steps}", root_seed=self.seed)
            self._rows = self._flat(self._worlds.reset(seed.integer_seed()))
            self.learner.normal.see(self._rows)
        rows, learner, before = self._rows, self.learner, self.steps
        if self.envs.masks:
            self.envs.require_legal(rows[self._worlds.deciding], self.name)
        if self.steps < self.config.warmup_steps:
            stored = self._random_actions(rows)
        else:
            stored = learner.act(rows.astype(np.float32), frames=self.steps)
        step = self._worlds.step(self._to_env(stored))
        following = self._flat(step.following)
        self.memory.add(
            rows,
            stored,
            step.rewards,
            terminated=step.terminated,
            boundaries=step.boundaries,
            next_observations=following,
            valid=step.valid,
        )
        if self._hindsight is not None:
            self._hindsight.record(rows, stored, step, following, self.memory)
        if step.valid.any():
            learner.normal.see(following[step.valid])
        learner.normal.rewards.scale(step.rewards, step.boundaries)
        self._rows = self._flat(step.observations)
        self._count(step, step.boundaries)
        self._call_for_updates(before)
        return step

    def _random_actions(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Return random actions for rows, (N, O), as the memory stores them."""
        return self.learner.random_actions(len(rows))

    def forget(self) -> None:
        """Begin new episodes with the next step, and forget those that have not ended."""
        super().forget()
        if self._hindsight is not None:
            self._hindsight.forget()

    def _flat(self, observations: NDArray[Any]) -> NDArray[Any]:
        rows = self.envs.rows(observations)
        is_bytes = rows.dtype == np.uint8 or self._keeps_bytes
        return rows.astype(np.uint8, copy=False) if is_bytes else rows.astype(np.float32)

    @property
    def _drawing(self) -> RandomSource:
        return self.learner.noise

    def _to_env(self, stored: NDArray[Any]) -> NDArray[Any]:
        """Return stored actions as the environments take them."""
        unit = self.learner.to_unit(stored)
        if self._port.choices is not None:
            return self._port.to_env(unit[:, 0].astype(np.int64))
        return self._port.to_env(unit)

    def _learn_from(self, batch: Mapping[str, Any]) -> Figures:
        return update_priorities(self.memory, batch, self.learner.update(batch))

    def _act(
        self, rows: NDArray[Any], state: Float32Array, *, deterministic: bool
    ) -> tuple[NDArray[Any], Float32Array]:
        seen = rows.astype(np.float32)
        if not deterministic:
            return self._to_env(self.learner.act(seen, frames=self.steps)), state
        with torch.no_grad():
            greedy = self._greedy()(torch.tensor(seen, device=self.device)).cpu().numpy()
        return self._port.to_env(greedy), state

    def deployed(self) -> nn.Module:
        """Return a module from observations to greedy actions."""
        order = self.envs.order if self.envs.masks else None
        return Deployed(self._greedy(), self._port, order)

    def _greedy(self) -> nn.Module:
        """Return a module from flat observations to actions in [−1, 1], or to choices."""
        return self._policy

    def _learned_state(self) -> dict[str, Any]:
        learned = {**super()._learned_state(), **self._episodes()}
        if self._source.is_told:
            drawn = self._shown_before if self._shown is None else self._shown.sampler.state()
            told = {"share": self._share, "drawn": drawn}
            learned["demonstrations"] = {**self._source.state_dict(), **told}
        if self._hindsight is not None:
            learned["hindsight"] = self._hindsight.state_dict()
        return learned

    def _without_memory(self, learned: dict[str, Any]) -> dict[str, Any]:
        return super()._without_memory(learned) | {"rows": None}

    def _load_learned_state(self, state: Mapping[str, Any]) -> None:
        super()._load_learned_state({**state, "learner": learner_state(state)})
        if self._hindsight is not None and "hindsight" in state:
            self._hindsight.load_state_dict(state["hindsight"])
        self._load_episodes(state)
        told = state.get("demonstrations")
        if told is not None:
            self._source.load_state_dict(told)
            self._share, self._shown_before = float(told["share"]), told["drawn"]
            self._shown = None  # they are read again, and compared
