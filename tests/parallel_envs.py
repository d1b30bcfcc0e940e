"""A PettingZoo parallel environment for tests; the project meets it by its name only."""

from typing import ClassVar

import numpy as np
from gymnasium import spaces


class Matching:
    """Both agents see a bit, (1, 2), and match it; own rewards of 1 and 10, success if all did.

    Args:
        agents: How many; they are a_0, b_1, c_2 ...
        actions: "choice", "box" (first of two components, positive for 1) or "several".
        leaves: Step after which b_1 is gone; 0 never.
        steps: Its own length.
    """

    metadata: ClassVar = {"name": "matching", "has_success": True}
    render_mode = None

    def __init__(self, *, agents=2, actions="choice", leaves=0, steps=8):
        self.possible_agents = [f"{letter}_{k}" for k, letter in enumerate("abc"[:agents])]
        self.agents = []
        self.leaves, self.steps, self.is_closed = leaves, steps, False
        self._choices = actions != "box"
        self._action = {
            "choice": spaces.Discrete(3),
            "box": spaces.Box(-2.0, 2.0, (1, 2), np.float64),
            "several": spaces.MultiDiscrete([2, 2]),
        }[actions]

    @property
    def unwrapped(self):
        return self

    def observation_space(self, agent):
        return spaces.Box(0.0, 1.0, (1, 2), np.float64)

    def action_space(self, agent):
        return self._action

    def reset(self, seed=None, options=None):
        self.rng = np.random.default_rng(seed)
        self.agents, self.time, self.success = list(self.possible_agents), 0, True
        return self._observe(), {agent: {} for agent in self.agents}

    def step(self, actions):
        assert set(actions) == set(self.agents)
        played = {a: v if self._choices else int(v[0, 0] > 0) for a, v in actions.items()}
        hits = {agent: float(choice == self.bit) for agent, choice in played.items()}
        self.success = self.success and hits["a_0"] == 1.0
        self.time += 1
        over = self.time >= self.steps
        gone = {agent: over or (agent == "b_1" and self.time == self.leaves) for agent in hits}
        rewards = {
            agent: hit * 10 ** self.possible_agents.index(agent) for agent, hit in hits.items()
        }
        observations = {agent: seen for agent, seen in self._observe().items() if agent in hits}
        infos = {agent: {"success": self.success and over} for agent in hits}
        self.agents = [agent for agent in self.agents if not gone[agent]]
        return observations, rewards, gone, dict.fromkeys(hits, False), infos

    def close(self):
        self.is_closed = True

    def _observe(self):
        self.bit = int(self.rng.integers(2))
        seen = np.array([[self.bit, 1 - self.bit]], dtype=np.float64)
        return {agent: seen.copy() for agent in self.agents}


class InTurns:
    """Has the methods of an AEC environment."""

    possible_agents = ("a_0", "b_1")

    def agent_iter(self):
        return iter(())
