"""What every learner in the ego's seat shares, and the one that never learns.

Rows:  learners see batches only. A row is the ego's own state, or the joint state: the ego's first,
       then the other seats'; one environment is a batch of one. Where the seat's actions are
       Discrete, an action is the number of a choice, (1,) or (N, 1): bounds are those of the
       numbers.
Ends:  termination dominates. A step that both terminated and ran out of time has no future value;
       only a pure time limit continues with the value of its last observation (arXiv:1712.00378).
Axes:  N = environments, O = own state, S = row, A = action.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final, Self, cast

import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

from cadenza.aht.config import EgoAHTConfig
from cadenza.core.arrays import Float32Array, require_finite
from cadenza.core.checks import is_scalable
from cadenza.core.errors import (
    CheckpointError,
    ConfigurationError,
    ConfigurationTypeError,
    InputError,
    NotReadyError,
)
from cadenza.core.runlog import EventLogger
from cadenza.core.seeding import derive_substream
from cadenza.core.types import Observation, PartnerLike
from cadenza.learn.env.stepping import VectorStep
from cadenza.learn.loaded_state import (
    complete_state,
    generator_state,
    learner_state,
    require_version,
    set_generator_state,
)
from cadenza.learn.nn.portable import PortableNetwork

#: Layout version of `EgoSeatTrainer.training_state`.
TRAINING_STATE_VERSION: Final = 1
#: Stream of a random ego's actions.
ACTION_STREAM: Final = "training.ego_random"
_NONE: Final = np.zeros(0, np.int64)


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
    actions = env.action_space[ego_uid]
    if discrete and not isinstance(actions, Box):
        actions = getattr(env, "single_action_space", env.action_space)[ego_uid]
    if not isinstance(observations, Box):
        raise ConfigurationTypeError(
            f"ego observation space of {ego_uid!r}: expected gym.spaces.Box, got "
            f"{type(observations).__name__}."
        )
    if not isinstance(actions, (Box, Discrete) if discrete else Box):
        raise ConfigurationTypeError(
            f"ego action space of {ego_uid!r}: expected gym.spaces.Box"
            f"{' or Discrete' if discrete else ''}, got {type(actions).__name__}"
            f"{'; wrap the environment' if discrete else '; ppo, mappo, dqn and random act on it'}."
        )
    return _single(cast("Box", observations)), _single(cast("Box", actions))


def _single(space: Any) -> Any:
    """Return the first row of a batched Box (N, D), or ``space`` itself."""
    if len(space.shape) != 2:
        return space
    return Box(low=space.low[0], high=space.high[0], dtype=space.dtype.type)


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
        self.choices: int | None = None
        if isinstance(action_space, Discrete):
            self.choices = int(action_space.n)
            first = float(action_space.start)
            action_space = Box(first, first + self.choices - 1, (1,), np.float32)
        for name, space in [*(("observation", s) for s in state_spaces), ("action", action_space)]:
            if len(space.shape) != 1:
                raise InputError(
                    f"{owner}: expected a flat {name} space of shape (D,), got {space.shape}."
                )
        self._widths = [space.shape[0] for space in state_spaces]
        self.observation_dim: int = self._widths[0]
        self.row_dim: int = sum(self._widths)
        self.action_dim: int = action_space.shape[0]
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

    def rows(self, obs: Observation) -> Float32Array:
        """Return rows, (N, S); raises as `own`."""
        parts = zip(self._uids, self._widths, strict=True)
        states = [np.atleast_2d(self._state(obs, uid, width)) for uid, width in parts]
        return np.concatenate(states, axis=-1) if len(states) > 1 else states[0]

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
    ) -> VectorStep:
        """Return what followed a step, its observations as rows, (N, S); ``ends``: see `step_ends`.

        Raises:
            InputError: Shapes do not agree, a reward is not finite, or ``final_obs`` is missing: of
                a batch, where a time limit cut an episode off, or at any end if
                ``needs_successors``.
        """
        terminated, boundaries = ends
        count = len(terminated)
        rows = following = self._matching(obs, batched, count)
        rewards = np.asarray(reward, dtype=np.float64)
        if rewards.shape not in ((), (count,)):
            raise InputError(
                f"{self._owner}.observe: expected rewards of shape ({count},), got {rewards.shape}."
            )
        require_finite(f"{self._owner}.observe: reward", rewards)
        cut = _NONE
        if np.count_nonzero(boundaries):  # ten times as quick as any() for a few rows
            cut = np.flatnonzero(boundaries & ~terminated)
            if final_obs is not None:
                finals = self._matching(final_obs, batched, count)
                following = np.where(boundaries[:, None], finals, rows)
            elif batched and (needs_successors or len(cut)):
                raise InputError(
                    f"{self._owner}.observe: expected final_obs (the batched observation before "
                    "the reset), got None though episodes of environments "
                    f"{np.flatnonzero(boundaries).tolist()} ended; pass info['final_observation']."
                )
        if not rewards.shape:
            rewards = rewards.repeat(count)
        valid = np.ones(count, dtype=np.bool_)
        return VectorStep(rows, following, rewards, terminated, boundaries, valid, cut, {})

    def _matching(self, obs: Observation, batched: bool, count: int) -> Float32Array:
        """Return the rows of an observation after an action; there must be as many as before it."""
        own, is_batch = self.own(obs)
        if is_batch != batched or len(own) != count:
            raise InputError(
                f"{self._owner}.observe: expected the observation of {count} environment(s), as "
                f"act had, got {len(own)}."
            )
        return own if len(self._uids) == 1 else self.rows(obs)

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


class EgoSeatTrainer(ABC):
    """Learns the ego's policy from the rows of its seat; checkpoints hold ``stored``'s state."""

    #: Where the learner's state lies in checkpoints.
    LEARNER_KEY: ClassVar[str]
    #: Whether it learns from what followed a terminated step, as rollouts do not.
    NEEDS_SUCCESSORS: ClassVar[bool] = False

    def __init__(
        self,
        cfg: EgoAHTConfig,
        seat: SeatRows,
        stored: Any,
        logger: EventLogger | None,
    ) -> None:
        self._cfg, self._seat, self._stored, self._logger = cfg, seat, stored, logger
        self._pending = False  # a drawn action waits for what follows
        self._batched = False  # and was a batch
        self._frames = 0

    @classmethod
    def from_config(
        cls,
        cfg: EgoAHTConfig,
        *,
        env: Any,
        partner: PartnerLike,
        ego_uid: str,
        logger: EventLogger | None = None,
    ) -> Self:
        """Return a trainer for the seat ``ego_uid`` of ``env``; this is the `TrainerFactory`.

        Raises:
            ConfigurationError: The partner has a trainable parameter.
            DeviceUnavailableError: The configured device is not on this machine.
            InputError: A space is not flat, or the ego's actions are unbounded and must not be.
            TypeError: The algorithm cannot act on the ego's action space.
        """
        assert_partner_is_frozen(partner)
        return cls(**cls._parts(cfg, env, partner, ego_uid), cfg=cfg, logger=logger)

    @classmethod
    @abstractmethod
    def _parts(
        cls, cfg: EgoAHTConfig, env: Any, partner: PartnerLike, ego_uid: str
    ) -> dict[str, Any]:
        """Return further arguments of the constructor."""

    @classmethod
    def _seat_of(
        cls, cfg: EgoAHTConfig, env: Any, ego_uid: str, *, joint: bool, discrete: bool
    ) -> SeatRows:
        """Return the reader of the seat's rows; with ``joint``, of all seats' states."""
        uids = [ego_uid, *(uid for uid in cfg.env.agent_uids if joint and uid != ego_uid)]
        found = [ego_spaces(env, uid, discrete=discrete) for uid in uids]
        states, actions = zip(*found, strict=True)
        return SeatRows(
            cls.__name__, uids=uids, state_spaces=states, action_space=cast("Box", actions[0])
        )

    def act(self, obs: Observation, *, deterministic: bool = False) -> Float32Array:
        """Return the ego's action within its bounds, (A,), or (N, A) for a batched state.

        A ``deterministic`` one is greedy; it draws nothing, is not learned from and may come at any
        time. A drawn one that is never observed is replaced by the next.

        Raises:
            InputError: A state has the wrong shape, or something is not finite.
            NotReadyError: A rollout is full; `update` comes first.
        """
        own, batched = self._seat.own(obs)
        if deterministic:
            actions = self._greedy(own)
        else:
            rows = own if self._seat.row_dim == self._seat.observation_dim else self._seat.rows(obs)
            if len(rows) != self._cfg.env.num_envs:
                raise InputError(
                    f"{type(self).__name__}.act: expected a state of {self._cfg.env.num_envs} "
                    f"environments, got {len(rows)}; use deterministic=True for evaluation."
                )
            actions = self._draw(own, rows)
            self._pending, self._batched = True, batched
        return actions if batched else actions[0]

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
            "frames": self._frames,
        }

    def load_training_state(self, state: Mapping[str, Any]) -> None:
        """Continue where `training_state` was taken.

        Raises:
            CheckpointError: The state has another version, is incomplete or of other sizes.
        """
        owner = f"{type(self).__name__}.load_training_state"
        require_version(owner, state, TRAINING_STATE_VERSION)
        with complete_state(owner, "this configuration"):
            self._stored.load_state_dict(learner_state(state, self.LEARNER_KEY))
            self._load_progress_state(state)
            self._frames = int(state["frames"])
        self._pending = False

    @abstractmethod
    def _greedy(self, own: Float32Array) -> Float32Array:
        """Return actions without chance, (N, A), for states of the ego, (N, O)."""

    @abstractmethod
    def _draw(self, own: Float32Array, rows: Float32Array) -> Float32Array:
        """Draw actions, (N, A), and keep them with what the ego and its critics, (N, S), see."""

    @abstractmethod
    def _record(self, step: VectorStep) -> None:
        """Keep the drawn action and what followed it; the step is counted afterwards."""

    def _after_record(self, count: int) -> None:
        """Do what the ``count`` frames just counted made due; nothing by default."""
        del count

    @abstractmethod
    def _progress_state(self) -> dict[str, Any]:
        """Return what was collected and not yet forgotten, and further counters."""

    @abstractmethod
    def _load_progress_state(self, state: Mapping[str, Any]) -> None:
        """Take over what `_progress_state` returned."""


class RandomEgoTrainer:
    """Never learns: uniform actions in [-1, 1], float32, or uniform ``choices``, (first, last).

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
        self.ego_uid, self.action_dim, self._choices = ego_uid, action_dim, choices
        self._rng = derive_substream(ACTION_STREAM, root_seed=root_seed).default_rng()

    @classmethod
    def from_config(
        cls,
        cfg: EgoAHTConfig,
        *,
        env: Any,
        partner: PartnerLike,  # noqa: ARG003 — the factory's signature; nothing here can train it
        ego_uid: str,
        logger: EventLogger | None = None,  # noqa: ARG003 — nothing to report
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
        state = obs.get("agent", {}).get(self.ego_uid, {}).get("state")
        shape = (*(() if state is None else state.shape[:-1]), self.action_dim)
        if deterministic:
            return np.full(shape, self._choices[0] if self._choices else 0.0, dtype=np.float32)
        if self._choices:
            return self._rng.integers(*self._choices, size=shape, endpoint=True).astype(np.float32)
        return self._rng.uniform(-1.0, 1.0, size=shape).astype(np.float32)

    def observe(self, obs: Observation, *_outcome: Any, **_ends: Any) -> None:
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
