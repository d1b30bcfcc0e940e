"""Games for two whose second seat is open: a batch of rows that begin anew in the same step."""

from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

LABELS = 4


class Labels(VectorEnv):
    """Both choose a label in each of four steps; choosing the same pays what its label is worth.

    Both see the worths. In the ``family`` one label, another in every episode, is worth 1 and the
    others a fifth of it; otherwise all are worth 1, so which one is chosen is a convention.
    """

    def __init__(self, num_envs: int = 16, *, family: bool):
        self.num_envs, self.family = num_envs, family
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self.single_observation_space = spaces.Box(0.0, 1.0, (LABELS,), np.float32)
        self.single_action_space = spaces.Discrete(LABELS)
        self.partner_observation_space = self.single_observation_space
        self.partner_action_space = self.single_action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.partner: Any = None
        self.partner_actions: list[np.ndarray] = []

    def seat_partner(self, partner) -> None:
        self.partner = partner

    def reset(self, *, seed=None, options=None):
        self.rng = np.random.default_rng(seed)
        self.worths = np.zeros((self.num_envs, LABELS), np.float32)
        self.steps, self.returns = 0, np.zeros(self.num_envs)
        self._begin()
        return self.worths.copy(), {}

    def step(self, actions):
        other = self.partner.act(self.worths.copy())
        self.partner_actions.append(other)
        rows, rewards = np.arange(self.num_envs), self._pay(np.asarray(actions), other)
        self.steps, self.returns = self.steps + 1, self.returns + rewards
        over = np.full(self.num_envs, self.steps == 4)
        info = {}
        if over.all():
            self.partner.end(rows.tolist(), self.returns.tolist())
            info = {"final_obs": self.worths.copy()}
            self.steps, self.returns = 0, np.zeros(self.num_envs)
            self._begin()
        return self.worths.copy(), rewards, over, np.zeros(self.num_envs, np.bool_), info

    def _pay(self, actions, other):
        worths = self.worths[np.arange(self.num_envs), actions]
        return np.where(actions == other[:, 0], worths, 0.0).astype(np.float64)

    def _begin(self):
        best = self.rng.integers(LABELS, size=self.num_envs)
        self.worths[:] = 0.2 if self.family else 1.0
        self.worths[np.arange(self.num_envs), best] = 1.0
        self.partner.begin(range(self.num_envs), range(self.num_envs))


class Near(Labels):
    """Both choose two numbers in each of four steps; what lies near the other's is worth more."""

    def __init__(self, num_envs: int = 8):
        super().__init__(num_envs, family=True)
        self.single_action_space = spaces.Box(-1.0, 3.0, (2,), np.float32)
        self.partner_action_space = self.single_action_space
        self.action_space = batch_space(self.single_action_space, num_envs)

    def _pay(self, actions, other):
        return -np.abs(actions - other).sum(axis=1).astype(np.float64)


def cross_play(one, other, *, family: bool, episodes: int = 200) -> float:
    """Return the mean reward per step of two greedy agents that meet, first step of an episode."""
    rng = np.random.default_rng(7)
    worths = np.full((episodes, LABELS), 0.2 if family else 1.0, np.float32)
    worths[np.arange(episodes), rng.integers(LABELS, size=episodes)] = 1.0
    choices = [agent.predict(worths, state=None)[0] for agent in (one, other)]
    same = choices[0] == choices[1]
    return float(np.where(same, worths[np.arange(episodes), choices[0]], 0.0).mean())
