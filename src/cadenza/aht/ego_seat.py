"""The ego's seat: from the training loop's observations to rows that learners work on, and back.

A row is the ego's own state, or the joint state: the ego's first, then the other seats'. Scalar
observations become one row, so learners see batches only. Where the seat's actions are Discrete,
an action is the number of a choice, (1,) or (N, 1): bounds are those of the numbers.

Ends:  termination dominates. A step that both terminated and ran out of time has no future value;
       only a pure time limit continues with the value of its last observation (arXiv:1712.00378).
Axes:  N = environments, O = own state, S = row, A = action.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final, NamedTuple, Protocol, cast

import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

from cadenza.aht.config import EgoAHTConfig
from cadenza.core.arrays import Float32Array, FloatArray, require_finite
from cadenza.core.checks import is_scalable
from cadenza.core.errors import (
    CheckpointError,
    ConfigurationError,
    ConfigurationTypeError,
    InputError,
    NotReadyError,
)
from cadenza.core.runlog import EventLogger
from cadenza.core.types import Observation, PartnerLike
from cadenza.learn.loaded_state import complete_state, require_version
from cadenza.learn.nn.portable import PortableNetwork

#: Layout version of `EgoSeatTrainer.training_state`.
TRAINING_STATE_VERSION: Final = 1
_NONE: Final = np.zeros(0, np.int64)
#: Axes of a space that describes a whole batch of environments: (N, D).
_BATCHED_RANK: Final = 2


def assert_partner_is_frozen(partner: PartnerLike) -> None:
    """Raise if ``partner`` exposes a trainable parameter; call before allocating anything.

    A partner without ``named_parameters``, or whose shield refuses the look-up, is accepted: what
    cannot be reached cannot be trained.

    Raises:
        ConfigurationError: A parameter has ``requires_grad=True``; the message names it.
    """
    try:
        named_parameters = cast("Any", partner).named_parameters
    except AttributeError:
        return
    for name, parameter in named_parameters():
        if parameter.requires_grad:
            raise ConfigurationError(
                f"{type(partner).__name__}: expected a frozen partner, got parameter {name!r} with "
                "requires_grad=True (ADR-009 §Consequences); call requires_grad_(False) on it "
                "before training."
            )


def ego_spaces(
    env: Any, ego_uid: str, *, discrete: bool = False
) -> tuple[Box, "Box | Discrete[Any]"]:
    """Return observation and action space of the ego's seat, for one environment.

    They are ``observation_space["agent"][uid]["state"]`` and ``action_space[uid]``, batched (N, D)
    or not (D,); a batch with Discrete actions, which ``discrete`` allows, has
    ``single_action_space``. An environment without ``observation_space`` is reset, so that its
    first state tells D.

    Raises:
        TypeError: A space is of another kind.
    """
    if getattr(env, "observation_space", None) is None:
        state = np.asarray(env.reset()[0]["agent"][ego_uid]["state"])
        observations = Box(-np.inf, np.inf, state.shape, np.float32)
    else:
        observations = env.observation_space["agent"][ego_uid]["state"]
    if not isinstance(observations, Box):
        raise TypeError(
            f"ego observation space of {ego_uid!r}: expected gym.spaces.Box, got "
            f"{type(observations).__name__}."
        )
    actions = env.action_space[ego_uid]
    if discrete and not isinstance(actions, Box):
        actions = getattr(env, "single_action_space", env.action_space)[ego_uid]
    states = _single(cast("Box", observations))
    if isinstance(actions, Box):
        return states, _single(cast("Box", actions))
    if not discrete:
        raise ConfigurationTypeError(
            f"ego action space of {ego_uid!r}: expected gym.spaces.Box, got "
            f"{type(actions).__name__}; ppo, mappo, dqn and random act on Discrete."
        )
    if not isinstance(actions, Discrete):
        raise ConfigurationTypeError(
            f"ego action space of {ego_uid!r}: expected gym.spaces.Box or Discrete, got "
            f"{type(actions).__name__}; wrap the environment."
        )
    return states, cast("Discrete[Any]", actions)


def _single(space: Box) -> Box:
    """Return the first row of a batched space, or ``space`` itself."""
    if len(space.shape) != _BATCHED_RANK:
        return space
    return Box(low=space.low[0], high=space.high[0], dtype=space.dtype.type)


def _flat_size(owner: str, name: str, space: Box) -> int:
    """Return D of a space of shape (D,)."""
    if len(space.shape) != 1:
        raise InputError(f"{owner}: expected a flat {name} space of shape (D,), got {space.shape}.")
    return space.shape[0]


def step_ends(
    owner: str, done: Any, truncated: Any, terminated: Any | None, count: int
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return by whom a step's episodes were ended: the task, and either way, (N,) each.

    Each is a flag, for every environment, or of shape (N,); ``terminated`` None means ``done and
    not truncated``. Messages name ``owner``.

    Raises:
        InputError: Wrong shape, or ``done`` is not ``terminated or truncated`` everywhere.
    """
    if count == 1 and not isinstance(done, np.ndarray):  # the common case, without arrays
        boundary, cut = bool(done), bool(truncated)
        ended = boundary and not cut if terminated is None else bool(terminated)
        if boundary == (ended or cut):
            return np.array([ended]), np.array([boundary])
    boundary, cut = _flags(owner, "done", done, count), _flags(owner, "truncated", truncated, count)
    ended = (
        boundary & ~cut if terminated is None else _flags(owner, "terminated", terminated, count)
    )
    wrong = boundary != (ended | cut)
    if wrong.any():
        raise InputError(
            f"{owner}.observe: expected done = terminated or truncated, got a contradiction "
            f"in environments {np.flatnonzero(wrong).tolist()}."
        )
    return ended, boundary


