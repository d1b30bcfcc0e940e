"""The front door of agents that learn from rollouts of their own policy; see `agent`.

A rollout is collected, learned from and forgotten, again and again. Time limits bootstrap with what
follows the true last observation, in every autoreset mode.

Axes:  N = environments, O = flattened observation.
"""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import nn

from cadenza.core.arrays import Float32Array, require_finite
from cadenza.learn.agents.batches import RolloutLoop
from cadenza.learn.agents.on_policy import OnPolicyLearner, Sizes
from cadenza.learn.agents.on_policy_buffer import BufferShape, OnPolicyBuffer, Outcome
from cadenza.learn.agents.solo import Deployed, SoloAgent
from cadenza.learn.env.stepping import ActionCodec, VectorStep
from cadenza.learn.loaded_state import RandomSource, learner_state
from cadenza.learn.nn.portable import Output
from cadenza.learn.settings import ChoosingConfig, refuse_idle_settings

RolloutConfig = TypeVar("RolloutConfig", bound=ChoosingConfig)


class RolloutAgent(SoloAgent[RolloutConfig], RolloutLoop[RolloutConfig]):
    """An agent that learns from rollouts of its own policy and forgets them."""

    @property
    def _is_masked(self) -> bool:
        return self.config.action_masks

    def _build(self) -> None:
        self._begin_episodes()
        self._port = ActionCodec(
            self.envs.action_space,
            owner=self.name,
            squash=self.config.squash_actions,
            factored=self.config.factors,
        )
        factors = self._port.factors
        if self._port.components is None:
            refuse_idle_settings(
                self.config,
                "initial_log_std",
                where="for actions that are choices",
                owner=self.name,
            )
        if factors is None:
            refuse_idle_settings(
                self.config, "factored_choices", where="without several choices", owner=self.name
            )
        sizes: Sizes = {
            "observation_dim": spaces.flatdim(self.envs.features),
            "masks": self.envs.masks,
            "choices": factors or self._port.choices,
            "action_dim": self._port.components,
            "encoder": self._encoder,
            "seed": self.seed,
            "device": self.device,
        }
        self.learner: Any = self._learner(sizes)
        self._buffer = OnPolicyBuffer(
            BufferShape(
                capacity=self.config.rollout_length,
                rows=self.envs.num_envs,
                observation_dim=sizes["observation_dim"] + self.envs.masks,
                action_dim=len(factors) if factors else self._port.components,
                choices=factors is not None,
                states=self.learner.state_width + self.learner.critic_state_width,
                told=self._told_width,
            )
        )
        self._memory = np.zeros((self.envs.num_envs, self.learner.state_width), np.float32)

    @abstractmethod
    def _learner(self, sizes: Sizes) -> OnPolicyLearner[Any]:
        """Return the learner of these sizes."""

    @abstractmethod
    def _reset(self) -> NDArray[Any]:
        """Begin every episode; return the first observations, (N, ...)."""

    def _learned_ends(self, step: VectorStep) -> NDArray[np.bool_]:
        """Return whose episodes ended in ``step`` and are learned from, (N,)."""
        return step.boundaries

    @property
    def _told_width(self) -> int:
        """P, what only learning is told of a step."""
        return 0

    def _told(self, step: VectorStep) -> NDArray[Any] | None:
        """Return what only learning is told of ``step``, (N, P)."""
        del step
        return None

    def step(self) -> VectorStep:
        """Take a step in every environment and remember it."""
        if self._rows is None:
            self._rows = self._seen(self.envs.rows(self._reset()), learn=True)
        if self.envs.masks:
            self.envs.require_legal(self._rows[self._worlds.deciding], self.name)
        if self._buffer.length == 0:
            self._buffer.states[:, : self._memory.shape[1]] = self._memory
        decided, self._memory = self.learner.decide(self._rows, self._memory)
        step = self._worlds.step(self._port.to_env(decided))
        self._buffer.stage(self._rows, decided)
        self._rows = self._seen(self.envs.rows(step.observations), learn=True)
        ends = self._learned_ends(step)
        rewards = self.learner.normal.rewards.scale(step.rewards, step.boundaries)
        self._buffer.commit(
            Outcome(rewards, step.terminated, step.boundaries, step.valid, self._told(step)),
            self._rows,
            step.cut,
            self._seen(self.envs.rows(step.following[step.cut]), learn=False)
            if len(step.cut)
            else None,
        )
        self._memory[step.boundaries | ~step.valid] = 0.0
        self._count(step, ends)
        return step

    @property
    def _drawing(self) -> RandomSource:
        return self.learner.generator

    def _seen(self, rows: NDArray[Any], *, learn: bool) -> NDArray[Any]:
        require_finite(f"{self.name}: observations", rows)
        return self.learner.scale(rows, learn=learn)

    @property
    def state_width(self) -> int:
        """S, what the policy remembers of an environment."""
        return self.learner.state_width

    def _act(
        self, rows: NDArray[Any], state: Float32Array, *, deterministic: bool
    ) -> tuple[NDArray[Any], Float32Array]:
        seen = self._seen(rows, learn=False)
        decided, state = self.learner.decide(seen, state, deterministic=deterministic)
        return self._port.to_env(decided), state

    def forget(self) -> None:
        """Begin new episodes with the next step, and forget those that have not ended."""
        super().forget()
        self._memory[:] = 0.0
        self._buffer.states[:] = 0.0

    def deployed(self) -> nn.Module:
        """Return a module from observations to greedy actions."""
        codec = ActionCodec(
            self.envs.action_space,
            owner=self.name,
            unit=self.config.squash_actions,
            factored=self.config.factors,
        )
        return Deployed(self.learner.greedy, codec, self.envs.order if self.envs.masks else None)

    def _output(self) -> Output:
        return self._port.output(self.learner.log_std)

    def _learned_state(self) -> dict[str, Any]:
        return {
            "learner": self.learner.state_dict(),
            "buffer": self._buffer.state_dict(),
            **({"memory": torch.tensor(self._memory)} if self.state_width else {}),
            **self._episodes(),
        }

    def _load_learned_state(self, state: Mapping[str, Any]) -> None:
        self.learner.load_state_dict(learner_state(state))
        fits = int(state["buffer"]["length"]) <= self._buffer.shape.capacity
        if fits and len(state["returns"]) == self.envs.num_envs:
            self._buffer.load_state_dict(state["buffer"])
            if self.state_width:
                self._memory[...] = state["memory"].numpy()
        self._load_episodes(state)
