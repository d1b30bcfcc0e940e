"""Two robots, one door: who goes first?

Room:        ROOM_HALF_LENGTH x ROOM_HALF_WIDTH on each side of the origin, cut in two by a wall in
             x = 0 with a door in its middle, too narrow for two.
Task:        the ego starts left and its goal is on the right, the partner's way is the reverse.
             Both must be at their goals before the takt ends, and neither may touch a wall or the
             other. A robot's start and goal lie in one half (y > 0 or y < 0), the other's in the
             other half, so that a robot that waits in its own half blocks nobody.
Plants:      `DoorwayEnv`: a holonomic base; its velocity goes straight to the commanded one at the
             rate ACCELERATION (`VelocityModel` with limit "norm"); a command is shortened to the
             robot's speed. `DoorwayDiffDriveEnv`: speed and yaw rate go to the commanded ones at
             their rates (`UnicycleModel`).
Within a step: ramps, speeds and headings are in closed form. A wheeled position is integrated by
             Simpson's rule between instants that include the ends of all ramps (error below 1e-10
             m). Distances are evaluated at INSTANTS of a step, at rest or at full speed at most
             20 mm of relative way apart; a shallower touch may go unseen.
Reward:      metres that both robots came nearer to their goals, through the door, + STEP_REWARD,
             plus SUCCESS_REWARD in the end or CONTACT_REWARD on contact; the same for both.
State:       own position, own velocity, goal minus position, the other's relative position and
             relative velocity (2 each); with wheels also cosine and sine of the heading and the yaw
             rate; time since the start. float32.
Copies:      a single environment is a batch of one: copy i of the batch has the bytes of the single
             one with its seeds, because only + - * / sqrt, floor and comparisons act on a copy's
             numbers. Episodes and resets: `cadenza.envs.vector_base`.
Units:       m, m/s, m/s^2, rad/s, s. Headings are kept in turns.
Axes:        N = copies; the arrays of both robots are (2, 2, N): robot, axis, copy.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Final

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from cadenza.core.arrays import FloatArray
from cadenza.core.checks import real_number
from cadenza.core.errors import InputError, NotReadyError, refuse
from cadenza.envs import contracts
from cadenza.envs.backends import NumpyBackend
from cadenza.envs.crossing_motion import unit_circle
from cadenza.envs.inputs import checked_agent_uids, checked_render_mode, checked_seed
from cadenza.envs.vector_base import (
    Autoreset,
    PlanarVectorEnv,
    Stream,
    TaskLayout,
    VectorOptions,
)
from cadenza.safety.control_models import PartnerBound, UnicycleModel, VelocityModel
from cadenza.safety.geometry import Box, HalfSpace, Shape
from cadenza.safety.snapshot import AgentBatch, AgentSnapshot, WheeledBatch, WheeledSnapshot

#: Control step, s.
CONTROL_TIMESTEP: Final = 0.05
#: Steps per episode, 20 s: the takt ends it before.
DEFAULT_EPISODE_LENGTH: Final = 400
#: Time in which both must have arrived, s: enough for one after the other, at once.
TAKT_S: Final = 10.0
#: Radius of both robots, m.
ROBOT_RADIUS: Final = 0.2
#: Distance of the centres below which they touch, m.
CONTACT_DISTANCE: Final = 2 * ROBOT_RADIUS
#: The room, the wall in its middle and the door in that, m. Two robots are 0.8 m wide.
ROOM_HALF_LENGTH: Final = 2.5
ROOM_HALF_WIDTH: Final = 1.6
WALL_HALF_THICKNESS: Final = 0.1
DOOR_HALF_WIDTH: Final = 0.35
#: Where starts and goals are drawn: distance from the wall's middle, m: the starts of ego and
#: partner, whose ways to the door take about as long, and the goals; and distance from y = 0.
START_X: Final = ((1.4, 2.1), (1.1, 1.7))
GOAL_X: Final = (1.2, 2.0)
PLACE_Y: Final = (0.4, 1.1)
#: Top speeds of ego and partner, m/s: the ego can always keep its distance. Exact in float32.
SPEEDS: Final = (1.0, 0.75)
#: Rate at which a velocity, or a wheeled robot's speed, follows its command, m/s^2.
ACCELERATION: Final = 2.0
#: Largest yaw rate, rad/s, and the rate at which it follows, rad/s^2.
YAW_RATE: Final = 2.0
YAW_ACCELERATION: Final = 8.0
#: Largest angle between a wheeled robot's heading at the start and the door's axis, turns.
START_TURN: Final = 0.125
#: A robot has arrived when its centre is nearer to its goal than this, m.
GOAL_RADIUS: Final = 0.2
#: Reward of success, of a contact, and of each step; progress counts 1 per m. A contact also ends
#: the episode; where it costs more than a metre, an ego first learns to stay away from the door.
SUCCESS_REWARD: Final = 10.0
CONTACT_REWARD: Final = -0.5
STEP_REWARD: Final = -0.01
#: Instants of a step at which distances are evaluated, s.
INSTANTS: Final = tuple(CONTROL_TIMESTEP * k / 5 for k in range(1, 6))

#: Signs of the robots' sides at the start: the ego is left, where x < 0.
_SIDES: Final = np.array([-1.0, 1.0]).reshape(2, 1)
_SPEEDS: Final = np.array(SPEEDS).reshape(2, 1)
_PLACES_X: Final = np.array([START_X, (GOAL_X, GOAL_X)]).transpose(2, 0, 1)[..., None]
_TURN_PER_RAD: Final = 0.15915494309189535
_RAD_PER_TURN: Final = 6.283185307179586
_OWNER: Final = "DoorwayEnv"


def obstacles() -> tuple[Shape, ...]:
    """Return the walls: four of the room, two beside the door."""
    middle = 0.5 * (ROOM_HALF_WIDTH + DOOR_HALF_WIDTH)
    half = np.array([WALL_HALF_THICKNESS, 0.5 * (ROOM_HALF_WIDTH - DOOR_HALF_WIDTH)])
    sides = ((1.0, 0.0), (-1.0, 0.0)), ((0.0, 1.0), (0.0, -1.0))
    room = [
        HalfSpace(np.array(normal), -size)
        for size, pair in zip((ROOM_HALF_LENGTH, ROOM_HALF_WIDTH), sides, strict=True)
        for normal in pair
    ]
    return (*room, Box(np.array([0.0, middle]), half), Box(np.array([0.0, -middle]), half))


def wall_gap(x: FloatArray, y: FloatArray) -> FloatArray:
    """Return the signed distance of points to the nearest of `obstacles`, m."""
    room = np.minimum(ROOM_HALF_LENGTH - np.abs(x), ROOM_HALF_WIDTH - np.abs(y))
    face, jamb = np.abs(x) - WALL_HALF_THICKNESS, DOOR_HALF_WIDTH - np.abs(y)
    corner = np.sqrt(face * face + jamb * jamb)
    wall = np.where((face > 0.0) & (jamb > 0.0), corner, np.maximum(face, jamb))
    return np.minimum(room, wall)


def way_left(x: FloatArray, y: FloatArray, goal: FloatArray, side: FloatArray) -> FloatArray:
    """Return the length of the way to a goal, (2, N): through the door's middle, then straight."""
    to_goal = _length(goal[:, 0] - x, goal[:, 1] - y)
    through = _length(x, y) + _length(goal[:, 0], goal[:, 1])
    return np.where(x * side > 0.0, through, to_goal)


