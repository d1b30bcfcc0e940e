"""MAPPO, HAPPO and HATD3 on a team task with a known best policy: a_one = x, a_two = −x."""

import numpy as np
import pytest
import torch

import cadenza
from cadenza.core.errors import CheckpointError, ConfigurationError, InputError
from cadenza.core.payloads import deserialise, serialise
from cadenza.learn.agents.hatd3 import HATD3Learner
from cadenza.learn.agents.off_policy import Transitions
from cadenza.learn.configs import HATD3Config
from cadenza.learn.env.teams import TeamSteps
from tests.unit.learn.counting_envs import TargetTeam, target_state

PROBES = np.array([-0.8, 0.0, 0.8])
SETTINGS = {
    "MAPPO": {
        "rollout_length": 16,
        "batch_size": 64,
        "epochs": 4,
        "learning_rate": 5e-3,
        "gamma": 0.5,
        "hidden_sizes": (16,),
        "initial_log_std": -0.5,
        "max_gradient_norm": 10.0,
    },
    "HAPPO": {
        "rollout_length": 16,
        "batch_size": 64,
        "learning_rate": 5e-3,
        "gamma": 0.5,
        "hidden_sizes": (16, 16),
    },
    "HATD3": {
        "learning_rate": 3e-3,
        "gamma": 0.5,
        "hidden_sizes": (16,),
        "batch_size": 64,
        "warmup_steps": 200,
        "train_every": 8,
    },
}


def build(name, seed=0, **changes):
    env = TargetTeam(8, widths=(3, 4) if name == "HAPPO" else (1, 1))
    return getattr(cadenza, name)(env, seed=seed, **{**SETTINGS[name], **changes})


@pytest.mark.parametrize(("name", "steps"), [("MAPPO", 8_000), ("HAPPO", 8_000), ("HATD3", 5_000)])
def test_team_learns_different_policies_for_different_robots(name, steps):
    team = build(name).learn(steps, progress=False)
    widths = team.team.observation_dims
    joint = np.concatenate([target_state(PROBES, width) for width in widths], axis=1)
    first, second = team.predict(joint)
    np.testing.assert_allclose(first[:, 0], PROBES, atol=0.35)
    np.testing.assert_allclose(second[:, 0], -PROBES, atol=0.35)


@pytest.mark.parametrize("name", SETTINGS)
def test_equal_seeds_give_equal_policies_and_others_do_not(name):
    def probe(seed):
        team = build(name, seed).learn(512, progress=False)
        states = np.ones((1, team.team.joint_dim), np.float32)
        best, again = (np.concatenate(team.predict(states)) for _ in range(2))
        assert np.array_equal(best, again)  # chance is for learning only
        return best

    assert np.array_equal(probe(0), probe(0))
    assert not np.array_equal(probe(0), probe(1))


@pytest.mark.parametrize("name", SETTINGS)
def test_team_that_was_stored_goes_on_as_if_it_had_not_been(name):
    changes = {"normalize_observations": True, "normalize_rewards": True}
    whole, resumed = build(name, **changes), build(name, **changes)
    whole.learn(250, progress=False)
    resumed.load_state_dict(deserialise(serialise(whole.state_dict()), max_bytes=10**8))
    for team in (whole, resumed):
        team.learn(250, progress=False)
    probes = np.ones((1, whole.team.joint_dim), np.float32)
    assert np.array_equal(whole.predict(probes), resumed.predict(probes))
    assert (whole.steps, whole.updates) == (resumed.steps, resumed.updates)
    assert whole.mean_return == resumed.mean_return


def test_hatd3_forgets_episodes_that_a_new_training_does_not_end():
    """They would go on with the first state of another one."""
    team = build("HATD3", warmup_steps=10_000)
    for _ in range(2):
        team.learn(6 * 8, progress=False)  # episodes have four steps
    assert team.memory.size() == 2 * 4 * 8


