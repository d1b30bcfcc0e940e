"""Two arms carry one rigid bar to a goal on one side: neither can do it alone.

Robots:      the ego holds the bar's -x end, the partner the +x end (`cocarry_scene`).
Task:        bring the bar's centre to the goal, keep it level, do not fight (`cocarry_rules`).
Action:      track "grip": step of the own grip, (3,), in units of `GRIP_STEP` m per tick, world
             axes; track "joint": steps of the seven joints, (7,), in units of `JOINT_STEP` rad.
             Targets start from the present joint angles and the control ramps to them within the
             tick. The partner always acts on the grip track.
State:       view "task", (20,), each entry divided by its entry of `TASK_SCALE`: goal minus bar
             centre (0:3), other grip minus where it should be seen from the own grip (3:6), speeds
             of own (6:9) and other grip (9:12) over the last tick, bar pitch and yaw (12:14), signed
             internal force (14), own grip minus its start (15:18), time (18), largest force so far
             (19). View "full", (47,), of the ego alone: joint angles and rates of ego and partner
             (9 each, two of them gripper and zero), bar pose (7), goal (3), largest force so far.
Axes:        N = copies, R = 2 robots.
Units:       m, m/s, rad, rad/s, N, s.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, ClassVar, Final, Literal, get_args

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
from cadenza.envs.mujoco.cocarry_rules import (
    DWELL,
    TILT_LIMIT_DEG,
    TRAINING_SHARE,
    VIOLATION_FACTOR,
    Measures,
    force_limit,
    internal_force,
    proximity_reward,
    task_reward,
    tilt_deg,
)
from cadenza.envs.mujoco.cocarry_scene import BAR, BAR_LENGTH, Scene, set_parameters
from cadenza.envs.mujoco.panda import (
    JOINT_HIGH,
    JOINT_LOW,
    JOINTS,
    RETRACTED,
    Kinematics,
    grip_to_joints,
    inverse_kinematics,
    kinematics,
)
from cadenza.envs.mujoco.simulations import ManySimulations, OneSimulation, Simulations

Condition = Literal["matched", "single_arm", "static_partner", "zero_partner"]
Sight = Literal["all", "own"]
View = Literal["task", "full"]
Track = Literal["grip", "joint"]
Reward = Literal["task", "proximity"]

#: Ticks per episode: 15 s.
DEFAULT_EPISODE_LENGTH: Final = 300
#: Seconds per tick.
CONTROL_TIMESTEP: Final = 0.05
#: Steps of ramp and force reading within a tick.
CHUNKS: Final = 5
#: Largest step of a grip, m per tick and axis, and of a joint, rad per tick.
GRIP_STEP: Final = 0.03
JOINT_STEP: Final = 0.1
#: Where the bar's centre starts, m, and by how much that varies per axis.
START: Final[FloatArray] = np.array([0.0, 0.0, 0.22])
START_SPREAD: Final = 0.01
#: Goal: |x|, range of |y|, and range of the height above the start, m.
GOAL_X: Final = 0.03
GOAL_Y: Final = (0.27, 0.35)
GOAL_LIFT: Final = (0.05, 0.20)
#: What the entries of the task view are divided by; `cadenza.partners.cocarry` has the same.
TASK_SCALE: Final[FloatArray] = np.array(
    [0.2] * 3 + [0.02] * 3 + [0.2] * 6 + [0.1] * 2 + [20.0] + [0.2] * 3 + [5.0] + [1.0]
)
#: Entries of the views.
TASK_DIM: Final = 20
FULL_DIM: Final = 47
#: Name of the stream family; episode k draws from ``f"{STREAM}.episode.{k}"``.
STREAM: Final = "env.cocarry_mj"

_DRAWS: Final = 7
#: Entries of the task view that tell of the partner or of the bar; see `CoCarryOptions.ego_sees`.
_NOT_OWN: Final = [*range(3, 6), *range(9, 15), 19]
#: The same in the full view, as far as an own joint does not feel it.
_NOT_OWN_FULL: Final = slice(18, 43)
_SEED_BOUND: Final = 1 << 62
#: Index of the bar's body and of the grips' sites in the model; the scene's order fixes them.
_BAR_BODY: Final = 21
_GRIP_SITES: Final = (0, 1)
#: Signs that turn the partner's base, which looks back, to the world.
_FACING: Final[FloatArray] = np.array([[1.0, 1.0, 1.0], [-1.0, -1.0, 1.0]])


@dataclass(frozen=True, slots=True, kw_only=True)
class CoCarryOptions:
    """Choices of one co-carry environment.

    Attributes:
        condition: ``"matched"``; ``"single_arm"``: the partner's arm is drawn back and the bar's
            end free; ``"static_partner"``: it holds its joints; ``"zero_partner"``: its actions
            count as zero.
        ego_sees: ``"all"``, or ``"own"`` to hide partner and bar: the goal is then told from where
            the bar would be if it followed the own grip.
        view: What the ego's `state` holds, ``"task"`` or ``"full"``.
        action_track: The ego's actions, ``"grip"`` or ``"joint"`` (hard).
        partner_delay: Ticks by which the ego sees the partner late.
        reward: ``"task"``, or ``"proximity"``, which pays every tick near the goal.
        training: Tighten the force limit, end an episode that breaks a limit, and let success
            truncate instead of terminate, so that learners bootstrap.
        bar_length: m.
        bar_mass: kg; in a batch also one per copy.
        stiffness_scale: Of the arms' actuators; in a batch also one per copy.
        time_constant_s: Of the bar's ties, 0.004 is rigid; in a batch also one per copy.
        physics_step_s: Physics step; a fifth of a tick must be a multiple of it.
    """

    condition: Condition = "matched"
    ego_sees: Sight = "all"
    view: View = "task"
    action_track: Track = "grip"
    partner_delay: int = 0
    reward: Reward = "task"
    training: bool = False
    bar_length: float = BAR_LENGTH
    bar_mass: float | Sequence[float] = 0.4
    stiffness_scale: float | Sequence[float] = 0.4
    time_constant_s: float | Sequence[float] = 0.004
    physics_step_s: float = 0.002

    def __post_init__(self) -> None:
        choices = (
            ("condition", Condition),
            ("ego_sees", Sight),
            ("view", View),
            ("action_track", Track),
            ("reward", Reward),
        )
        for name, kind in choices:
            if getattr(self, name) not in get_args(kind):
                raise InputError(
                    f"CoCarryOptions: expected {name} to be one of {', '.join(get_args(kind))}, "
                    f"got {getattr(self, name)!r}."
                )
        checked_integer("CoCarryOptions", "partner_delay", self.partner_delay, low=0)
        for name in (
            "bar_length",
            "bar_mass",
            "stiffness_scale",
            "time_constant_s",
            "physics_step_s",
        ):
            values = np.asarray(getattr(self, name), dtype=np.float64)
            if not (values > 0.0).all() or not np.isfinite(values).all():
                raise InputError(
                    f"CoCarryOptions: expected {name} > 0, got {getattr(self, name)!r}."
                )
        steps = CONTROL_TIMESTEP / CHUNKS / self.physics_step_s
        if abs(steps - round(steps)) > 1e-9 or steps < 1.0 - 1e-9:
            raise InputError(
                f"CoCarryOptions: expected physics_step_s to divide {CONTROL_TIMESTEP / CHUNKS} s, "
                f"got {self.physics_step_s!r}; choose for example 0.002 or 0.005."
            )


class _Carrying:
    """N copies of the task: physics, measures and views; knows no spaces and no resets."""

    def __init__(self, options: CoCarryOptions, copies: int, simulations: Simulations) -> None:
        self.options, self.copies, self.simulations = options, copies, simulations
        self.holds = options.condition != "single_arm"
        self.limit = force_limit() * (TRAINING_SHARE if options.training else 1.0)
        self._substeps = round(CONTROL_TIMESTEP / CHUNKS / options.physics_step_s)
        base_x = _scene(options).base_x
        self._bases = np.array([[-base_x, 0.0, 0.0], [base_x, 0.0, 0.0]])
        #: From a robot's own grip to where the other one should be.
        self._reach = np.array([[options.bar_length, 0.0, 0.0], [-options.bar_length, 0.0, 0.0]])
        per_copy = {
            name: np.broadcast_to(np.asarray(getattr(options, name), dtype=np.float64), copies)
            for name in ("bar_mass", "stiffness_scale", "time_constant_s")
        }
        set_parameters(simulations, _BAR_BODY, bar_length=options.bar_length, **per_copy)
        self.goals = np.zeros((copies, 3))
        self.starts = np.zeros((copies, 3))
        self.grips = np.zeros((copies, 2, 3))
        self._start_grips = np.zeros((copies, 2, 3))
        self._speeds = np.zeros((copies, 2, 3))
        self._start_joints = np.zeros((copies, 2 * JOINTS))
        self.steps = np.zeros(copies, dtype=np.int64)
        self._held = np.zeros(copies, dtype=np.int64)
        self._rested = np.zeros(copies, dtype=np.int64)
        self.reached = np.zeros(copies, dtype=np.bool_)
        self._broken = np.zeros(copies, dtype=np.bool_)
        self.energy = np.zeros(copies)
        self.force_sum = np.zeros(copies)
        zeros = np.zeros(copies)
        self.now = Measures(*(zeros.copy() for _ in range(7)))
        self._kinematics: Kinematics = kinematics(np.zeros((2 * copies, JOINTS)))
        #: What the ego may see of the partner, newest first: grip, speed, joints, joint rates.
        self._seen = np.zeros((options.partner_delay + 1, copies, 6 + 2 * JOINTS))

    def begin(self, rows: NDArray[np.int64], draws: FloatArray) -> None:
        """Start an episode in the copies ``rows`` from uniform draws, (R, 7)."""
        start = START + START_SPREAD * (2.0 * draws[:, :3] - 1.0)
        side = np.where(draws[:, 5] < 0.5, -1.0, 1.0)
        goal = np.stack(
            (
                GOAL_X * (2.0 * draws[:, 3] - 1.0),
                side * (GOAL_Y[0] + (GOAL_Y[1] - GOAL_Y[0]) * draws[:, 4]),
                start[:, 2] + GOAL_LIFT[0] + (GOAL_LIFT[1] - GOAL_LIFT[0]) * draws[:, 6],
            ),
            axis=1,
        )
        ends = start[:, None, :] - 0.5 * self._reach
        joints = inverse_kinematics(self._to_base(ends).reshape(-1, 3)).reshape(-1, 2 * JOINTS)
        if not self.holds:
            joints[:, JOINTS:] = RETRACTED
        level = np.tile([1.0, 0.0, 0.0, 0.0], (len(rows), 1))
        self.simulations.start(rows, np.concatenate((joints, start, level), axis=1), joints)
        self.goals[rows], self.starts[rows] = goal, start
        self._start_joints[rows] = joints
        for counter in (self.steps, self._held, self._rested, self.energy, self.force_sum):
            counter[rows] = 0
        self.reached[rows] = self._broken[rows] = False
        self._speeds[rows] = 0.0
        self._locate()
        self._start_grips[rows] = self.grips[rows]
        self.now.max_tilt[rows] = self.now.max_force[rows] = 0.0
        self._measure(self._chunk_force(), rows)
        self._seen[:, rows] = self._partner_facts()[rows]

    def advance(
        self, ego: FloatArray, partner: FloatArray
    ) -> tuple[FloatArray, NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Move every copy by one tick.

        Args:
            ego: Actions within [-1, 1], (N, 3) or (N, 7).
            partner: Likewise, (N, 3).

        Returns:
            Reward, success, violation, each (N,), and the info.
        """
        simulations = self.simulations
        before, distance = self.grips.copy(), self.now.distance.copy()
        target, old = self._targets(ego, partner), simulations.ctrl.copy()
        force = np.zeros(self.copies)
        for chunk in range(1, CHUNKS + 1):
            simulations.ctrl[:] = old + (chunk / CHUNKS) * (target - old)
            simulations.step(self._substeps)
            force += self._chunk_force()
            power = np.abs(simulations.actuator_force * simulations.qvel[:, : 2 * JOINTS])
            self.energy += power.sum(axis=1) * (CONTROL_TIMESTEP / CHUNKS)
        self.steps += 1
        self._locate()
        self._speeds[:] = (self.grips - before) / CONTROL_TIMESTEP
        self._measure(force / CHUNKS, slice(None))
        self.force_sum += np.abs(self.now.force)
        self._seen = np.concatenate((self._partner_facts()[None], self._seen[:-1]))
        return self._judge(distance)

    def task_view(self, robot: int) -> FloatArray:
        """Return the task view of robot 0 or 1, unmasked and on time, (N, 20)."""
        other = 1 - robot
        return self._view(robot, self.grips[:, other], self._speeds[:, other])

    def ego_state(self) -> FloatArray:
        """Return what the ego sees, (N, 20) or (N, 47)."""
        seen = self._seen[-1]
        blind = self.options.ego_sees == "own"
        if self.options.view == "full":
            return self._full_view(seen, blind=blind)
        view = self._view(0, seen[:, :3], seen[:, 3:6])
        if blind:
            view[:, _NOT_OWN] = 0.0
            moved = self.grips[:, 0] - self._start_grips[:, 0]
            view[:, :3] = (self.goals - self.starts - moved) / TASK_SCALE[:3]
        return view

    def rotations(self) -> FloatArray:
        """Return the axes of both hands in the world as columns, (N, 2, 3, 3)."""
        local = self._kinematics.rotation.reshape(self.copies, 2, 3, 3)
        return local * _FACING[:, :, None]

    def _view(self, robot: int, other: FloatArray, other_speed: FloatArray) -> FloatArray:
        own = self.grips[:, robot]
        bar = self.simulations.qpos[:, BAR]
        w, x, y, z = (bar[:, k] for k in range(3, 7))
        view = np.empty((self.copies, TASK_DIM))
        view[:, 0:3] = self.goals - bar[:, :3]
        view[:, 3:6] = other - own - self._reach[robot]
        view[:, 6:9] = self._speeds[:, robot]
        view[:, 9:12] = other_speed
        view[:, 12] = np.arcsin(np.clip(2.0 * (x * z - w * y), -1.0, 1.0))
        view[:, 13] = np.arctan2(2.0 * (x * y + w * z), 1.0 - 2.0 * (y * y + z * z))
        view[:, 14] = self.now.force
        view[:, 15:18] = own - self._start_grips[:, robot]
        view[:, 18] = self.steps * CONTROL_TIMESTEP
        view[:, 19] = self.now.max_force / force_limit()
        return view / TASK_SCALE

    def _full_view(self, seen: FloatArray, *, blind: bool) -> FloatArray:
        view = np.zeros((self.copies, FULL_DIM))
        qpos, qvel = self.simulations.qpos, self.simulations.qvel
        view[:, 0:7], view[:, 9:16] = qpos[:, :JOINTS], qvel[:, :JOINTS]
        view[:, 18:25], view[:, 27:34] = seen[:, 6:13], seen[:, 13:20]
        view[:, 36:43], view[:, 43:46] = qpos[:, BAR], self.goals
        view[:, 46] = self.now.max_force / force_limit()
        if blind:
            view[:, _NOT_OWN_FULL] = view[:, 46:] = 0.0
        return view

    def _targets(self, ego: FloatArray, partner: FloatArray) -> FloatArray:
        """Return the joint targets of one tick, (N, 14)."""
        options = self.options
        joints = self.simulations.qpos[:, : 2 * JOINTS].copy()
        if options.condition == "zero_partner":
            partner = np.zeros_like(partner)
        first = ego if options.action_track == "grip" else np.zeros_like(partner)
        steps = GRIP_STEP * np.stack((first, partner), axis=1) * _FACING
        moves = grip_to_joints(joints.reshape(-1, JOINTS), self._kinematics, steps.reshape(-1, 3))
        moves = np.clip(moves.reshape(self.copies, -1), -JOINT_STEP, JOINT_STEP)
        if options.action_track == "joint":
            moves[:, :JOINTS] = JOINT_STEP * ego
        low, high = np.tile(JOINT_LOW, 2), np.tile(JOINT_HIGH, 2)
        target = np.clip(joints + moves, low, high)
        if options.condition in ("static_partner", "single_arm"):
            target[:, JOINTS:] = self._start_joints[:, JOINTS:]
        return target

    def _chunk_force(self) -> FloatArray:
        """Return the signed internal force at the last physics step, (N,), N."""
        if not self.holds:
            return np.zeros(self.copies)
        simulations = self.simulations
        axis = simulations.xmat[:, _BAR_BODY, ::3]
        along = [
            -(
                (simulations.site_xmat[:, site].reshape(-1, 3, 3) * axis[:, :, None]).sum(axis=1)
                * simulations.sensordata[:, 3 * robot : 3 * robot + 3]
            ).sum(axis=1)
            for robot, site in enumerate(_GRIP_SITES)
        ]
        return internal_force(along[0], along[1])

    def _locate(self) -> None:
        joints = self.simulations.qpos[:, : 2 * JOINTS].reshape(-1, JOINTS)
        self._kinematics = kinematics(joints)
        self.grips = self._kinematics.tcp.reshape(-1, 2, 3) * _FACING + self._bases

    def _measure(self, force: FloatArray, rows: Any) -> None:
        qpos, now = self.simulations.qpos, self.now
        centre = qpos[:, BAR][:, :3]
        way = self.goals - centre
        tilt = tilt_deg(qpos[:, BAR][:, 3:])
        now.distance[rows] = np.sqrt((way * way).sum(axis=1))[rows]
        now.transport[rows] = np.abs(centre[:, 1] - self.starts[:, 1])[rows]
        now.speed[rows] = np.abs(self.simulations.qvel[:, : 2 * JOINTS]).max(axis=1)[rows]
        now.tilt[rows], now.force[rows] = tilt[rows], force[rows]
        now.max_tilt[rows] = np.maximum(now.max_tilt, tilt)[rows]
        now.max_force[rows] = np.maximum(now.max_force, np.abs(force))[rows]

    def _judge(
        self, distance: FloatArray
    ) -> tuple[FloatArray, NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        now, limit = self.now, self.limit
        placed = now.placed()
        self._rested = np.where(placed, self._rested + 1, 0)
        self._held = np.where(placed & now.within_limits(limit), self._held + 1, 0)
        self.reached |= self._rested >= DWELL
        success = self._held >= DWELL
        hard = VIOLATION_FACTOR * limit if self.options.training else limit
        broken = ~now.within_limits(hard)
        violation = broken & ~self._broken
        self._broken |= broken
        if self.options.reward == "task":
            reward = task_reward(distance - now.distance, now, success, violation, limit)
        else:
            reward = proximity_reward(now, success, violation, limit)
        return reward, success, violation, self._info(success)

    def _info(self, success: NDArray[np.bool_]) -> dict[str, Any]:
        now = self.now
        return {
            "success": success,
            "goal_distance": now.distance.copy(),
            "reached": self.reached.copy(),
            "tilt_deg": now.tilt.copy(),
            "internal_force": now.force.copy(),
            "max_tilt_deg": now.max_tilt.copy(),
            "max_force": now.max_force.copy(),
            "mean_force": self.force_sum / np.maximum(self.steps, 1),
            "energy": self.energy.copy(),
            "time": self.steps * CONTROL_TIMESTEP,
        }

    def _partner_facts(self) -> FloatArray:
        simulations, own = self.simulations, slice(JOINTS, 2 * JOINTS)
        return np.concatenate(
            (
                self.grips[:, 1],
                self._speeds[:, 1],
                simulations.qpos[:, own],
                simulations.qvel[:, own],
            ),
            axis=1,
        )

    def goal_ends(self) -> FloatArray:
        """Return where the grips are with a level bar at its goal, (N, 2, 3), m."""
        return self.goals[:, None, :] - 0.5 * self._reach

    def _to_base(self, points: FloatArray) -> FloatArray:
        return (points - self._bases) * _FACING


class CoCarryEnv(gym.Env[dict[str, Any], dict[str, Any]]):
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
        self.simulation = OneSimulation(_scene(self.options).xml())
        self._carrying = _Carrying(self.options, 1, self.simulation)
        self._episode_name = f"{STREAM}.episode"
        self._auto_episodes = 0
        self._running = self._ready = False
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
            prefix, np.array([index], dtype=np.int64), root_seed=self.root_seed, count=_DRAWS
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
            np.clip(
                checked_action("CoCarryEnv", action, uid, self.action_space[uid].shape), -1.0, 1.0
            )[None]
            for uid in self.agent_uids
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

    def get_telemetry(self) -> dict[str, float]:
        """Return tilt (degrees), force (N), distance (m) and the episode's maxima."""
        return {name: values[0] for name, values in _telemetry(self._require_reset()).items()}

    def task_view(self, uid: str) -> FloatArray:
        """Return the task view of ``uid``, (20,), whatever the ego is allowed to see."""
        return self._require_reset().task_view(self.agent_uids.index(uid))[0]

    def state_hash(self) -> str:
        """Return SHA-256 over everything that determines the physics' future."""
        self._require_reset()
        return sha256(self.simulation.state(0).tobytes()).hexdigest()

    def comm_state(self) -> dict[str, Any]:
        """Return poses and predicates of both robots, as a channel sends them.

        Each uid has its tool centre point, ``xyz`` (m) and ``quat_wxyz``, in the world, and the
        force that the bar's ends hold against each other.
        """
        return _comm_states(self._require_reset(), self.agent_uids)[0]

    def robot_positions(self) -> dict[str, FloatArray]:
        """Return where each robot's grip is on the floor, (2,), m."""
        grips = self._require_reset().grips[0]
        return {uid: grips[k, :2].copy() for k, uid in enumerate(self.agent_uids)}

    def goal_positions(self) -> dict[str, FloatArray]:
        """Return where each robot's grip ends up with a level bar at its goal, (2,), m."""
        ends = self._require_reset().goal_ends()[0]
        return {uid: ends[k, :2].copy() for k, uid in enumerate(self.agent_uids)}

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

    def _require_reset(self) -> _Carrying:
        if not self._ready:
            raise NotReadyError("CoCarryEnv: expected a state, got none yet; call reset() first.")
        return self._carrying


class VectorCoCarryEnv(gym.vector.VectorEnv[dict[str, Any], dict[str, Any], Any]):
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
        self._simulations = ManySimulations(_scene(self.options).xml(), num_envs, threads=threads)
        self._carrying = _Carrying(self.options, num_envs, self._simulations)
        self._seeds: NDArray[np.int64] = np.arange(num_envs, dtype=np.int64)
        self._episodes: NDArray[np.int64] = np.full(num_envs, -1, dtype=np.int64)
        self._ready = False

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
        owner, shapes = "VectorCoCarryEnv", self.action_space
        ego, partner = (
            np.clip(checked_action(owner, actions, uid, shapes[uid].shape), -1.0, 1.0)
            for uid in self.agent_uids
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

    def get_telemetry(self) -> dict[str, FloatArray]:
        """Return tilt (degrees), force (N), distance (m) and the episodes' maxima, (N,) each."""
        return _telemetry(self._require_reset())

    def task_view(self, uid: str) -> FloatArray:
        """Return the task view of ``uid``, (N, 20), whatever the ego is allowed to see."""
        return self._require_reset().task_view(self.agent_uids.index(uid))

    def state_hash(self, row: int) -> str:
        """Return SHA-256 over everything that determines the future of one copy's physics."""
        self._require_reset()
        return sha256(self._simulations.state(row).tobytes()).hexdigest()

    def comm_state(self) -> list[dict[str, Any]]:
        """Return `CoCarryEnv.comm_state` of every copy."""
        return _comm_states(self._require_reset(), self.agent_uids)

    def robot_positions(self) -> dict[str, FloatArray]:
        """Return where each robot's grip is on the floor, (N, 2), m."""
        grips = self._require_reset().grips
        return {uid: grips[:, k, :2].copy() for k, uid in enumerate(self.agent_uids)}

    def goal_positions(self) -> dict[str, FloatArray]:
        """Return where each robot's grip ends up with a level bar at its goal, (N, 2), m."""
        ends = self._require_reset().goal_ends()
        return {uid: ends[:, k, :2].copy() for k, uid in enumerate(self.agent_uids)}

    def _start(self, rows: NDArray[np.int64]) -> None:
        episodes = self._seeds[rows] + self._episodes[rows] * self.num_envs
        draws = named_uniforms(
            f"{STREAM}.episode.", episodes, root_seed=self.root_seed, count=_DRAWS
        )
        self._carrying.begin(rows, draws)

    def _observation(self) -> dict[str, Any]:
        return _nested(self.agent_uids, *_states(self._carrying))

    def _require_reset(self) -> _Carrying:
        if not self._ready:
            raise NotReadyError("VectorCoCarryEnv: expected a state, got none; call reset() first.")
        return self._carrying


def _scene(options: CoCarryOptions) -> Scene:
    return Scene(
        bar_length=options.bar_length,
        timestep_s=options.physics_step_s,
        partner_holds=options.condition != "single_arm",
    )


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
    sizes = (JOINTS if options.action_track == "joint" else 3, 3)
    actions: dict[str, gym.Space[Any]] = {
        uid: gym.spaces.Box(-1.0, 1.0, (size,), np.float32)
        for uid, size in zip(uids, sizes, strict=True)
    }
    return gym.spaces.Dict({"agent": agent}), gym.spaces.Dict(actions)


def _states(carrying: _Carrying) -> tuple[Float32Array, Float32Array]:
    return carrying.ego_state().astype(np.float32), carrying.task_view(1).astype(np.float32)


def _nested(uids: tuple[str, ...], ego: Float32Array, partner: Float32Array) -> dict[str, Any]:
    return {"agent": {uids[0]: {"state": ego}, uids[1]: {"state": partner}}}


def _ends(
    carrying: _Carrying,
    success: NDArray[np.bool_],
    violation: NDArray[np.bool_],
    episode_length: int,
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return which copies terminate and which truncate, (N,) each, never both."""
    late = carrying.steps >= episode_length
    if carrying.options.training:
        return violation, (success | late) & ~violation
    return success, late & ~success


def _telemetry(carrying: _Carrying) -> dict[str, FloatArray]:
    now = carrying.now
    return {
        "tilt_deg": now.tilt.copy(),
        "stress": np.abs(now.force),
        "centroid_to_goal": now.distance.copy(),
        "max_tilt_deg": now.max_tilt.copy(),
        "max_stress": now.max_force.copy(),
    }


def _comm_states(carrying: _Carrying, uids: tuple[str, ...]) -> list[dict[str, Any]]:
    quaternions = _quaternions(carrying.rotations())
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
            carrying.grips, quaternions, carrying.now.force.tolist(), strict=True
        )
    ]


def _quaternions(rotations: FloatArray) -> FloatArray:
    """Return unit quaternions wxyz, (..., 4), of rotations (..., 3, 3)."""
    m = rotations
    trace = [
        1.0 + m[..., 0, 0] + m[..., 1, 1] + m[..., 2, 2],
        1.0 + m[..., 0, 0] - m[..., 1, 1] - m[..., 2, 2],
        1.0 - m[..., 0, 0] + m[..., 1, 1] - m[..., 2, 2],
        1.0 - m[..., 0, 0] - m[..., 1, 1] + m[..., 2, 2],
    ]
    wx, wy, wz = (m[..., j, i] - m[..., i, j] for i, j in ((1, 2), (2, 0), (0, 1)))
    xy, xz, yz = (m[..., i, j] + m[..., j, i] for i, j in ((0, 1), (0, 2), (1, 2)))
    rows = ((trace[0], wx, wy, wz), (wx, trace[1], xy, xz), (wy, xy, trace[2], yz))
    rows = (*rows, (wz, xz, yz, trace[3]))
    candidates = np.stack([np.stack(row, axis=-1) for row in rows], axis=-2)
    best = np.argmax(np.stack(trace, axis=-1), axis=-1)
    chosen = np.take_along_axis(candidates, best[..., None, None], axis=-2)[..., 0, :]
    return chosen / np.linalg.norm(chosen, axis=-1, keepdims=True)


def _checked_seed(owner: str, seed: object) -> int:
    value = checked_integer(owner, "seed", seed, low=0)
    if value >= _SEED_BOUND:
        raise InputError(f"{owner}: expected seed < 2^62, got {value}.")
    return value
