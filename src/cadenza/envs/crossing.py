"""Robots swap places across a circle: the crossing task.

Robots:      discs of radius ROBOT_RADIUS that hold one acceleration per control step, exactly
             integrated (`cadenza.envs.crossing_motion`); their speed has no limit.
Task:        the ego reaches the point opposite its start without touching anyone, in time. All
             straight ways lead through the middle.
Asymmetry:   the ego accelerates harder than any partner, so a filter on the ego alone can keep it
             safe whatever the partners do.
Reward:      (metres the ego came nearer to its goal) + STEP_REWARD, plus SUCCESS_REWARD on arrival
             or CONTACT_REWARD on contact; the same number for all robots.
Units:       m, m/s, m/s^2, s.
Axes:        world x, y; `state` per robot is (6 + 4 (n - 1),), see `CrossingEnv`.
Copies:      copy i of `VectorCrossingEnv` has the bytes of `CrossingEnv` with the same seeds: the
             same formulas, order of operations and layouts (`cadenza.envs.vector_base`). Copies end
             on different steps; each starts its next episode on its own.
Speed:       `perf/bench_envs.py`.
"""

from collections.abc import Mapping
from itertools import combinations
from math import sqrt
from typing import Any, ClassVar, Final

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from cadenza.core.arrays import Float32Array, FloatArray
from cadenza.core.checks import whole_number
from cadenza.core.errors import InputError, NotReadyError
from cadenza.core.seeding import derive_substream
from cadenza.envs import contracts
from cadenza.envs.backends import NumpyBackend
from cadenza.envs.crossing_motion import (
    CONTROL_TIMESTEP,
    MAX_ROBOTS,
    MIN_ROBOTS,
    accelerated,
    batched_closest_approach,
    closest_approach,
    draw_layout,
    layout_draws,
    layout_from_uniforms,
    moved,
)
from cadenza.envs.inputs import (
    checked_agent_uids,
    checked_render_mode,
    planar_action,
)
from cadenza.envs.spaces import planar_action_space, planar_comm_state, state_observation_space
from cadenza.envs.vector_base import (
    Autoreset,
    PlanarVectorEnv,
    Stream,
    TaskLayout,
    VectorOptions,
)
from cadenza.safety.contracts import Bounds
from cadenza.safety.control_models import DoubleIntegratorControlModel
from cadenza.safety.snapshot import AgentBatch, AgentSnapshot

#: Steps per episode: 10 s; the ego alone needs about 3 s.
DEFAULT_EPISODE_LENGTH: Final = 200
#: Radius of every robot, m.
ROBOT_RADIUS: Final = 0.2
#: Distance of two centres below which the robots touch, m.
CONTACT_DISTANCE: Final = 2 * ROBOT_RADIUS
#: Largest acceleration per component, m/s^2. A partner's Euclidean bound is sqrt(2) * 0.5 = 0.71,
#: so the ego keeps 2.0 - 0.71 in hand in its weakest direction.
ACCELERATION_LIMIT_EGO: Final = 2.0
ACCELERATION_LIMIT_PARTNER: Final = 0.5
#: The ego has arrived when its centre is nearer to its goal than this, m.
GOAL_RADIUS: Final = 0.15
#: Reward of arriving, of a contact, and of each step; progress counts 1 per m.
SUCCESS_REWARD: Final = 5.0
CONTACT_REWARD: Final = -5.0
STEP_REWARD: Final = -0.01
#: Name of the stream family; episode k draws from ``f"{STREAM}.episode.{k}"``.
STREAM: Final = "env.crossing"

_OWNER: Final = "CrossingEnv"