def _flags(owner: str, name: str, value: Any, count: int) -> NDArray[np.bool_]:
    flags = np.asarray(value, dtype=np.bool_)
    if flags.shape not in ((), (count,)):
        raise InputError(
            f"{owner}.observe: expected {name} of shape ({count},), got {flags.shape}."
        )
    return flags if flags.shape else np.full(count, flags)


class SeatOutcome(NamedTuple):
    """What followed one step, as rows: rewards, float64, and whose episodes ended, (N,) each.

    ``cut`` are the rows, (K,), that a time limit ended and the task did not; ``next_rows``, (N, S),
    are what the next action is decided on, ``last_rows`` what followed before any reset.
    """

    rewards: FloatArray
    terminated: NDArray[np.bool_]
    boundaries: NDArray[np.bool_]
    cut: NDArray[np.int64]
    next_rows: Float32Array
    last_rows: Float32Array


class SeatRows:
    """Reads rows for one seat: the ego's own, or the ego's and then those of the other ``uids``.

    Attributes:
        observation_dim: O.
        row_dim: S.
        choices: Number of discrete choices; None for continuous actions.
        low: Smallest action, (A,).
        high: Largest action, (A,).

    Raises:
        InputError: A space is not flat, or the actions are unbounded and must not be.
    """

    def __init__(
        self,
        owner: str,
        *,
        uids: Sequence[str],
        state_spaces: Sequence[Box],
        action_space: "Box | Discrete[Any]",
        needs_bounds: bool = True,
    ) -> None:
        self._owner, self._uids = owner, tuple(uids)
        self._widths = [_flat_size(owner, "observation", space) for space in state_spaces]
        self.observation_dim: int = self._widths[0]
        self.row_dim: int = sum(self._widths)
        self.choices: int | None = None
        if isinstance(action_space, Discrete):
            self.choices = int(action_space.n)
            first = float(action_space.start)
            action_space = Box(first, first + self.choices - 1, (1,), np.float32)
        self.action_dim: int = _flat_size(owner, "action", action_space)
        self.low: Float32Array = np.asarray(action_space.low, dtype=np.float32)
        self.high: Float32Array = np.asarray(action_space.high, dtype=np.float32)
        if needs_bounds and not is_scalable(self.low, self.high):
            raise InputError(
                f"{owner}: expected bounded actions of {uids[0]!r}, got {self.low} to {self.high}; "
                "use algo=ego_aht_happo or bound the action space."
            )

    def own(self, obs: Observation) -> tuple[Float32Array, bool]:
        """Return the ego's state as rows, (N, O), and whether they are a batch.

        Raises:
            InputError: The state is missing or has another shape.
        """
        state = self._state(obs, self._uids[0], self.observation_dim)
        return (state, True) if state.ndim > 1 else (state[None], False)

    def rows(self, obs: Observation) -> tuple[Float32Array, bool]:
        """Return rows, (N, S), and whether they are a batch.

        Raises:
            InputError: A state is missing or has another shape.
        """
        if len(self._uids) == 1:
            return self.own(obs)
        states = [
            self._state(obs, uid, width)
            for uid, width in zip(self._uids, self._widths, strict=True)
        ]
        joint = np.concatenate(states, axis=-1)
        return np.atleast_2d(joint), joint.ndim > 1

    def from_unit(self, actions: Float32Array) -> Float32Array:
        """Return actions in [−1, 1] scaled to the bounds, (N, A); choices are rounded."""
        share = (actions + np.float32(1.0)) * np.float32(0.5)
        scaled = (self.low + share * (self.high - self.low)).astype(np.float32, copy=False)
        return scaled if self.choices is None else np.rint(scaled)

    def choice_table(self) -> Float32Array:
        """Return the action of every choice, (choices, 1)."""
        return np.arange(self.choices or 0, dtype=np.float32)[:, None] + self.low

    def outcome(
        self,
        obs: Observation,
        reward: Any,
        ends: tuple[NDArray[np.bool_], NDArray[np.bool_]],
        final_obs: Observation | None,
        *,
        batched: bool,
        needs_successors: bool,
    ) -> SeatOutcome:
        """Return what followed a step; ``ends`` as of `step_ends`.

        ``obs`` is the one after the reset, when batched, ``final_obs`` the one before it.

        Raises:
            InputError: Shapes contradict each other, a reward is not finite, or a batch lacks the
                ``final_obs`` of a time limit, or of any end if ``needs_successors``.
        """
        ended, boundaries = ends
        count = len(ended)
        next_rows = self._matching(obs, batched, count)
        rewards = np.asarray(reward, dtype=np.float64)
        if rewards.shape not in ((), (count,)):
            raise InputError(
                f"{self._owner}.observe: expected rewards of shape ({count},), got {rewards.shape}."
            )
        require_finite(f"{self._owner}.observe: reward", rewards)
        last_rows, cut = next_rows, _NONE
        if np.count_nonzero(boundaries):  # ten times as quick as any() for a few rows
            cut = np.flatnonzero(boundaries & ~ended)
            if final_obs is not None:
                finals = self._matching(final_obs, batched, count)
                last_rows = np.where(boundaries[:, None], finals, next_rows)
            elif batched and (needs_successors or len(cut)):
                raise InputError(
                    f"{self._owner}.observe: expected final_obs (the batched observation before "
                    "the reset), got None though episodes of environments "
                    f"{np.flatnonzero(boundaries).tolist()} ended; pass info['final_observation']."
                )
        if not rewards.shape:
            rewards = rewards.repeat(count)
        return SeatOutcome(rewards, ended, boundaries, cut, next_rows, last_rows)

    def _matching(self, obs: Observation, batched: bool, count: int) -> Float32Array:
        """Return the rows of an observation after an action; there must be as many as before it."""
        rows, is_batch = self.rows(obs)
        if is_batch != batched or len(rows) != count:
            raise InputError(
                f"{self._owner}.observe: expected the observation of {count} environment(s), as "
                f"act had, got {len(rows)}."
            )
        return rows

    def _state(self, obs: Observation, uid: str, width: int) -> Float32Array:
        try:
            state: Any = obs["agent"][uid]["state"]
        except KeyError as error:
            raise InputError(
                f"{self._owner}: expected obs['agent'][{uid!r}]['state'], got no key {error}; wrap "
                "the environment so that every seat has a flat state."
            ) from error
        if not isinstance(state, np.ndarray) and hasattr(state, "detach"):
            state = state.detach().cpu().numpy()
        array = np.array(state, dtype=np.float32)  # environments may write into theirs again
        if array.ndim not in (1, 2) or array.shape[-1] != width:
            raise InputError(
                f"{self._owner}: expected a state of {uid!r} of shape ({width},) or (N, {width}), "
                f"got {array.shape}."
            )
        return array


