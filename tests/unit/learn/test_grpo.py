"""GRPO over vector environments: what it compares, what it drops, and that it resumes exactly."""

import copy
import math

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import cadenza
from cadenza.core.errors import CheckpointError, ConfigurationError, GroupResetError, InputError
from cadenza.core.payloads import deserialise, serialise
from cadenza.learn.agents.grpo import (
    GRPOLearner,
    group_advantages,
    group_seeds,
    require_equal_starts,
    reset_groups,
    rollout_mask,
)
from cadenza.learn.agents.on_policy import k3_divergence, policy_terms
from cadenza.learn.agents.on_policy_buffer import BufferShape, OnPolicyBuffer, Outcome
from cadenza.learn.configs import GRPOConfig
from cadenza.learn.env.stepping import ReplayableEnv, VectorSteps
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


def grpo(envs, seed=0, **changes):
    return cadenza.GRPO(envs, seed=seed, **{**SMALL, **changes})


def trained(envs, steps, seed=0, **changes):
    return grpo(envs, seed, **changes).learn(steps, progress=False)


def parameters(network):
    return torch.cat([p.detach().flatten() for p in network.parameters()])


@pytest.mark.parametrize("mode", size([AutoresetMode.DISABLED], list(AutoresetMode)))
def test_discrete_signs_are_learned(mode):
    agent = trained(vector(mode=mode, fragile=True), 1_500, seed=1)
    assert agent.predict(np.array([[1.0], [-1.0]], np.float32)).tolist() == [1, 0]


@pytest.mark.parametrize("squash", size([True], [False, True]))
def test_continuous_signs_are_learned(squash):
    agent = trained(vector(discrete=False), 6_000, seed=1, squash_actions=squash, epochs=6)
    actions = agent.predict(np.array([[1.0], [-1.0]], np.float32))[:, 0]
    np.testing.assert_allclose(actions, [1.0, -1.0], atol=0.3)


@pytest.mark.parametrize(
    ("horizon", "truncate", "steps"), [(3, True, 3 * 8), (3, False, 12 * 8), (30, True, 12 * 8)]
)
def test_rollout_ends_with_its_last_first_episode(horizon, truncate, steps):
    agent = trained(vector(horizon=horizon), 1, truncate_at_first_done=truncate)
    assert (agent.steps, agent.updates) == (steps, 1)


@pytest.fixture
def minibatches(monkeypatch):
    """The minibatches that updates learn from, each with the policy as it was then."""
    seen = []

    def spy(network, batch, *rest):
        seen.append((copy.deepcopy(network), batch))
        return policy_terms(network, batch, *rest)

    monkeypatch.setattr("cadenza.learn.agents.grpo.policy_terms", spy)
    return seen


@pytest.fixture
def updates(monkeypatch):
    """The observations (T, N, O) that each update got, and its figures."""
    seen = []
    original = GRPOLearner.update

    def spy(self, buffer, **options):
        observations = buffer.observations[: buffer.length].copy()
        seen.append((observations, original(self, buffer, **options)))
        return seen[-1][1]

    monkeypatch.setattr(GRPOLearner, "update", spy)
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
def test_what_counts_is_what_was_executed_in_the_first_episode(
    minibatches, updates, mode, truncate
):
    Uneven.made = 0
    envs = vector(Uneven, count=4, mode=mode)
    agent = trained(envs, 1, rollout_length=3, truncate_at_first_done=truncate, gamma=1.0, epochs=1)
    (((_, batch),), ((_, figures),)) = minibatches, updates
    rows = zip(batch.observations.tolist(), batch.advantages.tolist(), strict=True)
    counted, advantages = zip(*sorted(rows), strict=True)
    if truncate:
        # Step 1 of all four, then steps 2 and 3 of the long-lived pair.
        assert list(counted) == [[0, 0]] * 4 + [[0, 1]] * 2 + [[0, 2]] * 2
        assert agent.mean_return == (1.0 + 1.0 + 6.0 + 6.0) / 4
        assert figures["used_fraction"] == pytest.approx(8 / 12)
        # Returns 6, 1, 1, 6: mean 3.5, deviation 2.5; later the pair is equal.
        np.testing.assert_allclose(advantages, [-1, -1, 1, 1, 0, 0, 0, 0], atol=1e-6)
        assert figures["return_mean"] == pytest.approx((6 + 1 + 1 + 6 + 5 + 5 + 3 + 3) / 8)
    else:
        short_episodes = 3 if mode is AutoresetMode.SAME_STEP else 2
        assert len(counted) == 6 + 2 * short_episodes
        assert agent.mean_return == (6.0 + short_episodes) / (1 + short_episodes)