class CrossingEnv(gym.Env[dict[str, Any], dict[str, Any]]):
    """Crossing for 2 ... 8 robots, one copy.

    ``obs["agent"][uid]["state"]`` is float32: own position (0:2), own velocity (2:4), goal minus
    own position (4:6), then for each other robot in the order of ``agent_uids`` its relative
    position and relative velocity (4 entries each).

    An episode terminates when the ego touches another robot or arrives, and truncates after
    ``episode_length`` steps; never both at once. Contacts of partners among themselves are reported
    and change nothing.

    Attributes:
        agent_uids: Robots in order; the first is the ego, the second the partner.
        acceleration_limits: Largest acceleration per component and uid, m/s^2.
        control_timestep: Seconds per step.
        episode_length: Steps until truncation.
        plant: Integrator class the safety filter must assume.
        root_seed: Experiment seed that scopes every episode.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"], "render_fps": 20}  # pyright: ignore[reportIncompatibleVariableOverride] # gymnasium declares an instance variable
    control_timestep: Final = CONTROL_TIMESTEP
    plant: Final = "zoh"

    def __init__(
        self,
        *,
        num_robots: int = 2,
        agent_uids: tuple[str, ...] | None = None,
        episode_length: int = DEFAULT_EPISODE_LENGTH,
        root_seed: int = 0,
        render_mode: str | None = None,
    ) -> None:
        """Build the env; call `reset` before `step`.

        Args:
            num_robots: 2 ... 8.
            agent_uids: One distinct name per robot, the ego's first; by default ``"ego"``,
                ``"partner"``, ``"robot_2"``, ...
            episode_length: Steps until truncation, >= 1.
            root_seed: Experiment seed, >= 0.
            render_mode: None or ``"rgb_array"``.

        Raises:
            InputError: An argument is out of range, or uids and ``num_robots`` disagree.
        """
        self.agent_uids: tuple[str, ...] = crossing_uids(_OWNER, num_robots, agent_uids)
        self.num_robots: int = len(self.agent_uids)
        self.ego_uid: str = self.agent_uids[0]
        self.partner_uid: str = self.agent_uids[1]
        self.episode_length: int = whole_number(f"{_OWNER}.episode_length", episode_length, least=1)
        self.root_seed: int = whole_number(f"{_OWNER}.root_seed", root_seed, least=0)
        self.render_mode: str | None = checked_render_mode(_OWNER, render_mode)
        self.acceleration_limits: dict[str, float] = acceleration_limits(self.agent_uids)
        self.action_space = planar_action_space(self.acceleration_limits)
        self.observation_space = state_observation_space(
            self.agent_uids, state_dim(self.num_robots)
        )
        self._episode_name = f"{STREAM}.episode"
        self._auto_episodes = 0
        self._running = False
        # One [x, y] per robot.
        self._goals: list[list[float]] = []
        self._positions: list[list[float]] = []
        self._velocities: list[list[float]] = []
        self._goal_distance = 0.0
        self._steps = 0
        self._contact = False
        self._trail: list[list[list[float]]] = []

    @property
    def task_contract(self) -> contracts.Contracts:
        """What the robots' numbers mean, by robot."""
        return contracts.crossing(self.agent_uids)

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
            name = f"{self._episode_name}.auto.{self._auto_episodes}"
            self._auto_episodes += 1
        else:
            index = whole_number(f"{_OWNER}.seed", seed, least=0)
            name = self._episode_name = f"{STREAM}.episode.{index}"
            self._auto_episodes = 0
        self.np_random = derive_substream(name, root_seed=self.root_seed).default_rng()
        starts = draw_layout(self.np_random, self.num_robots)
        self._positions = starts.tolist()
        self._goals = (-starts).tolist()
        self._velocities = [[0.0, 0.0] for _ in self.agent_uids]
        self._goal_distance = self._ego_goal_distance()
        self._steps = 0
        self._running = True
        self._contact = False
        self._trail = [self._positions]
        return self._observation(), {}

    def step(
        self, action: Mapping[str, NDArray[Any]]
    ) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Advance by one control step.

        Args:
            action: Acceleration of shape (2,) per uid, m/s^2, clipped per component to the robot's
                limit; other keys are ignored.

        Returns:
            Observation, shared reward, terminated, truncated, info. The info holds ``success``,
            ``contact``, ``partner_contact`` (bool), ``min_distance`` (smallest distance between the
            ego's centre and another's during this step, m) and ``goal_distance`` (m).

        Raises:
            NotReadyError: No episode is in progress.
            InputError: A uid is missing, or an action has another shape or is not finite.
        """
        if not self._running:
            raise NotReadyError(f"{_OWNER}.step: expected an episode in progress; call reset().")
        accelerations = [self._acceleration(action, uid) for uid in self.agent_uids]
        before, velocities = self._positions, self._velocities
        self._positions = after = [
            [moved(px, vx, ax), moved(py, vy, ay)]
            for (px, py), (vx, vy), (ax, ay) in zip(before, velocities, accelerations, strict=True)
        ]
        self._velocities = [
            [accelerated(vx, ax), accelerated(vy, ay)]
            for (vx, vy), (ax, ay) in zip(velocities, accelerations, strict=True)
        ]
        motion = (before, velocities, accelerations, after)
        others = range(1, self.num_robots)
        min_distance = min(_approach(motion, 0, other) for other in others)
        partner_contact = any(
            _approach(motion, i, j) < CONTACT_DISTANCE
            for i in others
            for j in range(i + 1, len(after))
        )
        return self._outcome(min_distance, partner_contact)

    def build_agent_snapshots(self) -> dict[str, AgentSnapshot]:
        """Return the current motion of every robot, as the safety filter reads it."""
        self._require_reset()
        return {
            uid: AgentSnapshot.of_numbers(position, velocity, ROBOT_RADIUS)
            for uid, position, velocity in zip(
                self.agent_uids, self._positions, self._velocities, strict=True
            )
        }

    def comm_state(self) -> dict[str, Any]:
        """Return what every robot says about itself: pose and velocity, for a channel."""
        self._require_reset()
        return planar_comm_state(self.agent_uids, self._positions, self._velocities)

    def state_given(self, uid: str, known: Mapping[str, Any]) -> Float32Array:
        """Return the ``state`` of ``uid`` if the others were where it believes them to be.

        Args:
            uid: The robot that observes.
            known: Pose and velocity of others, in the form of `comm_state`; of robots that are
                missing there, the truth is taken.
        """
        self._require_reset()
        positions, velocities = self._positions.copy(), self._velocities.copy()
        for other, pose in known["pose"].items():
            index = self.agent_uids.index(other)
            positions[index] = [*pose["xyz"][:2]]
            velocities[index] = [*known["velocity"][other][:2]]
        return self._state(self.agent_uids.index(uid), positions, velocities)

    def build_control_models(self) -> dict[str, DoubleIntegratorControlModel]:
        """Return how each robot's action moves it, with its own acceleration bound."""
        return crossing_control_models(self.agent_uids)

    def build_bounds(self) -> Bounds:
        """Return the numeric envelope of the ego."""
        return crossing_bounds()

    def robot_positions(self) -> dict[str, FloatArray]:
        """Return each robot's centre, shape (2,), m."""
        self._require_reset()
        return self._by_uid(self._positions)

    def goal_positions(self) -> dict[str, FloatArray]:
        """Return each robot's goal, shape (2,), m."""
        self._require_reset()
        return self._by_uid(self._goals)

    def render(self) -> NDArray[np.uint8] | None:  # pyright: ignore[reportIncompatibleMethodOverride] # gymnasium leaves the frame type open
        """Return the scene as an image of shape (H, W, 3), or None without a render mode."""
        if self.render_mode is None:
            return None
        self._require_reset()
        from cadenza.envs.rendering import draw_crossing

        return draw_crossing(
            goals=np.array(self._goals),
            trail=np.array(self._trail),
            velocity=np.array(self._velocities),
            contact=self._contact,
            time_s=self._steps * CONTROL_TIMESTEP,
        )

    def _acceleration(self, action: Mapping[str, NDArray[Any]], uid: str) -> list[float]:
        limit = self.acceleration_limits[uid]
        x, y = planar_action(_OWNER, action, uid)
        return [min(limit, max(-limit, x)), min(limit, max(-limit, y))]

    def _outcome(
        self, min_distance: float, partner_contact: bool
    ) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Close the step: judge it, count it, and return what `step` returns."""
        previous = self._goal_distance
        self._goal_distance = goal_distance = self._ego_goal_distance()
        self._contact = contact = min_distance < CONTACT_DISTANCE
        success = goal_distance < GOAL_RADIUS and not contact
        self._steps += 1
        terminated = contact or success
        truncated = not terminated and self._steps >= self.episode_length
        self._running = not (terminated or truncated)
        if self.render_mode is not None:
            self._trail.append(self._positions)
        info = {
            "success": success,
            "contact": contact,
            "min_distance": min_distance,
            "goal_distance": goal_distance,
            "partner_contact": partner_contact,
        }
        bonus = CONTACT_REWARD if contact else SUCCESS_REWARD if success else 0.0
        reward = (previous - goal_distance) + STEP_REWARD + bonus
        return self._observation(), reward, terminated, truncated, info

    def _ego_goal_distance(self) -> float:
        (x, y), (goal_x, goal_y) = self._positions[0], self._goals[0]
        dx, dy = goal_x - x, goal_y - y
        return sqrt(dx * dx + dy * dy)

    def _observation(self) -> dict[str, Any]:
        positions, velocities = self._positions, self._velocities
        return {
            "agent": {
                uid: {"state": self._state(i, positions, velocities)}
                for i, uid in enumerate(self.agent_uids)
            }
        }

    def _state(
        self, i: int, positions: list[list[float]], velocities: list[list[float]]
    ) -> Float32Array:
        (x, y), (vx, vy), (goal_x, goal_y) = positions[i], velocities[i], self._goals[i]
        state = [x, y, vx, vy, goal_x - x, goal_y - y]
        for j, (other_x, other_y) in enumerate(positions):
            if j != i:
                other_vx, other_vy = velocities[j]
                state += (other_x - x, other_y - y, other_vx - vx, other_vy - vy)
        return np.array(state, dtype=np.float32)

    def _by_uid(self, points: list[list[float]]) -> dict[str, FloatArray]:
        return {uid: np.array(point) for uid, point in zip(self.agent_uids, points, strict=True)}

    def _require_reset(self) -> None:
        if not self._positions:
            raise NotReadyError(f"{_OWNER}: expected a state, got none yet; call reset() first.")


def crossing_uids(owner: str, num_robots: int, uids: tuple[str, ...] | None) -> tuple[str, ...]:
    """Return the uids of ``num_robots`` robots, checked, or the default ones.

    Raises:
        InputError: ``num_robots`` is outside 2 ... 8, or ``uids`` are not that many distinct names.
    """
    count = whole_number(f"{owner}.num_robots", num_robots, least=MIN_ROBOTS)
    if count > MAX_ROBOTS:
        raise InputError(
            f"{owner}: expected num_robots <= {MAX_ROBOTS} (the circle has room for no more), "
            f"got {count}."
        )
    if uids is None:
        return ("ego", "partner", *(f"robot_{k}" for k in range(2, count)))
    return checked_agent_uids(owner, uids, low=count, high=count)


def acceleration_limits(uids: tuple[str, ...]) -> dict[str, float]:
    """Return the largest acceleration per component of each uid, m/s^2."""
    return {uids[0]: ACCELERATION_LIMIT_EGO} | dict.fromkeys(uids[1:], ACCELERATION_LIMIT_PARTNER)


def state_dim(num_robots: int) -> int:
    """Return the entries of one robot's `state`."""
    return 6 + 4 * (num_robots - 1)


