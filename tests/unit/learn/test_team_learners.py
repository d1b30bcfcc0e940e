"""MAPPO, HAPPO and HATD3 on a team task with a known best policy: a_one = x, a_two = −x."""

import numpy as np
import pytest
import torch

from cadenza.core.errors import CheckpointError, ConfigurationError, InputError
from cadenza.core.payloads import deserialise, serialise
from cadenza.learn.algorithms.happo_team import HAPPO
from cadenza.learn.algorithms.hatd3 import HATD3Learner, TeamBatch
from cadenza.learn.algorithms.hatd3_team import HATD3
from cadenza.learn.algorithms.mappo import MAPPO
from cadenza.learn.configs import HAPPOConfig, HATD3Config, PPOConfig
from tests.unit.learn.counting_envs import TargetTeam, target_state

UIDS = ("one", "two")
PROBES = np.array([-0.8, 0.0, 0.8])


def mappo(seed=0, **changes):
    values = {
        "rollout_length": 16,
        "batch_size": 64,
        "epochs": 4,
        "learning_rate": 5e-3,
        "gamma": 0.5,
        "hidden_sizes": (16,),
        "initial_log_std": -0.5,
        "max_gradient_norm": 10.0,
    }
    return MAPPO(TargetTeam(8), UIDS, PPOConfig(**{**values, **changes}), seed=seed)


def happo(seed=0, **changes):
    values = {
        "rollout_length": 16,
        "batch_size": 64,
        "learning_rate": 5e-3,
        "gamma": 0.5,
        "hidden_sizes": (16, 16),
    }
    env = TargetTeam(8, widths=(3, 4))
    return HAPPO(env, UIDS, HAPPOConfig(**{**values, **changes}), seed=seed)


def hatd3(seed=0, **changes):
    values = {
        "learning_rate": 3e-3,
        "gamma": 0.5,
        "hidden_sizes": (16,),
        "batch_size": 64,
        "warmup_steps": 200,
        "train_every": 8,
    }
    return HATD3(TargetTeam(8), UIDS, HATD3Config(**{**values, **changes}), seed=seed)


def assert_solved(team, tolerance):
    widths = team.team.observation_dims
    joint = np.concatenate([target_state(PROBES, width) for width in widths], axis=1)
    first, second = team.policy(joint)
    np.testing.assert_allclose(first[:, 0], PROBES, atol=tolerance)
    np.testing.assert_allclose(second[:, 0], -PROBES, atol=tolerance)


@pytest.mark.parametrize(
    ("team", "told"),
    [
        (MAPPO, "MAPPO.config: expected PPOConfig or None"),
        (HAPPO, "HAPPO.config: expected HAPPOConfig or None"),
        (HATD3, "HATD3.config: expected HATD3Config or None"),
    ],
)
def test_settings_of_another_team_are_refused(team, told):
    with pytest.raises(InputError, match=told):
        team(TargetTeam(8), UIDS, {"gamma": 0.5})


@pytest.mark.parametrize("build", [mappo, happo, hatd3])
def test_steps_to_learn_for_must_be_a_number(build):
    with pytest.raises(InputError, match=r"\.learn: expected total_steps, .* got 'a'"):
        build().learn("a")


def test_mappo_tells_the_robots_apart_with_one_network():
    team = mappo()
    team.learn(12_000)
    assert_solved(team, 0.35)


def test_happo_learns_different_policies_for_different_robots():
    team = happo()
    team.learn(12_000)
    assert_solved(team, 0.35)


def test_hatd3_learns_from_replay():
    team = hatd3()
    team.learn(8_000)
    assert_solved(team, 0.35)


@pytest.mark.parametrize("build", [mappo, happo, hatd3])
def test_equal_seeds_give_equal_policies_and_others_do_not(build):
    def probe(seed):
        team = build(seed)
        team.learn(512)
        width = team.team.joint_dim
        return np.concatenate(team.policy(np.ones((1, width), np.float32)))

    assert np.array_equal(probe(0), probe(0))
    assert not np.array_equal(probe(0), probe(1))


@pytest.mark.parametrize("build", [mappo, happo])
@pytest.mark.parametrize("scaled", [False, True])
def test_resuming_after_an_update_is_deterministic(build, scaled):
    def resumed():
        team = build(normalize_rewards=scaled)
        team.learn(256)
        other = build(normalize_rewards=scaled)
        other.load_state_dict(deserialise(serialise(team.state_dict()), max_bytes=10**8))
        other.learn(512)
        return other

    one, two = resumed(), resumed()
    assert one.steps == two.steps == 512
    assert one.updates == 4
    probes = np.ones((1, one.team.joint_dim), np.float32)
    assert np.array_equal(one.policy(probes), two.policy(probes))


def test_hatd3_resumes_with_its_memory():
    team, other = hatd3(), hatd3()
    team.learn(512)
    other.load_state_dict(deserialise(serialise(team.state_dict()), max_bytes=10**8))
    assert other.memory.size() == team.memory.size() > 0
    other.learn(768)
    assert other.learner.updates > team.learner.updates


@pytest.mark.parametrize("build", [mappo, happo, hatd3])
def test_states_that_do_not_fit_are_refused(build):
    team = build()
    with pytest.raises(CheckpointError, match="expected a state of version 1, got None"):
        team.load_state_dict({})
    with pytest.raises(CheckpointError, match="complete state"):
        team.load_state_dict({"version": 1})


