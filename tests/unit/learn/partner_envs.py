"""Small games with a hidden partner, whose infos tell what it saw and did in every step."""

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class HiddenTypes(gym.Env):
    """The partner always does one of three things; the ego is rewarded for doing the same.

    From the second of ten steps on the ego sees it with probability 0.35, and a blank otherwise.
    ``lengths`` are those of episodes, drawn evenly; ``noise`` is told instead of the truth.
    """

    observation_space = spaces.Box(0.0, 1.0, (4,), np.float32)
    action_space = spaces.Discrete(3)
    partner_observation_space = spaces.Box(0.0, 1.0, (4,), np.float32)
    partner_action_space = spaces.Discrete(3)

    def __init__(self, *, lengths=(10,), noise=False):
        self.lengths, self.noise = lengths, noise

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.kind, self.count = int(self.np_random.integers(3)), 0
        self.length = self.lengths[int(self.np_random.integers(len(self.lengths)))]
        return self.seen(), {}

    def seen(self):
        is_shown = self.count > 0 and self.np_random.random() < 0.35
        return np.eye(4, dtype=np.float32)[self.kind if is_shown else 3]

    def told(self):
        if self.noise:
            rng = np.random.default_rng(self.count)
            return {"partner_observation": rng.random(4), "partner_action": rng.integers(3)}
        return {"partner_observation": np.eye(4)[self.kind], "partner_action": self.kind}

    def step(self, action):
        told = self.told()
        self.count += 1
        is_over, is_cut = self.count == self.length, self.length % 2 == 0
        reward = float(action == self.kind)
        return self.seen(), reward, is_over and not is_cut, is_over and is_cut, told


class Meeting(HiddenTypes):
    """Numbers instead of choices: the partner stands at one of three places, and so shall the ego.

    ``action_space`` is given, so that every kind of action can be remembered.
    """

    partner_action_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)

    def __init__(self, action_space, **options):
        super().__init__(**options)
        self.action_space = action_space

    def told(self):
        place = np.array([50.0 * self.kind], np.float32)
        return {**super().told(), "partner_action": place}

    def step(self, action):
        seen, _, *rest = super().step(None)
        return seen, -abs(float(np.mean(action)) - self.kind), *rest


class Matching(gym.Env):
    """Both seats see what the other did last, and are rewarded for doing the same at once.

    The partner always does what was drawn for the episode, unless somebody plays it. ``space`` is
    that of both seats' actions; an action's first number is told.
    """

    def __init__(self, space=None, *, lengths=(6,)):
        self.action_space = self.partner_action_space = space or spaces.Discrete(3)
        self.observation_space = spaces.Box(0.0, 1.0, (4,), np.float32)
        self.partner_observation_space = self.observation_space
        self.lengths, self.partner = lengths, None

    def play_partner(self, act):
        self.partner = act

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.kind, self.count, self.last = int(self.np_random.integers(3)), 0, [None, None]
        self.length = self.lengths[int(self.np_random.integers(len(self.lengths)))]
        return self.seen(1), {}

    def seen(self, other):
        """Return what is seen of the last action of seat ``other``."""
        last = self.last[other]
        return np.eye(4, dtype=np.float32)[3 if last is None else last]

    def step(self, action):
        told = {"partner_observation": self.seen(0)}
        did = self.kind if self.partner is None else self.partner(self.seen(0))
        self.last = [int(np.clip(np.ravel(each)[0], 0, 2)) for each in (action, did)]
        self.count += 1
        reward = float(self.last[0] == self.last[1])
        over = self.count == self.length
        return self.seen(1), reward, over, False, {**told, "partner_action": did}
