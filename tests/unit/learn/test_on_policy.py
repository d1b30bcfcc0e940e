"""What PPO, GRPO and HAPPO share: minibatches, the surrogate, and the step."""

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from cadenza.core.errors import InputError
from cadenza.learn.agents.grpo import GRPOLearner
from cadenza.learn.agents.on_policy import (
    PolicyTerms,
    RolloutBatch,
    clipped_surrogate,
    descend,
    minibatch_bounds,
    policy_terms,
    run_epochs,
    total_loss,
)
from cadenza.learn.agents.on_policy_buffer import BufferShape, OnPolicyBuffer, Outcome
from cadenza.learn.agents.ppo import PPOBatch, PPOLearner
from cadenza.learn.configs import GRPOConfig, PPOConfig
from cadenza.learn.nn.policy_networks import CategoricalHead, Policy


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


def run(count, figures=(0.0, 0.0), **plan):
    taken = []

    def learn(indices):
        taken.append(indices.tolist())
        return torch.tensor(figures)

    return run_epochs(count, learn, np.random.default_rng(3), **plan), taken


def test_every_pass_takes_every_transition_once_in_an_order_of_its_own():
    rows, taken = run(7, (1.0, 2.0), epochs=2, batch_size=3)
    assert [len(part) for part in taken] == [3, 4, 3, 4]
    rng = np.random.default_rng(3)
    for first, second in (taken[:2], taken[2:]):
        assert first + second == rng.permutation(7).tolist()
    assert rows.tolist() == [[1.0, 2.0]] * 4


@pytest.mark.parametrize(
    ("column", "target", "passes"), [(0, 0.5, 5), (1, 0.5, 1), (1, 2.0, 5), (1, None, 5)]
)
def test_passes_end_after_the_first_whose_kl_exceeds_the_target(column, target, passes):
    rows, _ = run(8, (0.1, 2.0), epochs=5, batch_size=4, kl_column=column, target_kl=target)
    assert len(rows) == 2 * passes


def test_surrogate_takes_the_pessimistic_side():
    # Gain is cut at 1.2 for a good action, loss is not cut for a bad one, and vice versa below 0.8.
    ratio, advantages = torch.tensor([1.5, 1.5, 0.5, 0.5]), torch.tensor([1.0, -1.0, 1.0, -1.0])
    loss = clipped_surrogate(ratio, advantages, 0.2)
    assert loss.item() == pytest.approx(-(1.2 - 1.5 + 0.5 - 0.8) / 4)


def test_surrogate_weighs_samples_by_the_factor():
    factor = torch.tensor([[3.0], [0.5]])
    loss = clipped_surrogate(torch.ones(2, 1), torch.tensor([[2.0], [4.0]]), 0.2, factor)
    assert loss.item() == pytest.approx(-(6.0 + 2.0) / 2)


def test_surrogate_gradient_vanishes_beyond_the_clip_for_gains_only():
    ratio = torch.tensor([1.5, 1.5], requires_grad=True)
    clipped_surrogate(ratio, torch.tensor([1.0, -1.0]), 0.2).backward()
    assert ratio.grad.tolist() == [0.0, 0.5]


@pytest.mark.parametrize(("shift", "kl", "clipped"), [(0.0, 0.0, 0.0), (0.5, 0.1487213, 1.0)])
def test_terms_of_a_policy_whose_ratio_is_known(shift, kl, clipped):
    """The ratio is e^shift everywhere, so that the KL is (e^shift - 1) - shift."""
    generator = torch.Generator().manual_seed(0)
    network = Policy(3, CategoricalHead(4), hidden_sizes=(8,), generator=generator)
    observations = torch.randn((6, 3), generator=generator)
    actions = torch.randint(4, (6,), generator=generator)
    advantages = torch.randn(6, generator=generator)
    batch = RolloutBatch(
        observations=observations,
        actions=actions,
        old_log_probs=network.log_prob(observations, actions).detach() - shift,
        advantages=advantages,
    )
    terms = policy_terms(network, batch, advantages, 10.0 if shift == 0.0 else 0.2)
    assert terms.approx_kl.item() == pytest.approx(kl, abs=1e-5)
    assert terms.clip_fraction.item() == clipped
    if shift == 0.0:
        assert terms.policy.item() == pytest.approx(-advantages.mean().item(), abs=1e-6)


def test_total_loss_weighs_the_terms():
    one, two, three = (torch.tensor(value) for value in (1.0, 2.0, 3.0))
    terms = PolicyTerms(one, three, one, one, one)
    assert total_loss(terms, two, 0.5, 0.1).item() == pytest.approx(1.0 + 1.0 - 0.3)
    assert total_loss(terms, two, 2.0, 0.0).item() == pytest.approx(5.0)


def test_step_shortens_the_gradient_and_returns_its_norm_before():
    weight = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    norm = descend((weight * weight).sum() / 2.0, optimizer, 1e-3)
    assert norm.item() == pytest.approx(5.0)
    np.testing.assert_allclose(weight.detach(), [3.0 - 6e-4, 4.0 - 8e-4], rtol=1e-6)


def test_step_that_is_not_finite_is_refused_and_changes_nothing():
    weight = torch.nn.Parameter(torch.tensor([1.0]))
    with pytest.raises(InputError, match="expected finite numbers, got loss = inf"):
        descend(weight.sum() * torch.inf, torch.optim.SGD([weight], lr=1.0), 1.0)
    assert weight.item() == 1.0


def test_rows_choose_every_field_that_is_there():
    column = torch.arange(4.0)
    batch = PPOBatch(
        observations=column[:, None],
        actions=column,
        old_log_probs=column,
        advantages=column,
        returns=column + 1.0,
        old_values=column,
    )
    part = batch.rows(torch.tensor([2, 0]))
    assert part.critic_observations is None
    assert (part.observations.tolist(), part.returns.tolist()) == ([[2.0], [0.0]], [3.0, 1.0])


class HostReads(TorchDispatchMode):
    """Counts how often a tensor became a Python number, each a wait for the device."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


def filled():
    rng = np.random.default_rng(0)
    buffer = OnPolicyBuffer(BufferShape(capacity=8, rows=4, observation_dim=2))
    while not buffer.full:
        rows = rng.normal(size=(4, 2)).astype(np.float32)
        ends = rng.random(4) < 0.1
        buffer.stage(rows, rng.integers(2, size=4))
        buffer.commit(Outcome(rng.normal(size=4), ends, ends), rows)
    return buffer


SMALL = {"batch_size": 4, "epochs": 3, "hidden_sizes": (4,)}


@pytest.mark.parametrize(
    ("kind", "settings", "expected"),
    [
        (PPOLearner, PPOConfig(**SMALL, clip_value=0.1, entropy_coefficient=0.1), 0),
        (PPOLearner, PPOConfig(**SMALL, target_kl=1e9), 3),  # once an epoch
        (GRPOLearner, GRPOConfig(**SMALL, entropy_coefficient=0.1), 0),
    ],
)
def test_no_minibatch_waits_for_the_device(kind, settings, expected):
    learner = kind(settings, observation_dim=2, choices=2)
    with HostReads() as reads:
        learner.update(filled())
    assert reads.count == expected


def test_a_number_read_per_minibatch_would_be_caught():
    with HostReads() as reads:
        float(torch.ones(()) * 2.0)
        torch.ones(()).item()
    assert reads.count == 2
