import copy
import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from cadenza.core.errors import InputError
from cadenza.learn.agents.happo import (
    ActorBatch,
    HAPPOLearner,
    actor_optimizer,
    critic_optimizer,
    gaussian_log_prob,
    importance_ratio,
    log_probs,
    next_factor,
    run_in_sequence,
    run_interleaved,
    update_actor,
    update_critic,
)
from cadenza.learn.configs import HAPPOConfig
from cadenza.learn.nn.gaussian_actor import GaussianActor
from cadenza.learn.nn.policy_networks import ValueCritic


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def actor_and_batch(rows: int = 16) -> tuple[GaussianActor, ActorBatch]:
    draws = generator(1)
    actor = GaussianActor(4, 2, hidden_sizes=(8, 8), generator=generator(0))
    batch = ActorBatch(
        observations=torch.randn((rows, 4), generator=draws),
        actions=0.3 * torch.randn((rows, 2), generator=draws),
        old_log_probs=torch.randn((rows, 2), generator=draws) * 0.1,
        advantages=torch.randn((rows, 1), generator=draws),
    )
    return actor, batch


def test_log_prob_is_the_normal_density_per_dimension():
    actions, mean = torch.tensor([[0.1, -0.4], [1.0, 0.0]]), torch.tensor([[0.0, 0.2], [0.5, 0.5]])
    deviation = torch.tensor([0.3, 0.5])
    expected = stats.norm.logpdf(actions.numpy(), mean.numpy(), deviation.numpy())
    assert np.allclose(gaussian_log_prob(actions, mean, deviation), expected, atol=1e-6)


def test_importance_ratio_multiplies_dimensions():
    log_probs = torch.log(torch.tensor([[0.5, 0.2], [0.4, 0.3]]))
    old = torch.log(torch.tensor([[0.25, 0.4], [0.4, 0.1]]))
    # 2 * 0.5 and 1 * 3
    assert importance_ratio(log_probs, old).flatten().tolist() == pytest.approx([1.0, 3.0])


def test_actor_step_reports_entropy_of_the_initial_policy():
    actor, batch = actor_and_batch()
    optimizer = actor_optimizer(actor.parameters(), 1e-3)
    update = update_actor(actor, optimizer, batch, clip_epsilon=0.2)
    deviation = 0.5 / (1.0 + math.exp(-1.0))
    assert float(update.entropy) == pytest.approx(
        2 * stats.norm(scale=deviation).entropy(), abs=1e-6
    )


def test_actor_step_without_advantage_raises_entropy_only():
    actor, batch = actor_and_batch()
    means = actor(batch.observations).detach()
    optimizer = actor_optimizer(actor.parameters(), 1e-2)
    quiet = ActorBatch(
        observations=batch.observations,
        actions=batch.actions,
        old_log_probs=batch.old_log_probs,
        advantages=torch.zeros(16, 1),
    )
    before = actor.standard_deviation().detach().clone()
    update_actor(actor, optimizer, quiet, clip_epsilon=0.2)
    assert (actor.standard_deviation() > before).all()
    assert torch.equal(actor(batch.observations), means)


def test_actor_results_carry_no_graph():
    actor, batch = actor_and_batch()
    optimizer = actor_optimizer(actor.parameters(), 1e-3)
    update = update_actor(actor, optimizer, batch, clip_epsilon=0.2)
    results = (update.policy_loss, update.entropy, update.gradient_norm, update.ratio)
    assert [result.requires_grad for result in results] == [False] * 4


