"""A presenter hands a keyed peg over; the receiver seats it in a fixture before the takt ends.

Scene:       x from the ego's base (at -BASE_X) to the presenter's (+BASE_X, turned about), z up;
             the ego receives and seats, the partner presents. Only peg and fixture collide.
Peg:         its origin is the point of the handle where the receiver grasps; the handle runs along
             x, the presenter holds its other end, and the peg hangs down below the origin. A rib on
             its +y side is the key.
Fixture:     its origin is the middle of the hole's bottom; a slot on its +y side takes the key.
Coupling:    a hand that holds is a `weld` of its grip to the peg. The relative pose of a weld lives
             in the model, one per simulation.
Task:        grasp the handle where it is presented, within a millimetre; align the peg with the
             keyed hole, 1 mm wide on each side; seat it softly. An
             episode terminates on success or where nobody holds the peg any more and it falls, and
             truncates when the takt or ``episode_length`` ends.
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
Info:        ``success``, ``goal_distance`` (of the peg's tip to its seat, m), ``reached`` (the peg
             was seated, whatever the windows and forces), ``grasped``, ``depth`` and ``lateral``
             (m), ``angle_deg``, contact ``force`` and its maximum ``max_force`` (N), ``time`` (s).
Grasp:       a receiver that closes, or is closed, within the weld tolerance of the handle's point
             holds the peg as it is then; the presenter lets go `RELEASE_TICKS` later.
Success:     `DWELL` ticks in a row with the peg at least `SEATED` deep, within the windows and with
             a contact force below `FORCE_LIMIT`, before the takt ends.
Axes:        N = copies, R = rows that begin an episode; robot 0 is the ego, robot 1 the presenter;
             turns are rotation vectors.
Units:       kg, m, m/s, rad, N, s.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal

import numpy as np
from numpy.typing import NDArray

from cadenza.core.arrays import FloatArray
from cadenza.core.errors import InputError
from cadenza.envs import contracts
from cadenza.envs.mujoco.arm_guard import Guarding
from cadenza.envs.mujoco.panda import (
    JOINTS,
    READY,
    RETRACTED,
    arm_actuators,
    arm_body,
    inverse_kinematics,
    kinematics,
    quaternions,
    twist_to_joints,
)
from cadenza.envs.mujoco.simulations import Camera, Simulations
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
    VectorTwoArmEnv,
    require_choices,
)

#: Distance of the bases from the middle, m.
BASE_X: Final = 0.5
#: Places in qpos: the ego's joints, the presenter's, then the peg's pose (position, quaternion).
PEG: Final = slice(2 * JOINTS, 2 * JOINTS + 7)
#: Welds of the model: the presenter's and the receiver's.
PRESENTER_WELD, RECEIVER_WELD = 0, 1
#: Length of the handle, and where the presenter holds it, m from the origin.
HANDLE: Final = 0.2
PRESENTER_AT: Final[FloatArray] = np.array([0.15, 0.0, 0.0])
#: Width of the peg and from the origin to its lower end, m.
PEG_WIDTH: Final = 0.02
TIP: Final[FloatArray] = np.array([0.0, 0.0, -0.07])
#: Clearance of the hole on each side, and its depth, m.
CLEARANCE: Final = 0.001
DEPTH: Final = 0.03
#: Mass of peg and handle, kg.
PEG_MASS: Final = 0.1

#: Half the width and half the length of the key, m, and the half-width of a wall of the fixture.
_KEY_WIDTH: Final = 0.003
_KEY_LENGTH: Final = 0.002
_WALL: Final = 0.01
_PEG_TOP: Final = -0.01
_WELD: Final = 'solref="0.004 1" solimp="0.99 0.9999 0.0005"'


def handover_xml(timestep_s: float) -> str:
    """Return the model in MJCF."""
    half, middle = PEG_WIDTH / 2, 0.5 * (_PEG_TOP + TIP[2])
    tall = 0.5 * (_PEG_TOP - TIP[2])
    peg = (
        _box((HANDLE / 2 - 0.02, 0, 0), (HANDLE / 2, 0.007, 0.007), "0.55 0.56 0.58 1")
        + _box((0, 0, middle), (half, half, tall), "0.2 0.2 0.22 1", bits=(1, 2))
        + _box(
            (0, half + _KEY_LENGTH, middle), (_KEY_WIDTH, _KEY_LENGTH, tall),
            "0.84 0.15 0.16 1", bits=(1, 2),
        )
    )  # fmt: skip
    return f"""<mujoco model="handover">
