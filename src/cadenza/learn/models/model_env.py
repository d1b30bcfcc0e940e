"""A simulator made of a dynamics model: many episodes at once, in the vocabulary of collectors.

Axes:  E = simulated environments, D = observation columns, A = action columns.
"""

from collections.abc import Mapping
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cadenza.core.arrays import require_shape
from cadenza.core.checks import require_counts
from cadenza.core.errors import CadenzaError, InputError, NotReadyError, refuse
from cadenza.core.types import (
    AgentId,
    DictObservation,
    EpisodeState,
    RewardFnType,
    TermFnType,
)
from cadenza.learn.loaded_state import require_parts
from cadenza.learn.models.model import DynamicModel
from cadenza.learn.proxies import AgentResponses


class ModelDivergedError(CadenzaError, ArithmeticError):
    """A model predicted NaN or infinity."""


@runtime_checkable
class SampledDynamics(Protocol):
    """What `ModelEnv` asks of a model; `DynamicModel` and simple fakes have it."""

    @property
    def device(self) -> torch.device:
        """Where the model lives."""
        ...

    def sample(
        self, action: Tensor, observation: Tensor, rng: torch.Generator
    ) -> tuple[Tensor, Tensor | None]:
        """Return next observations (E, D) and rewards (E, 1), or None if they are not learned."""
        ...