@pytest.mark.parametrize("reset", [True, False])
def test_every_rollout_begins_with_new_episodes_alike_in_each_group(updates, reset):
    envs = vector(CountingEnv, seeded=True, horizon=30)
    trained(envs, 32, rollout_length=2, reset_every_rollout=reset)
    firsts = [observations[0, :, 0].reshape(2, 4) for observations, _ in updates]
    for first in firsts:
        assert (first == first[:, :1]).all()
        assert first[0, 0] != first[1, 0]
    assert np.array_equal(firsts[0], firsts[1]) is not reset
    assert updates[1][0][0, 0, 1] == (0.0 if reset else 2.0)


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
    config = GRPOConfig(**{**SMALL, "group_size": 2, **changes})
    return GRPOLearner(config, observation_dim=1, choices=2)


def test_a_time_limit_continues_with_the_tail_value_and_a_termination_does_not():
    def value(rows):
        return 10.0 * rows[:, 0]  # 20 for a last observation, 10 for the next one

    # Terminated: 1. Cut off: 1 + 0.5 * 20. Rollout over, episode not: 1 + 0.5 * 10, twice.
    rewards, terminated = [1.0, 1.0, 1.0, 1.0], [True, False, False, False]
    learner = agent(gamma=0.5)
    plain = learner.update(filled(rewards, terminated, [1]))
    assert (plain["return_mean"], plain["return_std"]) == (1.0, 0.0)
    learner.tail_value = value
    figures = learner.update(filled(rewards, terminated, [1]))
    assert figures["return_mean"] == pytest.approx((1 + 11 + 6 + 6) / 4)


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
    assert figures[0]["reference_kl"] == pytest.approx(0.0, abs=1e-7)
    assert figures[2]["reference_kl"] > 1e-6
    without = agent(kl_coefficient=0.0).update(filled([0.0, 1.0], [True, True], []))
    assert without["reference_kl"] == 0.0


@pytest.mark.parametrize("reset", [True, False])
def test_a_run_that_was_stored_goes_on_to_the_bit(reset):
    def fresh():
        envs = vector(CountingEnv, record=not reset, discrete=False, seeded=True, horizon=3)
        return grpo(
            envs,
            seed=3,
            rollout_length=5,
            decay_learning_rate=True,
            refresh_reference_every=2,
            reset_every_rollout=reset,
            truncate_at_first_done=False,
        )

    whole, resumed = fresh().learn(120, progress=False), fresh()
    resumed.load_state_dict(deserialise(serialise(whole.state_dict()), max_bytes=10**8))
    for one in (whole, resumed):
        one.learn(120, progress=False)
    for network in ("network", "reference"):
        pair = [parameters(getattr(one.learner, network)) for one in (whole, resumed)]
        assert torch.equal(*pair)
    assert (whole.steps, whole.updates, whole.mean_return) == (240, 6, resumed.mean_return)


class Drifting(CountingEnv):
    def reset(self, *, seed=None, options=None):
        observation, info = super().reset(seed=seed)
        observation[0] = id(self) % 1009
        return observation, info


