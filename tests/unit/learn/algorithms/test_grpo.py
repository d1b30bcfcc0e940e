"""GRPO over vector environments: what it compares, what it drops, and that it resumes exactly."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from cadenza.core.errors import (
    CheckpointError,
    ConfigurationError,
    GroupResetError,
    InputError,
    NotReadyError,
)
from cadenza.core.payloads import deserialise, serialise
from cadenza.learn.algorithms.grpo import GRPO
from cadenza.learn.algorithms.grpo_agent import GRPOAgent
from cadenza.learn.algorithms.on_policy_buffer import BufferShape, OnPolicyBuffer, Outcome
from cadenza.learn.configs import GRPOConfig
from cadenza.learn.env.replayable import ReplayableEnv
from tests.campaigns import size
from tests.unit.learn.counting_envs import CountingEnv
from tests.unit.learn.sign_envs import SignEnv

MODES = [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP]


def vector(make=SignEnv, *, count=8, mode=AutoresetMode.SAME_STEP, record=False, **options):
    def build(index):
        env = make(**options)
        if record:
            return ReplayableEnv(env, root_seed=0, index=index, group=index // 4)
        return env

    return SyncVectorEnv([lambda i=i: build(i) for i in range(count)], autoreset_mode=mode)


SMALL = {
    "rollout_length": 12,
    "batch_size": 16,
    "epochs": 3,
    "learning_rate": 1e-2,
    "hidden_sizes": (8,),
}


def settings(**changes):
    return GRPOConfig(**{**SMALL, **changes})


def parameters(network):
    return torch.cat([p.detach().flatten() for p in network.parameters()])


@pytest.mark.parametrize("mode", size([AutoresetMode.DISABLED], list(AutoresetMode)))
def test_discrete_signs_are_learned(mode):
    grpo = GRPO(vector(mode=mode, fragile=True), settings(), seed=1)
    grpo.learn(1_500)
    observations = np.array([[1.0], [-1.0]], np.float32)
    assert grpo.policy(observations).tolist() == [1, 0]
    assert grpo.policy(observations[0]) == 1


@pytest.mark.parametrize("squash", size([True], [False, True]))
def test_continuous_signs_are_learned(squash):
    grpo = GRPO(vector(discrete=False), settings(squash_actions=squash, epochs=6), seed=1)
    grpo.learn(6_000)
    actions = grpo.policy(np.array([[1.0], [-1.0]], np.float32))[:, 0]
    np.testing.assert_allclose(actions, [1.0, -1.0], atol=0.3)


def test_squashed_actions_stay_inside_their_bounds_and_clipped_ones_pile_up_there():
    def seen(squash):
        made = []

        def make(**options):
            made.append(CountingEnv(discrete=False, **options))
            return made[-1]

        wide = settings(squash_actions=squash, initial_log_std=0.5)
        GRPO(vector(make, count=8, horizon=12), wide).learn(96)
        return np.concatenate([np.ravel(env.actions) for env in made])

    clipped, squashed = seen(False), seen(True)
    assert np.abs(squashed).max() < 0.5 == np.abs(clipped).max()
    assert np.mean(np.abs(clipped) == 0.5) > 0.5


def test_rollout_ends_with_its_last_first_episode():
    grpo = GRPO(vector(horizon=3), settings(rollout_length=12))
    grpo.learn(1)
    assert (grpo.steps, grpo.updates) == (3 * 8, 1)
    whole = GRPO(vector(horizon=3), settings(rollout_length=12, truncate_at_first_done=False))
    whole.learn(1)
    assert (whole.steps, whole.updates) == (12 * 8, 1)
    short = GRPO(vector(horizon=30), settings(rollout_length=12))
    short.learn(1)
    assert short.steps == 12 * 8


def batches_of(monkeypatch):
    seen = []
    original = GRPOAgent._batch

    def spy(self, buffer, advantages, keep):
        seen.append(original(self, buffer, advantages, keep))
        return seen[-1]

    monkeypatch.setattr(GRPOAgent, "_batch", spy)
    return seen


class Uneven(CountingEnv):
    """Lives three steps if seeded first or last of four, else one; all start alike."""

    made = 0

    def __init__(self):
        super().__init__(horizon=3 if Uneven.made % 4 in (0, 3) else 1, terminates=True)
        Uneven.made += 1

    def reset(self, *, seed=None, options=None):
        self.episode = -1 if seed is not None else self.episode
        return super().reset(seed=seed)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("truncate", [True, False])
def test_what_counts_is_what_was_executed_in_the_first_episode(monkeypatch, mode, truncate):
    Uneven.made = 0
    seen = batches_of(monkeypatch)
    reports = []
    grpo = GRPO(
        vector(Uneven, count=4, mode=mode),
        settings(rollout_length=3, truncate_at_first_done=truncate, gamma=1.0),
    )
    grpo.learn(1, reports.append)
    counted = seen[0].observations.tolist()
    if truncate:
        # Step 1 of all four, then steps 2 and 3 of the long-lived pair.
        assert counted == [[0, 0]] * 4 + [[0, 1]] * 2 + [[0, 2]] * 2
        assert reports[0].episode_returns == [1.0, 1.0, 6.0, 6.0]
        assert reports[0].figures.used_fraction == pytest.approx(8 / 12)
        # Returns 6, 1, 1, 6: mean 3.5, deviation 2.5; later the pair is equal.
        np.testing.assert_allclose(seen[0].advantages, [1, -1, -1, 1, 0, 0, 0, 0], atol=1e-6)
        assert reports[0].figures.return_mean == pytest.approx((6 + 1 + 1 + 6 + 5 + 5 + 3 + 3) / 8)
    else:
        short_episodes = 3 if mode is AutoresetMode.SAME_STEP else 2
        assert len(counted) == 6 + 2 * short_episodes
        assert len(reports[0].episode_returns) == 2 + 2 * short_episodes


@pytest.mark.parametrize("reset", [True, False])
def test_every_rollout_begins_with_new_episodes_alike_in_each_group(monkeypatch, reset):
    seen = batches_of(monkeypatch)
    envs = vector(CountingEnv, seeded=True, horizon=30)
    GRPO(envs, settings(rollout_length=2, reset_every_rollout=reset)).learn(32)
    firsts = [batch.observations[:8, 0].reshape(2, 4) for batch in seen]
    for first in firsts:
        assert (first == first[:, :1]).all()
        assert first[0, 0] != first[1, 0]
    assert torch.equal(firsts[0], firsts[1]) is not reset
    assert seen[1].observations[0, 1].item() == (0.0 if reset else 2.0)


def test_environments_that_do_not_start_alike_stop_the_run():
    class Drifting(CountingEnv):
        def reset(self, *, seed=None, options=None):
            observation, info = super().reset(seed=seed)
            observation[0] = id(self) % 1009
            return observation, info

    with pytest.raises(GroupResetError, match="to start from the same state"):
        GRPO(vector(Drifting), settings()).learn(1)


def filled(rewards, terminated, cut, *, nan_at=None):
    """One step of as many environments as there are rewards; every number by hand."""
    count = len(rewards)
    buffer = OnPolicyBuffer(BufferShape(capacity=4, rows=count, observation_dim=1))
    observations = np.zeros((count, 1), np.float32)
    if nan_at is not None:
        observations[nan_at] = np.nan
    buffer.stage(observations, np.arange(count) % 2)
    ends = np.array(terminated, bool)
    rows = np.array(cut, np.int64)
    boundaries = ends.copy()
    boundaries[rows] = True
    buffer.commit(
        Outcome(np.array(rewards), ends, boundaries),
        np.ones((count, 1), np.float32),
        rows,
        np.full((len(rows), 1), 2.0, np.float32),
    )
    return buffer


def agent(**changes):
    tail = changes.pop("tail_value", None)
    return GRPOAgent(
        settings(group_size=2, **changes), observation_dim=1, choices=2, tail_value=tail
    )


def test_a_time_limit_continues_with_the_tail_value_and_a_termination_does_not():
    def value(rows):
        return 10.0 * rows[:, 0]  # 20 for a last observation, 10 for the next one

    # Terminated: 1. Cut off: 1 + 0.5 * 20. Rollout over, episode not: 1 + 0.5 * 10, twice.
    rewards, terminated = [1.0, 1.0, 1.0, 1.0], [True, False, False, False]
    figures = agent(gamma=0.5, tail_value=value).update(filled(rewards, terminated, [1]))
    assert figures.return_mean == pytest.approx((1 + 11 + 6 + 6) / 4)
    plain = agent(gamma=0.5).update(filled(rewards, terminated, [1]))
    assert (plain.return_mean, plain.return_std) == (1.0, 0.0)


def test_reference_stays_unless_it_is_to_be_refreshed():
    never, second = agent(), agent(refresh_reference_every=2)
    assert agent(kl_coefficient=0.0).reference is None
    first = parameters(never.network)
    for update in range(1, 5):
        for learner in (never, second):
            learner.update(filled([0.0, 1.0], [True, True], []))
        assert torch.equal(parameters(never.reference), first)
        refreshed = torch.equal(parameters(second.reference), parameters(second.network))
        assert refreshed is (update % 2 == 0)
    assert not any(p.requires_grad for p in second.reference.parameters())


def test_divergence_from_the_reference_starts_at_zero_and_grows():
    learner = agent(epochs=1, batch_size=2)
    figures = [learner.update(filled([0.0, 1.0], [True, True], [])) for _ in range(3)]
    assert figures[0].reference_kl == pytest.approx(0.0, abs=1e-7)
    assert figures[2].reference_kl > 1e-6
    without = agent(kl_coefficient=0.0).update(filled([0.0, 1.0], [True, True], []))
    assert without.reference_kl == 0.0


@pytest.mark.parametrize(
    ("mode", "extra", "reset"), [(MODES[0], 2, True), (MODES[1], 2, False), (MODES[1], 0, True)]
)
def test_a_resumed_run_equals_an_unbroken_one_to_the_bit(mode, extra, reset):
    chosen = settings(
        rollout_length=5,
        decay_learning_rate=True,
        refresh_reference_every=2,
        squash_actions=True,
        reset_every_rollout=reset,
        truncate_at_first_done=False,
    )

    def fresh():
        envs = vector(
            CountingEnv, mode=mode, record=not reset, discrete=False, seeded=True, horizon=3
        )
        return GRPO(envs, chosen, seed=3)

    reports = []
    whole = fresh()
    whole.learn(240, reports.append)
    broken = fresh()
    broken.learn(240, lambda report: report.updates < 3)
    for _ in range(extra):
        broken.collect_step()
    state = deserialise(serialise(broken.state_dict()), max_bytes=10**8)
    resumed = fresh()
    resumed.load_state_dict(state)
    again = []
    resumed.learn(240, again.append)
    assert torch.equal(parameters(whole.agent.network), parameters(resumed.agent.network))
    assert torch.equal(parameters(whole.agent.reference), parameters(resumed.agent.reference))
    assert (whole.steps, whole.updates) == (resumed.steps, resumed.updates) == (240, 6)
    assert [r.episode_returns for r in again] == [r.episode_returns for r in reports[3:]]


def test_a_resumed_rollout_remembers_who_has_ended():
    grpo = GRPO(vector(horizon=2), settings())
    grpo.collect_step()
    grpo.collect_step()
    assert grpo.rollout_complete
    other = GRPO(vector(horizon=2), settings())
    other.load_state_dict(grpo.state_dict())
    assert other.rollout_complete
    assert other.update().episode_returns == grpo.update().episode_returns
    assert not grpo.rollout_complete


def test_environments_that_repeat_nothing_refuse_a_running_rollout():
    class Noisy(SignEnv):
        calls = 0

        def step(self, action):
            Noisy.calls += 1
            return np.array([Noisy.calls], np.float32), *super().step(action)[1:]

    grpo = GRPO(vector(Noisy), settings())
    grpo.collect_step()
    with pytest.raises(CheckpointError, match="expected 1 repeated steps to reach"):
        GRPO(vector(Noisy), settings()).load_state_dict(grpo.state_dict())


def test_environments_without_a_record_begin_anew_when_rollouts_go_on():
    chosen = settings(reset_every_rollout=False)
    grpo = GRPO(vector(CountingEnv, horizon=30), chosen)
    for _ in range(3):
        grpo.collect_step()
    other = GRPO(vector(CountingEnv, horizon=30), chosen)
    other.load_state_dict(grpo.state_dict())
    other.collect_step()
    assert other.envs.envs[0].count == 1
    assert other.steps == 32
    assert other.update().figures.used_fraction == 1.0


def test_defaults_are_the_documented_ones():
    chosen = GRPOConfig()
    assert (chosen.epochs, chosen.clip_epsilon, chosen.entropy_coefficient) == (10, 0.2, 0.0)
    assert (chosen.kl_coefficient, chosen.group_size, chosen.advantage_epsilon) == (0.02, 4, 1e-8)
    assert chosen.reset_every_rollout
    assert chosen.truncate_at_first_done
    assert (chosen.learning_rate, chosen.gamma, chosen.batch_size) == (3e-4, 0.99, 64)
    assert chosen.max_gradient_norm == 0.5


def test_environments_that_are_no_whole_groups_are_refused():
    with pytest.raises(ConfigurationError, match="group_size = 4 divides, got 6"):
        GRPO(vector(count=6), settings())


def test_rows_that_are_no_whole_groups_are_refused():
    with pytest.raises(InputError, match=r"multiple of 2 \(group_size\), got \(1, 3\)"):
        agent().update(filled([0.0, 1.0, 2.0], [True] * 3, []))


def test_spaces_that_cannot_be_used_are_refused():
    class Images(SignEnv):
        def __init__(self):
            super().__init__()
            self.observation_space = spaces.Discrete(3)

    class Unbounded(SignEnv):
        def __init__(self):
            super().__init__()
            self.action_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)

    with pytest.raises(ConfigurationError, match="GRPO: expected a Box observation space"):
        GRPO(vector(Images), settings())
    for make in (SignEnv, Unbounded):
        with pytest.raises(ConfigurationError, match="Box with finite bounds for squashed"):
            GRPO(vector(make), settings(squash_actions=True))
    with pytest.raises(ConfigurationError, match="continuous actions with squash_actions"):
        agent(squash_actions=True)
    with pytest.raises(ConfigurationError, match="exactly one of choices and action_dim"):
        GRPOAgent(settings(), observation_dim=1)


def test_numbers_that_are_not_finite_are_refused():
    with pytest.raises(InputError, match="rewards: expected finite numbers"):
        filled([0.0, float("nan")], [True, True], [])
    with pytest.raises(InputError, match="observations: expected finite numbers"):
        agent().update(filled([0.0, 1.0], [True, True], [], nan_at=1))
    with pytest.raises(InputError, match="expected finite numbers, got loss = inf"):
        agent(learning_rate=1e30, epochs=9).update(filled([0.0, 1.0], [True, True], []))


def test_update_of_an_empty_buffer_is_refused():
    with pytest.raises(NotReadyError, match="nothing was collected"):
        GRPO(vector(), settings()).update()


def test_states_that_do_not_fit_are_refused():
    grpo = GRPO(vector(), settings())
    with pytest.raises(CheckpointError, match="GRPO: expected a state of version 1, got None"):
        grpo.load_state_dict({})
    with pytest.raises(CheckpointError, match="GRPO: expected a complete state"):
        grpo.load_state_dict({"version": 1})
    with pytest.raises(CheckpointError, match="GRPOAgent: expected a state of version 1"):
        grpo.agent.load_state_dict({})
    with pytest.raises(CheckpointError, match="complete state of an agent of these sizes"):
        grpo.agent.load_state_dict({"version": 1, "network": {}})
    bare = agent(kl_coefficient=0.0).state_dict()
    with pytest.raises(CheckpointError, match="complete state of an agent of these sizes"):
        agent().load_state_dict(bare)  # it has no reference policy
