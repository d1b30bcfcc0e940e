"""Ego that acts uniformly at random and never learns: a floor for every comparison."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from gymnasium.spaces import Discrete
from numpy.typing import NDArray

from cadenza.aht.ego_seat import ego_spaces
from cadenza.core.arrays import Float32Array
from cadenza.core.errors import InputError
from cadenza.core.seeding import derive_substream
from cadenza.core.types import Observation, PartnerLike
from cadenza.learn.loaded_state import generator_state, set_generator_state

if TYPE_CHECKING:
    from cadenza.aht.config import EgoAHTConfig
    from cadenza.core.runlog import EventLogger

#: Stream of the action draws.
ACTION_STREAM: Final = "training.ego_random"


class RandomEgoTrainer:
    """Uniform actions in [-1, 1] per component, float32, or uniform choices, (first, last).

    Raises:
        InputError: ``action_dim`` is below one.
    """

    def __init__(
        self,
        *,
        ego_uid: str,
        action_dim: int,
        root_seed: int,
        choices: tuple[int, int] | None = None,
    ) -> None:
        if action_dim < 1:
            raise InputError(f"RandomEgoTrainer: expected action_dim >= 1, got {action_dim}.")
        self.ego_uid = ego_uid
        self.action_dim = action_dim
        self._choices = choices
        self._rng = derive_substream(ACTION_STREAM, root_seed=root_seed).default_rng()

    @classmethod
    def from_config(
        cls,
        cfg: "EgoAHTConfig",
        *,
        env: Any,
        partner: PartnerLike,  # noqa: ARG003 — the factory's signature; nothing here can train it
        ego_uid: str,
        logger: "EventLogger | None" = None,  # noqa: ARG003 — nothing to report
    ) -> "RandomEgoTrainer":
        """Return a trainer with the action size of ``env``'s seat ``ego_uid``."""
        _, space = ego_spaces(env, ego_uid, discrete=True)
        choices, size = None, 1
        if isinstance(space, Discrete):
            choices = int(space.start), int(space.start + space.n - 1)
        else:
            size = space.shape[0]
        return cls(ego_uid=ego_uid, action_dim=size, root_seed=cfg.seed, choices=choices)

    def act(self, obs: Observation, *, deterministic: bool = False) -> Float32Array:
        """Return an action, (A,), or (N, A) for a batched state; zeros if deterministic."""
        shape = (*self._batch_shape(obs), self.action_dim)
        if deterministic:
            return np.full(shape, self._choices[0] if self._choices else 0.0, dtype=np.float32)
        if self._choices:
            return self._rng.integers(*self._choices, size=shape, endpoint=True).astype(np.float32)
        return self._rng.uniform(-1.0, 1.0, size=shape).astype(np.float32)

    def observe(
        self,
        obs: Observation,
        reward: float | NDArray[Any],
        done: bool | NDArray[np.bool_],
        *,
        truncated: bool | NDArray[np.bool_] = False,
        final_obs: Observation | None = None,
        terminated: bool | NDArray[np.bool_] | None = None,
    ) -> None:
        """Learn nothing: there is nothing to remember."""

    def update(self) -> None:
        """Learn nothing: there are no parameters."""

    def state_dict(self) -> dict[str, Any]:
        """Return an empty checkpoint: there are no parameters."""
        return {}

    def load_state_dict(self, payload: Mapping[str, Any]) -> None:
        """Accept an empty checkpoint.

        Raises:
            InputError: ``payload`` holds something.
        """
        if payload:
            raise InputError(
                "RandomEgoTrainer.load_state_dict: expected an empty checkpoint, got keys "
                f"{sorted(payload)}; this checkpoint belongs to another algorithm."
            )

    def training_state(self) -> dict[str, Any]:
        """Return the generator's state, JSON scalars only."""
        return {"generator": generator_state(self._rng)}

    def load_training_state(self, state: Mapping[str, Any]) -> None:
        """Continue the draws where `training_state` was taken."""
        set_generator_state(self._rng, state["generator"])

    def _batch_shape(self, obs: Observation) -> tuple[int, ...]:
        agents = obs.get("agent", {})
        state = agents.get(self.ego_uid, {}).get("state")
        return () if state is None else tuple(state.shape[:-1])