<compiler angle="radian"/>
<option timestep="{timestep_s}" integrator="implicitfast"/>
<default><geom contype="0" conaffinity="0" solref="0.01 1"/></default>
<visual><headlight ambient="0.35 0.35 0.35" diffuse="0.5 0.5 0.5"/>
<global offwidth="1280" offheight="960"/><quality shadowsize="0" offsamples="4"/></visual>
<worldbody>
<geom type="plane" size="2 2 0.1" rgba="0.93 0.94 0.92 1"/>
<light pos="0 -1 2.5" dir="0 0.4 -1" diffuse="0.5 0.5 0.5"/>
{arm_body("ego", -BASE_X, faces_back=False, color="0 0.447 0.698 1")}
{arm_body("partner", BASE_X, faces_back=True, color="0.902 0.624 0 1")}
<body name="peg"><freejoint name="peg"/>
<inertial pos="0.05 0 -0.01" mass="{PEG_MASS}" diaginertia="1e-4 4e-4 4e-4"/>{peg}</body>
<body name="fixture">{_fixture()}
<site name="hole" type="box" size="0.05 0.05 0.04" pos="0 0 {DEPTH / 2}" rgba="0 0 0 0"/></body>
</worldbody>
<equality>
<weld name="presenter" body1="partner_grip" body2="peg" {_WELD}/>
<weld name="receiver" body1="ego_grip" body2="peg" active="false" {_WELD}/>
</equality>
<actuator>{arm_actuators("ego")}{arm_actuators("partner")}</actuator>
<sensor><touch name="seating" site="hole"/></sensor>
</mujoco>"""


def _fixture() -> str:
    inner, height, color = PEG_WIDTH / 2 + CLEARANCE, DEPTH / 2, "0.35 0.55 0.5 1"
    slot, outer = _KEY_WIDTH + CLEARANCE, PEG_WIDTH / 2 + CLEARANCE + 2 * _WALL
    end = PEG_WIDTH / 2 + 2 * _KEY_LENGTH + CLEARANCE
    side, beside, behind = inner + _WALL, 0.5 * (inner - slot), 0.5 * (outer - end)
    boxes = (
        ((-side, 0, height), (_WALL, outer, height)),
        ((side, 0, height), (_WALL, outer, height)),
        ((0, -side, height), (inner, _WALL, height)),
        ((-slot - beside, side, height), (beside, _WALL, height)),
        ((slot + beside, side, height), (beside, _WALL, height)),
        ((0, end + behind, height), (slot, behind, height)),
        ((0, 0, -0.005), (outer, outer, 0.005)),
    )
    walls = "".join(_box(*box, color, bits=(2, 1)) for box in boxes)
    return walls + _box((0, 0, -0.045), (0.02, 0.02, 0.035), "0.4 0.42 0.45 1")


def _box(
    place: tuple[float, float, float],
    size: tuple[float, float, float],
    color: str,
    *,
    bits: tuple[int, int] = (0, 0),
) -> str:
    at, half = (" ".join(map(str, numbers)) for numbers in (place, size))
    return (
        f'<geom type="box" pos="{at}" size="{half}" mass="0" rgba="{color}" '
        f'contype="{bits[0]}" conaffinity="{bits[1]}"/>'
    )


Condition = Literal["matched", "presenter_absent", "presenter_frozen"]
Sight = Literal["all", "own"]

#: Seconds per physics step.
PHYSICS_STEP: Final = 0.002
#: Largest step of a grip, m per tick and axis, and of its turn, rad per tick. Targets lead the
#: joints, so that an arm moves at about a quarter of them a tick.
GRIP_STEP: Final = 0.02
TURN_STEP: Final = 0.2
#: Middle of the zone in which the point to grasp is presented.
ZONE: Final[FloatArray] = np.array([-0.06, 0.0, 0.30])
#: Where the point to grasp begins, where it stays frozen, and by which turn.
PICKED_UP: Final[FloatArray] = np.array([0.0, -0.14, 0.33])
FROZEN: Final[FloatArray] = np.array([0.02, -0.36, 0.33])
FROZEN_TURN: Final = np.radians(40.0)
#: Where the receiver's grip begins, and by how much that varies per axis.
RECEIVER_START: Final[FloatArray] = np.array([-0.10, 0.12, 0.36])
START_SPREAD: Final = 0.01
#: Fixture: its place, how far that varies in x and y, and by which turn.
FIXTURE: Final[FloatArray] = np.array([-0.02, 0.30, 0.08])
FIXTURE_SPREAD: Final = 0.02
FIXTURE_TURN: Final = np.radians(10.0)
#: Success: depth, windows, force, ticks in a row (0.3 s).
SEATED: Final = 0.9 * DEPTH
LATERAL_WINDOW: Final = 1e-3
ANGLE_WINDOW_DEG: Final = 5.0
FORCE_LIMIT: Final = 75.0
DWELL: Final = 6
#: From the receiver's grasp until the presenter lets go: 0.2 s.
RELEASE_TICKS: Final = 4
#: Rewards: per m of progress, per tick, on success and on a dropped peg.
PROGRESS_REWARD: Final = 4.0
TICK_REWARD: Final = -0.004
SUCCESS_REWARD: Final = 3.0
DROP_REWARD: Final = -1.0
#: What the entries of the views are divided by; `cadenza.partners.handover` has the same.
EGO_SCALE: Final[FloatArray] = np.array(
    ([0.2] * 3 + [0.5] * 3) * 2 + [0.1] * 6 + [0.2] * 3 + [0.5] * 6 + [1.0] * 2 + [75.0, 11.0]
)
PRESENTER_SCALE: Final[FloatArray] = np.array(
    [0.2] * 3 + [0.5] * 3 + [0.2] * 3 + [0.1] * 6 + [1.0] * 2 + [11.0]
)
EGO_DIM: Final = len(EGO_SCALE)
PRESENTER_DIM: Final = len(PRESENTER_SCALE)

#: Entries of the ego's view that tell of the presenter or of the peg.
_NOT_OWN: Final = [*range(12), *range(15, 18), 28]
#: First joint of a presenter that is absent: it looks away from the receiver, rad.
_TURNED_BACK: Final = 2.6
#: A peg below this height has been dropped, m.
_FLOOR: Final = 0.03
#: Axes of the hands, in the world, that hold a peg which stands straight, (2, 3, 3).
_STRAIGHT: Final[FloatArray] = kinematics(READY[None]).rotation * FACING[:, :, None]
#: The fixture is the last body of the model.
_FIXTURE_BODY: Final = -1
_WELD_PLACE, _WELD_TURN = slice(3, 6), slice(6, 10)


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoverOptions:
    """Choices of one handover environment.

    Attributes:
        condition: ``"matched"``; ``"presenter_absent"``: its arm stays drawn back, out of reach,
            and the peg with it; ``"presenter_frozen"``: it holds the peg still, aside and turned.
        ego_sees: ``"all"``, or ``"own"`` to hide presenter and peg.
        takt_s: Time by which the peg must be seated.
        weld_tolerance_m: How near to the handle's point closing must be to grasp.
        grasp_error_m: Standard deviation, per axis, of where the presenter holds the handle.
        yaw_error_deg: Likewise of how it is turned about z; a third of it about the handle.
        guard: Whether the ego's arm is kept off the presenter's, the floor and itself (``"on"``,
            see `arm_guard`), or contacts are only reported (``"watch"``).
    """

    condition: Condition = "matched"
    ego_sees: Sight = "all"
    takt_s: float = 11.0
    weld_tolerance_m: float = 0.001
    grasp_error_m: float = 0.003
    yaw_error_deg: float = 10.0
    guard: Guarding = "off"

    #: How far each arm's base is from the middle, m.
    base_x: ClassVar[float] = BASE_X

    def __post_init__(self) -> None:
        require_choices(self, condition=Condition, ego_sees=Sight, guard=Guarding)
        for name in ("takt_s", "weld_tolerance_m", "grasp_error_m", "yaw_error_deg"):
            value = getattr(self, name)
            if not 0.0 <= value < np.inf:
                raise InputError(f"HandoverOptions: expected {name} >= 0, got {value!r}.")

    def xml(self) -> str:
        """Return the model in MJCF."""
        return handover_xml(PHYSICS_STEP)


class Handing(Copies):
    """N copies of the handover: physics, grasps and views.

    Attributes:
        fixtures: Where the fixtures are, (N, 3), m.
        holds: Whether presenter and receiver hold the peg, (N, 2), receiver first.
    """

    stream: ClassVar[str] = "env.handover_mj"
    draws: ClassVar[int] = 12
    default_episode_length: ClassVar[int] = 600  # the takt usually ends an episode sooner
    object_class: ClassVar[str] = "peg"
    camera: ClassVar[Camera] = Camera(looks_at=(0.0, 0.08, 0.24), distance=1.3, azimuth=-70.0)

    def __init__(self, options: HandoverOptions, copies: int, simulations: Simulations) -> None:
        super().__init__(options, copies, simulations)
        self.fixtures: NDArray[np.float64] = np.zeros((copies, 3))
        self._fixture_axes = np.zeros((copies, 3, 3))
        self._axes = np.zeros((copies, 2, 3, 3))
        self._grip_speeds = np.zeros((copies, 2, 3))
        self._points = np.zeros((copies, 3))
        self._peg_axes = np.zeros((copies, 3, 3))
        self._peg_speeds = np.zeros((copies, 3))
        self._changed = np.zeros(copies, dtype=np.bool_)
        self.holds: NDArray[np.bool_] = np.zeros((copies, 2), dtype=np.bool_)
        self._held_ticks = np.zeros(copies, dtype=np.int64)
        self._dwelt = np.zeros(copies, dtype=np.int64)
        self.grasped: NDArray[np.bool_] = np.zeros(copies, dtype=np.bool_)
        self.reached: NDArray[np.bool_] = np.zeros(copies, dtype=np.bool_)
        self.force: NDArray[np.float64] = np.zeros(copies)
        self.max_force: NDArray[np.float64] = np.zeros(copies)
        #: The pose of the fixture and the welds' relative poses live in the model.
        self._body_pos = simulations.parameters("body_pos")
        self._body_quat = simulations.parameters("body_quat")
        self._welds = simulations.parameters("eq_data")

    @classmethod
    def default_options(cls) -> HandoverOptions:
        """See `Copies`."""
        return HandoverOptions()

    @staticmethod
    def sizes(options: HandoverOptions) -> tuple[tuple[int, int], tuple[int, int]]:
        """See `Copies`."""
        del options
        return (EGO_DIM, PRESENTER_DIM), (7, 6)

    @staticmethod
    def contracts(uids: Sequence[str], options: HandoverOptions) -> contracts.Contracts:
        """See `Copies`."""
        del options
        return contracts.handover(uids)

    def memory(self) -> dict[str, NDArray[Any]]:
        """See `Copies`."""
        return {
            **super().memory(),
            "body_pos": self._body_pos,
            "body_quat": self._body_quat,
            "welds": self._welds,
            "fixtures": self.fixtures,
            "fixture_axes": self._fixture_axes,
            "grip_speeds": self._grip_speeds,
            "peg_speeds": self._peg_speeds,
            "holds": self.holds,
            "held_ticks": self._held_ticks,
            "dwelt": self._dwelt,
            "grasped": self.grasped,
            "reached": self.reached,
            "force": self.force,
            "max_force": self.max_force,
        }

    def relocate(self) -> None:
        """See `Copies`."""
        self._locate()

    def begin(self, rows: NDArray[np.int64], draws: FloatArray) -> None:
        """See `Copies`."""
        options, count = self.options, len(rows)
        spread = 2.0 * draws - 1.0
        fixture, turn = np.tile(FIXTURE, (count, 1)), FIXTURE_TURN * spread[:, 2]
        fixture[:, :2] += FIXTURE_SPREAD * spread[:, :2]
        self.fixtures[rows], self._fixture_axes[rows] = fixture, about_z(turn)
        self._body_pos[rows, _FIXTURE_BODY] = fixture
        self._body_quat[rows, _FIXTURE_BODY] = quaternions(about_z(turn))
        frozen = options.condition == "presenter_frozen"
        places = np.empty((count, 2, 3))
        places[:, 0] = RECEIVER_START + START_SPREAD * spread[:, 9:12]
        places[:, 1] = (FROZEN if frozen else PICKED_UP) + PRESENTER_AT
        joints = inverse_kinematics(((places - self.bases) * FACING).reshape(-1, 3))
        joints = joints.reshape(-1, 2 * JOINTS)
        if frozen:
            joints[:, -1] += FROZEN_TURN
        if options.condition == "presenter_absent":
            joints[:, JOINTS:] = RETRACTED
            joints[:, JOINTS] = _TURNED_BACK
        normals = _normals(draws[:, 3:9])
        place = PRESENTER_AT + options.grasp_error_m * normals[:, :3]
        yaw = np.radians(options.yaw_error_deg) * normals[:, 3]
        held = about_z(yaw) @ _about_x(np.radians(options.yaw_error_deg) / 3.0 * normals[:, 4])
        kin = kinematics(joints[:, JOINTS:].copy())
        hand, grip = kin.rotation * FACING[1][:, None], kin.tcp * FACING[1] + self.bases[1]
        axes = hand @ _STRAIGHT[1].T @ held
        origin = grip - (axes @ place[..., None])[..., 0]
        self._welds[rows, RECEIVER_WELD, :3] = self._welds[rows, PRESENTER_WELD, :3] = 0.0
        self._set_weld(rows, PRESENTER_WELD, grip, hand, origin, axes)
        self._welds[rows, RECEIVER_WELD, _WELD_PLACE] = 0.0
        self._welds[rows, RECEIVER_WELD, _WELD_TURN] = [1.0, 0.0, 0.0, 0.0]
        pose = np.concatenate((joints, origin, quaternions(axes)), axis=1)
        self.simulations.start(rows, pose, joints)
        self._start_joints[rows] = joints
        if self._guard is not None:
            self._guard.restart(rows)
        self.holds[rows] = [False, True]
        for counter in (self.grasped, self.reached, self._held_ticks, self._dwelt):
            counter[rows] = 0
        self.steps[rows] = self.force[rows] = self.max_force[rows] = 0
        self._locate()
        self._grip_speeds[rows] = self._peg_speeds[rows] = 0.0

    def advance(
        self, ego: FloatArray, partner: FloatArray
    ) -> tuple[FloatArray, Flags, Flags, dict[str, Any]]:
        """See `Copies`; an episode fails where the peg is dropped."""
        simulations = self.simulations
        grips, points, way = self.grips.copy(), self._points.copy(), self._way()
        self._grasp(ego[:, 6] > 0.0)
        force = np.zeros(self.copies)
        target = self._targets(ego[:, :6], partner)
        for _ in self.ramp(target, round(CONTROL_TIMESTEP / CHUNKS / PHYSICS_STEP)):
            force = np.maximum(force, simulations.sensordata[:, 0])
        self.steps += 1
        self.force[:], self.max_force[:] = force, np.maximum(self.max_force, force)
        self._locate()
        self._grip_speeds[:] = (self.grips - grips) / CONTROL_TIMESTEP
        self._peg_speeds[:] = (self._points - points) / CONTROL_TIMESTEP
        depth, lateral, angle = self.seating()
        seated = (depth >= SEATED) & (lateral <= LATERAL_WINDOW) & (angle <= ANGLE_WINDOW_DEG)
        self._dwelt = np.where(seated & (force < FORCE_LIMIT), self._dwelt + 1, 0)
        self.reached |= depth >= SEATED
        success = self._dwelt >= DWELL
        dropped = ~self.holds.any(axis=1) & (self._points[:, 2] + TIP[2] < _FLOOR) & ~success
        # Progress counts within a phase: grasping changes which way is left.
        progress = np.where(self._changed, 0.0, way - self._way())
        reward = (
            PROGRESS_REWARD * progress
            + TICK_REWARD
            + SUCCESS_REWARD * success
            + DROP_REWARD * dropped
        )
        return reward, success, dropped, self._info(success, depth, lateral, angle)

    def states(self) -> tuple[FloatArray, FloatArray]:
        """See `Copies`."""
        return self.ego_state(), self.presenter_state()

    def ends(self, success: Flags, failure: Flags, episode_length: int) -> tuple[Flags, Flags]:
        """See `Copies`."""
        takt = round(self.options.takt_s / CONTROL_TIMESTEP)
        terminated = success | failure
        return terminated, (self.steps >= min(takt, episode_length)) & ~terminated

    def goal_places(self) -> FloatArray:
        """Return the ego's fixture and the presenting hand's place, (N, 2, 3), m."""
        presented = np.broadcast_to(ZONE + PRESENTER_AT, self.fixtures.shape)
        return np.stack((self.fixtures, presented), axis=1)

    def contact_force(self) -> FloatArray:
        """Return the force at the fixture, (N,), N."""
        return self.force

    def marker(self) -> tuple[FloatArray, bool]:
        """See `Copies`."""
        return self.fixtures[0] - [0.0, 0.0, 0.06], bool(self.max_force[0] < FORCE_LIMIT)

    def ego_state(self) -> FloatArray:
        """Return what the ego sees, (N, 31)."""
        tips = self._tips()
        hand = self._axes[:, 0]
        nominal = self._fixture_axes @ _STRAIGHT[0]
        view = np.empty((self.copies, EGO_DIM))
        view[:, 0:3] = self._points - self.grips[:, 0]
        view[:, 3:6] = turn_between(hand, self._peg_axes @ _STRAIGHT[0])
        view[:, 6:9] = self.fixtures - tips
        view[:, 9:12] = turn_between(self._peg_axes, self._fixture_axes)
        view[:, 12:15], view[:, 15:18] = self._grip_speeds[:, 0], self._peg_speeds
        view[:, 18:21] = self.fixtures - TIP - self.grips[:, 0]
        view[:, 21:24] = turn_between(hand, nominal)
        view[:, 24:27] = turn_between(hand, np.broadcast_to(_STRAIGHT[0], hand.shape))
        view[:, 27:29] = self.holds
        view[:, 29], view[:, 30] = self.force, self.steps * CONTROL_TIMESTEP
        if self.options.ego_sees == "own":
            view[:, _NOT_OWN] = 0.0
        return view / EGO_SCALE

    def presenter_state(self) -> FloatArray:
        """Return what the presenter sees, (N, 18)."""
        hand = self._axes[:, 1]
        view = np.empty((self.copies, PRESENTER_DIM))
        view[:, 0:3] = ZONE + PRESENTER_AT - self.grips[:, 1]
        view[:, 3:6] = turn_between(hand, np.broadcast_to(_STRAIGHT[1], hand.shape))
        view[:, 6:9] = self.grips[:, 0] - self._points
        view[:, 9:12], view[:, 12:15] = self._grip_speeds[:, 1], self._grip_speeds[:, 0]
        view[:, 15:17] = self.holds
        view[:, 17] = self.steps * CONTROL_TIMESTEP
        return view / PRESENTER_SCALE

    def seating(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return depth (m), sideways distance (m) and angle (degrees) of the pegs, (N,) each."""
        way = (self._fixture_axes * (self._tips() - self.fixtures)[:, :, None]).sum(axis=1)
        turn = turn_between(self._peg_axes, self._fixture_axes)
        lateral = np.sqrt(way[:, 0] * way[:, 0] + way[:, 1] * way[:, 1])
        inside = lateral < DEPTH
        depth = np.where(inside, np.clip(DEPTH - way[:, 2], 0.0, None), 0.0)
        return depth, lateral, np.degrees(np.sqrt((turn * turn).sum(axis=1)))

    def model_state(self, row: int) -> FloatArray:
        """See `Copies`: welds and fixture."""
        return np.concatenate(
            (
                self._welds[row].ravel(),
                self._body_pos[row, _FIXTURE_BODY],
                self._body_quat[row, _FIXTURE_BODY],
            )
        )

    def rotations(self) -> FloatArray:
        """See `Copies`."""
        return self._axes

    def _grasp(self, closing: Flags) -> None:
        """Let receivers grasp or let go, and presenters that have waited let go."""
        gap = self._points - self.grips[:, 0]
        near = np.sqrt((gap * gap).sum(axis=1)) <= self.options.weld_tolerance_m
        grasping = closing & ~self.holds[:, 0] & near
        rows = np.flatnonzero(grasping)
        if len(rows):
            self._set_weld(
                rows,
                RECEIVER_WELD,
                self.grips[rows, 0],
                self._axes[rows, 0],
                self._points[rows],
                self._peg_axes[rows],
            )
        before = self.holds[:, 0].copy()
        self.holds[:, 0] = grasping | (before & closing)
        self._changed = self.holds[:, 0] != before
        self.grasped |= grasping
        self._held_ticks = np.where(self.holds[:, 0], self._held_ticks + 1, 0)
        self.holds[:, 1] &= self._held_ticks <= RELEASE_TICKS
        self.simulations.eq_active[:, RECEIVER_WELD] = self.holds[:, 0]
        self.simulations.eq_active[:, PRESENTER_WELD] = self.holds[:, 1]

    def _set_weld(
        self,
        rows: NDArray[np.int64],
        weld: int,
        grip: FloatArray,
        hand: FloatArray,
        origin: FloatArray,
        axes: FloatArray,
    ) -> None:
        """Write how grips hold pegs: the pose of the peg in the frame of the hand."""
        back = hand.transpose(0, 2, 1)
        self._welds[rows, weld, _WELD_PLACE] = (back @ (origin - grip)[..., None])[..., 0]
        self._welds[rows, weld, _WELD_TURN] = quaternions(back @ axes)

    def _targets(self, ego: FloatArray, presenter: FloatArray) -> FloatArray:
        """Return the joint targets of one tick, (N, 14)."""
        joints = self.simulations.qpos[:, : 2 * JOINTS].copy()
        twists = np.stack((ego, presenter), axis=1).reshape(self.copies, 2, 2, 3)
        twists = twists * FACING[:, None, :] * np.array([GRIP_STEP, TURN_STEP])[:, None]
        moves = twist_to_joints(joints.reshape(-1, JOINTS), self._kin, twists.reshape(-1, 6))
        moves = np.clip(moves.reshape(self.copies, -1), -JOINT_STEP, JOINT_STEP)
        if self._guard is not None:
            moves[:, :JOINTS] = self._guard.step(self.arm(0), self.arm(1), moves[:, :JOINTS])
        target = np.clip(joints + moves, LOW, HIGH)
        if self.options.condition != "matched":
            target[:, JOINTS:] = self._start_joints[:, JOINTS:]
        return target

    def _locate(self) -> None:
        self._kin = self.locate()
        self._axes = self._kin.rotation.reshape(-1, 2, 3, 3) * FACING[:, :, None]
        peg = self.simulations.qpos[:, PEG]
        self._points, self._peg_axes = peg[:, :3].copy(), _matrices(peg[:, 3:])

    def _tips(self) -> FloatArray:
        return self._points + (self._peg_axes @ TIP[:, None])[..., 0]

    def _way(self) -> FloatArray:
        """Return the way left in the present phase, (N,), m: to the handle, or to the seat."""
        holding = self.holds[:, 0][:, None]
        way = np.where(holding, self.fixtures - self._tips(), self._points - self.grips[:, 0])
        return np.sqrt((way * way).sum(axis=1))

    def _info(
        self, success: Flags, depth: FloatArray, lateral: FloatArray, angle: FloatArray
    ) -> dict[str, Any]:
        way = self.fixtures - self._tips()
        return {
            "success": success,
            "goal_distance": np.sqrt((way * way).sum(axis=1)),
            "reached": self.reached.copy(),
            "grasped": self.grasped.copy(),
            "depth": depth,
            "lateral": lateral,
            "angle_deg": angle,
            "force": self.force.copy(),
            "max_force": self.max_force.copy(),
            "time": self.steps * CONTROL_TIMESTEP,
            **self.guard_report(),
        }


