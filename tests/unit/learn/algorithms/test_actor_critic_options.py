"""Options that every actor-critic loss has: group, schedule, gradient bound, logs per parameter."""

import pytest
import torch
from torch.optim import SGD
from torch.optim.lr_scheduler import StepLR

from cadenza.learn.agents.td3 import DeterministicMlpPolicy
from cadenza.learn.algorithms import hlgauss, td3
from cadenza.learn.algorithms.sac import AlphaLoss, PolicyLoss, QLoss
from cadenza.learn.nn import ActionValueMlp, GaussianMlpPolicy

RATE = 0.5


def rng():
    return torch.Generator().manual_seed(0)


def optimizer_of(parameters):
    optimizer = SGD(parameters, RATE)
    return {"opt": optimizer, "lr_schedule": StepLR(optimizer, 1, 0.1)}


def squared(**options):
    net = ActionValueMlp(1, 1, [4], generator=rng())
    return QLoss(name="q", q=net, **optimizer_of(net.parameters()), **options)


def classified(**options):
    net = hlgauss.QNet(hlgauss.LogitMlp(1, 1, [4], 5, generator=rng()), -1.0, 1.0)
    return hlgauss.QLoss(name="q", q=net, **optimizer_of(net.parameters()), **options)


def stochastic(**options):
    net = GaussianMlpPolicy(1, 1, [4], init_generator=rng())
    critic = ActionValueMlp(1, 1, [4], generator=rng())
    options = {"name": "pi", **options}
    return PolicyLoss(
        pi=net, ln_alpha=torch.zeros(1), q=critic, **optimizer_of(net.parameters()), **options
    )


def deterministic(**options):
    net = DeterministicMlpPolicy(1, 1, [4], init_generator=rng())
    critic = ActionValueMlp(1, 1, [4], generator=rng())
    options = {"name": "pi", "policy_delay": 1, **options}
    return td3.PolicyLoss(pi=net, q=critic, **optimizer_of(net.parameters()), **options)


def temperature(**options):
    ln_alpha = torch.full((1,), -3.0, requires_grad=True)
    net = GaussianMlpPolicy(1, 1, [4], init_generator=rng())
    options = {"name": "alpha", **options}
    return AlphaLoss(pi=net, ln_alpha=ln_alpha, n_actions=1, **optimizer_of([ln_alpha]), **options)


LOSSES = [squared, classified, stochastic, deterministic, temperature]


def data():
    return {
        "observation": {"obs": torch.tensor([[1.0], [2.0], [-1.0]])},
        "actions": torch.tensor([[0.5], [-0.5], [0.1]]),
        "q_target": torch.tensor([[0.9], [-0.9], [0.3]]),
    }


def distance(before, loss):
    pairs = zip(before, loss.parameters, strict=True)
    return sum(float((old - new.detach()).square().sum()) for old, new in pairs) ** 0.5


@pytest.mark.parametrize("make", LOSSES)
def test_step_is_no_longer_than_the_gradient_bound_allows(make):
    loss = make(max_grad_norm=1e-3)
    before = [parameter.detach().clone() for parameter in loss.parameters]
    loss.backward(default=data(), bp_step=1)
    assert loss.scalar_logs[f"loss/{loss.name}_gradient_norm"] > 1e-3
    assert distance(before, loss) == pytest.approx(RATE * 1e-3, rel=1e-2)


@pytest.mark.parametrize("make", LOSSES)
def test_schedule_lowers_the_rate_after_every_step(make):
    loss = make()
    loss.backward(default=data(), bp_step=1)
    assert loss.optimizer.param_groups[0]["lr"] == pytest.approx(RATE / 10)
    assert loss.scalar_logs[f"loss/{loss.name}_lr"] == pytest.approx(RATE / 10)


@pytest.mark.parametrize("make", LOSSES)
def test_data_comes_from_the_group(make):
    loss = make(data_group="real")
    loss.backward(real=data(), bp_step=1)
    with pytest.raises(KeyError, match=r"'real'"):
        loss.backward(default=data(), bp_step=2)
