"""A presenter hands a keyed peg over; the receiver seats it in a fixture before the takt ends.

Robots:      the ego receives and seats, the partner presents (`handover_scene`).
Task:        grasp the handle where it is presented, within a millimetre; align the peg with the
             keyed hole, 1 mm wide on each side; seat it softly (`handover_copies`).
Action:      ego (7,): step of the own grip (3), turn of the own hand (3), world axes, in units of
             `GRIP_STEP` m and `TURN_STEP` rad per tick, then the gripper: above 0 closed. Presenter
             (6,): the same without the gripper; it lets go by itself 0.2 s after the ego grasped.
             Targets start from the present joint angles and the control ramps to them.
State:       ego (31,), each entry divided by its entry of `EGO_SCALE`: handle's point minus own
             grip (0:3), turn that aligns the hand with the peg (3:6), seat minus the peg's tip
             (6:9), turn that aligns the peg with the fixture (9:12), speeds of own grip and of the
             point (12:18), way and turn of the own hand to the seat as if it had grasped a straight
             peg (18:24), turn that sets the hand straight (24:27), whether ego and presenter hold
             the peg (27:29), contact force (29), time (30).
             Presenter (18,), divided by `PRESENTER_SCALE`: zone minus own grip (0:3), turn that
             sets the hand straight (3:6), receiver's grip minus handle's point (6:9), speeds of own
             and receiver's grip (9:15), whether receiver and presenter hold the peg (15:17), time.
Axes:        N = copies; turns are rotation vectors.
Units:       m, m/s, rad, N, s.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any, ClassVar, Final

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from cadenza.core.arrays import FloatArray
from cadenza.core.errors import InputError, NotReadyError
from cadenza.envs.batched_streams import named_uniforms
from cadenza.envs.inputs import (
    checked_action,
    checked_agent_uids,
    checked_integer,
    checked_render_mode,
)
from cadenza.envs.mujoco.handover_copies import (
    CONTROL_TIMESTEP,
    DRAWS,
    EGO_DIM,
    FORCE_LIMIT,
    PRESENTER_AT,
    PRESENTER_DIM,
    ZONE,
    Handing,
    HandoverOptions,
)
from cadenza.envs.mujoco.panda import quaternions
from cadenza.envs.mujoco.simulations import ManySimulations, OneSimulation

#: Most ticks per episode; the takt usually ends it sooner.
DEFAULT_EPISODE_LENGTH: Final = 600
#: Name of the stream family; episode k draws from ``f"{STREAM}.episode.{k}"``.
STREAM: Final = "env.handover_mj"
#: Action components of ego and presenter.
ACTION_DIMS: Final = (7, 6)

_SEED_BOUND: Final = 1 << 62


class _Hooks:
    """What both environments tell beside `step`; a scalar one tells of its only copy."""

    agent_uids: tuple[str, ...]
    options: HandoverOptions
    _handing: Handing
    _ready: bool = False
    #: Picks the only copy, or all of them.
    _pick: Any = slice(None)

    def guard_arm(self) -> None:
        """Put the operational-space filter in front of the ego's arm, see `arm_guard`."""
        self.options = replace(self.options, guard="on")
        self._handing.set_guard(self.options.guard)

    def state_hash(self, row: int = 0) -> str:
        """Return SHA-256 over everything that determines the future of one copy.

        The welds' poses and the fixture's, which live in the model, are part of it.
        """
        handing = self._require_reset()
        digest = sha256(handing.simulations.state(row).tobytes())
        digest.update(handing.model_state(row).tobytes())
        return digest.hexdigest()

    def comm_state(self) -> Any:
        """Return tool centre poses (m, wxyz) and predicates of both robots; a list for copies."""
        states: Any = _comm_states(self._require_reset(), self.agent_uids)
        return states[self._pick]

    def robot_positions(self) -> dict[str, FloatArray]:
        """Return where each robot's grip is on the floor, (2,) or (N, 2), m."""
        return self._on_the_floor(self._require_reset().grips)

    def goal_positions(self) -> dict[str, FloatArray]:
        """Return the ego's fixture and the presenting hand's place, (2,) or (N, 2), m."""
        fixtures = self._require_reset().fixtures
        presented = np.broadcast_to(ZONE + PRESENTER_AT, fixtures.shape)
        return self._on_the_floor(np.stack((fixtures, presented), axis=1))

    def _on_the_floor(self, points: FloatArray) -> dict[str, FloatArray]:
        picked = points[self._pick]
        return {uid: picked[..., k, :2].copy() for k, uid in enumerate(self.agent_uids)}

    def _require_reset(self) -> Handing:
        if not self._ready:
            raise NotReadyError(
                f"{type(self).__name__}: expected a state, got none yet; call reset() first."
            )
        return self._handing


