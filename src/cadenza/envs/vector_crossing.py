"""Many copies of the crossing task stepped as one.

Copy i has the bytes of `cadenza.envs.crossing.CrossingEnv` with the same seeds: the same formulas,
order of operations and layouts (`cadenza.envs.vector_base`). Copies end on different steps; each
starts its next episode on its own.

Speed: `perf/bench_envs.py`.
"""

from itertools import combinations
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from cadenza.core.arrays import FloatArray
from cadenza.core.errors import NotReadyError
from cadenza.envs.backends import NumpyBackend
from cadenza.envs.crossing import (
    CONTACT_DISTANCE,
    CONTACT_REWARD,
    DEFAULT_EPISODE_LENGTH,
    GOAL_RADIUS,
    ROBOT_RADIUS,
    STEP_REWARD,
    STREAM,
    SUCCESS_REWARD,
    acceleration_limits,
    crossing_bounds,
    crossing_control_models,
    crossing_uids,
    state_dim,
)
from cadenza.envs.crossing_layout import layout_draws, layout_from_uniforms
from cadenza.envs.crossing_motion import (
    CONTROL_TIMESTEP,
    accelerated,
    batched_closest_approach,
    moved,
)
from cadenza.envs.vector_base import (
    Autoreset,
    PlanarVectorEnv,
    Stream,
    TaskLayout,
    VectorOptions,
)
from cadenza.safety.bounds import Bounds
from cadenza.safety.control_models import DoubleIntegratorControlModel
from cadenza.safety.snapshot import AgentBatch

_OWNER: Final = "VectorCrossingEnv"


class VectorCrossingEnv(PlanarVectorEnv):
    """N copies of crossing; observation, motion, reward and info as in the scalar env.

    The info of `step` holds ``success``, ``contact``, ``partner_contact`` (bool), ``min_distance``
    and ``goal_distance`` (m), shape (N,) each.

    Attributes:
        plant: Integrator class the safety filter must assume.
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
        uids = crossing_uids(_OWNER, num_robots, agent_uids)
        options = VectorOptions(
            num_envs=num_envs,
            episode_length=episode_length,
            root_seed=root_seed,
            autoreset=autoreset,
            rng=rng,
        )
        task = TaskLayout(
            owner=_OWNER,
            stream=STREAM,
            uids=uids,
            limits=acceleration_limits(uids),
            state_dim=state_dim(len(uids)),
            draws=layout_draws(len(uids)),
            control_timestep=CONTROL_TIMESTEP,
        )
        super().__init__(task, options, NumpyBackend())
        self.num_robots = len(uids)
        shape = (self.num_robots, 2, num_envs)
        self._goals: FloatArray = np.empty(shape)
        self._positions: FloatArray = np.empty(shape)
        self._velocities: FloatArray = np.empty(shape)
        self._goal_distance: FloatArray = np.empty(num_envs)

    def build_agent_batch(self) -> AgentBatch:
        """Return the current motion of every robot, as the batched safety filter reads it.

        Raises:
            NotReadyError: `reset` was never called.
        """
        if not self._ready:
            raise NotReadyError(f"{_OWNER}: expected a state, got none yet; call reset() first.")
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
        min_distance = _approach(motion, 0, 1)
        for other in range(2, self.num_robots):
            min_distance = np.minimum(min_distance, _approach(motion, 0, other))
        partner_contact = np.zeros(self.num_envs, dtype=np.bool_)
        for i, j in combinations(range(1, self.num_robots), 2):
            partner_contact |= _approach(motion, i, j) < CONTACT_DISTANCE
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


def _approach(
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