class StoredLearner(Protocol):
    """The part of a learner that a checkpoint holds."""

    def state_dict(self) -> dict[str, Any]:
        """Return networks, optimisers and random streams."""
        ...

    def load_state_dict(self, state: Mapping[str, Any], /) -> None:
        """Continue where `state_dict` was taken."""
        ...


class EgoSeatTrainer(ABC):
    """Learns the ego's policy from the rows of its seat; checkpoints hold ``stored``."""

    #: Where the learner's state lies in checkpoints.
    LEARNER_KEY: ClassVar[str]
    #: Whether it learns from what followed a terminated step, as rollouts do not.
    NEEDS_SUCCESSORS: ClassVar[bool] = False

    def __init__(
        self,
        cfg: EgoAHTConfig,
        seat: SeatRows,
        stored: StoredLearner,
        logger: EventLogger | None,
    ) -> None:
        self._cfg, self._seat, self._stored, self._logger = cfg, seat, stored, logger
        self._pending = False  # a drawn action waits for what follows
        self._batched = False  # and was a batch
        self._frames = 0

    def _drawn_for(self, rows: Float32Array, *, batched: bool) -> None:
        """Note that an action was drawn for ``rows`` and waits for what follows."""
        count = self._cfg.env.num_envs
        if len(rows) != count:
            raise InputError(
                f"{type(self).__name__}.act: expected a state of {count} environments, got "
                f"{len(rows)}; use deterministic=True for evaluation."
            )
        self._pending, self._batched = True, batched

    @classmethod
    def _seat_of(
        cls, cfg: EgoAHTConfig, env: Any, ego_uid: str, *, joint: bool, discrete: bool
    ) -> SeatRows:
        """Return the reader of the seat's rows; with ``joint``, of all seats' states."""
        others = [uid for uid in cfg.env.agent_uids if uid != ego_uid] if joint else []
        state_space, action_space = ego_spaces(env, ego_uid, discrete=discrete)
        states = [ego_spaces(env, uid, discrete=discrete)[0] for uid in others]
        return SeatRows(
            cls.__name__,
            uids=(ego_uid, *others),
            state_spaces=[state_space, *states],
            action_space=action_space,
        )

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
        """Record what followed the last drawn action; see `cadenza.aht.types.EgoTrainer`.

        Raises:
            NotReadyError: No drawn action is waiting.
            InputError: Shapes or flags contradict each other, or something is not finite.
        """
        if not self._pending:
            raise NotReadyError(
                f"{type(self).__name__}.observe: expected act(obs) before it, got no drawn action "
                "to complete; alternate act and observe."
            )
        count = self._cfg.env.num_envs
        ends = step_ends(type(self).__name__, done, truncated, terminated, count)
        step = self._seat.outcome(
            obs,
            reward,
            ends,
            final_obs,
            batched=self._batched,
            needs_successors=self.NEEDS_SUCCESSORS,
        )
        self._record(step)
        self._pending = False
        self._frames += count
        self._after_record(count)

    def state_dict(self) -> dict[str, Any]:
        """Return the policy checkpoint: the whole learner; `network` is what plays."""
        return {self.LEARNER_KEY: self._stored.state_dict()}

    @abstractmethod
    def network(self, **fields: Any) -> PortableNetwork:
        """Return the policy without chance as a policy file holds it, see `PortableTrainer`."""

    def load_state_dict(self, payload: Mapping[str, Any]) -> None:
        """Take over networks, optimisers and streams; an action that waits is dropped.

        Raises:
            CheckpointError: The checkpoint is of another algorithm or of other sizes.
        """
        if self.LEARNER_KEY not in payload:
            raise CheckpointError(
                f"{type(self).__name__}: expected a checkpoint with a part {self.LEARNER_KEY!r}, "
                f"got {sorted(payload)}; load what the same algorithm wrote."
            )
        self._stored.load_state_dict(payload[self.LEARNER_KEY])
        self._pending = False

    def training_state(self) -> dict[str, Any]:
        """Return everything the future depends on, also between two updates.

        Raises:
            NotReadyError: A drawn action waits for what follows.
        """
        if self._pending:
            raise NotReadyError(
                f"{type(self).__name__}.training_state: expected observe() after act(), got a "
                "drawn action whose outcome is unknown."
            )
        return {
            "version": TRAINING_STATE_VERSION,
            self.LEARNER_KEY: copy.deepcopy(self._stored.state_dict()),
            **self._progress_state(),
        }

    def load_training_state(self, state: Mapping[str, Any]) -> None:
        """Continue where `training_state` was taken.

        Raises:
            CheckpointError: The state has another version, is incomplete or of other sizes.
        """
        owner = f"{type(self).__name__}.load_training_state"
        require_version(owner, state, TRAINING_STATE_VERSION)
        with complete_state(owner, "this configuration"):
            self._stored.load_state_dict(state[self.LEARNER_KEY])
            self._load_progress_state(state)
        self._pending = False

    @abstractmethod
    def _record(self, step: SeatOutcome) -> None:
        """Keep the drawn action and what followed it; the step is counted afterwards."""

    def _after_record(self, count: int) -> None:
        """Do what the ``count`` frames just counted made due; nothing by default."""
        del count

    @abstractmethod
    def _progress_state(self) -> dict[str, Any]:
        """Return what was collected and not yet forgotten, and the counters."""

    @abstractmethod
    def _load_progress_state(self, state: Mapping[str, Any]) -> None:
        """Take over what `_progress_state` returned."""
