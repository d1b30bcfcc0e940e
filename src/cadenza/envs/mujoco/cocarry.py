"""Two arms carry one rigid bar to a goal on one side: neither can do it alone.

Robots:      the ego holds the bar's -x end, the partner the +x end (`cocarry_scene`).
Task:        bring the bar's centre to the goal, keep it level, do not fight (`cocarry_rules`).
Action:      track "grip": step of the own grip, (3,), in units of `GRIP_STEP` m per tick, world
             axes; track "joint": steps of the seven joints, (7,), in units of `JOINT_STEP` rad.
             Targets start from the present joint angles and the control ramps to them within the
             tick. The partner always acts on the grip track.
State:       view "task", (20,), each entry divided by its entry of `TASK_SCALE`: goal minus bar
             centre (0:3), other grip minus where it should be seen from the own grip (3:6), speeds
             of own (6:9) and other grip (9:12) over the last tick, bar pitch and yaw (12:14),
             signed internal force (14), own grip minus its start (15:18), time (18), largest force
             so far over f_max (19). View "full", (47,), of the ego alone: joint angles and rates of
             ego and partner (9 each, two of them gripper and zero), bar pose (7), goal (3), largest
             force so far over f_max.
Axes:        N = copies, R = 2 robots.
Units:       m, m/s, rad, rad/s, N, s.
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

from cadenza.core.arrays import Float32Array, FloatArray
from cadenza.core.errors import InputError, NotReadyError
from cadenza.envs.batched_streams import named_uniforms
from cadenza.envs.inputs import (
    checked_action,
    checked_agent_uids,
    checked_integer,
    checked_render_mode,
)
from cadenza.envs.mujoco.cocarry_copies import (
    CONTROL_TIMESTEP,
    DRAWS,
    FULL_DIM,
    TASK_DIM,
    Carrying,
    CoCarryOptions,
)
from cadenza.envs.mujoco.cocarry_rules import force_limit
from cadenza.envs.mujoco.panda import JOINTS, quaternions
from cadenza.envs.mujoco.simulations import ManySimulations, OneSimulation

#: Ticks per episode: 15 s.
DEFAULT_EPISODE_LENGTH: Final = 300
#: Name of the stream family; episode k draws from ``f"{STREAM}.episode.{k}"``.
STREAM: Final = "env.cocarry_mj"

_SEED_BOUND: Final = 1 << 62


class _Hooks:
    """What both environments tell beside `step`; a scalar one tells of its only copy."""

    agent_uids: tuple[str, ...]
    options: CoCarryOptions
    _carrying: Carrying
    _ready: bool = False
    #: Picks the only copy, or all of them.
    _pick: Any = slice(None)

    def guard_arm(self) -> None:
        """Put the operational-space filter in front of the ego's arm, see `arm_guard`."""
        self.options = replace(self.options, guard="on")
        self._carrying.set_guard(self.options.guard)

    def get_telemetry(self) -> dict[str, Any]:
        """Return tilt (degrees), force (N), distance (m) and the episode's maxima."""
        now = self._require_reset().now
        return {
            "tilt_deg": now.tilt[self._pick].copy(),
            "stress": np.abs(now.force[self._pick]),
            "centroid_to_goal": now.distance[self._pick].copy(),
            "max_tilt_deg": now.max_tilt[self._pick].copy(),
            "max_stress": now.max_force[self._pick].copy(),
        }

    def task_view(self, uid: str) -> FloatArray:
        """Return the task view of ``uid``, (20,) or (N, 20), whatever the ego may see."""
        return self._require_reset().task_view(self.agent_uids.index(uid))[self._pick]

    def comm_state(self) -> Any:
        """Return poses and predicates of both robots, as a channel sends them; a list for copies.

        Each uid has its tool centre point, ``xyz`` (m) and ``quat_wxyz``, in the world, and the
        force that the bar's ends hold against each other.
        """
        states: Any = _comm_states(self._require_reset(), self.agent_uids)
        return states[self._pick]

    def robot_positions(self) -> dict[str, FloatArray]:
        """Return where each robot's grip is on the floor, (2,) or (N, 2), m."""
        return self._on_the_floor(self._require_reset().grips)

    def goal_positions(self) -> dict[str, FloatArray]:
        """Return where the grips end up with a level bar at its goal, (2,) or (N, 2), m."""
        return self._on_the_floor(self._require_reset().goal_ends())

    def _on_the_floor(self, points: FloatArray) -> dict[str, FloatArray]:
        picked = points[self._pick]
        return {uid: picked[..., k, :2].copy() for k, uid in enumerate(self.agent_uids)}

    def _require_reset(self) -> Carrying:
        if not self._ready:
            raise NotReadyError(
                f"{type(self).__name__}: expected a state, got none yet; call reset() first."
            )
        return self._carrying


