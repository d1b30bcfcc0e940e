"""An environment that is solved by naming what one sees, for learners over vector environments."""

import gymnasium
import numpy as np
from gymnasium import spaces


class SignEnv(gymnasium.Env):
    """Observation = a sign drawn at the start; reward 1 for naming it (discrete), or minus the
    squared distance to it (continuous). Over after ``horizon`` steps, by a time limit unless it
    ``terminates``, or earlier when ``fragile`` and wrong."""

    def __init__(self, *, discrete=True, horizon=3, fragile=False, terminates=False):
        self.discrete, self.horizon = discrete, horizon
        self.fragile, self.terminates = fragile, terminates
        self.observation_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.action_space = (
            spaces.Discrete(2) if discrete else spaces.Box(-2.0, 2.0, (1,), np.float32)
        )

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.sign = 1.0 if self.np_random.random() < 0.5 else -1.0
        self.count = 0
        return np.array([self.sign], np.float32), {}

    def step(self, action):
        self.count += 1
        if self.discrete:
            reward = float(int(action) == (self.sign > 0))
        else:
            reward = -float((action[0] - self.sign) ** 2)
        over = self.count >= self.horizon
        ended = (self.fragile and reward == 0.0) or (self.terminates and over)
        return np.array([self.sign], np.float32), reward, ended, over and not ended, {}
