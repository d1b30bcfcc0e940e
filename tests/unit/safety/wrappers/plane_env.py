"""A plain Gymnasium env that knows nothing of the package: a point mass among drifting discs."""

from typing import Any, ClassVar

import gymnasium as gym
import numpy as np

from cadenza.safety.contracts import Bounds
from cadenza.safety.control_models import DoubleIntegratorControlModel
from cadenza.safety.snapshot import AgentSnapshot

DT = 0.05
RADIUS = 0.2
LIMIT = 2.0


class PlaneEnv(gym.Env):
    """The ego accelerates in a plane; each disc keeps its velocity. It ends after 60 steps.

    Observation: ego position and velocity, then those of each disc. `scale` is the acceleration
    that an action of 1 means.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}

    def __init__(self, discs: int = 2, scale: float = 1.0, limit: float = LIMIT):
        self.scale = scale
        self.discs = discs
        high = np.full(2, limit / scale, dtype=np.float32)
        self.action_space = gym.spaces.Box(-high, high, dtype=np.float32)
        wide = np.full(4 * (1 + discs), 1e3)
        self.observation_space = gym.spaces.Box(-wide, wide, dtype=np.float64)
        self.executed: list[np.ndarray] = []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state = np.zeros((1 + self.discs, 4))
        angles = self.np_random.uniform(0.0, 2.0 * np.pi, self.discs)
        self.state[1:, 0] = 1.2 * np.cos(angles)
        self.state[1:, 1] = 1.2 * np.sin(angles)
        self.state[1:, 2:] = -0.1 * self.state[1:, :2]
        self.steps = 0
        return self.state.ravel().copy(), {}

    def step(self, action):
        self.executed.append(action)
        accel = np.zeros((1 + self.discs, 2))
        accel[0] = np.clip(action, self.action_space.low, self.action_space.high) * self.scale
        self.state[:, :2] += self.state[:, 2:] * DT + 0.5 * accel * DT**2
        self.state[:, 2:] += accel * DT
        self.steps += 1
        return self.state.ravel().copy(), 0.0, False, self.steps >= 60, {"steps": self.steps}

    def smallest_gap(self) -> float:
        distances = np.linalg.norm(self.state[1:, :2] - self.state[0, :2], axis=1)
        return float(distances.min()) - 2.0 * RADIUS


class HookedPlaneEnv(PlaneEnv):
    """The same, with the hooks that the wrapper looks up."""

    ego_uid = "ego"
    control_timestep = DT
    plant = "zoh"

    def build_agent_snapshots(self):
        return plane_snapshots(self, self.state.ravel(), {})

    def build_control_models(self):
        return plane_models(self.discs)

    def build_bounds(self):
        return plane_bounds()


class FleetEnv(gym.Env):
    """`PlaneEnv` with an action per agent: the ego's counts, the discs' are ignored."""

    def __init__(self, discs: int = 1):
        self.inner = PlaneEnv(discs)
        self.observation_space = self.inner.observation_space
        box = self.inner.action_space
        self.action_space = gym.spaces.Dict({"ego": box, "disc_0": box})
        self.received: list[dict[str, np.ndarray]] = []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.inner.reset(seed=seed)

    def step(self, action):
        self.received.append(action)
        return self.inner.step(action["ego"])


def plane_snapshots(env, obs, info):
    rows = np.asarray(obs).reshape(-1, 4)
    uids = ["ego", *(f"disc_{k}" for k in range(len(rows) - 1))]
    return {
        uid: AgentSnapshot(row[:2], row[2:], RADIUS) for uid, row in zip(uids, rows, strict=True)
    }


def plane_models(discs: int = 2, capacity: float = 0.1):
    models = {"ego": DoubleIntegratorControlModel("ego", 2)}
    return models | {
        f"disc_{k}": DoubleIntegratorControlModel(f"disc_{k}", 2, capacity=capacity)
        for k in range(discs)
    }


def plane_bounds(limit: float = LIMIT, rate: float = 10.0) -> Bounds:
    return Bounds(limit, limit, rate, 0.0, 0.0)


def task(discs: int = 2, **changes):
    """What a caller gives the wrapper for an env without hooks."""
    return {
        "ego_uid": "ego",
        "snapshots": plane_snapshots,
        "control_models": plane_models(discs),
        "bounds": plane_bounds(),
        "control_timestep": DT,
        "plant": "zoh",
    } | changes