@pytest.mark.parametrize("name", SETTINGS)
def test_states_that_do_not_fit_are_refused(name):
    state = build(name).state_dict()
    with pytest.raises(CheckpointError, match="complete state"):
        build(name, hidden_sizes=(4,)).load_state_dict(state)


@pytest.mark.parametrize("name", SETTINGS)
def test_states_that_are_not_finite_are_refused_before_anybody_acts(name):
    class Broken(TargetTeam):
        def _observation(self):
            self.x[:] = np.nan
            return super()._observation()

    team = getattr(cadenza, name)(Broken(8), **SETTINGS[name])
    with pytest.raises(InputError, match="the robots' states: expected finite"):
        team.learn(8, progress=False)


def test_mappo_refuses_robots_of_different_widths():
    with pytest.raises(ConfigurationError, match="equally wide states and actions"):
        cadenza.MAPPO(TargetTeam(2, widths=(1, 2)))


def test_mappo_squashes_actions_strictly_into_the_bounds():
    sent = []

    class Noting(TargetTeam):
        def step(self, action):
            sent.append(np.concatenate(list(action.values())))
            return super().step(action)

    team = cadenza.MAPPO(Noting(8), rollout_length=16, squash_actions=True, initial_log_std=0.5)
    team.learn(128, progress=False)
    assert 1.9 < np.abs(sent).max() < 2.0  # clipped, a fifth of them would be ±2


def test_happo_that_blows_up_says_so():
    with pytest.raises(InputError, match="finite"):
        build("HAPPO", learning_rate=1e30).learn(2_000, progress=False)


def learner(**changes):
    return HATD3Learner(
        columns=[(0, 2), (2, 3)],
        joint_dim=3,
        action_dims=[1, 2],
        config=HATD3Config(**{"hidden_sizes": (8,), **changes}),
    )


def transitions(rows=32):
    generator = torch.Generator().manual_seed(0)
    return Transitions(
        states=torch.randn((rows, 3), generator=generator),
        actions=torch.rand((rows, 3), generator=generator) * 2 - 1,
        rewards=torch.randn((rows, 1), generator=generator),
        next_states=torch.randn((rows, 3), generator=generator),
        masks=torch.ones((rows, 1)),
    )


def as_sampled(batch):
    """Return transitions as the memory gives them."""
    names = ("actions", "rewards", "masks")
    return {
        "observation": {"obs": batch.states},
        "next_observation": {"obs": batch.next_states},
        **{name: getattr(batch, name) for name in names},
    }


def test_hatd3_target_is_reward_plus_masked_smaller_value():
    hatd3_learner = learner(target_noise=0.0, gamma=0.9)
    batch = transitions()
    batch.masks[::2] = 0.0
    with torch.no_grad():  # nothing has moved yet: the targets are the networks themselves
        actions = torch.cat(hatd3_learner.act(batch.next_states, deterministic=True), dim=1)
        later = [critic(actions, batch.next_states) for critic in hatd3_learner.critics]
        targets = batch.rewards + 0.9 * batch.masks * torch.minimum(*later)
        now = [critic(batch.actions, batch.states) for critic in hatd3_learner.critics]
        expected = sum((values - targets).square().mean().item() for values in now) / 2
    assert hatd3_learner.update(as_sampled(batch))["value_loss"] == pytest.approx(
        expected, rel=1e-5
    )


def test_hatd3_moves_actors_and_targets_with_a_delay():
    hatd3_learner = learner(policy_delay=3)
    before = [p.detach().clone() for p in hatd3_learner.actors.parameters()]
    targets = [p.detach().clone() for p in hatd3_learner.target_critics.parameters()]

    def moved(old, module):
        pairs = zip(old, module.parameters(), strict=True)
        return any(not torch.equal(a, b) for a, b in pairs)

    for _ in range(2):
        assert "policy_loss" not in hatd3_learner.update(as_sampled(transitions()))
    assert not moved(before, hatd3_learner.actors)
    assert not moved(targets, hatd3_learner.target_critics)
    assert "policy_loss" in hatd3_learner.update(as_sampled(transitions()))
    assert moved(before, hatd3_learner.actors)
    assert moved(targets, hatd3_learner.target_critics)