@pytest.mark.parametrize("build", [mappo, happo])
def test_on_update_may_stop_the_run(build):
    team = build()
    team.learn(10_000, lambda report: report.updates < 2)
    assert team.updates == 2


def test_hatd3_reports_and_may_be_stopped():
    reports = []
    team = hatd3()
    team.learn(10_000, lambda r: reports.append(r) or len(reports) < 2, report_every=400)
    assert [r.steps for r in reports] == [400, 800]
    assert reports[1].episode_returns
    assert set(reports[1].figures) == {"value_loss", "q_mean", "policy_loss"}


def test_mappo_refuses_robots_of_different_widths():
    with pytest.raises(ConfigurationError, match="equally wide states and actions"):
        MAPPO(TargetTeam(2, widths=(1, 2)), UIDS)


def test_mappo_squashes_actions_strictly_into_the_bounds():
    sent = []

    class Noting(TargetTeam):
        def step(self, action):
            sent.append(np.concatenate(list(action.values())))
            return super().step(action)

    config = PPOConfig(rollout_length=16, squash_actions=True, initial_log_std=0.5)
    MAPPO(Noting(8), UIDS, config).learn(128)
    assert 1.9 < np.abs(sent).max() < 2.0  # clipped, a fifth of them would be ±2


def test_happo_that_blows_up_says_so():
    with pytest.raises(InputError, match=r"HAPPO: expected a finite update|not finite|finite"):
        happo(learning_rate=1e30).learn(2_000)


def learner(**changes):
    return HATD3Learner(
        columns=[(0, 2), (2, 3)],
        joint_dim=3,
        action_dims=[1, 2],
        config=HATD3Config(**{"hidden_sizes": (8,), **changes}),
    )


def transitions(rows=32):
    generator = torch.Generator().manual_seed(0)
    return TeamBatch(
        states=torch.randn((rows, 3), generator=generator),
        actions=torch.rand((rows, 3), generator=generator) * 2 - 1,
        rewards=torch.randn((rows, 1), generator=generator),
        next_states=torch.randn((rows, 3), generator=generator),
        masks=torch.ones((rows, 1)),
    )


def test_hatd3_target_is_reward_plus_masked_smaller_value():
    hatd3_learner = learner(target_noise=0.0, gamma=0.9)
    batch = transitions()
    masked = TeamBatch(
        states=batch.states,
        actions=batch.actions,
        rewards=batch.rewards,
        next_states=batch.next_states,
        masks=torch.zeros((32, 1)),
    )
    assert torch.equal(hatd3_learner._targets(masked), batch.rewards)
    with torch.no_grad():
        actions = torch.cat(hatd3_learner.act(batch.next_states, deterministic=True), dim=1)
        values = [critic(actions, batch.next_states) for critic in hatd3_learner.critics]
    expected = batch.rewards + 0.9 * torch.minimum(*values)
    torch.testing.assert_close(hatd3_learner._targets(batch), expected)


def test_hatd3_moves_actors_and_targets_with_a_delay():
    hatd3_learner = learner(policy_delay=3)
    before = [p.detach().clone() for p in hatd3_learner.actors.parameters()]
    targets = [p.detach().clone() for p in hatd3_learner.target_critics.parameters()]

    def moved(old, module):
        pairs = zip(old, module.parameters(), strict=True)
        return any(not torch.equal(a, b) for a, b in pairs)

    for _ in range(2):
        assert "policy_loss" not in hatd3_learner.update(transitions())
    assert not moved(before, hatd3_learner.actors)
    assert not moved(targets, hatd3_learner.target_critics)
    assert "policy_loss" in hatd3_learner.update(transitions())
    assert moved(before, hatd3_learner.actors)
    assert moved(targets, hatd3_learner.target_critics)


def test_hatd3_actors_leave_the_critics_alone():
    hatd3_learner = learner()
    before = [p.detach().clone() for p in hatd3_learner.critics.parameters()]
    hatd3_learner._update_actors(transitions().states)
    for old, new in zip(before, hatd3_learner.critics.parameters(), strict=True):
        assert torch.equal(old, new)


def test_hatd3_refuses_columns_outside_the_joint_state():
    with pytest.raises(InputError, match="one pair of columns within 3 per robot"):
        HATD3Learner(columns=[(0, 4)], joint_dim=3, action_dims=[1], config=HATD3Config())


def test_hatd3_that_blows_up_says_so():
    hatd3_learner = learner()
    batch = transitions()
    broken = TeamBatch(
        states=batch.states,
        actions=batch.actions,
        rewards=batch.rewards * float("inf"),
        next_states=batch.next_states,
        masks=batch.masks,
    )
    with pytest.raises(InputError, match="expected finite losses"):
        hatd3_learner.update(broken)


def test_hatd3_learner_refuses_foreign_states():
    with pytest.raises(CheckpointError, match="HATD3Learner: expected a state of version 1"):
        learner().load_state_dict({})
    with pytest.raises(CheckpointError, match="complete state of a team of these sizes"):
        learner().load_state_dict({"version": 1, "actors": {}})
