"""E3T: the noisy copy in the partner's seat, what is foretold of it, files, and what is refused."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

import cadenza
from cadenza.core.errors import ConfigurationError
from cadenza.learn.nn.belief import Foretold
from cadenza.learn.nn.portable import load_policy_file
from tests.unit.learn.partner_envs import HiddenTypes, Matching, Matchings
from tests.unit.learn.test_liam import loosened

SMALL = {
    "hidden_sizes": (16,),
    "rollout_length": 24,
    "batch_size": 48,
    "epochs": 2,
    "num_envs": 4,
    "history": 3,
}
#: Every kind of action.
ACTIONS = {
    "choices": (None, {}),
    "numbers": (spaces.Box(-1.0, 3.0, (2,)), {}),
    "squashed": (spaces.Box(-1.0, 3.0, (2,)), {"squash_actions": True}),
    "several": (spaces.MultiDiscrete([3, 4]), {"factored_choices": True}),
}


def test_ego_and_copy_find_a_convention_that_is_foretold():
    agent = cadenza.E3T(
        Matchings(num_envs=8),
        **{**SMALL, "num_envs": None, "batch_size": 96, "epochs": 4, "history": 2},
        seed=0,
        learning_rate=1e-2,
        model_learning_rate=1e-2,
        clip_epsilon=0.2,
        copy_share=0.5,
        random_share=cadenza.schedules.linear(0.6, 0.0, steps=10 * 8 * 24),
    )
    agent.learn(20 * 8 * 24, progress=False)
    assert agent.mean_return > 5.0  # of 6; 2 by chance
    assert agent.scalar_logs["training/action_accuracy"] > 0.85


@pytest.mark.parametrize("name", ACTIONS)
def test_the_share_of_random_actions_is_drawn_in_every_step(name):
    space, settings = ACTIONS[name]
    agent = loosened(cadenza.E3T(lambda: Matching(space), **{**SMALL, **settings}))
    learner, count = agent.learner, 4_000
    rows = np.tile(np.eye(4, dtype=np.float32)[1], (count, 1))
    fresh = np.zeros((count, agent.state_width), np.float32)
    everything, _ = learner.play(rows, fresh, random_share=1.0)
    actions = agent._port.to_env(everything).reshape(count, -1)
    if name == "choices":
        assert np.allclose(np.bincount(actions[:, 0]) / count, 1 / 3, atol=0.04)
    elif name == "several":
        assert np.allclose(np.bincount(actions[:, 1]) / count, 1 / 4, atol=0.04)
    else:
        assert actions.min() > -1.0 - 1e-4
        assert actions.max() < 3.0 + 1e-4
        assert np.allclose(np.histogram(actions, 4, (-1.0, 3.0))[0] / actions.size, 0.25, atol=0.04)
    own, state = learner.play(rows, fresh, random_share=0.0)
    half, _ = learner.play(rows, fresh, random_share=0.5)
    if name == "choices":  # probabilities mix as their shares do
        mean = 0.5 * np.bincount(own, minlength=3) / count + 0.5 / 3
        assert np.allclose(np.bincount(half, minlength=3) / count, mean, atol=0.04)
        assert np.array_equal(state[:, :3], np.eye(3)[own])


def test_the_copy_follows_slowly_and_only_the_ego_learns():
    agent = cadenza.E3T(Matchings(), **{**SMALL, "num_envs": None}, copy_share=0.25)
    first = [w.clone() for w in agent.learner.copy.parameters()]
    agent.learn(96, progress=False)
    learner = agent.learner
    owners = learner.belief, learner.network.actor, learner.network.head
    now = [w for owner in owners for w in owner.parameters()]
    for slow, before, fast in zip(learner.copy.parameters(), first, now, strict=True):
        torch.testing.assert_close(slow, before + 0.25 * (fast - before))
    assert not any(w.requires_grad for w in learner.copy.parameters())


def test_choices_are_foretold_as_probabilities_of_length_one():
    z = torch.tensor([[1.0, 3.0, 2.0, 2.0]]).log()
    shown = Foretold([2, 2])(z)
    expected = torch.tensor([[0.25, 0.75, 0.5, 0.5]])
    torch.testing.assert_close(shown, expected / expected.norm())
    assert torch.equal(Foretold([])(z), z)


@pytest.mark.parametrize("name", ACTIONS)
def test_files_foretell_as_the_agent_does(name, tmp_path):
    space, settings = ACTIONS[name]
    agent = loosened(cadenza.E3T(lambda: Matching(space), **{**SMALL, **settings}))
    (path,) = agent.export_policy(tmp_path / "ego")
    policy, rng, state = load_policy_file(path), np.random.default_rng(0), None
    mine = np.zeros((5, agent.state_width), np.float32)
    for _ in range(5):
        seen = rng.random((5, 4)).astype(np.float32)
        action, state = agent.predict(seen, state=state)
        played, mine = policy.predict(seen, state=mine)
        np.testing.assert_allclose(played, action, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(mine, state, rtol=1e-4, atol=1e-5)
    width = {"choices": 3, "several": 7}.get(name, 2)
    window = mine[:, width:].reshape(5, 3, 4 + width)
    assert np.array_equal(window[:, -1, :4], seen)  # the newest comes last


def test_seats_that_are_not_alike_are_refused():
    with pytest.raises(ConfigurationError, match="leaves the partner's seat open"):
        cadenza.E3T(HiddenTypes, **SMALL).learn(96, progress=False)
    taller = Matchings()
    taller.partner_observation_space = spaces.Box(0.0, 1.0, (5,), np.float32)
    with pytest.raises(ConfigurationError, match="a partner's seat like the ego's"):
        cadenza.E3T(taller, **{**SMALL, "num_envs": None}).learn(96, progress=False)
    endless = spaces.Box(-np.inf, np.inf, (1,), np.float32)
    with pytest.raises(ConfigurationError, match="finite bounds"):
        cadenza.E3T(lambda: Matching(endless), **SMALL)
