"""Between the training loop's observations and the rows that learners work on.

A row is the ego's own state, or the joint state: the ego's first, then the other seats'. Scalar
observations become one row, so learners see batches only.

Axes:  N = environments, O = own state, S = row, A = action.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cadenza.aht.ego_ppo_flags import batch_flags, scalar_flags
from cadenza.aht.ego_ppo_setup import ego_spaces, flat_size
from cadenza.core.arrays import Float32Array, FloatArray, require_finite
from cadenza.core.errors import InputError
from cadenza.core.types import Observation


class SeatOutcome(NamedTuple):
    """What followed one step, as rows.

    Attributes:
        rewards: Shape (N,) float64.
        terminated: The task ended the episode, (N,).
        boundaries: The episode ended in either way, (N,).
        next_rows: What the next action is decided on, (N, S).
        last_rows: What followed before any reset, (N, S).
    """

    rewards: FloatArray
    terminated: NDArray[np.bool_]
    boundaries: NDArray[np.bool_]
    next_rows: Float32Array
    last_rows: Float32Array


class SeatRows:
    """Reads rows for one seat.

    Args:
        owner: Learner that messages name.
        env: Environment, scalar or batched.
        ego_uid: The ego's seat.
        other_uids: Seats whose states follow the ego's; none for rows of the own state.

    Attributes:
        observation_dim: O.
        row_dim: S.
        low: Smallest action, (A,).
        high: Largest action, (A,).

    Raises:
        InputError: A space is not flat, or the actions are unbounded.
        TypeError: A space is no Box.
    """

    def __init__(
        self, owner: str, *, env: Any, ego_uid: str, other_uids: tuple[str, ...] = ()
    ) -> None:
        self._owner = owner
        self._uids = (ego_uid, *other_uids)
        state_space, action_space = ego_spaces(env, ego_uid)
        others = [flat_size("observation", ego_spaces(env, uid)[0]) for uid in other_uids]
        self.observation_dim = flat_size("observation", state_space)
        self._widths = (self.observation_dim, *others)
        self.row_dim = sum(self._widths)
        self.action_dim = flat_size("action", action_space)
        self.low: Float32Array = np.asarray(action_space.low, dtype=np.float32)
        self.high: Float32Array = np.asarray(action_space.high, dtype=np.float32)
        if not (np.isfinite(self.low).all() and np.isfinite(self.high).all()):
            raise InputError(
                f"{owner}: expected bounded actions of {ego_uid!r}, got {self.low} to {self.high}; "
                "use algo=ego_aht_happo or bound the action space."
            )

    def own(self, obs: Observation) -> tuple[Float32Array, bool]:
        """Return the ego's state as rows, (N, O), and whether they are a batch.

        Raises:
            InputError: The state is missing or has another shape.
        """
        state = self._state(obs, self._uids[0], self.observation_dim)
        return np.atleast_2d(state), state.ndim > 1

    def rows(self, obs: Observation) -> tuple[Float32Array, bool]:
        """Return rows, (N, S), and whether they are a batch.

        Raises:
            InputError: A state is missing or has another shape.
        """
        states = [
            self._state(obs, uid, width)
            for uid, width in zip(self._uids, self._widths, strict=True)
        ]
        joint = states[0] if len(states) == 1 else np.concatenate(states, axis=-1)
        return np.atleast_2d(joint), joint.ndim > 1

    def from_unit(self, actions: Float32Array) -> Float32Array:
        """Return actions in [−1, 1] scaled to the bounds, (N, A)."""
        share = (actions + np.float32(1.0)) * np.float32(0.5)
        return (self.low + share * (self.high - self.low)).astype(np.float32, copy=False)

    def outcome(
        self,
        obs: Observation,
        reward: Any,
        flags: tuple[Any, Any, Any | None],
        final_obs: Observation | None,
        *,
        batched: bool,
        count: int,
    ) -> SeatOutcome:
        """Return what followed a step of ``count`` environments.

        Args:
            obs: Observation after the step (after the reset, when batched).
            reward: Reward, number or (N,).
            flags: done, truncated, and terminated or None; see `cadenza.aht.ego_ppo_flags`.
            final_obs: Observation before the reset; needed for every truncated row of a batch.
            batched: Whether the action was a batch.
            count: N.

        Raises:
            InputError: Shapes or flags contradict each other, a reward is not finite, or a
                truncation lacks ``final_obs``.
        """
        next_rows, is_batch = self.rows(obs)
        if is_batch != batched or len(next_rows) != count:
            raise InputError(
                f"{self._owner}.observe: expected the observation of {count} environment(s), as "
                f"act had, got {len(next_rows)}."
            )
        rewards = np.asarray(reward, dtype=np.float64)
        if rewards.shape not in ((), (count,)):
            raise InputError(
                f"{self._owner}.observe: expected rewards of shape ({count},), got {rewards.shape}."
            )
        require_finite(f"{self._owner}.observe: reward", rewards)
        done, truncated, terminated = flags
        if batched:
            ended, boundaries = batch_flags(
                done, truncated, terminated, num_envs=count, owner=self._owner
            )
        else:
            scalar = scalar_flags(done, truncated, terminated, owner=self._owner)
            ended, boundaries = np.array([scalar.terminated]), np.array([scalar.boundary])
        last_rows = next_rows
        if final_obs is not None and boundaries.any():
            last_rows = np.where(boundaries[:, None], self.rows(final_obs)[0], next_rows)
        elif batched and (boundaries & ~ended).any():
            raise InputError(
                f"{self._owner}.observe: expected final_obs (the batched observation before the "
                "reset), got None though environments "
                f"{np.flatnonzero(boundaries & ~ended).tolist()} were truncated; pass "
                "info['final_observation']."
            )
        return SeatOutcome(
            np.broadcast_to(rewards, (count,)), ended, boundaries, next_rows, last_rows
        )

    def _state(self, obs: Observation, uid: str, width: int) -> Float32Array:
        try:
            state: Any = obs["agent"][uid]["state"]
        except KeyError as error:
            raise InputError(
                f"{self._owner}: expected obs['agent'][{uid!r}]['state'], got no key {error}; wrap "
                "the environment so that every seat has a flat state."
            ) from error
        detach = getattr(state, "detach", None)
        array = np.asarray(state if detach is None else detach().cpu().numpy(), dtype=np.float32)
        if array.ndim not in (1, 2) or array.shape[-1] != width:
            raise InputError(
                f"{self._owner}: expected a state of {uid!r} of shape ({width},) or (N, {width}), "
                f"got {array.shape}."
            )
        return array
