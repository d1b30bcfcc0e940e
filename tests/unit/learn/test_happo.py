import copy
import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from cadenza.core.errors import InputError
from cadenza.learn.algorithms.happo import (
    ActorBatch,
    actor_optimizer,
    clipped_policy_loss,
    critic_optimizer,
    gaussian_log_prob,
    importance_ratio,
    minibatch_bounds,
    update_actor,
    update_critic,
)
from cadenza.learn.nn.gaussian_actor import GaussianActor
from cadenza.learn.nn.value_critic import ValueCritic


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def column(*values: float) -> torch.Tensor:
    return torch.tensor(values).reshape(-1, 1)


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


def test_policy_loss_takes_the_pessimistic_side():
    # Gain is cut at 1.2 for a good action, loss is not cut for a bad one, and vice versa below 0.8.
    ratio, advantages = column(1.5, 1.5, 0.5, 0.5), column(1.0, -1.0, 1.0, -1.0)
    surrogate = [1.2, -1.5, 0.5, -0.8]
    loss = clipped_policy_loss(ratio, advantages, clip_epsilon=0.2)
    assert float(loss) == pytest.approx(-sum(surrogate) / 4)


def test_policy_loss_weighs_samples_by_the_sequential_factor():
    loss = clipped_policy_loss(
        column(1.0, 1.0), column(2.0, 4.0), clip_epsilon=0.2, factor=column(3.0, 0.5)
    )
    assert float(loss) == pytest.approx(-(6.0 + 2.0) / 2)


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


@pytest.mark.parametrize(
    ("transitions", "batch_size", "expected"),
    [
        (1024, 256, [(0, 256), (256, 512), (512, 768), (768, 1024)]),
        (10, 4, [(0, 5), (5, 10)]),
        (11, 4, [(0, 5), (5, 11)]),
        (3, 256, [(0, 3)]),
        (1, 1, [(0, 1)]),
    ],
)
def test_minibatches_cover_every_transition(transitions, batch_size, expected):
    assert minibatch_bounds(transitions, batch_size) == expected


@pytest.mark.parametrize(("transitions", "batch_size"), [(0, 4), (4, 0)])
def test_minibatches_of_nothing_raise(transitions, batch_size):
    with pytest.raises(InputError, match=f"got {transitions} and {batch_size}"):
        minibatch_bounds(transitions, batch_size)