@pytest.mark.parametrize(
    ("attempt", "error", "told"),
    [
        (lambda: trained(vector(Drifting), 1), GroupResetError, "to start from the same state"),
        (lambda: grpo(vector(count=6)), ConfigurationError, "group_size = 4 divides, got 6"),
        (
            lambda: agent().update(filled([0.0, 1.0, 2.0], [True] * 3, [])),
            InputError,
            r"multiple of 2 \(group_size\), got \(1, 3\)",
        ),
        (
            lambda: grpo(vector(), squash_actions=True),
            ConfigurationError,
            "Box with finite bounds for squashed",
        ),
        (
            lambda: filled([0.0, float("nan")], [True, True], []),
            InputError,
            "rewards: expected finite numbers",
        ),
        (
            lambda: agent().update(filled([0.0, 1.0], [True, True], [], nan_at=1)),
            InputError,
            "observations: expected finite numbers",
        ),
        (
            lambda: agent().load_state_dict(agent(kl_coefficient=0.0).state_dict()),
            CheckpointError,
            "complete state of a learner of these sizes",
        ),
        (
            lambda: group_advantages(np.zeros(4), np.ones(4, bool), group_size=2, epsilon=1e-8),
            InputError,
            r"expected returns of shape \(T, N\)",
        ),
        (
            lambda: rollout_mask(
                np.zeros((2, 1), bool), np.ones((3, 1), bool), truncate_at_first_done=True
            ),
            InputError,
            r"rollout_mask: valid: expected shape \(2, 1\)",
        ),
    ],
)
def test_what_cannot_be_compared_is_refused(attempt, error, told):
    with pytest.raises(error, match=told):
        attempt()


def steps_of(*envs):
    return VectorSteps(
        SyncVectorEnv([lambda env=env: env for env in envs], autoreset_mode=AutoresetMode.SAME_STEP)
    )


def test_seeds_are_equal_within_and_different_between_groups_and_streams():
    seeds = group_seeds("a", environments=6, group_size=3, root_seed=1)
    assert seeds[0] == seeds[1] == seeds[2]
    assert seeds[3] == seeds[4] == seeds[5]
    assert seeds[0] != seeds[3]
    assert seeds == group_seeds("a", environments=6, group_size=3, root_seed=1)
    for other in (("b", 1), ("a", 2)):
        drawn = group_seeds(other[0], environments=6, group_size=3, root_seed=other[1])
        assert not set(drawn) & set(seeds)


def test_environments_that_ignore_their_seed_are_refused():
    class Unseeded(CountingEnv):
        count_of_all = 0

        def reset(self, *, seed=None, options=None):
            Unseeded.count_of_all += 1
            self.episode = Unseeded.count_of_all - 1
            return super().reset(seed=seed)

    with pytest.raises(
        GroupResetError,
        match=r"environments 0 \.\.\. 1 \(group 0\).*of 0 and 1 that differ by up to 1 .*np_random",
    ):
        reset_groups(steps_of(Unseeded(), Unseeded()), [5, 5], 2)


def test_error_names_the_member_that_differs():
    observations = np.zeros((6, 2, 2), np.float32)
    observations[5, 1, 0] = 0.25
    with pytest.raises(GroupResetError, match=r"3 \.\.\. 5 \(group 1\).* 3 and 5 .* up to 0\.25"):
        require_equal_starts(observations, 3)
    require_equal_starts(observations[:3], 3)


def test_not_a_number_is_no_equal_start():
    with pytest.raises(GroupResetError, match="differ by up to nan"):
        require_equal_starts(np.full((2, 1), np.nan), 2)