def crossing_control_models(uids: tuple[str, ...]) -> dict[str, DoubleIntegratorControlModel]:
    """Return how each robot's action moves it.

    The ego is credited with the acceleration it has in every direction, a partner is charged with
    the largest it has in any.
    """
    capacities = {uids[0]: ACCELERATION_LIMIT_EGO} | dict.fromkeys(
        uids[1:], sqrt(2.0) * ACCELERATION_LIMIT_PARTNER
    )
    return {
        uid: DoubleIntegratorControlModel(uid=uid, action_dim=2, capacity=capacity)
        for uid, capacity in capacities.items()
    }


def crossing_bounds() -> Bounds:
    """Return the numeric envelope of the ego: a box, no rate limit, an ideal link, no forces."""
    return Bounds(
        action_linf_component=ACCELERATION_LIMIT_EGO,
        cartesian_accel_capacity=ACCELERATION_LIMIT_EGO,
        action_rate=2.0 * sqrt(2.0) * ACCELERATION_LIMIT_EGO,  # from one corner to the opposite
        comm_latency_ms=0.0,
        force_limit=0.0,
    )


def _approach(
    motion: tuple[list[list[float]], list[list[float]], list[list[float]], list[list[float]]],
    i: int,
    j: int,
) -> float:
    """Return the closest approach of robots i and j, m; ``motion`` is (start, v, a, end)."""
    differences = [(rows[j][0] - rows[i][0], rows[j][1] - rows[i][1]) for rows in motion]
    return closest_approach(*differences)


