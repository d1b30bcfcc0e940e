"""PushT that begins shortly before its end: the T a little off its goal, the agent behind it.

Physics, coverage and success (95 % of the goal) are PushT's own. One straight push solves it, which
a small policy learns in seconds. The push is along the stem of the T, from one of two sides: what
helps on one side is wrong on the other, so that a policy that knows one side alone solves half.
Units: pixels of the scene, 512 x 512; radians.
"""

from typing import Any

import numpy as np
from gym_pusht.envs.pusht import PushTEnv

GOAL = np.array([256.0, 256.0])
GOAL_ANGLE = np.pi / 4
#: Along the stem, from the bar to its end.
STEM = np.array([-np.sin(GOAL_ANGLE), np.cos(GOAL_ANGLE)])
#: Where to push (1 along the stem), and where the agent's middle then is along the stem, counted
#: from the T's origin: its radius away from the bar, or from the end of the stem.
SIDES = ((1.0, -15.0), (-1.0, 135.0))
#: Least and largest distance of the T from its goal.
DISTANCES = (10.0, 30.0)
#: Between agent and T at first.
GAP = 1.0
#: Where a push aims: a little beyond the goal, which counts as soon as it is reached.
BEYOND = 4.0


def target(side: int) -> np.ndarray:
    """Return where the agent must go to push from ``side``."""
    push, touch = SIDES[side]
    return GOAL + (touch + push * BEYOND) * STEM


class NearPushTEnv(PushTEnv):
    """PushT with other initial states; the option ``side`` chooses the side."""

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        drawn = int(self.np_random.integers(len(SIDES)))
        push, touch = SIDES[drawn if options is None else options["side"]]
        origin = GOAL - push * self.np_random.uniform(*DISTANCES) * STEM
        self._setup()
        self.block.angle = GOAL_ANGLE
        self.block.position = origin.tolist()
        self.agent.position = (origin + (touch - push * GAP) * STEM).tolist()
        self.space.step(self.dt)  # lets the new places take effect
        return self.get_obs(), {**self._get_info(), "is_success": False}
