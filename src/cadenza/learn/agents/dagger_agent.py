"""The front door of DAgger, which learns what an expert would do; see `agent`.

    agent = cadenza.DAgger("Pendulum-v1", expert=swing_up, seed=0).learn(20_000)

An expert is a function of observations, or lives in the environments: whatever it remembers, and
sees beyond the learner, then comes back from a checkpoint together with them.

Axes:  N = environments, O = flattened observation.
"""

from collections.abc import Callable, Mapping
from typing import Any, Never, TypeAlias, Unpack, cast

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import nn

from cadenza.core.arrays import require_finite, require_shape
from cadenza.core.errors import InputError
from cadenza.core.seeding import derive_substream
from cadenza.learn.agents.agent import Deployed, SoloAgent
from cadenza.learn.algorithms.dagger import DAggerLearner
from cadenza.learn.configs import DAggerConfig, DAggerSettings
from cadenza.learn.env.making import EnvLike
from cadenza.learn.env.stepping import ActionCodec, VectorStep
from cadenza.learn.loaded_state import RandomSource
from cadenza.learn.nn.encoders import Network, is_box, is_image

#: Observations, (N, *shape), or flat rows, (N, O), if they are no arrays, to actions as the
#: environment takes them, (N, *shape).
Expert: TypeAlias = Callable[[NDArray[Any]], NDArray[Any]]
#: What environments without an expert of their own are asked for.
EXPERT_ACTION = "expert_action"


class DAgger(SoloAgent[DAggerConfig]):
    """Imitation with dataset aggregation, for discrete and bounded continuous actions.

    Args:
        expert: What to imitate. None asks each environment: its ``expert_action()`` returns what an
            expert would do now; a vector environment answers ``call("expert_action")`` with one
            action per environment.
        network: See `SoloAgent`; without one, observations are scaled by the moments of round 0.
    """

    Config = DAggerConfig
    default_envs = 25

    def __init__(
        self,
        env: EnvLike,
        *others: Never,
        expert: Expert | None = None,
        seed: int = 0,
        num_envs: int | None = None,
        network: Network | None = None,
        **settings: Unpack[DAggerSettings],
    ) -> None:
        self._expert = expert
        super().__init__(env, *others, seed=seed, num_envs=num_envs, network=network, **settings)

    def _build(self) -> None:
        space, count = self.envs.space, self.envs.num_envs
        keeps_bytes = is_image(space) and space.dtype == np.uint8
        self._port = ActionCodec(self.envs.action_space, owner=self.name, unit=True)
        self.learner: DAggerLearner = DAggerLearner(
            self.config,
            observation_dim=spaces.flatdim(space),
            choices=self._port.choices,
            action_dim=self._port.components,
            seed=self.seed,
            encoder=self._encoder,
            observation_dtype=torch.uint8 if keeps_bytes else torch.float32,
        )
        self._begin_episodes()
        self._driven: NDArray[np.bool_] = np.ones(count, dtype=np.bool_)  # by the expert
        self._ticks = 0  # steps of this round
        self._due = 0  # updates that are left of this fit

    @property
    def due(self) -> int:
        """Updates that are left of this fit."""
        return self._due

    def is_halfway(self) -> bool:
        """Return whether a round has begun."""
        return self._ticks > 0

    def batch(self) -> dict[str, torch.Tensor]:
        """Return a batch of all demonstrations for the update that is due next."""
        self._due -= 1
        return self.learner.sample()

    @property
    def batch_rows(self) -> int:
        """Rows of a batch."""
        return self.config.batch_size

    def step(self) -> VectorStep:
        """Take a step in every environment, and note what the expert would do in each."""
        learner = self.learner
        if self._rows is None:
            seed = derive_substream(f"learn.api.env.{self.steps}", root_seed=self.seed)
            self._rows = self._flat(self._worlds.reset(seed.integer_seed()))
        if self._ticks == 0:
            self._driven = learner.draw_experts(len(self._rows))
        wanted = self._wanted(self._rows)
        own = wanted if self._driven.all() else learner.act(self._rows)
        driven = self._driven.reshape(-1, *(1,) * (wanted.ndim - 1))
        executed = learner.disturbed(np.where(driven, wanted, own))
        step = self._worlds.step(self._port.to_env(executed))
        learner.demonstrations.add(self._rows[step.valid], wanted[step.valid])
        self._rows = self._flat(step.observations)
        self._ticks += 1
        fresh = learner.draw_experts(len(self._rows))
        self._driven = np.where(step.boundaries, fresh, self._driven)
        self._count(step, step.boundaries)
        if self._ticks >= self.config.round_length:
            learner.end_round()
            self._ticks, self._due = 0, self.config.updates
        return step

    def _wanted(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Return what the expert would do, as decisions, (N, A) or (N,)."""
        space, asked = self.envs.space, self._expert
        if asked is not None:
            actions = asked(rows.reshape(-1, *space.shape) if is_box(space) else rows)
        else:
            try:
                actions = cast("Any", self.envs.vector.unwrapped).call(EXPERT_ACTION)
            except AttributeError as error:
                if error.name != "call" and EXPERT_ACTION not in str(error):
                    raise  # the expert's own
                raise InputError(
                    f"{self.name}.learn: expected expert=..., a function of observations, or "
                    f"environments with a method {EXPERT_ACTION}(), got neither: {error}."
                ) from error
        actions = np.asarray(actions)
        name = f"{self.name}: the expert's actions"
        require_shape(name, actions, (len(rows), *(self.envs.action_space.shape or ())))
        require_finite(name, actions)
        return self._port.from_env(actions)

    def _flat(self, observations: NDArray[Any]) -> NDArray[Any]:
        rows = observations.reshape(len(observations), -1)
        if rows.dtype == np.uint8:
            return rows
        require_finite(f"{self.name}: observations", rows)
        return rows.astype(np.float32)

    def _update(self, batch: Mapping[str, Any]) -> Mapping[str, float]:
        done = 1.0 - (self._due + 1) / self.config.updates
        return self.learner.update(batch, done=done)

    def _actions(self, rows: NDArray[Any], *, deterministic: bool) -> NDArray[Any]:
        decided = self.learner.act(rows)
        return self._port.to_env(decided if deterministic else self.learner.disturbed(decided))

    @property
    def _drawing(self) -> RandomSource:
        return self.learner.acting

    def deployed(self) -> nn.Module:
        """Return a module from observations to greedy actions."""
        return Deployed(self.learner.greedy, self._port)

    def _learned_state(self) -> dict[str, Any]:
        return {
            "learner": self.learner.state_dict(),
            "demonstrations": self.learner.demonstrations.state_dict(),
            "driven": torch.tensor(self._driven),
            "progress": [self._ticks, self._due],
            **self._episodes(),
        }

    def _without_memory(self, learned: dict[str, Any]) -> dict[str, Any]:
        return learned | {"demonstrations": None, "rows": None, "progress": [0, 0]}

    def _load_learned_state(self, state: Mapping[str, Any]) -> None:
        self.learner.load_state_dict(state["learner"])
        if state["demonstrations"] is not None:
            self.learner.demonstrations.load_state_dict(state["demonstrations"])
        driven: NDArray[np.bool_] = state["driven"].numpy().copy()
        if len(driven) == self.envs.num_envs:
            self._driven = driven
        self._ticks, self._due = map(int, state["progress"])
        self._load_episodes(state)
