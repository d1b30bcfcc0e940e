"""Two arms carry one rigid bar to a goal on one side: neither can do it alone.

Scene:       x from the ego's base (at -BASE_X) to the partner's (+BASE_X, turned about), z up; the
             ego holds the bar's -x end, the partner the +x end. Each end is tied to a grip by a
             `connect` constraint, which leaves rotation free; its time constant says how stiff.
Task:        bring the bar's centre to the goal, keep it level, do not fight (`cocarry_rules`). An
             episode terminates on success and truncates after ``episode_length`` ticks; with
             ``training`` it also terminates where a limit breaks, and success truncates beside the
             reward "proximity", which would go on. The other one pays for success once: a learner
             that took what follows success for more of it would value it without bound.
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
Info:        ``success``, ``goal_distance`` (m), ``reached`` (the bar has rested at its goal, limits
             or not), ``tilt_deg``, ``internal_force`` (N), their episode maxima ``max_tilt_deg``
             and ``max_force``, ``mean_force`` (N), ``energy`` (J) and ``time`` (s).
Axes:        N = copies, R = rows that begin an episode; robot 0 is the ego, robot 1 the partner.
Units:       kg, m, m/s, rad, rad/s, N, s.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Final, Literal

import numpy as np
from numpy.typing import NDArray

from cadenza.core.arrays import FloatArray
from cadenza.core.checks import whole_number
from cadenza.core.errors import InputError
from cadenza.envs import contracts
from cadenza.envs.mujoco.arm_guard import Guarding
from cadenza.envs.mujoco.cocarry_rules import (
    DWELL,
    TRAINING_SHARE,
    VIOLATION_FACTOR,
    Measures,
    force_limit,
    internal_force,
    proximity_reward,
    task_reward,
    tilt_deg,
)
from cadenza.envs.mujoco.panda import (
    JOINTS,
    RETRACTED,
    Kinematics,
    actuator_gains,
    arm_actuators,
    arm_body,
    grip_sensor,
    grip_to_joints,
    inverse_kinematics,
    kinematics,
)
from cadenza.envs.mujoco.simulations import Simulations
from cadenza.envs.mujoco.two_arms import (
    CHUNKS,
    CONTROL_TIMESTEP,
    FACING,
    HIGH,
    JOINT_STEP,
    LOW,
    Copies,
    Flags,
    TwoArmEnv,
    TwoArms,
    VectorTwoArmEnv,
    require_choices,
)

#: Distance of the bases from the middle with the standard bar, m.
BASE_X: Final = 0.5
#: Length of the standard bar, m; longer ones push the bases apart.
BAR_LENGTH: Final = 0.23
#: Width and height of the bar, m.
BAR_WIDTH: Final = 0.025
#: Places in qpos: the ego's joints, the partner's, then the bar's pose (position, quaternion).
EGO, PARTNER = slice(0, JOINTS), slice(JOINTS, 2 * JOINTS)
BAR: Final = slice(2 * JOINTS, 2 * JOINTS + 7)
#: The names of the arms in the model, in the order of qpos and ctrl.
ARMS: Final = ("ego", "partner")


_RIGID: Final = 'solref="0.004 1" solimp="0.99 0.9999 0.0005"'


def set_parameters(
    simulations: Simulations,
    bar: int,
    *,
    bar_length: float,
    bar_mass: FloatArray,
    stiffness_scale: FloatArray,
    time_constant_s: FloatArray,
) -> None:
    """Give every simulation its own bar (m, kg) and arms.

    ``bar`` is the index of the bar's body, ``stiffness_scale`` that of `actuator_gains`,
    ``time_constant_s`` of the bar's ties; 0.004 is rigid.
    """
    long, wide = bar_length * bar_length, BAR_WIDTH * BAR_WIDTH
    simulations.parameters("body_mass")[:, bar] = bar_mass
    squares = np.array([wide + wide, long + wide, long + wide])
    simulations.parameters("body_inertia")[:, bar] = bar_mass[:, None] / 12.0 * squares
    gains = simulations.parameters("actuator_gainprm")
    bias = simulations.parameters("actuator_biasprm")
    for row, scale in enumerate(stiffness_scale.tolist()):
        stiffness, damping = (np.tile(values, 2) for values in actuator_gains(scale))
        gains[row, :, 0], bias[row, :, 1], bias[row, :, 2] = stiffness, -stiffness, -damping
    simulations.parameters("eq_solref")[:, :, 0] = time_constant_s[:, None]
    simulations.apply()


Condition = Literal["matched", "single_arm", "static_partner", "zero_partner"]
Sight = Literal["all", "own"]
View = Literal["task", "full"]
Track = Literal["grip", "joint"]
Reward = Literal["task", "proximity"]

#: Largest step of a grip, m per tick and axis.
GRIP_STEP: Final = 0.03
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

#: Entries of the task view that tell of the partner or of the bar; see `CoCarryOptions.ego_sees`.
_NOT_OWN: Final = [*range(3, 6), *range(9, 15), 19]
#: The same in the full view, as far as an own joint does not feel it.
_NOT_OWN_FULL: Final = slice(18, 43)
#: Index of the bar's body in the model; the scene's order fixes it, as that of sites and sensors.
_BAR_BODY: Final = 21


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
        guard: Whether the ego's arm is kept off the other arm, the floor and itself (``"on"``, see
            `arm_guard`), or contacts are only reported (``"watch"``).
        training: Tighten the force limit, end an episode that breaks a limit, and beside the
            reward ``"proximity"`` let success truncate instead of terminate, so that learners
            bootstrap.
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
    guard: Guarding = "off"
    training: bool = False
    bar_length: float = BAR_LENGTH
    bar_mass: float | Sequence[float] = 0.4
    stiffness_scale: float | Sequence[float] = 0.4
    time_constant_s: float | Sequence[float] = 0.004
    physics_step_s: float = 0.002

    @property
    def base_x(self) -> float:
        """How far each arm's base is from the middle, m."""
        return BASE_X + 0.5 * (self.bar_length - BAR_LENGTH)

    def xml(self) -> str:
        """Return the model in MJCF."""
        half = 0.5 * self.bar_length
        active = "false" if self.condition == "single_arm" else "true"
        connect = (
            f'<connect name="ego_hold" site1="ego_grip" site2="bar_ego" {_RIGID}/>'
            f'<connect name="partner_hold" site1="partner_grip" site2="bar_partner" '
            f'active="{active}" {_RIGID}/>'
        )
        return f"""<mujoco model="cocarry">
<compiler angle="radian"/>
<option timestep="{self.physics_step_s}" integrator="implicitfast">
<flag contact="disable"/></option>
<visual><headlight ambient="0.35 0.35 0.35" diffuse="0.5 0.5 0.5"/>
<global offwidth="1280" offheight="960"/><quality shadowsize="0" offsamples="4"/></visual>
<asset><texture type="skybox" builtin="gradient" rgb1="0.98 0.98 0.97" rgb2="0.84 0.88 0.92"
width="64" height="384"/></asset>
<worldbody>
<geom type="plane" size="2 2 0.1" rgba="0.93 0.94 0.92 1"/>
<light directional="true" pos="0 0 3" dir="0.2 0.4 -1" diffuse="0.5 0.5 0.5"/>
{arm_body("ego", -self.base_x, faces_back=False, color="0 0.447 0.698 1")}
{arm_body("partner", self.base_x, faces_back=True, color="0.902 0.624 0 1")}
<body name="bar" pos="0 0 0.22"><freejoint name="bar"/>
<geom type="box" size="{half} {BAR_WIDTH / 2} {BAR_WIDTH / 2}" mass="0.4" rgba="0.55 0.13 0.1 1"/>
<site name="bar_ego" pos="{-half} 0 0" size="0.004" rgba="0 0 0 0"/>
<site name="bar_partner" pos="{half} 0 0" size="0.004" rgba="0 0 0 0"/></body>
</worldbody>
<equality>{connect}</equality>
<actuator>{arm_actuators("ego")}{arm_actuators("partner")}</actuator>
<sensor>{grip_sensor("ego")}{grip_sensor("partner")}</sensor>
</mujoco>"""

    def __post_init__(self) -> None:
        require_choices(
            self,
            condition=Condition,
            ego_sees=Sight,
            view=View,
            action_track=Track,
            reward=Reward,
            guard=Guarding,
        )
        whole_number("CoCarryOptions.partner_delay", self.partner_delay, least=0)
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


