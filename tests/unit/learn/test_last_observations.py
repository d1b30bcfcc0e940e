"""What a learner is told to have followed the last step of an episode: never the next episode."""

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import cadenza
from cadenza.core.errors import ConfigurationError
from cadenza.learn import Callback


class Line(gymnasium.Env):
    """x goes 0.0, 0.1, ...; the task ends at 1.0, a time limit after ``limit`` steps."""

    observation_space = gymnasium.spaces.Box(-2, 2, (1,), np.float32)

    def __init__(self, action_space, limit):
        self.action_space, self.limit = action_space, limit
        self.shown = np.zeros(1, np.float32)  # the array that all observations are written into

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        self.shown[:] = 0.0
        return self.seen(), {}

    def seen(self):
        return self.shown.copy()

    def step(self, action):
        self.count += 1
        self.shown[:] = 0.1 * self.count
        return self.seen(), 1.0, self.count >= 10, self.count >= self.limit, {}


class Thrifty(Line):
    """Shows one array again and again, as simulators without copies do."""

    def seen(self):
        return self.shown


class Steps(Callback):
    """Every sampled (observation, successor, mask), rounded to tenths."""

    def __init__(self):
        super().__init__()
        self.seen = set()

    def end_batch(self, default):
        columns = default["observation"]["obs"], default["next_observation"]["obs"]
        triples = zip(*(column[:, 0].tolist() for column in columns), default["masks"], strict=True)
        self.seen |= {(round(a, 1), round(b, 1), float(mask)) for a, b, mask in triples}


BOX, CHOICES = gymnasium.spaces.Box(-1, 1, (1,), np.float32), gymnasium.spaces.Discrete(2)


@pytest.mark.parametrize(
    ("name", "actions", "limit", "mode"),
    [
        *(("DQN", CHOICES, limit, mode) for limit in (7, 99) for mode in (None, *AutoresetMode)),
        *((name, BOX, 99, None) for name in ("MBPO", "SAC", "TD3")),
    ],
)
def test_last_step_of_an_episode_leads_to_its_last_observation(name, actions, limit, mode):
    def make():
        return (Thrifty if mode is None else Line)(actions, limit)

    envs = make if mode is None else SyncVectorEnv([make] * 2, autoreset_mode=mode)
    steps = Steps()
    agent = getattr(cadenza, name)(envs, seed=0, warmup_steps=90, batch_size=64)
    agent.learn(120, callbacks=steps, progress=False)
    length = min(limit, 10)
    expected = {(round(0.1 * k, 1), round(0.1 * (k + 1), 1), 1.0) for k in range(length)}
    if limit > 10:
        expected = expected - {(0.9, 1.0, 1.0)} | {(0.9, 1.0, 0.0)}
    assert steps.seen == expected


def test_ready_environments_that_reset_within_the_step_show_arrays():
    class Named(Line):
        observation_space = gymnasium.spaces.Discrete(12)

        def seen(self):
            return self.count

    envs = SyncVectorEnv([lambda: Named(BOX, 99)], autoreset_mode=AutoresetMode.SAME_STEP)
    with pytest.raises(ConfigurationError, match=r"arrays or images, got Discrete\(12\); use"):
        cadenza.SAC(envs)