_BATCH_OWNER: Final = "VectorCrossingEnv"


class VectorCrossingEnv(PlanarVectorEnv):
    """N copies of crossing; observation, motion, reward and info as in the scalar env.

    The info of `step` holds ``success``, ``contact``, ``partner_contact`` (bool), ``min_distance``
    and ``goal_distance`` (m), shape (N,) each.
    """

    plant: Final = "zoh"

    def __init__(
        self,
        num_envs: int,
        *,
        num_robots: int = 2,
        agent_uids: tuple[str, ...] | None = None,
        episode_length: int = DEFAULT_EPISODE_LENGTH,
        root_seed: int = 0,
        autoreset: Autoreset = "same_step",
        rng: Stream = "substream",
    ) -> None:
        """Build N copies; call `reset` before `step`.

        Args:
            num_envs: Copies N, >= 1.
            num_robots: Robots n, 2 ... 8.
            agent_uids: One distinct name per robot, the ego's first; None as in `CrossingEnv`.
            episode_length: Steps until truncation, >= 1.
            root_seed: Experiment seed, >= 0.
            autoreset: See `cadenza.envs.vector_base`.
            rng: See `VectorOptions`.

        Raises:
            InputError: An argument is out of range.
        """
        uids = crossing_uids(_BATCH_OWNER, num_robots, agent_uids)
        options = VectorOptions(
            num_envs=num_envs,
            episode_length=episode_length,
            root_seed=root_seed,
            autoreset=autoreset,
            rng=rng,
        )
        task = TaskLayout(
            owner=_BATCH_OWNER,
            stream=STREAM,
            uids=uids,
            limits=acceleration_limits(uids),
            state_dim=state_dim(len(uids)),
            draws=layout_draws(len(uids)),
            control_timestep=CONTROL_TIMESTEP,
        )
        super().__init__(task, options, NumpyBackend())
        self.num_robots: int = len(uids)
        shape = (self.num_robots, 2, num_envs)
        self._goals: FloatArray = np.zeros(shape)
        self._positions: FloatArray = np.zeros(shape)
        self._velocities: FloatArray = np.zeros(shape)
        self._goal_distance: FloatArray = np.zeros(num_envs)

    @property
    def task_contract(self) -> contracts.Contracts:
        """What the robots' numbers mean, by robot."""
        return contracts.crossing(self.agent_uids)

    def build_agent_batch(self) -> AgentBatch:
        """Return the current motion of every robot, as the batched safety filter reads it.

        Raises:
            NotReadyError: `reset` was never called.
        """
        if not self._ready:
            raise NotReadyError(
                f"{_BATCH_OWNER}: expected a state, got none yet; call reset() first."
            )
        return AgentBatch(
            uids=self.agent_uids,
            positions=self._positions.transpose(2, 0, 1).copy(),
            velocities=self._velocities.transpose(2, 0, 1).copy(),
            radii=np.full(self.num_robots, ROBOT_RADIUS),
        )

    def build_control_models(self) -> dict[str, DoubleIntegratorControlModel]:
        """Return how each robot's action moves it, with its own acceleration bound."""
        return crossing_control_models(self.agent_uids)

    def build_bounds(self) -> Bounds:
        """Return the numeric envelope of the ego."""
        return crossing_bounds()

    def robot_positions(self) -> dict[str, FloatArray]:
        """Return each robot's centres, shape (N, 2), m."""
        return {uid: self._positions[robot].T.copy() for robot, uid in enumerate(self.agent_uids)}

    def goal_positions(self) -> dict[str, FloatArray]:
        """Return each robot's goals, shape (N, 2), m."""
        return {uid: self._goals[robot].T.copy() for robot, uid in enumerate(self.agent_uids)}

    def _task_memory(self) -> dict[str, Any]:
        arrays = {
            "goals": self._goals,
            "positions": self._positions,
            "velocities": self._velocities,
            "goal_distance": self._goal_distance,
        }
        return {name: np.moveaxis(array, -1, 0) for name, array in arrays.items()}

    def _place(self, rows: Any, draws: NDArray[np.float64]) -> None:
        starts = layout_from_uniforms(draws, self.num_robots).transpose(1, 2, 0)  # (n, 2, R)
        self._positions[:, :, rows] = starts
        self._goals[:, :, rows] = -starts
        self._velocities[:, :, rows] = 0.0
        self._goal_distance[rows] = self._ego_goal_distance()[rows]

    def _advance(self, commands: Any) -> tuple[Any, NDArray[np.bool_], dict[str, Any]]:
        before, velocities = self._positions, self._velocities
        self._positions = after = moved(before, velocities, commands)
        self._velocities = accelerated(velocities, commands)
        motion = (before, velocities, commands, after)
        min_distance = _approaches(motion, 0, 1)
        for other in range(2, self.num_robots):
            min_distance = np.minimum(min_distance, _approaches(motion, 0, other))
        partner_contact = np.zeros(self.num_envs, dtype=np.bool_)
        for i, j in combinations(range(1, self.num_robots), 2):
            partner_contact |= _approaches(motion, i, j) < CONTACT_DISTANCE
        previous = self._goal_distance
        self._goal_distance = goal_distance = self._ego_goal_distance()
        contact = min_distance < CONTACT_DISTANCE
        success = (goal_distance < GOAL_RADIUS) & ~contact
        bonus = np.where(contact, CONTACT_REWARD, np.where(success, SUCCESS_REWARD, 0.0))
        reward = (previous - goal_distance) + STEP_REWARD + bonus
        info = {
            "success": success,
            "contact": contact,
            "min_distance": min_distance,
            "goal_distance": goal_distance.copy(),
            "partner_contact": partner_contact,
        }
        return reward, contact | success, info

    def _write_states(self, out: Any, rows: Any) -> None:
        positions, velocities = self._positions[:, :, rows], self._velocities[:, :, rows]
        goals = self._goals[:, :, rows]
        for robot in range(self.num_robots):
            others = [other for other in range(self.num_robots) if other != robot]
            for axis in range(2):
                here, speed = positions[robot, axis], velocities[robot, axis]
                out[robot, rows, axis] = here
                out[robot, rows, 2 + axis] = speed
                out[robot, rows, 4 + axis] = goals[robot, axis] - here
                for column, other in zip(range(6 + axis, out.shape[-1], 4), others, strict=True):
                    out[robot, rows, column] = positions[other, axis] - here
                    out[robot, rows, column + 2] = velocities[other, axis] - speed

    def _blank_info(self, info: dict[str, Any], rows: NDArray[np.int64]) -> None:
        for name in ("success", "contact", "partner_contact"):
            info[name][rows] = False
        info["goal_distance"][rows] = self._goal_distance[rows]
        x, y = self._positions[1:, :, rows].transpose(1, 0, 2) - self._positions[0][:, None, rows]
        info["min_distance"][rows] = np.sqrt(x * x + y * y).min(axis=0)

    def _ego_goal_distance(self) -> FloatArray:
        dx, dy = self._goals[0] - self._positions[0]
        return np.sqrt(dx * dx + dy * dy)


def _approaches(
    motion: tuple[FloatArray, FloatArray, FloatArray, FloatArray], i: int, j: int
) -> FloatArray:
    """Return the closest approach of robots i and j, shape (N,); ``motion``: start, v, a, end."""
    start, velocity, acceleration, end = ((rows[j] - rows[i]) for rows in motion)
    return batched_closest_approach(
        (start[0], start[1]),
        (velocity[0], velocity[1]),
        (acceleration[0], acceleration[1]),
        (end[0], end[1]),
    )
