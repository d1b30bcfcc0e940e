"""Whether environments follow their seeds, on small ones that do so in several wrong ways."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import gymnasium
import numpy as np
import pytest
import torch

from cadenza.loop.scripts.describe_environment import evaluated_seeds, same, seed_facts

BOX = gymnasium.spaces.Box(-1.0, 1.0, (2,))


class Seeded(gymnasium.Env[Any, Any]):
    """Begins at a place that its seed draws."""

    observation_space = gymnasium.spaces.Dict(
        {"robot": gymnasium.spaces.Dict({"position": BOX}), "pixels": BOX}
    )
    action_space = gymnasium.spaces.Box(0.5, 1.0, (1,))

    def __init__(self):
        self.place, self.resets, self.steps = np.zeros(2), 0, 0

    def drawn(self):
        return self.np_random.uniform(-1.0, 1.0, 2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = self.drawn()
        self.resets += 1
        return self.seen(), {}

    def step(self, action):
        assert self.action_space.contains(action)
        self.steps += 1
        return self.seen(), 0.0, False, False, {}

    def seen(self):
        return {"robot": {"position": self.place.astype(np.float32)}, "pixels": np.zeros(2)}


class Recorded(Seeded):
    """Plays its recorded states in order, as LIBERO does."""

    def drawn(self):
        return np.full(2, 0.1 * self.resets)


class Fixed(Seeded):
    """Begins at one place."""

    def drawn(self):
        return np.ones(2)


class Lingering(Seeded):
    """Begins a little further off after every step of earlier episodes."""

    def drawn(self):
        return super().drawn() + 1e-3 * self.steps


def facts_of(kind):
    return seed_facts(gymnasium.vector.SyncVectorEnv([kind]))


@pytest.mark.parametrize(
    ("kind", "repeats", "differs"),
    [(Seeded, True, True), (Recorded, False, True), (Fixed, True, False), (Lingering, False, True)],
)
def test_environment_is_judged_by_what_its_resets_show(kind, repeats, differs):
    assert facts_of(kind) == {"repeats": repeats, "differs": differs}


def test_rounding_and_shades_are_no_difference():
    place, picture = np.array([0.5, 100.0]), np.array([[0, 255]], np.uint8)
    state = {"place": place, "picture": picture}
    assert same(state, {"place": place * (1 + 1e-8), "picture": np.array([[2, 253]], np.uint8)})
    assert not same(state, {**state, "place": place + 1e-4})
    assert not same(state, {**state, "picture": np.array([[3, 255]], np.uint8)})
    assert not same(state, {**state, "place": place[:1]})
    assert not same(state, {"place": place})


def install(monkeypatch, evaluate):
    """Let ``evaluate`` stand for LeRobot's evaluation of many tasks."""
    parts = {
        "scripts.lerobot_eval": SimpleNamespace(eval_policy_all=evaluate),
        "policies.pretrained": SimpleNamespace(PreTrainedPolicy=torch.nn.Module),
    }
    for name, module in parts.items():
        monkeypatch.setitem(sys.modules, f"lerobot.{name}", cast("ModuleType", module))


def test_rewards_tell_the_seeds_that_episodes_were_reset_from(monkeypatch):
    batches: list[int] = []  # first seeds of the batches

    def eval_policy_all(envs, policy, n_episodes, start_seed):
        rewards: list[float] = []
        at_once = envs["seeds"][0].num_envs
        for first in batches:
            envs["seeds"][0].reset(seed=[start_seed + first + i for i in range(at_once)])
            found = [envs["seeds"][0].step(np.zeros((at_once, 1)))[1] for _ in range(4)]
            rewards += np.max(found, axis=0).tolist()
        return {"per_task": [{"metrics": {"max_rewards": rewards[:n_episodes]}}]}

    install(monkeypatch, eval_policy_all)
    batches[:] = range(0, 5, 2)
    assert evaluated_seeds() == [100, 101, 102, 103, 104]
    batches[:] = [0] * 5  # every batch from the same seeds
    assert evaluated_seeds() == [100 + i % 2 for i in range(5)]
