"""Actions are scaled by high - low: what has no room is fixed, what has too much is refused."""

import gymnasium
import numpy as np
import pytest

import cadenza
from cadenza.core.errors import ConfigurationError
from tests.unit.learn.counting_envs import TargetTeam

LARGEST = float(np.finfo(np.float32).max)
SCALING = {
    "SAC": {"warmup_steps": 10},
    "TD3": {"warmup_steps": 10},
    "MBPO": {"warmup_steps": 10},
    "PPO": {"squash_actions": True, "rollout_length": 16},
    "DAgger": {"expert": lambda seen: np.zeros((len(seen), 2)), "round_length": 10, "updates": 2},
}


class Still(gymnasium.Env):
    """Nothing moves; every executed action is kept."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self, low, high, dtype=np.float32):
        self.action_space = gymnasium.spaces.Box(np.array(low, dtype), np.array(high, dtype))
        self.executed = []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.executed.append(np.array(action))
        self.steps += 1
        return np.zeros(2, np.float32), 0.0, False, self.steps >= 8, {}


@pytest.mark.parametrize("name", SCALING)
def test_component_with_equal_bounds_is_fixed(name):
    env = Still([-1.0, 0.25], [3.0, 0.25])
    agent = getattr(cadenza, name)(env, **SCALING[name]).learn(40, progress=False)
    acted = np.array([*env.executed, agent.predict(np.zeros(2, np.float32))])
    assert len(acted) > 40
    np.testing.assert_array_equal(acted[:, 1], 0.25)
    assert np.all((acted[:, 0] >= -1.0) & (acted[:, 0] <= 3.0))
    assert np.ptp(acted[:, 0]) > 0.0


@pytest.mark.parametrize("name", SCALING)
@pytest.mark.parametrize("edge", [np.inf, LARGEST, 0.9 * LARGEST, 1e19])
def test_bounds_that_are_none_are_refused_when_the_agent_is_made(name, edge):
    with pytest.raises(ConfigurationError, match=r"finite bounds .*at most 1e\+18 apart"):
        getattr(cadenza, name)(Still([-edge, -1.0], [edge, 1.0]), **SCALING[name])


def test_bounds_whose_difference_overflows_their_own_type_are_scaled_to():
    # In float16, 60 000 - (-60 000) is infinite.
    env = Still([-60_000.0] * 2, [60_000.0] * 2, np.float16)
    cadenza.SAC(env, warmup_steps=10).learn(40, progress=False)
    assert np.isfinite(env.executed).all()
    assert np.abs(env.executed).max() > 6_000.0


@pytest.mark.parametrize(("name", "settings"), [("HATD3", {}), ("MAPPO", {"squash_actions": True})])
def test_team_without_bounds_to_scale_to_is_refused(name, settings):
    class Unbounded(TargetTeam):
        def __init__(self, num_envs=2):
            super().__init__(num_envs)
            for uid, space in self.action_space.items():
                self.action_space[uid] = gymnasium.spaces.Box(-LARGEST, LARGEST, space.shape)

    with pytest.raises(ConfigurationError, match=f"{name}: expected actions of .* finite bounds"):
        getattr(cadenza, name)(Unbounded, num_envs=2, **settings)