class ModelEnv:
    """Steps E simulated environments with a dynamics model.

    Args:
        num_envs: E, >= 1.
        model: The dynamics model.
        termination_fn: Next observations (E, D) to done flags (E,) or (E, 1); None draws ends from
            the model's termination model.
        reward_fn: (actions, next observations) to rewards; None takes the model's.
        fixed_members: Every episode keeps one elite member of the ensemble for its whole life
            (TS-inf of PETS, arXiv:1805.12114), instead of what the ensemble does by itself.
    """

    def __init__(
        self,
        *,
        num_envs: int,
        model: SampledDynamics,
        termination_fn: "TermFnType | None" = None,
        reward_fn: "RewardFnType | None" = None,
        generator: torch.Generator | None = None,
        input_key: str = "obs",
        fixed_members: bool = False,
    ) -> None:
        require_counts("ModelEnv", num_envs=num_envs)
        self.num_envs = num_envs
        self.dynamic_model = model
        self.termination_fn = termination_fn
        self.reward_fn = reward_fn
        self.device: torch.device = torch.device(model.device)
        self.rng: torch.Generator = generator or torch.Generator(device=self.device).manual_seed(0)
        self.input_key = input_key
        self._learned = model if isinstance(model, DynamicModel) else None
        can_end = self._learned is not None and self._learned.termination_model is not None
        if termination_fn is None and not can_end:
            got = "None and a model without a termination model"
            refuse(InputError, "ModelEnv", expected="a termination_fn", got=got, do="pass either")
        if fixed_members and self._learned is None:
            got = type(model).__name__
            refuse(InputError, "ModelEnv", expected="a DynamicModel for fixed_members", got=got)
        drawn_from = self._learned if fixed_members else None
        self._ensemble = None if drawn_from is None else drawn_from.ensemble
        self.len_rollout: int = 0
        self._time = 0
        self._next_id = 0
        self._ids: list[AgentId] = []
        self._initial: Tensor | None = None
        self._current: Tensor | None = None
        self._members: Tensor | None = None

    def reset(self, initial_obs_batch: Tensor, len_rollout: int) -> None:
        """Put every environment into its start state, (E, D), for ``len_rollout`` steps."""
        shape, advice = (self.num_envs, "columns"), "make num_envs equal the batch's rows"
        require_shape("ModelEnv.reset: start observations", initial_obs_batch, shape, advice)
        require_counts("ModelEnv.reset", len_rollout=len_rollout)
        start = initial_obs_batch.detach().to(self.device)
        self._initial, self._current = start.clone(), start.clone()
        self.len_rollout = len_rollout
        self._time = 0
        if self._ensemble is not None:
            self._members = self._ensemble.draw_members(self.num_envs, self.rng)

    def step(
        self, actions: NDArray[Any] | Tensor
    ) -> tuple[Tensor, Tensor, Tensor, dict[str, Tensor]]:
        """Advance every environment by actions, (E, A).

        Return next observations (E, D), rewards, done flags (E,) and ``{"reached_max_len": (E,)}``,
        1 from the last step of the rollout on.

        Raises:
            NotReadyError: There was no `reset`.
            ModelDivergedError: The model predicted NaN or infinity.
        """
        current = self._started(self._current, "step")
        action = torch.as_tensor(actions, dtype=torch.float32).to(self.device)
        require_shape("ModelEnv.step: actions", action, (self.num_envs, "columns"))
        with torch.no_grad():
            next_obs, reward = self._predict(action, current)
            reward = self._reward(action, next_obs, reward)
            dones = self._dones(action, current, next_obs)
        self._current = next_obs.clone()
        self._time += 1
        reached = torch.full((self.num_envs,), float(self._time >= self.len_rollout))
        return next_obs, reward, dones, {"reached_max_len": reached.to(self.device)}

    def dict_reset(self, obs: Tensor, len_rollout: int) -> dict[AgentId, DictObservation]:
        """Start fresh episodes under new ids; arguments and errors as for `reset`."""
        self.reset(obs, len_rollout)
        self._ids = [self._new_id() for _ in range(self.num_envs)]
        return dict(zip(self._ids, map(self._initial_of, _as_rows(obs)), strict=True))

    def dict_step(
        self, actions: AgentResponses
    ) -> tuple[dict[AgentId, DictObservation], dict[str, float]]:
        """Advance every environment by one step.

        An episode that ended (done: TERMINAL, else rollout over: INTERRUPTED) is followed by one
        under a new id that starts, and really is, in the environment's start state.
        """
        initial = self._started(self._initial, "dict_step")
        next_obs, rewards, dones, info = self.step(self._stacked(actions))
        is_over = info["reached_max_len"] > 0
        ended = dones | is_over
        rows, starts = _as_rows(next_obs), _as_rows(initial)
        pay = rewards.reshape(-1).cpu().numpy()
        done_flags, ended_flags = dones.cpu().numpy(), ended.cpu().numpy()
        observations: dict[AgentId, DictObservation] = {}
        for i, agent in enumerate(self._ids):
            state = EpisodeState.RUNNING
            if ended_flags[i]:
                state = EpisodeState.TERMINAL if done_flags[i] else EpisodeState.INTERRUPTED
            seen = {self.input_key: rows[i]}
            observations[agent] = DictObservation({"reward": float(pay[i])}, state, seen)
            if ended_flags[i]:
                self._ids[i] = self._new_id()
                observations[self._ids[i]] = self._initial_of(starts[i])
        self._current = torch.where(ended.unsqueeze(1), initial, next_obs)
        if self._members is not None and self._ensemble is not None:
            fresh = self._ensemble.draw_members(self.num_envs, self.rng)
            self._members = torch.where(ended, fresh, self._members)
        if self._time >= self.len_rollout:
            self._time = 0
        return observations, {}

    def state_dict(self) -> dict[str, Any]:
        """Return ids, generator and the running rollout."""
        rollout = (self._initial, self._current, self._members)
        return {
            "generator": self.rng.get_state(),
            "next_id": self._next_id,
            "ids": list(self._ids),
            "time": self._time,
            "len_rollout": self.len_rollout,
            "rollout": [None if part is None else part.clone() for part in rollout],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state_dict` was taken."""
        require_parts("ModelEnv", state, self.state_dict())
        self.rng.set_state(state["generator"].cpu())
        self._next_id = int(state["next_id"])
        self._ids = list(state["ids"])
        self._time = int(state["time"])
        self.len_rollout = int(state["len_rollout"])
        self._initial, self._current, self._members = (
            None if part is None else part.to(self.device) for part in state["rollout"]
        )

    def _predict(self, action: Tensor, current: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the model's sample."""
        if self._members is not None and self._learned is not None:
            next_obs, reward = self._learned.sample(action, current, self.rng, self._members)
        else:
            next_obs, reward = self.dynamic_model.sample(
                action=action, observation=current, rng=self.rng
            )
        if not bool(torch.isfinite(next_obs).all()):
            got = f"NaN or infinity in step {self._time} of {self.len_rollout}"
            advice = "shorten rollouts or train the model longer first"
            refuse(
                ModelDivergedError, "ModelEnv", expected="finite predictions", got=got, do=advice
            )
        return next_obs, reward

    def _reward(self, action: Tensor, next_obs: Tensor, learned: Tensor | None) -> Tensor:
        """Return the rewards of a step."""
        reward = learned if self.reward_fn is None else self.reward_fn(action, next_obs)
        if reward is None:
            advice = "learn rewards or pass a reward_fn"
            refuse(InputError, "ModelEnv", expected="rewards", got="none", do=advice)
        require_shape("ModelEnv: rewards", reward.reshape(-1), (self.num_envs,))
        return reward

    def _dones(self, action: Tensor, current: Tensor, next_obs: Tensor) -> Tensor:
        """Return which episodes end by themselves, bool, shape (E,)."""
        if self._learned is not None and self.termination_fn is None:
            chance = self._learned.termination_probability(action, current, next_obs)
            return torch.rand(chance.shape, generator=self.rng, device=self.device) < chance
        flags = cast("TermFnType", self.termination_fn)(next_obs).reshape(-1)
        require_shape("ModelEnv: flags of termination_fn", flags, (self.num_envs,))
        return flags.to(torch.bool)

    def _stacked(self, actions: AgentResponses) -> NDArray[np.float32]:
        """Return the actions in the order of the environments, shape (E, A)."""
        missing = [agent for agent in self._ids if agent not in actions]
        if missing or not self._ids:
            expected, got = f"actions of the agents {self._ids}", f"none of {missing}"
            advice = "answer the observations of the last dict_reset or dict_step"
            refuse(InputError, "ModelEnv.dict_step", expected=expected, got=got, do=advice)
        rows = [actions[agent].list_data["actions"] for agent in self._ids]
        return np.stack([np.asarray(row, np.float32) for row in rows])

    def _started(self, state: Tensor | None, method: str) -> Tensor:
        """Return ``state``, which exists after a reset."""
        if state is None:
            owner, advice = f"ModelEnv.{method}", "call reset or dict_reset"
            refuse(NotReadyError, owner, expected="a reset before a step", got="none", do=advice)
        return state

    def _initial_of(self, row: NDArray[Any]) -> DictObservation:
        """Return the first observation of an episode."""
        return DictObservation({"reward": None}, EpisodeState.INITIAL, {self.input_key: row})

    def _new_id(self) -> AgentId:
        """Return an agent id that was never used."""
        self._next_id += 1
        return self._next_id - 1


def _as_rows(observations: Tensor) -> NDArray[Any]:
    """Return observations as an array of its own, shape (E, D)."""
    return observations.detach().cpu().numpy().copy()
