"""PPO over vector environments: what it learns, what it clips, and that it resumes exactly."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import cadenza
from cadenza.core.errors import CheckpointError, ConfigurationError, InputError, NotReadyError
from cadenza.learn.agents.on_policy import policy_terms
from cadenza.learn.agents.on_policy_buffer import BufferShape, OnPolicyBuffer, Outcome
from cadenza.learn.agents.ppo import PPOLearner, normalized, value_error
from cadenza.learn.configs import PPOConfig
from cadenza.learn.env.stepping import ActionCodec, ReplayableEnv
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


SMALL = {
    "rollout_length": 32,
    "batch_size": 32,
    "epochs": 4,
    "learning_rate": 1e-2,
    "hidden_sizes": (16,),
}


def ppo(envs, seed=0, **changes):
    return cadenza.PPO(envs, seed=seed, **{**SMALL, **changes})


def trained(envs, steps, seed=0, **changes):
    return ppo(envs, seed, **changes).learn(steps, progress=False)


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
def test_discrete_bandit_is_solved(mode):
    agent = trained(vector(mode=mode), 3_000, seed=1)
    assert agent.predict(np.array([[1.0], [-1.0]], np.float32)).tolist() == [1, 0]


@pytest.mark.parametrize("squash", [False, True])
def test_continuous_bandit_is_solved(squash):
    # Smaller steps at the end, so that where it ends does not depend on the last bits of sums.
    agent = trained(
        vector(discrete=False), 5_000, seed=1, squash_actions=squash, decay_learning_rate=True
    )
    actions = agent.predict(np.array([[1.0], [-1.0]], np.float32))[:, 0]
    np.testing.assert_allclose(actions, [1.0, -1.0], atol=0.25)


def test_actions_reach_the_environment_shifted_or_clipped():
    discrete = ActionCodec(spaces.Discrete(3, start=5))
    assert discrete.to_env(np.array([0, 2])).tolist() == [5, 7]
    box = ActionCodec(spaces.Box(-0.5, 0.5, (2, 1), np.float32))
    assert box.components == 2
    assert box.to_env(np.array([[3.0, 0.1]]))[0].ravel().tolist() == pytest.approx([0.5, 0.1])


@pytest.mark.parametrize("name", ["PPO", "GRPO"])
def test_squashed_actions_stay_inside_their_bounds_and_clipped_ones_pile_up_there(name):
    def seen(squash):
        made = []

        def make():
            made.append(CountingEnv(discrete=False, horizon=12, seeded=True))
            return made[-1]

        envs = SyncVectorEnv([make] * 4, autoreset_mode=AutoresetMode.SAME_STEP)
        wide = {**SMALL, "squash_actions": squash, "initial_log_std": 0.5}
        getattr(cadenza, name)(envs, **wide).learn(128, progress=False)
        return np.concatenate([np.ravel(env.actions) for env in made])

    clipped, squashed = seen(False), seen(True)
    assert np.abs(squashed).max() < 0.5 == np.abs(clipped).max()
    assert np.mean(np.abs(clipped) == 0.5) > 0.5


def test_next_step_autoreset_learns_from_executed_actions_only(monkeypatch):
    seen = []

    def spy(network, batch, *rest):
        seen.append(batch)
        return policy_terms(network, batch, *rest)

    monkeypatch.setattr("cadenza.learn.agents.ppo.policy_terms", spy)
    envs = vector(CountingEnv, mode=AutoresetMode.NEXT_STEP, count=1)
    trained(envs, 8, rollout_length=8, batch_size=8, epochs=1)
    # Steps 1, 2, 3, (reset), 1, 2, 3, (reset): six of eight rows hold decisions.
    assert sorted(seen[0].observations[:, 1].tolist()) == [0.0, 0.0, 1.0, 1.0, 2.0, 2.0]


def test_returns_of_finished_episodes_are_noted():
    agent = trained(vector(CountingEnv, count=2), 14, rollout_length=7, batch_size=7, epochs=1)
    assert agent.mean_return == 6.0  # 1 + 2 + 3
    assert (agent.steps, agent.updates) == (14, 1)


def test_environments_without_a_record_begin_anew_after_a_resume():
    def envs():
        return SyncVectorEnv([CountingEnv], autoreset_mode=AutoresetMode.SAME_STEP)

    agent, other = trained(envs(), 64), ppo(envs())
    other.load_state_dict(agent.state_dict())
    other.learn(1, progress=False)
    assert other.envs.vector.envs[0].count == 32 % 3


class Doubled(torch.nn.Module):
    """Features: the observation, and a learned sum of it."""

    def __init__(self):
        super().__init__()
        self.sum = torch.nn.Linear(1, 1)

    def forward(self, obs):
        return torch.cat((obs, self.sum(obs)), dim=1)


@pytest.mark.parametrize("name", ["PPO", "GRPO"])
@pytest.mark.parametrize("discrete", [True, False])
def test_greedy_network_is_the_policy_on_plain_observations(name, discrete):
    settings = {"rollout_length": 16, "batch_size": 16, "squash_actions": not discrete}
    settings |= {"normalize_observations": True} if name == "PPO" else {}
    envs = SyncVectorEnv([lambda: SignEnv(discrete=discrete)] * 4)
    agent = getattr(cadenza, name)(envs, network=Doubled(), **settings)
    before = [p.detach().clone() for p in agent.learner.network.actor[0].parameters()]
    agent.learn(256, progress=False)
    after = agent.learner.network.actor[0].parameters()
    assert not any(torch.equal(b, a) for b, a in zip(before, after, strict=True))
    observations = np.linspace(-1.0, 1.0, 6, dtype=np.float32)[:, None]
    with torch.no_grad():
        deployed = agent.deployed()(torch.from_numpy(observations)).numpy()
    np.testing.assert_allclose(agent.predict(observations), deployed, atol=1e-6)


def learner(**changes):
    return PPOLearner(PPOConfig(**{**SMALL, **changes}), observation_dim=1, choices=2)


def buffer(steps=8):
    made = OnPolicyBuffer(BufferShape(capacity=8, rows=1, observation_dim=1))
    rng = np.random.default_rng(0)
    for _ in range(steps):
        rows = rng.normal(size=(1, 1)).astype(np.float32)
        made.stage(rows, np.zeros(1, np.int64))
        flags = np.zeros(1, bool)
        made.commit(Outcome(rng.normal(size=1), flags, flags), rows)
    return made


@pytest.mark.parametrize(
    ("attempt", "error", "told"),
    [
        (
            lambda: ppo(vector(), squash_actions=True),
            ConfigurationError,
            "PPO: expected a Box with finite bounds",
        ),
        (
            lambda: learner(squash_actions=True),
            ConfigurationError,
            "PPOLearner: expected continuous actions with",
        ),
        (
            lambda: PPOLearner(PPOConfig(), observation_dim=1),
            ConfigurationError,
            "exactly one of choices and action_dim",
        ),
        (lambda: learner().update(buffer(0)), NotReadyError, "nothing was collected"),
        (
            lambda: learner(learning_rate=1e30).update(buffer()),
            InputError,
            "expected finite numbers",
        ),
        (
            lambda: learner().load_state_dict({}),
            CheckpointError,
            "PPOLearner: expected a state of version 2, got None",
        ),
        (
            lambda: learner().load_state_dict({"version": 2, "network": {}}),
            CheckpointError,
            "complete state of a learner of these sizes",
        ),
    ],
)
def test_what_cannot_be_used_is_refused(attempt, error, told):
    with pytest.raises(error, match=told):
        attempt()


def test_value_error_squares_or_grows_linearly_beyond_ten():
    values, returns = torch.tensor([12.0, 2.0]), torch.zeros(2)
    assert value_error(values, returns, values).item() == pytest.approx((144 + 4) / 2)
    # delta (|e| - delta / 2) = 10 (12 - 5) = 70; 0.5 * 2^2 = 2
    assert value_error(values, returns, values, kind="huber").item() == pytest.approx(36.0)


def test_value_error_clipped_takes_the_larger_error():
    values, returns, old = torch.tensor([2.0, 2.0]), torch.tensor([3.0, 0.0]), torch.zeros(2)
    # Clipped to 0.5: errors 6.25 and 0.25; unclipped 1 and 4; the larger of each: 6.25 and 4.
    assert value_error(values, returns, old, clip_value=0.5).item() == pytest.approx(10.25 / 2)


def test_normalized_has_mean_zero_and_deviation_one_and_keeps_a_single_one():
    result = normalized(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    assert result.mean().item() == pytest.approx(0.0, abs=1e-6)
    assert result.std().item() == pytest.approx(1.0, abs=1e-6)
    assert normalized(torch.tensor([5.0])).tolist() == [5.0]
