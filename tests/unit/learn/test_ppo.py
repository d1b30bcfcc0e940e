"""PPO over vector environments: what it learns, what it clips, and that it resumes exactly."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from cadenza.core.errors import CheckpointError, ConfigurationError, InputError, NotReadyError
from cadenza.core.payloads import deserialise, serialise
from cadenza.learn.algorithms.action_codec import ActionCodec
from cadenza.learn.algorithms.on_policy_buffer import BufferShape, OnPolicyBuffer, Outcome
from cadenza.learn.algorithms.ppo import PPO
from cadenza.learn.algorithms.ppo_agent import PPOAgent, PPOSettings
from cadenza.learn.env.replayable import ReplayableEnv
from tests.unit.learn.counting_envs import CountingEnv
from tests.unit.learn.sign_envs import SignEnv


class BanditEnv(SignEnv):
    """One step."""

    def __init__(self, *, discrete=True):
        super().__init__(discrete=discrete, horizon=1, terminates=True)


def vector(make=BanditEnv, *, count=4, mode=AutoresetMode.SAME_STEP, **options):
    def build(index):
        return ReplayableEnv(make(**options), root_seed=0, index=index)

    return SyncVectorEnv([lambda i=i: build(i) for i in range(count)], autoreset_mode=mode)


SMALL = PPOSettings(
    rollout_length=32, batch_size=32, epochs=4, learning_rate=1e-2, hidden_sizes=(16,)
)


def parameters(ppo):
    return torch.cat([p.detach().flatten() for p in ppo.agent.network.parameters()])


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
def test_discrete_bandit_is_solved(mode):
    ppo = PPO(vector(mode=mode), SMALL, seed=1)
    ppo.learn(3_000)
    observations = np.array([[1.0], [-1.0]], np.float32)
    assert ppo.policy(observations).tolist() == [1, 0]
    assert ppo.policy(observations[0]) == 1


@pytest.mark.parametrize("squash", [False, True])
def test_continuous_bandit_is_solved(squash):
    # Smaller steps at the end, so that where it ends does not depend on the last bits of sums.
    settings = replace(SMALL, squash_actions=squash, decay_learning_rate=True)
    ppo = PPO(vector(discrete=False), settings, seed=1)
    ppo.learn(8_000)
    actions = ppo.policy(np.array([[1.0], [-1.0]], np.float32))[:, 0]
    np.testing.assert_allclose(actions, [1.0, -1.0], atol=0.25)


def test_actions_reach_the_environment_shifted_or_clipped():
    discrete = ActionCodec(spaces.Discrete(3, start=5))
    assert discrete.to_env(np.array([0, 2])).tolist() == [5, 7]
    box = ActionCodec(spaces.Box(-0.5, 0.5, (2, 1), np.float32))
    assert box.components == 2
    assert box.to_env(np.array([[3.0, 0.1]]))[0].ravel().tolist() == pytest.approx([0.5, 0.1])


def test_squashed_actions_stay_inside_their_bounds_and_clipped_ones_pile_up_there():
    def seen(squash):
        made = []

        def make():
            made.append(CountingEnv(discrete=False, horizon=12))
            return made[-1]

        wide = replace(SMALL, squash_actions=squash, initial_log_std=0.5)
        PPO(vector(make), wide).learn(128)
        return np.concatenate([np.ravel(env.actions) for env in made])

    clipped, squashed = seen(False), seen(True)
    assert np.abs(squashed).max() < 0.5 == np.abs(clipped).max()
    assert np.mean(np.abs(clipped) == 0.5) > 0.5


def test_squashing_into_what_has_no_bounds_is_refused():
    squashing = replace(SMALL, squash_actions=True)
    with pytest.raises(ConfigurationError, match="PPO: expected a Box with finite bounds"):
        PPO(vector(), squashing)
    with pytest.raises(ConfigurationError, match="PPOAgent: expected continuous actions with"):
        PPOAgent(squashing, observation_dim=1, choices=2)


def test_next_step_autoreset_learns_from_executed_actions_only():
    ppo = PPO(
        vector(CountingEnv, mode=AutoresetMode.NEXT_STEP, count=1),
        PPOSettings(rollout_length=8, batch_size=8, epochs=1),
    )
    seen = []
    original = PPOAgent._batch

    def spy(self, buffer, estimates):
        seen.append(original(self, buffer, estimates))
        return seen[-1]

    PPOAgent._batch = spy
    try:
        ppo.learn(8)
    finally:
        PPOAgent._batch = original
    # Steps 1, 2, 3, (reset), 1, 2, 3, (reset): six of eight rows hold decisions.
    assert seen[0].observations[:, 1].tolist() == [0.0, 1.0, 2.0, 0.0, 1.0, 2.0]


def test_returns_of_finished_episodes_are_reported():
    reports = []
    ppo = PPO(vector(CountingEnv, count=2), PPOSettings(rollout_length=7, batch_size=7, epochs=1))
    ppo.learn(14, reports.append)
    assert reports[0].episode_returns == [6.0, 6.0, 6.0, 6.0]  # 1 + 2 + 3
    assert (reports[0].steps, reports[0].updates, ppo.updates) == (14, 1, 1)


def test_on_update_may_stop_the_run():
    ppo = PPO(vector(), SMALL)
    ppo.learn(10_000, lambda report: report.updates < 2)
    assert ppo.updates == 2


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
@pytest.mark.parametrize("extra", [0, 5])
def test_a_resumed_run_equals_an_unbroken_one_to_the_bit(mode, extra):
    settings = PPOSettings(
        rollout_length=10,
        batch_size=8,
        epochs=2,
        normalize_observations=True,
        normalize_rewards=True,
        decay_learning_rate=True,
        hidden_sizes=(8,),
    )

    def fresh():
        return PPO(vector(CountingEnv, discrete=False, seeded=True, mode=mode), settings, seed=3)

    whole = fresh()
    whole.learn(160)
    broken = fresh()
    broken.learn(160, lambda report: report.updates < 2)
    for _ in range(extra):
        broken.collect_step()
    state = deserialise(serialise(broken.state_dict()), max_bytes=10**8)
    resumed = fresh()
    resumed.load_state_dict(state)
    resumed.learn(160)
    assert torch.equal(parameters(whole), parameters(resumed))
    assert (whole.steps, whole.updates) == (resumed.steps, resumed.updates) == (160, 4)


def test_environments_without_a_record_begin_anew_after_a_resume():
    envs = SyncVectorEnv([CountingEnv], autoreset_mode=AutoresetMode.SAME_STEP)
    ppo = PPO(envs, SMALL)
    ppo.collect_step()
    other = PPO(SyncVectorEnv([CountingEnv], autoreset_mode=AutoresetMode.SAME_STEP), SMALL)
    other.load_state_dict(ppo.state_dict())
    other.collect_step()
    assert other.envs.envs[0].count == 1


def test_settings_change_what_is_learned():
    def trained(**changes):
        values = {"rollout_length": 16, "batch_size": 16, "epochs": 2, "hidden_sizes": (8,)}
        # Rewards depend on actions here; otherwise squashing changes rounding errors alone.
        ppo = PPO(vector(SignEnv, discrete=False), PPOSettings(**{**values, **changes}), seed=0)
        ppo.learn(256)
        return parameters(ppo)

    plain = trained()
    assert torch.equal(plain, trained())
    changes = [
        {"learning_rate": 1e-3},
        {"decay_learning_rate": True},
        {"gamma": 0.5},
        {"gae_lambda": 0.5},
        {"clip_epsilon": 1e-4},
        {"clip_value": 0.01},
        {"value_loss": "huber"},
        {"value_coefficient": 0.1},
        {"entropy_coefficient": 0.1},
        {"max_gradient_norm": 1e-3},
        {"normalize_advantages": False},
        {"target_kl": 1e-9},
        {"normalize_observations": True},
        {"normalize_rewards": True},
        {"squash_actions": True},
        {"initial_log_std": -1.0},
        {"epochs": 3},
        {"batch_size": 8},
    ]
    for change in changes:
        assert not torch.equal(plain, trained(**change)), change


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rollout_length": 0}, "rollout_length: expected >= 1"),
        ({"learning_rate": float("nan")}, "learning_rate: expected > 0"),
        ({"clip_value": 0.0}, "clip_value: expected > 0 or None"),
        ({"entropy_coefficient": -1.0}, "entropy_coefficient: expected >= 0"),
        ({"gamma": 1.1}, r"gamma: expected in \[0, 1\]"),
        ({"value_loss": "l1"}, "value_loss: expected 'mse' or 'huber'"),
        ({"hidden_sizes": (0,)}, "hidden_sizes: expected widths >= 1"),
    ],
)
def test_settings_out_of_range_are_refused(changes, message):
    with pytest.raises(ConfigurationError, match=message):
        PPOSettings(**changes)


def test_agent_wants_exactly_one_kind_of_action():
    with pytest.raises(ConfigurationError, match="exactly one of choices and action_dim"):
        PPOAgent(SMALL, observation_dim=1)


def test_spaces_of_other_kinds_are_refused():
    class Images(BanditEnv):
        def __init__(self):
            super().__init__()
            self.observation_space = spaces.Discrete(3)

    class Binary(BanditEnv):
        def __init__(self):
            super().__init__()
            self.action_space = spaces.MultiBinary(2)

    with pytest.raises(ConfigurationError, match="FlattenObservation"):
        PPO(SyncVectorEnv([Images], autoreset_mode=AutoresetMode.SAME_STEP))
    with pytest.raises(ConfigurationError, match="Discrete or a real Box action space"):
        PPO(SyncVectorEnv([Binary], autoreset_mode=AutoresetMode.SAME_STEP))


def test_states_that_do_not_fit_are_refused():
    ppo = PPO(vector(), SMALL)
    with pytest.raises(CheckpointError, match="PPO: expected a state of version 1, got None"):
        ppo.load_state_dict({})
    with pytest.raises(CheckpointError, match="PPO: expected a complete state"):
        ppo.load_state_dict({"version": 1})
    with pytest.raises(CheckpointError, match="PPOAgent: expected a state of version 1"):
        ppo.agent.load_state_dict({})
    with pytest.raises(CheckpointError, match="complete state of an agent of these sizes"):
        ppo.agent.load_state_dict({"version": 1, "network": {}})


def test_update_that_blows_up_says_so():
    agent = PPOAgent(
        PPOSettings(learning_rate=1e30, batch_size=4, epochs=3), observation_dim=1, choices=2
    )
    buffer = OnPolicyBuffer(BufferShape(capacity=8, rows=1, observation_dim=1))
    rng = np.random.default_rng(0)
    while not buffer.full:
        rows = agent.scale(rng.normal(size=(1, 1)), learn=True)
        buffer.stage(rows, agent.act(rows))
        flags = np.zeros(1, bool)
        buffer.commit(Outcome(rng.normal(size=1), flags, flags), rows)
    with pytest.raises(InputError, match="expected finite numbers"):
        agent.update(buffer)


def test_update_of_an_empty_buffer_is_refused():
    agent = PPOAgent(SMALL, observation_dim=1, choices=2)
    with pytest.raises(NotReadyError, match="nothing was collected"):
        agent.update(OnPolicyBuffer(BufferShape(capacity=8, rows=1, observation_dim=1)))
