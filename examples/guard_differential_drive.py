"""A differential drive in a room with walls, a column and a person, guarded in one call.

Whoever drives it here steers blindly at a goal behind the column: without the guard the robot runs
into the column; with it, it drives around and arrives.

python examples/guard_differential_drive.py
"""

import math
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

import cadenza
from cadenza.safety import AgentSnapshot, PartnerBound, UnicycleModel
from cadenza.safety.geometry import Ball, HalfSpace

RADIUS, DT, GOAL = 0.25, 0.1, (2.0, 0.0)
COLUMN = Ball((0.0, 0.05), 0.4)


class RoomEnv(gymnasium.Env[np.ndarray, np.ndarray]):
    """Your simulator or robot: state (x, y, heading, v, w, person's x and y), action (v, w)."""

    action_space = spaces.Box(np.float32([-1.0, -2.0]), np.float32([1.0, 2.0]))
    observation_space = spaces.Box(-np.inf, np.inf, (7,), np.float64)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start left of the column, with the person near the goal."""
        super().reset(seed=seed, options=options)
        self.state = np.array([-2.0, 0.0, 0.0, 0.0, 0.0, 2.0, 1.2])
        return self.state.copy(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Move for 0.1 s: speeds follow at 2 m/s^2 and 6 rad/s^2, the person walks to the left."""
        for _ in range(20):
            h = DT / 20
            v, w = self.state[3:5] + np.clip(action - self.state[3:5], -h * 2.0, h * 2.0) * [1, 0]
            w += float(np.clip(action[1] - w, -h * 6.0, h * 6.0))
            middle = self.state[2] + 0.5 * h * w
            self.state[:5] += [h * v * math.cos(middle), h * v * math.sin(middle), h * w, 0.0, 0.0]
            self.state[3:5] = v, w
            self.state[5] -= h * 0.4
        arrived = math.dist(self.state[:2], GOAL) < 0.3
        return self.state.copy(), float(arrived), arrived, False, {}


robot = UnicycleModel("robot", 1.0, 1.0, 2.0, accel=2.0, yaw_accel=6.0, radius=RADIUS)
walls = [HalfSpace(n, -d) for n, d in [((1, 0), 3), ((-1, 0), 3), ((0, 1), 2), ((0, -1), 2)]]


def where(_env: Any, o: np.ndarray, _info: dict[str, Any]) -> dict[str, AgentSnapshot]:
    """Say where everybody is."""
    return {"robot": robot.snapshot(*o[:5]), "person": AgentSnapshot(o[5:], (-0.4, 0), RADIUS)}


def blind(o: np.ndarray) -> np.ndarray:
    """Steer at the goal, whatever is in the way."""
    error = math.atan2(GOAL[1] - o[1], GOAL[0] - o[0]) - o[2]
    error = math.atan2(math.sin(error), math.cos(error))
    return np.array([max(0.0, math.cos(error)), np.clip(2.0 * error, -2.0, 2.0)], dtype=np.float32)


def drive(env: gymnasium.Env[np.ndarray, np.ndarray]) -> tuple[float, float]:
    """Return when the robot arrived, s, and its smallest gap to the column, m."""
    o, _ = env.reset(seed=0)
    gap = math.inf
    for step in range(1, 301):
        o, _, arrived, *_ = env.step(blind(o))
        gap = min(gap, math.dist(o[:2], COLUMN.center) - COLUMN.radius - RADIUS)
        if arrived:
            return step * DT, gap
    return math.inf, gap


if __name__ == "__main__":
    guarded = cadenza.guard(
        RoomEnv(),
        robot=robot,
        partner=PartnerBound("person", max_speed=0.6),
        obstacles=[*walls, COLUMN],
        snapshots=where,
        control_timestep=DT,
    )
    for name, env in (("alone", RoomEnv()), ("guarded", guarded)):
        time_s, gap = drive(env)
        print(f"{name}: at the goal after {time_s:.1f} s, nearest to the column {gap:+.3f} m")