def test_critic_steps_equal_plain_torch_adam():
    critic = ValueCritic(4, hidden_sizes=(8, 8), generator=generator(0))
    reference = copy.deepcopy(critic.net)
    optimizer = critic_optimizer(critic.parameters(), 1e-2)
    plain = torch.optim.Adam(reference.parameters(), lr=1e-2)
    draws = generator(2)
    for _ in range(3):
        x, y = torch.randn((32, 4), generator=draws), torch.randn((32, 1), generator=draws)
        loss = nn.MSELoss()(reference(x), y)
        plain.zero_grad()
        loss.backward()
        plain.step()
        assert torch.equal(update_critic(critic, optimizer, x, y), loss.detach())
    for mine, theirs in zip(critic.parameters(), reference.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_critic_refuses_a_loss_that_is_not_finite_and_keeps_its_weights():
    critic = ValueCritic(4, hidden_sizes=(8, 8), generator=generator(0))
    before = copy.deepcopy(critic.state_dict())
    optimizer = critic_optimizer(critic.parameters(), 1e-2)
    with pytest.raises(InputError, match="expected finite numbers, got loss = inf"):
        update_critic(critic, optimizer, torch.ones(2, 4), torch.full((2, 1), 1e30))
    assert all(torch.equal(value, before[key]) for key, value in critic.state_dict().items())


def test_critic_gradient_is_shortened_to_the_limit():
    critic = ValueCritic(4, hidden_sizes=(8, 8), generator=generator(0))
    optimizer = critic_optimizer(critic.parameters(), 1e-2)
    x = torch.randn((32, 4), generator=generator(2))
    update_critic(critic, optimizer, x, torch.full((32, 1), 100.0), max_gradient_norm=0.5)
    squares = [float(p.grad.square().sum()) for p in critic.parameters()]
    assert math.sqrt(sum(squares)) == pytest.approx(0.5, rel=1e-4)


def test_robots_decide_side_by_side_each_on_its_own_columns():
    learner = HAPPOLearner(
        HAPPOConfig(hidden_sizes=(8,)),
        observation_dims=[3, 1],
        action_dims=[2, 1],
        critic_dim=4,
        generator=generator(0),
        shuffle=np.random.default_rng(0),
    )
    rows = torch.randn((2_000, 4), generator=generator(1))
    with torch.no_grad():
        expected = torch.cat([learner.actors[0](rows[:, :3]), learner.actors[1](rows[:, 3:])], 1)
    before = learner.generator.get_state()
    greedy, means = learner.decide(rows.numpy(), deterministic=True)
    assert np.array_equal(greedy, expected.numpy())
    assert np.array_equal(means, greedy)
    assert torch.equal(learner.generator.get_state(), before)
    drawn, means = learner.decide(rows.numpy())
    assert np.array_equal(means, greedy)
    deviation = 0.5 / (1.0 + math.exp(-1.0))
    assert np.allclose((drawn - means).std(axis=0), deviation, rtol=0.06)


ROWS = 23
CONFIG = HAPPOConfig(
    epochs=3, batch_size=10, learning_rate=1e-2, hidden_sizes=(8, 8), critic_max_gradient_norm=None
)


def team(robots: int = 1, **changes) -> HAPPOLearner:
    return HAPPOLearner(
        CONFIG.model_copy(update=changes),
        observation_dims=[4] * robots,
        action_dims=[2] * robots,
        critic_dim=4,
        generator=generator(0),
        shuffle=np.random.default_rng(0),
    )


def rollout(actor: GaussianActor, seed: int = 1) -> ActorBatch:
    draws = generator(seed)
    observations = torch.randn((ROWS, 4), generator=draws)
    actions = 0.5 * torch.randn((ROWS, 2), generator=draws)
    return ActorBatch(
        observations=observations,
        actions=actions,
        old_log_probs=log_probs(actor, observations, actions),
        advantages=torch.randn((ROWS, 1), generator=generator(9)),
    )


RETURNS = torch.randn((ROWS, 1), generator=torch.Generator().manual_seed(4))


def same(one: nn.Module, other: nn.Module) -> bool:
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def test_interleaved_epochs_step_actor_then_critic_on_shuffled_minibatches():
    mine, reference = team(), team()
    data = rollout(mine.actors[0])
    before = copy.deepcopy(data)
    figures = run_interleaved(mine, data, RETURNS, np.random.default_rng(5))
    rng = np.random.default_rng(5)
    losses, value_losses, ratios = [], [], []
    for _ in range(3):
        order = torch.tensor(rng.permutation(ROWS))
        for chunk in (order[:11], order[11:]):  # 23 // 10 = 2 minibatches of 11 and 12
            batch = data.rows(chunk)
            optimizers = reference.optimizers[0], reference.critic_optimizer
            update = update_actor(reference.actors[0], optimizers[0], batch, clip_epsilon=0.2)
            losses.append(float(update.policy_loss))
            ratios.append(update.ratio.double().numpy())
            value_losses.append(
                float(
                    update_critic(
                        reference.critic, optimizers[1], batch.observations, RETURNS[chunk]
                    )
                )
            )
    assert same(mine.actors[0], reference.actors[0])
    assert same(mine.critic, reference.critic)
    kl = np.mean([0.5 * np.mean((ratio - 1.0) ** 2) for ratio in ratios])
    outside = np.mean([np.mean(np.abs(ratio - 1.0) > 0.2) for ratio in ratios])
    assert 0.0 < outside < 1.0
    expected = {
        "policy_loss": np.mean(losses),
        "value_loss": np.mean(value_losses),
        "approx_kl": kl,
        "clip_fraction": outside,
        "ratio_min": min(ratio.min() for ratio in ratios),
        "ratio_max": max(ratio.max() for ratio in ratios),
    }
    assert {name: figures[name] for name in expected} == pytest.approx(expected, rel=1e-5)
    assert torch.equal(data.old_log_probs, before.old_log_probs)


@pytest.mark.parametrize(
    ("target_kl", "expected"),
    [(None, 6), (1e9, 6), (1e-12, 2)],  # the first epoch of two minibatches always runs
)
def test_target_kl_ends_the_update_after_the_epoch_that_exceeds_it(target_kl, expected):
    mine = team()
    rng = np.random.default_rng(5)
    run_interleaved(mine, rollout(mine.actors[0]), RETURNS, rng, target_kl=target_kl)
    assert int(mine.optimizers[0].state_dict()["state"][0]["step"]) == expected


def test_one_robot_in_sequence_has_the_actor_of_interleaved_epochs_to_the_bit():
    one, other = team(), team()
    data = rollout(one.actors[0])
    run_in_sequence(one, [data], data.observations, RETURNS, np.random.default_rng(7))
    rng = np.random.default_rng(7)
    rng.permutation(1)  # the order of one robot
    run_interleaved(other, data, RETURNS, rng)
    assert same(one.actors[0], other.actors[0])


def test_factor_of_an_unchanged_actor_is_one():
    actor = team().actors[0]
    factor = next_factor(torch.full((ROWS, 1), 2.0), actor, rollout(actor))
    torch.testing.assert_close(factor, torch.full((ROWS, 1), 2.0))


def test_final_factor_is_the_ratio_of_the_joint_policies():
    mine = team(3)
    data = [rollout(actor, k) for k, actor in enumerate(mine.actors)]
    figures = run_in_sequence(mine, data, data[0].observations, RETURNS, np.random.default_rng(0))
    joint = sum(
        (log_probs(actor, d.observations, d.actions) - d.old_log_probs).sum(dim=1)
        for actor, d in zip(mine.actors, data, strict=True)
    )
    assert figures["factor_mean"] == pytest.approx(joint.exp().mean().item(), rel=1e-4)
    assert abs(figures["factor_mean"] - 1.0) > 1e-3


class InOrder:
    """Robots in their order; minibatches are shuffled."""

    def __init__(self):
        self.rng = np.random.default_rng(3)

    def permutation(self, count):
        return np.arange(count) if count == 2 else self.rng.permutation(count)


def test_factor_reaches_the_second_robot():
    def second_after(rate_of_first):
        # A first robot that moves: its ratio weighs the second one's surrogate.
        mine = team(2)
        mine.optimizers[0].param_groups[0]["lr"] = rate_of_first
        data = [rollout(actor, k) for k, actor in enumerate(mine.actors)]
        run_in_sequence(mine, data, data[0].observations, RETURNS, InOrder())
        return mine.actors[1]

    assert not same(second_after(1e-1), second_after(0.0))


def test_every_actor_wants_a_rollout():
    with pytest.raises(InputError, match="2 actors and 0 rollouts"):
        run_in_sequence(team(2), [], torch.zeros(1, 4), RETURNS, np.random.default_rng(0))