class Carrying(Copies):
    """N copies of co-carry: physics, measures and views.

    Attributes:
        holds: Whether the partner's end of the bar is tied to its grip.
        limit: Internal force below which an episode must stay, N.
        goals: Of the bar's centre, (N, 3), m; `starts` where it was first.
        reached: Whether the bar has rested at its goal, limits or not, (N,).
        energy: Work of all actuators, (N,), J.
        now: Measures of the last tick.
    """

    stream: ClassVar[str] = "env.cocarry_mj"
    draws: ClassVar[int] = 7
    default_episode_length: ClassVar[int] = 300  # 15 s
    object_class: ClassVar[str] = "bar"

    def __init__(self, options: CoCarryOptions, copies: int, simulations: Simulations) -> None:
        super().__init__(options, copies, simulations)
        self.holds: bool = options.condition != "single_arm"
        self.limit: float = force_limit() * (TRAINING_SHARE if options.training else 1.0)
        self._substeps = round(CONTROL_TIMESTEP / CHUNKS / options.physics_step_s)
        #: From a robot's own grip to where the other one should be.
        self._reach = np.array([[options.bar_length, 0.0, 0.0], [-options.bar_length, 0.0, 0.0]])
        per_copy = {
            name: _per_copy(name, getattr(options, name), copies)
            for name in ("bar_mass", "stiffness_scale", "time_constant_s")
        }
        set_parameters(simulations, _BAR_BODY, bar_length=options.bar_length, **per_copy)
        self.goals: NDArray[np.float64] = np.zeros((copies, 3))
        self.starts: NDArray[np.float64] = np.zeros((copies, 3))
        self._start_grips = np.zeros((copies, 2, 3))
        self._speeds = np.zeros((copies, 2, 3))
        self._held = np.zeros(copies, dtype=np.int64)
        self._rested = np.zeros(copies, dtype=np.int64)
        self.reached: NDArray[np.bool_] = np.zeros(copies, dtype=np.bool_)
        self._broken = np.zeros(copies, dtype=np.bool_)
        self.energy: NDArray[np.float64] = np.zeros(copies)
        self._force_sum = np.zeros(copies)
        zeros = np.zeros(copies)
        self.now: Measures = Measures(*(zeros.copy() for _ in range(7)))
        self._kinematics: Kinematics = kinematics(np.zeros((2 * copies, JOINTS)))
        #: What the ego may see of the partner, newest first: grip, speed, joints, joint rates.
        self._seen = np.zeros((options.partner_delay + 1, copies, 6 + 2 * JOINTS))

    @classmethod
    def default_options(cls) -> CoCarryOptions:
        """See `Copies`."""
        return CoCarryOptions()

    @staticmethod
    def sizes(options: CoCarryOptions) -> tuple[tuple[int, int], tuple[int, int]]:
        """See `Copies`."""
        seen = FULL_DIM if options.view == "full" else TASK_DIM
        return (seen, TASK_DIM), (JOINTS if options.action_track == "joint" else 3, 3)

    @staticmethod
    def contracts(uids: Sequence[str], options: CoCarryOptions) -> contracts.Contracts:
        """See `Copies`."""
        return contracts.cocarry(uids, view=options.view, track=options.action_track)

    def memory(self) -> dict[str, NDArray[Any]]:
        """See `Copies`."""
        return {
            **super().memory(),
            **{field.name: getattr(self.now, field.name) for field in fields(self.now)},
            "goals": self.goals,
            "starts": self.starts,
            "start_grips": self._start_grips,
            "speeds": self._speeds,
            "held": self._held,
            "rested": self._rested,
            "reached": self.reached,
            "broken": self._broken,
            "energy": self.energy,
            "force_sum": self._force_sum,
            "seen": self._seen.swapaxes(0, 1),
        }

    def relocate(self) -> None:
        """See `Copies`."""
        self._kinematics = self.locate()

    def begin(self, rows: NDArray[np.int64], draws: FloatArray) -> None:
        """See `Copies`."""
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
        if self._guard is not None:
            self._guard.restart(rows)
        for counter in (self.steps, self._held, self._rested, self.energy, self._force_sum):
            counter[rows] = 0
        self.reached[rows] = self._broken[rows] = False
        self._speeds[rows] = 0.0
        self._kinematics = self.locate()
        self._start_grips[rows] = self.grips[rows]
        self.now.max_tilt[rows] = self.now.max_force[rows] = 0.0
        self._measure(self._internal_force([self._forces()]), rows)
        self._seen[:, rows] = self._partner_facts()[rows]

    def advance(
        self, ego: FloatArray, partner: FloatArray
    ) -> tuple[FloatArray, Flags, Flags, dict[str, Any]]:
        """See `Copies`; an episode fails where a limit breaks."""
        simulations = self.simulations
        before, distance = self.grips.copy(), self.now.distance.copy()
        forces: list[tuple[FloatArray, FloatArray, FloatArray]] = []
        for _ in self.ramp(self._targets(ego, partner), self._substeps):
            forces.append(self._forces())
            power = np.abs(simulations.actuator_force * simulations.qvel[:, : 2 * JOINTS])
            self.energy += power.sum(axis=1) * (CONTROL_TIMESTEP / CHUNKS)
        self.steps += 1
        self._kinematics = self.locate()
        self._speeds[:] = (self.grips - before) / CONTROL_TIMESTEP
        self._measure(self._internal_force(forces), slice(None))
        self._force_sum += np.abs(self.now.force)
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

    def states(self) -> tuple[FloatArray, FloatArray]:
        """See `Copies`."""
        return self.ego_state(), self.task_view(1)

    def ends(self, success: Flags, failure: Flags, episode_length: int) -> tuple[Flags, Flags]:
        """See `Copies`."""
        late = self.steps >= episode_length
        if self.options.training and self.options.reward == "proximity":
            return failure, (success | late) & ~failure
        terminated = (success | failure) if self.options.training else success
        return terminated, late & ~terminated

    def unseen_motion(self) -> float:
        """See `Copies`."""
        return GRIP_STEP * self.options.partner_delay

    def contact_force(self) -> FloatArray:
        """Return how strongly the bar's ends are held against each other, (N,), N."""
        return np.abs(self.now.force)

    def marker(self) -> tuple[FloatArray, bool]:
        """See `Copies`."""
        return self.goals[0], bool(self.now.within_limits(force_limit())[0])

    def rotations(self) -> FloatArray:
        """See `Copies`."""
        local = self._kinematics.rotation.reshape(self.copies, 2, 3, 3)
        return local * FACING[:, :, None]

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
        steps = GRIP_STEP * np.stack((first, partner), axis=1) * FACING
        moves = grip_to_joints(joints.reshape(-1, JOINTS), self._kinematics, steps.reshape(-1, 3))
        moves = np.clip(moves.reshape(self.copies, -1), -JOINT_STEP, JOINT_STEP)
        if options.action_track == "joint":
            moves[:, :JOINTS] = JOINT_STEP * ego
        if self._guard is not None:
            seen = self._seen[-1, :, 6:]
            moves[:, :JOINTS] = self._guard.step(self.arm(0), seen, moves[:, :JOINTS])
        target = np.clip(joints + moves, LOW, HIGH)
        if options.condition in ("static_partner", "single_arm"):
            target[:, JOINTS:] = self._start_joints[:, JOINTS:]
        return target

    def _forces(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return the sensors, the grips' axes and the bar's direction of the last physics step."""
        simulations = self.simulations
        return (
            simulations.sensordata.copy(),
            simulations.site_xmat[:, :2].copy(),
            simulations.xmat[:, _BAR_BODY, ::3].copy(),
        )

    def _internal_force(
        self, forces: list[tuple[FloatArray, FloatArray, FloatArray]]
    ) -> FloatArray:
        """Return the mean signed internal force of some physics steps, (N,), N."""
        if not self.holds:
            return np.zeros(self.copies)
        times = len(forces)
        sensors, grips, axes = (np.stack(parts) for parts in zip(*forces, strict=True))
        grips = grips.reshape(times, -1, 2, 3, 3)
        local = (grips * axes[:, :, None, :, None]).sum(axis=3)  # the bar's axis seen by the grips
        along = (local * sensors.reshape(times, -1, 2, 3)).sum(axis=3)
        return internal_force(along[..., 0], along[..., 1]).sum(axis=0) / times

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

    def _judge(self, distance: FloatArray) -> tuple[FloatArray, Flags, Flags, dict[str, Any]]:
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

    def _info(self, success: Flags) -> dict[str, Any]:
        now = self.now
        return {
            "success": success,
            "goal_distance": now.distance.copy(),
            "reached": self.reached.copy(),
            "tilt_deg": now.tilt.copy(),
            "internal_force": now.force.copy(),
            "max_tilt_deg": now.max_tilt.copy(),
            "max_force": now.max_force.copy(),
            "mean_force": self._force_sum / np.maximum(self.steps, 1),
            "energy": self.energy.copy(),
            "time": self.steps * CONTROL_TIMESTEP,
            **self.guard_report(),
        }

    def _partner_facts(self) -> FloatArray:
        return np.concatenate((self.grips[:, 1], self._speeds[:, 1], self.arm(1)), axis=1)

    def goal_places(self) -> FloatArray:
        """Return where the grips are with a level bar at its goal, (N, 2, 3), m."""
        return self.goals[:, None, :] - 0.5 * self._reach

    def _to_base(self, points: FloatArray) -> FloatArray:
        return (points - self.bases) * FACING


class _CoCarry(TwoArms[Carrying]):
    task = Carrying

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


class CoCarryEnv(_CoCarry, TwoArmEnv[Carrying]):
    """One copy of co-carry; observation, action, info and units in the module."""


class VectorCoCarryEnv(_CoCarry, VectorTwoArmEnv[Carrying]):
    """N copies of co-carry on a pool of threads; every copy has the bytes of `CoCarryEnv`."""


def _per_copy(name: str, value: float | Sequence[float], copies: int) -> FloatArray:
    values = np.asarray(value, dtype=np.float64)
    if values.shape not in ((), (copies,)):
        raise InputError(
            f"CoCarryOptions: expected {name} to be a number or one per copy ({copies}), got "
            f"shape {values.shape}."
        )
    return np.broadcast_to(values, copies)