def _length(x: FloatArray, y: FloatArray) -> FloatArray:
    return np.sqrt(x * x + y * y)


def _ramp(
    begin: FloatArray, goal: FloatArray, rate: float, time_s: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return a quantity that goes to ``goal`` at a rate, and its integral, after some time."""
    gap = goal - begin
    rise = np.minimum(np.abs(gap) / rate, time_s)
    slope = np.copysign(rate, gap)
    value = np.where(np.abs(gap) <= rate * time_s, goal, begin + slope * rise)
    return value, begin * time_s + slope * rise * (time_s - 0.5 * rise)


class VectorDoorwayEnv(PlanarVectorEnv):
    """N copies of the door for holonomic bases; see the module."""

    task_id: ClassVar[str] = "doorway"
    draws: ClassVar[int] = 9
    own_size: ClassVar[int] = 0
    _limits_of: ClassVar[tuple[Any, Any]] = SPEEDS

    def __init__(
        self,
        num_envs: int,
        *,
        agent_uids: tuple[str, str] = ("ego", "partner"),
        takt_s: float = TAKT_S,
        episode_length: int = DEFAULT_EPISODE_LENGTH,
        root_seed: int = 0,
        autoreset: Autoreset = "same_step",
        rng: Stream = "substream",
    ) -> None:
        """Build N copies; call `reset` before `step`.

        Args:
            num_envs: Copies, >= 1.
            agent_uids: Distinct names of ego and partner.
            takt_s: Time in which both must have arrived, s, > 0.
            episode_length: Steps until truncation, >= 1.
            root_seed: Experiment seed, >= 0.
            autoreset: When a finished copy starts its next episode.
            rng: Stream of the layouts; see `VectorOptions`.

        Raises:
            InputError: An argument is out of range.
        """
        owner = f"Vector{_OWNER}"
        uids = checked_agent_uids(owner, agent_uids, low=2, high=2)
        self.takt_s: float = real_number(f"{owner}.takt_s", takt_s)
        if not 0.0 < self.takt_s < 1e6:
            refuse(InputError, f"{owner}.takt_s", expected="a time > 0 s", got=takt_s)
        task = TaskLayout(
            owner=owner,
            stream=f"env.{self.task_id}",
            uids=uids,
            limits=dict(zip(uids, self._limits_of, strict=True)),
            state_dim=11 + self.own_size,
            draws=self.draws,
            control_timestep=CONTROL_TIMESTEP,
        )
        options = VectorOptions(
            num_envs=num_envs,
            episode_length=episode_length,
            root_seed=root_seed,
            autoreset=autoreset,
            rng=rng,
        )
        super().__init__(task, options, NumpyBackend())
        shape = (2, 2, num_envs)
        self._positions: FloatArray = np.zeros(shape)
        self._velocities: FloatArray = np.zeros(shape)
        self._goals: FloatArray = np.zeros(shape)

    @property
    def task_contract(self) -> contracts.Contracts:
        """What the robots' numbers mean, by robot."""
        return contracts.doorway(self.agent_uids)

    def build_robot_models(self) -> dict[str, Any]:
        """Return how each robot's commands move it, as `cadenza.guard` takes it as ``robot``."""
        return {
            uid: VelocityModel(uid, 2, max_speed=speed, max_accel=ACCELERATION)
            for uid, speed in zip(self.agent_uids, SPEEDS, strict=True)
        }

    def build_partner_bound(self) -> PartnerBound:
        """Return how the partner moves at most."""
        return PartnerBound(self.partner_uid, SPEEDS[1], ACCELERATION)

    def build_obstacles(self) -> tuple[Shape, ...]:
        """Return the walls."""
        return obstacles()

    def build_agent_batch(self) -> AgentBatch:
        """Return the current motion of both robots.

        Raises:
            NotReadyError: `reset` was never called.
        """
        self._require_episodes("build_agent_batch")
        return AgentBatch(
            uids=self.agent_uids,
            positions=self._positions.transpose(2, 0, 1).copy(),
            velocities=self._velocities.transpose(2, 0, 1).copy(),
            radii=np.full(2, ROBOT_RADIUS),
        )

    def snapshots(self, row: int) -> dict[str, AgentSnapshot]:
        """Return the current motion of both robots of one copy, as the filters read it."""
        return self.build_agent_batch().snapshots(row)

    def robot_positions(self) -> dict[str, FloatArray]:
        """Return each robot's centres, shape (N, 2), m."""
        return {uid: self._positions[robot].T.copy() for robot, uid in enumerate(self.agent_uids)}

    def goal_positions(self) -> dict[str, FloatArray]:
        """Return each robot's goals, shape (N, 2), m."""
        return {uid: self._goals[robot].T.copy() for robot, uid in enumerate(self.agent_uids)}

    def headings(self) -> FloatArray | None:
        """Return the robots' headings, (2, N), turns; None for robots without one."""
        return None

    def _task_memory(self) -> dict[str, Any]:
        arrays = {
            "positions": self._positions,
            "velocities": self._velocities,
            "goals": self._goals,
        }
        return {name: np.moveaxis(array, -1, 0) for name, array in arrays.items()}

    def _place(self, rows: Any, draws: NDArray[np.float64]) -> None:
        half = np.where(draws[:, 0] < 0.5, -1.0, 1.0)  # the ego's; the partner has the other
        halves = np.stack((half, -half))
        spans = draws[:, 1:9].T.reshape(2, 2, 2, -1)  # start or goal, robot, axis, copy
        x = _PLACES_X[0] + (_PLACES_X[1] - _PLACES_X[0]) * spans[:, :, 0]
        y = PLACE_Y[0] + (PLACE_Y[1] - PLACE_Y[0]) * spans[:, :, 1]
        self._positions[:, 0, rows], self._positions[:, 1, rows] = _SIDES * x[0], halves * y[0]
        self._goals[:, 0, rows], self._goals[:, 1, rows] = -_SIDES * x[1], halves * y[1]
        self._velocities[:, :, rows] = 0.0

    def _advance(self, commands: Any) -> tuple[Any, NDArray[np.bool_], dict[str, Any]]:
        before = self._ways_left()
        x, y = self._move(commands)  # (S, 2, N)
        apart = _length(x[:, 1] - x[:, 0], y[:, 1] - y[:, 0]).min(axis=0)
        gaps = wall_gap(x, y).min(axis=0) - ROBOT_RADIUS
        ways = self._ways_left()
        to_goal = self._goal_distances()
        contact = apart < CONTACT_DISTANCE
        touched = gaps < 0.0
        failed = contact | touched[0] | touched[1]
        time = CONTROL_TIMESTEP * (self._steps + 1)
        success = (to_goal < GOAL_RADIUS).all(axis=0) & ~failed
        late = (time >= self.takt_s - 1e-9) & ~failed & ~success
        bonus = np.where(failed, CONTACT_REWARD, np.where(success, SUCCESS_REWARD, 0.0))
        progress = (before[0] - ways[0]) + (before[1] - ways[1])
        info = {
            "success": success,
            "reached": success.copy(),
            "contact": contact,
            "wall_contact": touched[0],
            "partner_wall_contact": touched[1],
            "min_distance": apart,
            "wall_gap": gaps[0],
            "goal_distance": to_goal[0],
            "partner_goal_distance": to_goal[1],
            "time": time,
        }
        return progress + STEP_REWARD + bonus, failed | success | late, info

    def _move(self, commands: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Move the robots by a step; return their positions within it, (S, 2, N) per axis."""
        x, y = commands[:, 0], commands[:, 1]
        short = np.minimum(1.0, _SPEEDS / np.maximum(_length(x, y), 1e-12))
        goal = commands * short[:, None]
        gap = goal - self._velocities
        size = _length(gap[:, 0], gap[:, 1])
        along = gap / np.maximum(size, 1e-12)[:, None]
        times = np.array(INSTANTS)[:, None, None]
        rise = np.minimum(size / ACCELERATION, times)  # (S, 2, N)
        gained = ACCELERATION * rise * (times - 0.5 * rise)
        path = self._velocities * times[..., None]
        path += along * gained[:, :, None]
        path += self._positions
        most = ACCELERATION * CONTROL_TIMESTEP
        there = (size <= most)[:, None]
        self._velocities = np.where(there, goal, self._velocities + along * most)
        self._positions = path[-1].copy()
        return path[:, :, 0], path[:, :, 1]

    def _write_states(self, out: Any, rows: Any) -> None:
        p, v, goals = (a[:, :, rows] for a in (self._positions, self._velocities, self._goals))
        for robot in range(2):
            other = 1 - robot
            for axis in range(2):
                out[robot, rows, axis] = p[robot, axis]
                out[robot, rows, 2 + axis] = v[robot, axis]
                out[robot, rows, 4 + axis] = goals[robot, axis] - p[robot, axis]
                out[robot, rows, 6 + axis] = p[other, axis] - p[robot, axis]
                out[robot, rows, 8 + axis] = v[other, axis] - v[robot, axis]
            out[robot, rows, -1] = CONTROL_TIMESTEP * self._steps[rows]

    def _blank_info(self, info: dict[str, Any], rows: NDArray[np.int64]) -> None:
        for kept in info.values():
            if kept.dtype == np.bool_:
                kept[rows] = False
        p = self._positions[:, :, rows]
        info["time"][rows] = 0.0
        info["min_distance"][rows] = _length(p[1, 0] - p[0, 0], p[1, 1] - p[0, 1])
        info["wall_gap"][rows] = wall_gap(p[0, 0], p[0, 1]) - ROBOT_RADIUS
        info["goal_distance"][rows], info["partner_goal_distance"][rows] = self._goal_distances()[
            :, rows
        ]

    def _goal_distances(self) -> FloatArray:
        offsets = self._goals - self._positions
        return _length(offsets[:, 0], offsets[:, 1])

    def _ways_left(self) -> FloatArray:
        return way_left(self._positions[:, 0], self._positions[:, 1], self._goals, _SIDES)


class VectorDoorwayDiffDriveEnv(VectorDoorwayEnv):
    """N copies of the door for robots on wheels; an action is (speed, yaw rate)."""

    task_id = "doorway_diffdrive"
    draws = 11
    own_size = 3
    _limits_of = (
        np.array([SPEEDS[0], YAW_RATE], dtype=np.float32),
        np.array([SPEEDS[1], YAW_RATE], dtype=np.float32),
    )

    def __init__(self, num_envs: int, **settings: Any) -> None:
        """Build N copies; arguments as `VectorDoorwayEnv`."""
        super().__init__(num_envs, **settings)
        self._headings: FloatArray = np.zeros((2, num_envs))
        self._speeds: FloatArray = np.zeros((2, num_envs))
        self._yaw_rates: FloatArray = np.zeros((2, num_envs))

    @property
    def task_contract(self) -> contracts.Contracts:
        """What the robots' numbers mean, by robot."""
        return contracts.doorway(self.agent_uids, wheels=True)

    def build_robot_models(self) -> dict[str, Any]:
        """Return how each robot's commands move it."""
        return {
            uid: UnicycleModel(
                uid,
                max_speed=speed,
                max_reverse=speed,
                max_yaw_rate=YAW_RATE,
                accel=ACCELERATION,
                yaw_accel=YAW_ACCELERATION,
                radius=ROBOT_RADIUS,
            )
            for uid, speed in zip(self.agent_uids, SPEEDS, strict=True)
        }

    def build_partner_bound(self) -> PartnerBound:
        """Return how the partner moves at most: it speeds up along its way, and turns across it."""
        across = SPEEDS[1] * YAW_RATE
        most = float(np.sqrt(ACCELERATION * ACCELERATION + across * across))
        return PartnerBound(self.partner_uid, SPEEDS[1], most)

    def build_agent_batch(self) -> AgentBatch:
        """Return the current motion of both robots, and where the ego faces."""
        batch = super().build_agent_batch()
        return WheeledBatch(
            uids=batch.uids,
            positions=batch.positions,
            velocities=batch.velocities,
            radii=batch.radii,
            headings=self._headings[0] * _RAD_PER_TURN,
            yaw_rates=self._yaw_rates[0].copy(),
        )

    def snapshots(self, row: int) -> dict[str, AgentSnapshot]:
        """Return the current motion of both robots of one copy, with their headings."""
        wheels = zip(self._headings[:, row], self._yaw_rates[:, row], strict=True)
        return {
            uid: WheeledSnapshot(
                one.position_numbers,
                one.velocity_numbers,
                one.radius,
                heading=float(turns) * _RAD_PER_TURN,
                yaw_rate=float(yaw_rate),
            )
            for (uid, one), (turns, yaw_rate) in zip(
                super().snapshots(row).items(), wheels, strict=True
            )
        }

    def headings(self) -> FloatArray | None:
        """Return the robots' headings, (2, N), turns."""
        return self._headings

    def _task_memory(self) -> dict[str, Any]:
        own = {"headings": self._headings, "speeds": self._speeds, "yaw_rates": self._yaw_rates}
        return {
            **super()._task_memory(),
            **{name: np.moveaxis(array, -1, 0) for name, array in own.items()},
        }

    def _place(self, rows: Any, draws: NDArray[np.float64]) -> None:
        super()._place(rows, draws)
        turns = START_TURN * (2.0 * draws[:, 9:11].T - 1.0)
        self._headings[:, rows] = turns + np.where(_SIDES > 0.0, 0.5, 0.0)
        self._speeds[:, rows] = self._yaw_rates[:, rows] = 0.0

    def _move(self, commands: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Move the robots by a step; see the module for the rule."""
        speed, yaw_rate = self._speeds, self._yaw_rates
        ends = [
            np.minimum(np.abs(goal - begin) / rate, CONTROL_TIMESTEP)
            for begin, goal, rate in (
                (speed, commands[:, 0], ACCELERATION),
                (yaw_rate, commands[:, 1], YAW_ACCELERATION),
            )
        ]
        fixed = np.broadcast_to(np.array(INSTANTS)[:, None], (len(INSTANTS), self.num_envs))
        times = np.sort(np.concatenate((fixed, *ends)), axis=0)
        before = np.concatenate((np.zeros((1, self.num_envs)), times[:-1]))
        nodes = np.concatenate((before[:1], times, 0.5 * (before + times)))[:, None]  # (2S+1,1,N)
        speeds, _ = _ramp(speed, commands[:, 0], ACCELERATION, nodes)
        yaw_rates, turned = _ramp(yaw_rate, commands[:, 1], YAW_ACCELERATION, nodes)
        headings = self._headings + turned * _TURN_PER_RAD
        count = len(times)
        weights = ((times - before) / 6.0)[:, None]
        path: list[FloatArray] = []
        directions = unit_circle(headings)
        for axis in range(2):
            rates = speeds * directions[..., axis]
            ways = weights * ((rates[:count] + rates[1 : count + 1]) + 4.0 * rates[count + 1 :])
            here = self._positions[:, axis]
            points = np.empty_like(ways)
            for k in range(count):
                points[k] = here = here + ways[k]
            path.append(points)
        self._positions = np.stack((path[0][-1], path[1][-1]), axis=1)
        self._speeds, self._yaw_rates = speeds[count].copy(), yaw_rates[count].copy()
        self._headings = headings[count] - np.floor(headings[count])
        self._velocities = np.stack(
            [self._speeds * directions[count, ..., axis] for axis in range(2)], axis=1
        )
        return path[0], path[1]

    def _write_states(self, out: Any, rows: Any) -> None:
        super()._write_states(out, rows)
        directions = unit_circle(self._headings[:, rows])
        for robot in range(2):
            out[robot, rows, 10] = directions[robot, ..., 0]
            out[robot, rows, 11] = directions[robot, ..., 1]
            out[robot, rows, 12] = self._yaw_rates[robot, rows]


class DoorwayEnv(gym.Env[dict[str, Any], dict[str, Any]]):
    """The door for holonomic bases, one copy; see the module.

    An episode terminates on success, on a contact and with the takt, and truncates after
    ``episode_length`` steps.

    Attributes:
        agent_uids: Ego and partner.
        control_timestep: Seconds per step.
        episode_length: Steps until truncation.
        root_seed: Experiment seed that scopes every episode.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"], "render_fps": 20}  # pyright: ignore[reportIncompatibleVariableOverride] # gymnasium declares an instance variable
    batch_type: ClassVar[type[VectorDoorwayEnv]] = VectorDoorwayEnv
    control_timestep: Final = CONTROL_TIMESTEP

    def __init__(
        self,
        *,
        agent_uids: tuple[str, str] = ("ego", "partner"),
        takt_s: float = TAKT_S,
        episode_length: int = DEFAULT_EPISODE_LENGTH,
        root_seed: int = 0,
        render_mode: str | None = None,
    ) -> None:
        """Build the env; call `reset` before `step`; arguments as `VectorDoorwayEnv`.

        Raises:
            InputError: An argument is out of range.
        """
        self.render_mode: str | None = checked_render_mode(_OWNER, render_mode)
        self._batch = self.batch_type(
            1,
            agent_uids=agent_uids,
            takt_s=takt_s,
            episode_length=episode_length,
            root_seed=root_seed,
        )
        self.agent_uids: tuple[str, ...] = self._batch.agent_uids
        self.ego_uid: str = self._batch.ego_uid
        self.partner_uid: str = self._batch.partner_uid
        self.episode_length: int = self._batch.episode_length
        self.root_seed: int = self._batch.root_seed
        batch: Any = self._batch  # gymnasium leaves the element types open
        self.action_space: Any = batch.single_action_space
        self.observation_space: Any = batch.single_observation_space
        self._next_seed = 0
        self._running = False
        self._info: dict[str, Any] = {}
        self._trail: list[FloatArray] = []

    @property
    def task_contract(self) -> contracts.Contracts:
        """What the robots' numbers mean, by robot."""
        return self._batch.task_contract

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start an episode.

        Args:
            seed: Episode index under ``root_seed``: equal pairs give equal episodes. None takes the
                index after the last one.
            options: Part of Gymnasium's interface; this task has none and ignores them.

        Raises:
            InputError: ``seed`` is not an integer in [0, 2^62).
        """
        index = self._next_seed if seed is None else checked_seed(_OWNER, seed)
        super().reset(seed=seed, options=options)
        self._next_seed = index + 1
        observation = self._batch.reset_rows([0], [index], [self.root_seed])
        self._running = True
        self._info = {}
        self._trail = [self._places()]
        return _row(observation), {}

    def step(
        self, action: Mapping[str, NDArray[Any]]
    ) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Advance by one control step.

        Args:
            action: Shape (2,) per uid, clipped to the robot's limits; other keys are ignored.

        Returns:
            Observation, shared reward, terminated, truncated, info. The info holds ``success``,
            ``contact`` (of the robots), ``wall_contact``, ``partner_wall_contact``,
            ``min_distance`` of the centres and the ego's ``wall_gap`` in this step,
            ``goal_distance``, ``partner_goal_distance`` (m) and ``time`` (s).

        Raises:
            NotReadyError: No episode is in progress.
            InputError: A uid is missing, or an action has another shape or is not finite.
        """
        if not self._running:
            raise NotReadyError(f"{_OWNER}.step: expected an episode in progress; call reset().")
        rows = {
            uid: np.asarray(action[uid])[None] if uid in action else None for uid in self.agent_uids
        }
        given = {uid: row for uid, row in rows.items() if row is not None}
        observation, reward, terminated, truncated, info = self._batch.step(given)
        ended, cut = bool(terminated[0]), bool(truncated[0])
        self._running = not (ended or cut)
        self._info = {name: values[0].item() for name, values in info.items()}
        if self.render_mode is not None:
            self._trail.append(self._places())
        return _row(observation), float(reward[0]), ended, cut, dict(self._info)

    def build_agent_snapshots(self) -> dict[str, AgentSnapshot]:
        """Return the current motion of both robots, as the safety filters read it."""
        return self._batch.snapshots(0)

    def build_robot_models(self) -> dict[str, Any]:
        """Return how each robot's commands move it, as `cadenza.guard` takes it as ``robot``."""
        return self._batch.build_robot_models()

    def build_partner_bound(self) -> PartnerBound:
        """Return how the partner moves at most."""
        return self._batch.build_partner_bound()

    def build_obstacles(self) -> tuple[Shape, ...]:
        """Return the walls."""
        return self._batch.build_obstacles()

    def robot_positions(self) -> dict[str, FloatArray]:
        """Return each robot's centre, shape (2,), m."""
        return {uid: points[0] for uid, points in self._batch.robot_positions().items()}

    def goal_positions(self) -> dict[str, FloatArray]:
        """Return each robot's goal, shape (2,), m."""
        return {uid: points[0] for uid, points in self._batch.goal_positions().items()}

    def render(self) -> NDArray[np.uint8] | None:  # pyright: ignore[reportIncompatibleMethodOverride] # gymnasium leaves the frame type open
        """Return the scene as an image of shape (H, W, 3), or None without a render mode."""
        if self.render_mode is None:
            return None
        from cadenza.envs.rendering import draw_doorway

        headings, info = self._batch.headings(), self._info
        walls = ("wall_contact", "partner_wall_contact")
        return draw_doorway(
            goals=np.stack([*self.goal_positions().values()]),
            trail=np.stack(self._trail),
            velocity=np.stack([one.velocity for one in self.build_agent_snapshots().values()]),
            headings=None if headings is None else unit_circle(headings[:, 0]),
            room=(ROOM_HALF_LENGTH, ROOM_HALF_WIDTH),
            door=(WALL_HALF_THICKNESS, DOOR_HALF_WIDTH),
            contacts=[info.get("contact", False) or info.get(wall, False) for wall in walls],
            time_s=info.get("time", 0.0),
        )

    def _places(self) -> FloatArray:
        return np.stack([*self.robot_positions().values()])


class DoorwayDiffDriveEnv(DoorwayEnv):
    """The door for robots on wheels, one copy; an action is (speed, yaw rate)."""

    batch_type = VectorDoorwayDiffDriveEnv


def _row(observation: dict[str, Any]) -> dict[str, Any]:
    """Return what a batch of one sees, without its axis."""
    robots = observation["agent"].items()
    return {"agent": {uid: {"state": seen["state"][0]} for uid, seen in robots}}