class HandoverEnv(TwoArmEnv[Handing]):
    """One copy of the handover; observation, action, info and units in the module."""

    task = Handing


class VectorHandoverEnv(VectorTwoArmEnv[Handing]):
    """N copies of the handover on a pool of threads; every copy has the bytes of `HandoverEnv`."""

    task = Handing


def about_z(angle: FloatArray) -> FloatArray:
    """Return rotations about z, (N, 3, 3), by angles (N,), rad."""
    c, s, none, one = np.cos(angle), np.sin(angle), np.zeros_like(angle), np.ones_like(angle)
    return np.stack((c, -s, none, s, c, none, none, none, one), axis=-1).reshape(-1, 3, 3)


def turn_between(start: FloatArray, end: FloatArray) -> FloatArray:
    """Return the turns, (N, 3), rad, world axes, that bring ``start`` to ``end``, (N, 3, 3)."""
    m = end @ start.transpose(0, 2, 1)
    sine = 0.5 * np.stack(
        (m[:, 2, 1] - m[:, 1, 2], m[:, 0, 2] - m[:, 2, 0], m[:, 1, 0] - m[:, 0, 1]), axis=1
    )
    size = np.sqrt((sine * sine).sum(axis=1))
    cosine = 0.5 * (m[:, 0, 0] + m[:, 1, 1] + m[:, 2, 2] - 1.0)
    factor = np.where(size < 1e-9, 1.0, np.arctan2(size, cosine) / np.maximum(size, 1e-9))
    return sine * factor[:, None]


def _about_x(angle: FloatArray) -> FloatArray:
    c, s, none, one = np.cos(angle), np.sin(angle), np.zeros_like(angle), np.ones_like(angle)
    return np.stack((one, none, none, none, c, -s, none, s, c), axis=-1).reshape(-1, 3, 3)


def _matrices(quaternion: FloatArray) -> FloatArray:
    w, x, y, z = (quaternion[:, k] for k in range(4))
    rows = (
        1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y),
        2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x),
        2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y),
    )  # fmt: skip
    return np.stack(rows, axis=-1).reshape(-1, 3, 3)


def _normals(uniforms: FloatArray) -> FloatArray:
    """Return standard normal numbers from as many uniform ones, (R, 6), by Box and Muller."""
    radius = np.sqrt(-2.0 * np.log1p(-uniforms[:, :3]))
    angle = 2.0 * np.pi * uniforms[:, 3:]
    return np.concatenate((radius * np.cos(angle), radius * np.sin(angle)), axis=1)
