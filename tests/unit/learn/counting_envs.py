"""Environments whose every number is known."""

import gymnasium
import numpy as np
from gymnasium import spaces


class CountingEnv(gymnasium.Env):
    """Observation = [episode, step]; reward = step; ends after ``horizon`` steps.

    With ``seeded``, the first entry is a number drawn from the episode's seed instead.
    """

    def __init__(self, horizon=3, *, terminates=False, discrete=True, seeded=False):
        self.horizon, self.terminates, self.seeded = horizon, terminates, seeded
        self.observation_space = spaces.Box(-1e6, 1e6, (2,), np.float32)
        self.action_space = (
            spaces.Discrete(3, start=5) if discrete else spaces.Box(-0.5, 0.5, (1,), np.float32)
        )
        self.actions = []
        self.episode = -1

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode = self.np_random.random() if self.seeded else self.episode + 1
        self.count = 0
        return self._observation(), {}

    def step(self, action):
        self.actions.append(action)
        self.count += 1
        over = self.count >= self.horizon
        return (
            self._observation(),
            float(self.count),
            over and self.terminates,
            over and not self.terminates,
            {},
        )

    def _observation(self):
        return np.array([self.episode, self.count], dtype=np.float32)


class TargetTeam:
    """N environments with two robots: reward −|a_0 − x| − |a_1 + x|, x redrawn every episode."""

    def __init__(self, num_envs, *, horizon=4, widths=(1, 1), terminates=False):
        self.num_envs, self.horizon, self.terminates = num_envs, horizon, terminates
        self.uids = self.agent_uids = ("one", "two")
        self.observation_space = {
            "agent": {
                uid: {"state": spaces.Box(-1.0, 1.0, (num_envs, width), np.float32)}
                for uid, width in zip(self.uids, widths, strict=True)
            }
        }
        self.action_space = {
            uid: spaces.Box(-2.0, 2.0, (num_envs, 1), np.float32) for uid in self.uids
        }
        self.widths = widths
        self.hide_final = False

    def reset(self, *, seed=None, options=None):
        self.rng = np.random.default_rng(seed)
        self.x = self.rng.uniform(-1.0, 1.0, self.num_envs)
        self.count = 0
        return self._observation(), {}

    def step(self, action):
        first, second = (action[uid][:, 0] for uid in self.uids)
        reward = -np.abs(first - self.x) - np.abs(second + self.x)
        self.count += 1
        over = self.count % self.horizon == 0
        info = {}
        observation = self._observation()
        if over:
            if not self.hide_final:
                info["final_observation"] = observation
            self.x = self.rng.uniform(-1.0, 1.0, self.num_envs)
            observation = self._observation()
        flags = np.full(self.num_envs, over)
        ended, cut = (flags, ~flags & False) if self.terminates else (flags & False, flags)
        return observation, reward, ended, cut, info

    def _observation(self):
        return {
            "agent": {
                uid: {"state": target_state(self.x, width)}
                for uid, width in zip(self.uids, self.widths, strict=True)
            }
        }


def target_state(x, width):
    """Return [x, 1, -1, 1, ...], (N, width): constants keep a layer norm from hiding x."""
    state = np.ones((len(x), width), dtype=np.float32)
    state[:, 2::2] = -1.0
    state[:, 0] = x
    return state
