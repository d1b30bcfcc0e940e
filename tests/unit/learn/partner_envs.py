"""Small games with a hidden partner, whose infos tell what it saw and did in every step."""

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space


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

    The partner does ``move`` if it is set, else what was drawn for the episode. ``space``
    is that of both seats' actions; an action's first number is told.
    """

    def __init__(self, space=None, *, lengths=(6,)):
        self.action_space = self.partner_action_space = space or spaces.Discrete(3)
        self.observation_space = spaces.Box(0.0, 1.0, (4,), np.float32)
        self.partner_observation_space = self.observation_space
        self.lengths, self.move = lengths, None

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
        did = self.kind if self.move is None else self.move
        self.last = [int(np.clip(np.ravel(each)[0], 0, 2)) for each in (action, did)]
        self.count += 1
        reward = float(self.last[0] == self.last[1])
        over = self.count == self.length
        return self.seen(1), reward, over, False, {**told, "partner_action": did}


class Matchings(VectorEnv):
    """``num_envs`` times `Matching`, whose second seat is open."""

    def __init__(self, space=None, *, num_envs=4, **options):
        self._games = [Matching(space, **options) for _ in range(num_envs)]
        self.num_envs, first = num_envs, self._games[0]
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self.single_observation_space = first.observation_space
        self.single_action_space = first.action_space
        self.partner_observation_space = first.partner_observation_space
        self.partner_action_space = first.partner_action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def seat_partner(self, partner):
        self._partner = partner

    def reset(self, *, seed=None, options=None):
        seeds = [None] * self.num_envs if seed is None else range(seed, seed + self.num_envs)
        seen = [game.reset(seed=each)[0] for game, each in zip(self._games, seeds, strict=True)]
        self._partner.begin(range(self.num_envs), range(self.num_envs))
        return np.stack(seen), {}

    def step(self, actions):
        states = np.stack([game.seen(0) for game in self._games])
        moves = self._partner.act(states)
        steps = []
        for game, action, move in zip(self._games, actions, moves, strict=True):
            game.move = move.reshape(game.action_space.shape)
            steps.append(game.step(action))
        seen, rewards, over, cut = (np.stack([step[k] for step in steps]) for k in range(4))
        info = {"partner_observation": states, "partner_action": moves, "final_obs": seen.copy()}
        rows = np.flatnonzero(over).tolist()
        self._partner.end(rows, rewards[rows].tolist())
        self._partner.begin(rows, rows)
        for row in rows:
            seen[row] = self._games[row].reset()[0]
        return seen, rewards, over, cut, info
