"""Smallest continuous control task: stop a sliding point at the origin.

State:    position x in [-10, 10], velocity v; both without units.
Step:     v <- v + a, x <- x + v; beyond the walls x is put onto the wall and v changes sign.
Reward:   -x^2 after the step, so 0 is best.
Episode:  31 steps, then terminal; never truncated.
"""

from typing import Any, Final

import gymnasium
import numpy as np
from numpy.typing import NDArray

from cadenza.core.errors import NotReadyError
from cadenza.core.seeding import derive_substream

#: Distance of the walls from the origin.
WALL: Final = 10.0
#: Largest speed at the start.
START_SPEED: Final = 0.25
#: Steps after which the episode ends.
EPISODE_STEPS: Final = 31


class HitTheMiddle(gymnasium.Env[NDArray[np.float32], NDArray[np.float32]]):
    """Push a point with accelerations until it rests in the middle."""

    def __init__(self, *, seed: int | None = None) -> None:
        """Make the task; without ``seed``, unseeded copies in a vector environment start apart."""
        largest = np.finfo(np.float32).max
        bound = np.array([WALL, largest], np.float32)
        self.observation_space = gymnasium.spaces.Box(-bound, bound, dtype=np.float32)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
        self._rng = self.np_random if seed is None else _generator(seed)
        self._position = 0.0
        self._velocity = 0.0
        self._steps: int | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Start at a random place with a small random velocity; None continues the old stream."""
        super().reset(seed=seed, options=options)
        if seed is not None:
            self._rng = _generator(seed)
        self._position = float(self._rng.uniform(-WALL, WALL))
        self._velocity = float(self._rng.uniform(-START_SPEED, START_SPEED))
        self._steps = 0
        return self._observation(), {"info": []}

    def step(
        self, action: NDArray[np.float32]
    ) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Accelerate by ``action``, shape (1,).

        Raises:
            NotReadyError: No `reset` before.
        """
        if self._steps is None:
            raise NotReadyError("HitTheMiddle.step: expected reset() first; call it once.")
        self._steps += 1
        self._position, self._velocity = moved(
            self._position, self._velocity, float(np.asarray(action).reshape(-1)[0])
        )
        reward = -(self._position**2)
        return self._observation(), reward, self._steps >= EPISODE_STEPS, False, {}

    def _observation(self) -> NDArray[np.float32]:
        return np.array([self._position, self._velocity], np.float32)


def _generator(seed: int) -> np.random.Generator:
    """Return the source of the starts."""
    return derive_substream("hit_the_middle", root_seed=seed).default_rng()


def moved(position: float, velocity: float, acceleration: float) -> tuple[float, float]:
    """Return position and velocity after one step."""
    velocity += acceleration
    position += velocity
    if position > WALL:
        return WALL, -velocity
    if position < -WALL:
        return -WALL, -velocity
    return position, velocity