@pytest.mark.parametrize("grouped", [True, False])
def test_replayable_environments_start_alike_within_their_group_only(grouped):
    def make(index):
        env = CountingEnv(seeded=True, horizon=1)
        group = index // 2 if grouped else None
        return ReplayableEnv(env, root_seed=0, index=index, group=group)

    steps = steps_of(*(make(i) for i in range(4)))
    if not grouped:
        with pytest.raises(GroupResetError, match=r"group=\.\.\."):
            reset_groups(steps, [7, 7, 7, 7], 2)
        return
    first = reset_groups(steps, [7, 7, 7, 7], 2)
    assert first[0].tolist() == first[1].tolist() != first[2].tolist()
    second = steps.step(np.full(4, 5)).observations  # every episode has one step
    assert second[0].tolist() == second[1].tolist() != first[0].tolist()


def columns(*rows):
    """Return the transpose: one argument per environment, one row per step in the result."""
    return np.array(rows).T


def test_mask_without_truncation_drops_only_what_was_not_executed():
    ends = columns([0, 1, 0, 0]).astype(bool)
    valid = columns([1, 1, 0, 1]).astype(bool)
    assert rollout_mask(ends, valid, truncate_at_first_done=False).tolist() == valid.tolist()
    first = rollout_mask(ends, valid, truncate_at_first_done=True)
    assert first[:, 0].tolist() == [True, True, False, False]


def test_equal_returns_give_exactly_zero_whatever_their_size():
    returns = np.full((1, 3), 1e9 / 7.0)
    advantages = group_advantages(returns, np.ones((1, 3), bool), group_size=3, epsilon=1e-8)
    assert advantages.tolist() == [[0.0, 0.0, 0.0]]


def test_divergence_by_hand():
    # e^d - d - 1: e^1 - 2, e^-1, 0
    values = k3_divergence(torch.tensor([1.0, -1.0, 0.0], dtype=torch.float64))
    np.testing.assert_allclose(values, [math.e - 2.0, 1.0 / math.e, 0.0], rtol=1e-12)


def test_divergence_near_zero_does_not_cancel():
    # d^2 / 2 = 5e-9; float32 exp(d) - d - 1 would give a multiple of 1.2e-7.
    assert k3_divergence(torch.tensor(1e-4)).item() == pytest.approx(5e-9, rel=1e-2)


def test_divergence_averages_to_the_kl_of_two_distributions():
    # E_p[k3] = sum p (q / p - log(q / p) - 1) = KL(p | q)
    p, q = torch.tensor([0.2, 0.3, 0.5]), torch.tensor([0.4, 0.4, 0.2])
    mean = (p * k3_divergence(q.log() - p.log())).sum()
    assert mean.item() == pytest.approx((p * (p / q).log()).sum().item(), abs=1e-6)


def loss_by_loop(net, data, *, clip):
    """Both terms as their definition says, one transition after another, in Python floats."""
    policy, divergence = 0.0, 0.0
    for i, chosen in enumerate(data.actions):
        log_probs = torch.log_softmax(net.actor(data.observations[i : i + 1])[0], -1).tolist()
        log_prob = log_probs[int(chosen)]
        ratio = math.exp(log_prob - data.old_log_probs[i].item())
        clipped = min(max(ratio, 1.0 - clip), 1.0 + clip)
        advantage = data.advantages[i].item()
        policy -= min(ratio * advantage, clipped * advantage)
        d = data.reference_log_probs[i].item() - log_prob
        divergence += math.exp(d) - d - 1.0
    return policy / len(data.actions), divergence / len(data.actions)


def test_loss_terms_equal_the_loop_over_transitions(minibatches):
    # The epochs lead away from the reference and from the policy that acted.
    learner = agent(batch_size=4, epochs=9)
    figures = learner.update(filled([0.0, 1.0, 2.0, 4.0], [True] * 4, []))
    expected = [loss_by_loop(network, batch, clip=0.2) for network, batch in minibatches]
    found = [figures["policy_loss"], figures["reference_kl"]]
    np.testing.assert_allclose(found, np.mean(expected, axis=0), atol=1e-5)
    assert min(np.abs(expected[-1])) > 1e-3
