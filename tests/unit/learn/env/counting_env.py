"""An environment whose observations say where they come from: (environment, episode, step)."""

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

#: How an episode ends: (terminated, truncated).
TERMINATED = (True, False)
TRUNCATED = (False, True)
BOTH = (True, True)

VECTOR_CLASSES = (SyncVectorEnv, AsyncVectorEnv)
MODES = ("SameStep", "NextStep", "Disabled")


class CountingEnv(gymnasium.Env[Any, Any]):
    """Episode k lasts ``plan[k % len(plan)][0]`` steps and ends as ``plan[..][1]`` says.

    The reward of the step to t is ``100 * episode + t``. All actions are kept.
    With ``seeded``, the seed of the reset chooses k, so that nothing of earlier episodes matters.
    """

    def __init__(
        self,
        index: int = 0,
        plan: tuple[tuple[int, tuple[bool, bool]], ...] = ((3, TERMINATED),),
        action_space: spaces.Space[Any] | None = None,
        as_dict: bool = False,
        render_mode: str | None = None,
        seeded: bool = False,
    ) -> None:
        self.index = index
        self.seeded = seeded
        self.plan = plan
        self.as_dict = as_dict
        self.render_mode = render_mode
        self.rendered = 0
        self.action_space = action_space or spaces.Box(-1.0, 1.0, (2,), np.float32)
        position = spaces.Box(-np.inf, np.inf, (3,), np.float32)
        self.observation_space = (
            spaces.Dict({"position": position, "kind": spaces.Discrete(7)}) if as_dict else position
        )
        self.episode = -1
        self.t = 0
        self.actions: list[Any] = []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode = seed % 997 if self.seeded else self.episode + 1
        self.t = 0
        return self.observe(), {}

    def step(self, action):
        self.actions.append(action)
        self.t += 1
        length, (terminated, truncated) = self.plan[self.episode % len(self.plan)]
        done = self.t >= length
        reward = 100.0 * self.episode + self.t
        return self.observe(), reward, done and terminated, done and truncated, {}

    def observe(self):
        position = np.array([self.index, self.episode, self.t], np.float32)
        return {"position": position, "kind": self.index} if self.as_dict else position

    def render(self):
        self.rendered += 1
        return np.full((2, 2, 3), self.index, np.uint8)


def vector(
    *makers: Callable[[], gymnasium.Env[Any, Any]],
    mode: str = "SameStep",
    kind: Callable[..., Any] = SyncVectorEnv,
) -> Any:
    """Return the environments as one."""
    return kind(list(makers), autoreset_mode=mode)