class CoCarryEnv(_Hooks, gym.Env[dict[str, Any], dict[str, Any]]):
    """One copy of co-carry; observation, action and units in the module.

    An episode terminates on success and truncates after ``episode_length`` ticks; with
    ``training`` it also terminates where a limit breaks, and success truncates.

    Attributes:
        agent_uids: Ego and partner.
        options: Choices of this environment.
        episode_length: Ticks until truncation.
        root_seed: Experiment seed that scopes every episode.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"], "render_fps": 20}  # pyright: ignore[reportIncompatibleVariableOverride] # gymnasium declares an instance variable
    control_timestep: Final = CONTROL_TIMESTEP
    _pick = 0

    def __init__(
        self,
        options: CoCarryOptions | None = None,
        *,
        agent_uids: tuple[str, ...] = ("ego", "partner"),
        episode_length: int = DEFAULT_EPISODE_LENGTH,
        root_seed: int = 0,
        render_mode: str | None = None,
    ) -> None:
        """Build the env; call `reset` before `step`.

        Args:
            options: Condition, views, rewards and the like.
            agent_uids: Names of ego and partner.
            episode_length: Ticks until truncation, >= 1.
            root_seed: Experiment seed, >= 0.
            render_mode: None or ``"rgb_array"``.

        Raises:
            InputError: An argument is out of range.
            MissingExtraError: MuJoCo is not installed.
        """
        owner = "CoCarryEnv"
        self.options = options or CoCarryOptions()
        self.agent_uids = checked_agent_uids(owner, agent_uids, low=2, high=2)
        self.ego_uid, self.partner_uid = self.agent_uids
        self.episode_length = checked_integer(owner, "episode_length", episode_length, low=1)
        self.root_seed = checked_integer(owner, "root_seed", root_seed, low=0)
        self.render_mode = checked_render_mode(owner, render_mode)
        self.observation_space, self.action_space = _spaces(self.options, self.agent_uids)
        self.simulation = OneSimulation(self.options.scene().xml())
        self._carrying = Carrying(self.options, 1, self.simulation)
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
            prefix, index = f"{STREAM}.episode.", _checked_seed("CoCarryEnv", seed)
            self._episode_name, self._auto_episodes = f"{prefix}{index}", 0
        draws = named_uniforms(
            prefix, np.array([index], dtype=np.int64), root_seed=self.root_seed, count=DRAWS
        )
        self._carrying.begin(np.zeros(1, dtype=np.int64), draws)
        self._running = self._ready = True
        return self._observation(), {}

    def step(
        self, action: Mapping[str, NDArray[Any]]
    ) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Advance by one tick.

        Args:
            action: Array within [-1, 1] per uid, (3,) or (7,) as in the module, clipped.

        Returns:
            Observation, shared reward, terminated, truncated, info: ``success``, ``goal_distance``
            (m), ``reached`` (the bar has rested at its goal, limits or not), ``tilt_deg``,
            ``internal_force`` (N), their episode maxima ``max_tilt_deg`` and ``max_force``,
            ``mean_force`` (N), ``energy`` (J) and ``time`` (s).

        Raises:
            NotReadyError: No episode is in progress.
            InputError: A uid is missing, or an action has another shape or is not finite.
        """
        if not self._running:
            raise NotReadyError("CoCarryEnv.step: expected an episode in progress; call reset().")
        carrying = self._carrying
        ego, partner = (
            np.clip(checked_action("CoCarryEnv", action, uid, (size,)), -1.0, 1.0)[None]
            for uid, size in zip(self.agent_uids, _action_sizes(self.options), strict=True)
        )
        reward, success, violation, info = carrying.advance(ego, partner)
        terminated, truncated = _ends(carrying, success, violation, self.episode_length)
        self._running = not (terminated[0] or truncated[0])
        return (
            self._observation(),
            float(reward[0]),
            bool(terminated[0]),
            bool(truncated[0]),
            {name: values[0].item() for name, values in info.items()},
        )

    def state_hash(self) -> str:
        """Return SHA-256 over everything that determines the physics' future."""
        self._require_reset()
        return sha256(self.simulation.state(0).tobytes()).hexdigest()

    def render(self) -> NDArray[np.uint8] | None:  # pyright: ignore[reportIncompatibleMethodOverride] # gymnasium leaves the frame type open
        """Return the scene as an image of shape (H, W, 3), or None without a render mode.

        Raises:
            NotReadyError: `reset` was never called.
        """
        if self.render_mode is None:
            return None
        carrying = self._require_reset()
        from cadenza.envs.mujoco.rendering import Pictures

        if self._pictures is None:
            self._pictures = Pictures(self.simulation)
        within = bool(carrying.now.within_limits(force_limit())[0])
        return self._pictures.draw(carrying.goals[0], within_limits=within)

    def close(self) -> None:
        """Close the renderer."""
        if self._pictures is not None:
            self._pictures.close()
            self._pictures = None

    def _observation(self) -> dict[str, Any]:
        ego, partner = _states(self._carrying)
        return _nested(self.agent_uids, ego[0], partner[0])


