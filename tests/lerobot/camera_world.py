"""A world with a camera for live producers: what it shows says where each frame came from."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

#: Pixels of the camera, with transparency.
IMAGE = (12, 16, 4)
LENGTHS = (5, 3, 8)


class CameraEnv(gymnasium.Env[Any, Any]):
    """Step t of episode k: the state is (k, t), the picture random but for its first pixel (k, t).

    Every third episode fails.
    """

    def __init__(self, row: int) -> None:
        box = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        camera = spaces.Dict({"color": spaces.Box(0, 255, IMAGE, np.uint8)})
        self.observation_space = spaces.Dict(
            {"qpos": box, "sensor": spaces.Dict({"front": camera})}
        )
        self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.row, self.episode, self.t = row, -1, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.episode, self.t = self.episode + 1, 0
        return self.observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        done = self.t >= LENGTHS[(self.row + self.episode) % len(LENGTHS)]
        return self.observation(), float(self.t), done, False, {"success": self.episode % 3 != 2}

    def observation(self) -> Any:
        picture = self.np_random.integers(0, 256, IMAGE, dtype=np.uint8)
        picture[0, 0, :2] = self.episode % 256, self.t
        state = np.array([self.episode, self.t], np.float32)
        return {"qpos": state, "sensor": {"front": {"color": picture}}}


def cameras(num_envs: int) -> VectorEnv[Any, Any, Any]:
    """Return ``num_envs`` environments of the world above."""
    makers = [lambda row=row: CameraEnv(row) for row in range(num_envs)]
    return SyncVectorEnv(makers, autoreset_mode=AutoresetMode.NEXT_STEP)


class RandomPolicy:
    """Answers random numbers, so that no two actions are the same."""

    def __init__(self, env: VectorEnv[Any, Any, Any], seed: int) -> None:
        self.count, self.rng = env.num_envs, np.random.default_rng(seed)

    def act(self, observations: Any) -> np.ndarray:
        return self.rng.uniform(-1.0, 1.0, (self.count, 1)).astype(np.float32)
