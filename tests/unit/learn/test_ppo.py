"""PPO over vector environments: what it learns, what it clips, and that it resumes exactly."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from cadenza.core.errors import CheckpointError, ConfigurationError, InputError, NotReadyError
from cadenza.core.payloads import deserialise, serialise
from cadenza.learn.algorithms.action_codec import ActionCodec
from cadenza.learn.algorithms.grpo import GRPO
from cadenza.learn.algorithms.on_policy_buffer import BufferShape, OnPolicyBuffer, Outcome
from cadenza.learn.algorithms.ppo import PPO
from cadenza.learn.algorithms.ppo_agent import PPOAgent
from cadenza.learn.configs import GRPOConfig, PPOConfig
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


SMALL = PPOConfig(
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
    settings = SMALL.model_copy(update={"squash_actions": squash, "decay_learning_rate": True})
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

        wide = SMALL.model_copy(update={"squash_actions": squash, "initial_log_std": 0.5})
        PPO(vector(make), wide).learn(128)
        return np.concatenate([np.ravel(env.actions) for env in made])

    clipped, squashed = seen(False), seen(True)
    assert np.abs(squashed).max() < 0.5 == np.abs(clipped).max()
    assert np.mean(np.abs(clipped) == 0.5) > 0.5


def test_squashing_into_what_has_no_bounds_is_refused():
    squashing = SMALL.model_copy(update={"squash_actions": True})
    with pytest.raises(ConfigurationError, match="PPO: expected a Box with finite bounds"):
        PPO(vector(), squashing)
    with pytest.raises(ConfigurationError, match="PPOAgent: expected continuous actions with"):
        PPOAgent(squashing, observation_dim=1, choices=2)


def test_next_step_autoreset_learns_from_executed_actions_only():
    ppo = PPO(
        vector(CountingEnv, mode=AutoresetMode.NEXT_STEP, count=1),
        PPOConfig(rollout_length=8, batch_size=8, epochs=1),
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
    ppo = PPO(vector(CountingEnv, count=2), PPOConfig(rollout_length=7, batch_size=7, epochs=1))
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
    settings = PPOConfig(
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


class Doubled(torch.nn.Module):
    """Features: the observation, and a learned sum of it."""

    width = 2

    def __init__(self):
        super().__init__()
        self.sum = torch.nn.Linear(1, 1)

    def forward(self, obs):
        return torch.cat((obs, self.sum(obs)), dim=1)


@pytest.mark.parametrize("learner", [PPO, GRPO])
@pytest.mark.parametrize("discrete", [True, False])
def test_greedy_network_is_the_policy_on_plain_observations(learner, discrete):
    scale = {"normalize_observations": True} if learner is PPO else {}
    kind = PPOConfig if learner is PPO else GRPOConfig
    config = kind(rollout_length=16, batch_size=16, squash_actions=not discrete, **scale)
    envs = SyncVectorEnv([lambda: SignEnv(discrete=discrete)] * 4)
    trained = learner(envs, config, encoder=Doubled)
    before = [p.detach().clone() for p in trained.agent.network.actor[0].parameters()]
    trained.learn(256)
    after = trained.agent.network.actor[0].parameters()
    assert not any(torch.equal(b, a) for b, a in zip(before, after, strict=True))
    observations = np.linspace(-1.0, 1.0, 6, dtype=np.float32)[:, None]
    with torch.no_grad():
        greedy = trained.agent.greedy(torch.from_numpy(observations)).numpy()
    expected = greedy if discrete else 2.0 * greedy  # the bounds are ±2
    np.testing.assert_allclose(trained.policy(observations), expected, atol=1e-6)


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
        PPOConfig(learning_rate=1e30, batch_size=4, epochs=3), observation_dim=1, choices=2
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