class VectorCoCarryEnv(_Hooks, gym.vector.VectorEnv[dict[str, Any], dict[str, Any], Any]):
    """N copies of co-carry on a pool of threads; every copy has the bytes of `CoCarryEnv`.

    Copy i plays episodes seed_i + e N, e = 0, 1, ..., of the scalar env; ``reset(seed=s)`` sets
    seed_i = s + i and e = 0, ``reset()`` moves every copy to its next episode. The step that ends
    an episode returns the next one's first observation, and ``info["final_observation"]`` holds
    those before the reset.

    Attributes:
        agent_uids: Ego and partner.
        options: Choices of this environment.
        episode_length: Ticks until truncation.
        root_seed: Experiment seed that scopes every episode.
    """

    control_timestep: Final = CONTROL_TIMESTEP

    def __init__(
        self,
        num_envs: int,
        options: CoCarryOptions | None = None,
        *,
        agent_uids: tuple[str, ...] = ("ego", "partner"),
        episode_length: int = DEFAULT_EPISODE_LENGTH,
        root_seed: int = 0,
        threads: int = 1,
    ) -> None:
        """Build N copies; call `reset` before `step`.

        Args:
            num_envs: Copies N, >= 1.
            options: Condition, views, rewards and the like.
            agent_uids: Names of ego and partner.
            episode_length: Ticks until truncation, >= 1.
            root_seed: Experiment seed, >= 0.
            threads: That step the physics, >= 1; the bytes do not depend on it.

        Raises:
            InputError: An argument is out of range.
            MissingExtraError: MuJoCo or mjbatch is not installed.
        """
        owner = "VectorCoCarryEnv"
        self.num_envs = checked_integer(owner, "num_envs", num_envs, low=1)
        self.options = options or CoCarryOptions()
        self.agent_uids = checked_agent_uids(owner, agent_uids, low=2, high=2)
        self.ego_uid, self.partner_uid = self.agent_uids
        self.episode_length = checked_integer(owner, "episode_length", episode_length, low=1)
        self.root_seed = checked_integer(owner, "root_seed", root_seed, low=0)
        threads = checked_integer(owner, "threads", threads, low=1)
        self.metadata = {"render_modes": [], "autoreset_mode": AutoresetMode.SAME_STEP}
        self.single_observation_space, self.single_action_space = _spaces(
            self.options, self.agent_uids
        )
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._simulations = ManySimulations(self.options.scene().xml(), num_envs, threads=threads)
        self._carrying = Carrying(self.options, num_envs, self._simulations)
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
        owner, copies = "VectorCoCarryEnv", self.num_envs
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
        return self._observation(), {}

    def step(
        self, actions: Mapping[str, Any]
    ) -> tuple[dict[str, Any], FloatArray, NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Advance every copy by one tick.

        Args:
            actions: Array per uid, (N, 3) or (N, 7) as in the module, clipped to [-1, 1].

        Returns:
            Batched observation; reward, terminated, truncated of shape (N,); info with the arrays
            of `CoCarryEnv.step`, (N,) each, and in a step that ends episodes also
            ``final_observation`` (batched, before the reset), its alias ``final_obs``,
            ``final_info`` and the masks ``_final_obs``, ``_final_info``.

        Raises:
            NotReadyError: `reset` was never called.
            InputError: A uid is missing, or its actions have another shape or are not finite.
        """
        carrying = self._require_reset()
        ego, partner = (
            np.clip(
                checked_action("VectorCoCarryEnv", actions, uid, (self.num_envs, size)), -1.0, 1.0
            )
            for uid, size in zip(self.agent_uids, _action_sizes(self.options), strict=True)
        )
        reward, success, violation, info = carrying.advance(ego, partner)
        terminated, truncated = _ends(carrying, success, violation, self.episode_length)
        finished = terminated | truncated
        if finished.any():
            info["final_info"] = dict(info)
            info["final_observation"] = info["final_obs"] = self._observation()
            info["_final_obs"] = info["_final_info"] = finished.copy()
            rows = np.flatnonzero(finished)
            self._episodes[rows] += 1
            self._start(rows)
        return self._observation(), reward, terminated, truncated, info

    def state_hash(self, row: int) -> str:
        """Return SHA-256 over everything that determines the future of one copy's physics."""
        self._require_reset()
        return sha256(self._simulations.state(row).tobytes()).hexdigest()

    def _start(self, rows: NDArray[np.int64]) -> None:
        episodes = self._seeds[rows] + self._episodes[rows] * self.num_envs
        draws = named_uniforms(
            f"{STREAM}.episode.", episodes, root_seed=self.root_seed, count=DRAWS
        )
        self._carrying.begin(rows, draws)

    def _observation(self) -> dict[str, Any]:
        return _nested(self.agent_uids, *_states(self._carrying))


def _spaces(
    options: CoCarryOptions, uids: tuple[str, ...]
) -> tuple[gym.spaces.Dict, gym.spaces.Dict]:
    """Return observation and action space of one copy."""
    dims = (FULL_DIM if options.view == "full" else TASK_DIM, TASK_DIM)
    states: dict[str, gym.Space[Any]] = {
        uid: gym.spaces.Dict({"state": gym.spaces.Box(-np.inf, np.inf, (dim,), np.float32)})
        for uid, dim in zip(uids, dims, strict=True)
    }
    agent: gym.Space[Any] = gym.spaces.Dict(states)
    sizes = _action_sizes(options)
    actions: dict[str, gym.Space[Any]] = {
        uid: gym.spaces.Box(-1.0, 1.0, (size,), np.float32)
        for uid, size in zip(uids, sizes, strict=True)
    }
    return gym.spaces.Dict({"agent": agent}), gym.spaces.Dict(actions)


def _action_sizes(options: CoCarryOptions) -> tuple[int, int]:
    """Return the action components of ego and partner."""
    return (JOINTS if options.action_track == "joint" else 3), 3


def _states(carrying: Carrying) -> tuple[Float32Array, Float32Array]:
    return carrying.ego_state().astype(np.float32), carrying.task_view(1).astype(np.float32)


def _nested(uids: tuple[str, ...], ego: Float32Array, partner: Float32Array) -> dict[str, Any]:
    return {"agent": {uids[0]: {"state": ego}, uids[1]: {"state": partner}}}


def _ends(
    carrying: Carrying,
    success: NDArray[np.bool_],
    violation: NDArray[np.bool_],
    episode_length: int,
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return which copies terminate and which truncate, (N,) each, never both."""
    late = carrying.steps >= episode_length
    if carrying.options.training:
        return violation, (success | late) & ~violation
    return success, late & ~success


def _comm_states(carrying: Carrying, uids: tuple[str, ...]) -> list[dict[str, Any]]:
    rotations = quaternions(carrying.rotations())
    return [
        {
            "pose": {
                uid: {"xyz": tuple(grips[k].tolist()), "quat_wxyz": tuple(turns[k].tolist())}
                for k, uid in enumerate(uids)
            },
            "task_state": {
                uid: {"object_class": "bar", "contact_force": abs(force)} for uid in uids
            },
        }
        for grips, turns, force in zip(
            carrying.grips, rotations, carrying.now.force.tolist(), strict=True
        )
    ]


def _checked_seed(owner: str, seed: object) -> int:
    value = checked_integer(owner, "seed", seed, low=0)
    if value >= _SEED_BOUND:
        raise InputError(f"{owner}: expected seed < 2^62, got {value}.")
    return value