def test_hatd3_actors_leave_the_critics_alone():
    both, critics_only = learner(policy_delay=1), learner(policy_delay=2)
    assert "policy_loss" in both.update(as_sampled(transitions()))
    assert "policy_loss" not in critics_only.update(as_sampled(transitions()))
    pairs = zip(both.critics.parameters(), critics_only.critics.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


def test_hatd3_refuses_columns_outside_the_joint_state():
    with pytest.raises(InputError, match="one pair of columns within 3 per robot"):
        HATD3Learner(columns=[(0, 4)], joint_dim=3, action_dims=[1], config=HATD3Config())


def test_hatd3_learner_refuses_foreign_states():
    with pytest.raises(CheckpointError, match="HATD3Learner: expected a state of version 2"):
        learner().load_state_dict({})
    with pytest.raises(CheckpointError, match="complete state of a team of these sizes"):
        learner().load_state_dict({"version": 2, "actors": {}})


def test_joint_state_holds_every_robot_and_splits_back():
    team = TeamSteps(TargetTeam(3, widths=(1, 2)), ("one", "two"))
    joint = team.reset(0)
    assert joint.shape == (3, 3)
    assert team.joint_dim == 3
    assert [part.shape for part in team.split_state(joint)] == [(3, 1), (3, 2)]


def test_actions_are_clipped_and_a_time_limit_keeps_the_last_state():
    env = TargetTeam(2, horizon=2)
    team = TeamSteps(env, env.uids)
    team.reset(0)
    far = np.full((2, 1), 9.0)
    first = team.step([far, far])
    expected = -np.abs(2.0 - env.x) - np.abs(2.0 + env.x)
    np.testing.assert_allclose(first.rewards, expected)
    before = env.x
    last = team.step([far, far])
    assert last.boundaries.all()
    assert last.cut.tolist() == [0, 1]
    np.testing.assert_allclose(last.following[:, 0], before, rtol=1e-6)
    np.testing.assert_allclose(last.observations[:, 0], env.x, rtol=1e-6)


def test_termination_is_no_cut():
    env = TargetTeam(2, horizon=1, terminates=True)
    team = TeamSteps(env, env.uids)
    team.reset(0)
    before = env.x
    step = team.step([np.zeros((2, 1))] * 2)
    assert step.terminated.all()
    assert step.cut.tolist() == []
    np.testing.assert_allclose(step.following[:, 0], before, rtol=1e-6)


def test_hidden_final_observation_is_refused():
    env = TargetTeam(1, horizon=1)
    env.hide_final = True
    team = TeamSteps(env, env.uids)
    team.reset(0)
    with pytest.raises(InputError, match=r"info\['final_observation'\], got none"):
        team.step([np.zeros((1, 1))] * 2)


@pytest.mark.parametrize("uids", [(), ("one", "one")])
def test_robots_are_named_once(uids):
    with pytest.raises(ConfigurationError, match="each named once"):
        TeamSteps(TargetTeam(1), uids)


def test_spaces_without_a_batch_are_refused():
    env = TargetTeam(1)
    env.action_space["two"] = env.action_space["two"].__class__(-1.0, 1.0, (1,), np.float32)
    with pytest.raises(ConfigurationError, match=r"batched Box spaces of shape \(1, D\) for 'two'"):
        TeamSteps(env, env.uids)


def test_hatd3_that_blows_up_says_so():
    hatd3_learner = learner()
    broken = transitions()._replace(rewards=torch.full((32, 1), torch.inf))
    with pytest.raises(InputError, match="expected a finite loss"):
        hatd3_learner.update(as_sampled(broken))