class HandoverEnv(_Hooks, gym.Env[dict[str, Any], dict[str, Any]]):
    """One copy of the handover; observation, action and units in the module.

    An episode terminates on success or where nobody holds the peg any more and it falls, and
    truncates when the takt or ``episode_length`` ends.

    Attributes:
        agent_uids: Ego and partner.
        options: Choices of this environment.
        episode_length: Ticks until truncation, if the takt does not end before.
        root_seed: Experiment seed that scopes every episode.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"], "render_fps": 20}  # pyright: ignore[reportIncompatibleVariableOverride] # gymnasium declares an instance variable
    control_timestep: Final = CONTROL_TIMESTEP
    _pick = 0

    def __init__(
        self,
        options: HandoverOptions | None = None,
        *,
        agent_uids: tuple[str, ...] = ("ego", "partner"),
        episode_length: int = DEFAULT_EPISODE_LENGTH,
        root_seed: int = 0,
        render_mode: str | None = None,
    ) -> None:
        """Build the env; call `reset` before `step`.

        Args:
            options: Condition, takt, errors and the like.
            agent_uids: Names of ego and partner.
            episode_length: Ticks until truncation, >= 1.
            root_seed: Experiment seed, >= 0.
            render_mode: None or ``"rgb_array"``.

        Raises:
            InputError: An argument is out of range.
            MissingExtraError: MuJoCo is not installed.
        """
        owner = "HandoverEnv"
        self.options = options or HandoverOptions()
        self.agent_uids = checked_agent_uids(owner, agent_uids, low=2, high=2)
        self.ego_uid, self.partner_uid = self.agent_uids
        self.episode_length = checked_integer(owner, "episode_length", episode_length, low=1)
        self.root_seed = checked_integer(owner, "root_seed", root_seed, low=0)
        self.render_mode = checked_render_mode(owner, render_mode)
        self.observation_space, self.action_space = _spaces(self.agent_uids)
        self.simulation = OneSimulation(self.options.xml())
        self._handing = Handing(self.options, 1, self.simulation)
        self._episode_name = f"{STREAM}.episode"
        self._auto_episodes = 0
        self._running = False
        self._pictures: Any = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start an episode.

        Args:
            seed: Episode index under ``root_seed``: equal pairs give equal episodes. None starts
                the next of the unnumbered episodes that follow the last numbered one.
            options: Part of Gymnasium's interface; this task has none and ignores them.

        Raises:
            InputError: ``seed`` is not an integer >= 0.
        """
        del options
        if seed is None:
            prefix, index = f"{self._episode_name}.auto.", self._auto_episodes
            self._auto_episodes += 1
        else:
            prefix, index = f"{STREAM}.episode.", _checked_seed("HandoverEnv", seed)
            self._episode_name, self._auto_episodes = f"{prefix}{index}", 0
        draws = named_uniforms(
            prefix, np.array([index], dtype=np.int64), root_seed=self.root_seed, count=DRAWS
        )
        self._handing.begin(np.zeros(1, dtype=np.int64), draws)
        self._running = self._ready = True
        return self._observation(), {}

    def step(
        self, action: Mapping[str, NDArray[Any]]
    ) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Advance by one tick.

        Args:
            action: Array within [-1, 1] per uid, (7,) and (6,) as in the module, clipped.

        Returns:
            Observation, shared reward, terminated, truncated, info: ``success``, ``goal_distance``
            (of the peg's tip to its seat, m), ``reached`` (the peg was seated, whatever the windows
            and forces), ``grasped``, ``depth`` and ``lateral`` (m), ``angle_deg``, contact
            ``force`` and its maximum ``max_force`` (N), ``time`` (s).

        Raises:
            NotReadyError: No episode is in progress.
            InputError: A uid is missing, or an action has another shape or is not finite.
        """
        if not self._running:
            raise NotReadyError("HandoverEnv.step: expected an episode in progress; call reset().")
        ego, presenter = (
            np.clip(checked_action("HandoverEnv", action, uid, (size,)), -1.0, 1.0)[None]
            for uid, size in zip(self.agent_uids, ACTION_DIMS, strict=True)
        )
        reward, success, dropped, info = self._handing.advance(ego, presenter)
        terminated = success | dropped
        truncated = _late(self._handing, self.episode_length) & ~terminated
        self._running = not (terminated[0] or truncated[0])
        return (
            self._observation(),
            float(reward[0]),
            bool(terminated[0]),
            bool(truncated[0]),
            {name: values[0].item() for name, values in info.items()},
        )

    def render(self) -> NDArray[np.uint8] | None:  # pyright: ignore[reportIncompatibleMethodOverride] # gymnasium leaves the frame type open
        """Return the scene as an image of shape (H, W, 3), or None without a render mode.

        Raises:
            NotReadyError: `reset` was never called.
        """
        if self.render_mode is None:
            return None
        handing = self._require_reset()
        from cadenza.envs.mujoco.rendering import Camera, Pictures

        if self._pictures is None:
            camera = Camera(looks_at=(0.0, 0.08, 0.24), distance=1.3, azimuth=-70.0)
            self._pictures = Pictures(self.simulation, camera)
        within = bool(handing.max_force[0] < FORCE_LIMIT)
        return self._pictures.draw(handing.fixtures[0] - [0.0, 0.0, 0.06], within_limits=within)

    def close(self) -> None:
        """Close the renderer."""
        if self._pictures is not None:
            self._pictures.close()
            self._pictures = None

    def _observation(self) -> dict[str, Any]:
        return _observations(self._handing, self.agent_uids, row=0)


class VectorHandoverEnv(_Hooks, gym.vector.VectorEnv[dict[str, Any], dict[str, Any], Any]):
    """N copies of the handover on a pool of threads; every copy has the bytes of `HandoverEnv`.

    Episodes, seeds and automatic resets are those of `cadenza.envs.mujoco.VectorCoCarryEnv`.

    Attributes:
        agent_uids: Ego and partner.
        options: Choices of this environment.
        episode_length: Ticks until truncation, if the takt does not end before.
        root_seed: Experiment seed that scopes every episode.
    """

    control_timestep: Final = CONTROL_TIMESTEP

    def __init__(
        self,
        num_envs: int,
        options: HandoverOptions | None = None,
        *,
        agent_uids: tuple[str, ...] = ("ego", "partner"),
        episode_length: int = DEFAULT_EPISODE_LENGTH,
        root_seed: int = 0,
        threads: int = 1,
    ) -> None:
        """Build N copies; call `reset` before `step`.

        Args:
            num_envs: Copies N, >= 1.
            options: Condition, takt, errors and the like.
            agent_uids: Names of ego and partner.
            episode_length: Ticks until truncation, >= 1.
            root_seed: Experiment seed, >= 0.
            threads: That step the physics, >= 1; the bytes do not depend on it.

        Raises:
            InputError: An argument is out of range.
            MissingExtraError: MuJoCo or mjbatch is not installed.
        """
        owner = "VectorHandoverEnv"
        self.num_envs = checked_integer(owner, "num_envs", num_envs, low=1)
        self.options = options or HandoverOptions()
        self.agent_uids = checked_agent_uids(owner, agent_uids, low=2, high=2)
        self.ego_uid, self.partner_uid = self.agent_uids
        self.episode_length = checked_integer(owner, "episode_length", episode_length, low=1)
        self.root_seed = checked_integer(owner, "root_seed", root_seed, low=0)
        threads = checked_integer(owner, "threads", threads, low=1)
        self.metadata = {"render_modes": [], "autoreset_mode": AutoresetMode.SAME_STEP}
        self.single_observation_space, self.single_action_space = _spaces(self.agent_uids)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._handing = Handing(
            self.options,
            num_envs,
            ManySimulations(self.options.xml(), num_envs, threads=threads),
        )
        self._seeds: NDArray[np.int64] = np.arange(num_envs, dtype=np.int64)
        self._episodes: NDArray[np.int64] = np.full(num_envs, -1, dtype=np.int64)

    def reset(
        self, *, seed: int | Sequence[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start an episode in every copy.

        Args:
            seed: First episode index of copy 0, or one per copy; None moves every copy to its next
                episode (to episode i in copy i the first time).
            options: Part of Gymnasium's interface; this task has none and ignores them.

        Raises:
            InputError: A seed is not an integer in [0, 2^62), or there is not one per copy.
        """
        del options
        owner, copies = "VectorHandoverEnv", self.num_envs
        if seed is None:
            self._episodes += 1
        elif isinstance(seed, Sequence | np.ndarray):
            if len(seed) != copies:
                raise InputError(f"{owner}: expected {copies} seeds, got {len(seed)}.")
            self._seeds = np.array([_checked_seed(owner, s) for s in seed], dtype=np.int64)
            self._episodes[:] = 0
        else:
            self._seeds = _checked_seed(owner, seed) + np.arange(copies, dtype=np.int64)
            self._episodes[:] = 0
        self._start(np.arange(copies, dtype=np.int64))
        self._ready = True
        return _observations(self._handing, self.agent_uids), {}

    def step(
        self, actions: Mapping[str, Any]
    ) -> tuple[dict[str, Any], FloatArray, NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Advance every copy by one tick.

        Args:
            actions: Array per uid, (N, 7) and (N, 6) as in the module, clipped to [-1, 1].

        Returns:
            Batched observation; reward, terminated, truncated of shape (N,); info with the arrays
            of `HandoverEnv.step`, (N,) each, and in a step that ends episodes also
            ``final_observation`` (batched, before the reset), its alias ``final_obs``,
            ``final_info`` and the masks ``_final_obs``, ``_final_info``.

        Raises:
            NotReadyError: `reset` was never called.
            InputError: A uid is missing, or its actions have another shape or are not finite.
        """
        handing = self._require_reset()
        ego, presenter = (
            np.clip(
                checked_action("VectorHandoverEnv", actions, uid, (self.num_envs, size)), -1.0, 1.0
            )
            for uid, size in zip(self.agent_uids, ACTION_DIMS, strict=True)
        )
        reward, success, dropped, info = handing.advance(ego, presenter)
        terminated = success | dropped
        truncated = _late(handing, self.episode_length) & ~terminated
        finished = terminated | truncated
        if finished.any():
            info["final_info"] = dict(info)
            final = _observations(handing, self.agent_uids)
            info["final_observation"] = info["final_obs"] = final
            info["_final_obs"] = info["_final_info"] = finished.copy()
            rows = np.flatnonzero(finished)
            self._episodes[rows] += 1
            self._start(rows)
        return _observations(handing, self.agent_uids), reward, terminated, truncated, info

    def _start(self, rows: NDArray[np.int64]) -> None:
        episodes = self._seeds[rows] + self._episodes[rows] * self.num_envs
        draws = named_uniforms(
            f"{STREAM}.episode.", episodes, root_seed=self.root_seed, count=DRAWS
        )
        self._handing.begin(rows, draws)


def _spaces(uids: tuple[str, ...]) -> tuple[gym.spaces.Dict, gym.spaces.Dict]:
    """Return observation and action space of one copy."""
    states: dict[str, gym.Space[Any]] = {
        uid: gym.spaces.Dict({"state": gym.spaces.Box(-np.inf, np.inf, (dim,), np.float32)})
        for uid, dim in zip(uids, (EGO_DIM, PRESENTER_DIM), strict=True)
    }
    agent: gym.Space[Any] = gym.spaces.Dict(states)
    actions: dict[str, gym.Space[Any]] = {
        uid: gym.spaces.Box(-1.0, 1.0, (size,), np.float32)
        for uid, size in zip(uids, ACTION_DIMS, strict=True)
    }
    return gym.spaces.Dict({"agent": agent}), gym.spaces.Dict(actions)


def _observations(
    handing: Handing, uids: tuple[str, ...], *, row: int | None = None
) -> dict[str, Any]:
    """Return the nested observation of all copies, or of one without the batch's axis."""
    states = (handing.ego_state(), handing.presenter_state())
    return {
        "agent": {
            uid: {"state": (state if row is None else state[row]).astype(np.float32)}
            for uid, state in zip(uids, states, strict=True)
        }
    }


def _late(handing: Handing, episode_length: int) -> NDArray[np.bool_]:
    """Return whose time is over, (N,)."""
    takt = round(handing.options.takt_s / CONTROL_TIMESTEP)
    return handing.steps >= min(takt, episode_length)


def _comm_states(handing: Handing, uids: tuple[str, ...]) -> list[dict[str, Any]]:
    turns = quaternions(handing.rotations())
    return [
        {
            "pose": {
                uid: {"xyz": tuple(grips[k].tolist()), "quat_wxyz": tuple(turn[k].tolist())}
                for k, uid in enumerate(uids)
            },
            "task_state": {uid: {"object_class": "peg", "contact_force": force} for uid in uids},
        }
        for grips, turn, force in zip(handing.grips, turns, handing.force.tolist(), strict=True)
    ]


def _checked_seed(owner: str, seed: object) -> int:
    value = checked_integer(owner, "seed", seed, low=0)
    if value >= _SEED_BOUND:
        raise InputError(f"{owner}: expected seed < 2^62, got {value}.")
    return value
