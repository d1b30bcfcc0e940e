"""Critics on batches of a prioritised memory."""

import pytest
import torch
from torch.optim import SGD

from cadenza.learn.algorithms import hlgauss
from cadenza.learn.algorithms.sac import QLoss
from tests.unit.learn.algorithms.sac_parts import SumCritic, batch


class Priorities:
    """Remembers what it was told."""

    def __init__(self):
        self.told = []

    def update_priorities(self, sample_ids, priorities):
        self.told.append((sample_ids.tolist(), priorities.tolist()))


def data(**more):
    """Return two rollouts of two steps; with Q = 2 o, the errors are -3, 2 and 0, 1."""
    targets = torch.tensor([[5.0], [4.0], [4.0], [1.0]])
    return batch([1, 3, 2, 1], [0] * 4, [0] * 4, [1] * 4, q_target=targets, **more)


def loss_of(**options):
    critic = SumCritic(2.0)
    return QLoss(name="q", q=critic, opt=SGD(critic.parameters(), 0.1), **options)


def test_rollouts_are_weighted_by_their_importance():
    loss = loss_of()
    loss.backward(default=data(sample_weights=torch.tensor([1.0, 0.5])))
    assert loss.scalar_logs["loss/q_loss"] == pytest.approx((9 + 4 + 0.5 * (0 + 1)) / 4)
    assert loss.q_network.w.grad.item() == pytest.approx(2 * (-3 * 1 + 2 * 3 + 0.5 * 1) / 4)


def test_memory_is_told_the_mean_absolute_error_of_each_rollout():
    memory = Priorities()
    loss_of(prioritized_memory=memory).backward(default=data(sample_ids=torch.tensor([8, 9])))
    assert memory.told == [([8, 9], [2.5, 0.5])]


def test_classifying_critic_weights_and_tells_alike():
    def trained(weights):
        net = hlgauss.QNet(Uniform(), -6.0, 6.0)
        memory = Priorities()
        loss = hlgauss.QLoss(
            name="q", q=net, opt=SGD(net.parameters(), 0.1), prioritized_memory=memory
        )
        more = {"sample_ids": torch.tensor([8, 9]), "sample_weights": torch.tensor(weights)}
        loss.backward(default=data(**more))
        return loss.scalar_logs["loss/q_loss"], memory.told

    (first, told), (second, _), (both, _) = (trained(w) for w in ([1.0, 0], [0, 1.0], [1.0, 3.0]))
    assert both == pytest.approx(first + 3 * second, rel=1e-5)
    assert second > 0
    # Equal logits: Q = 0, so the errors are the targets 5, 4 and 4, 1
    assert told == [([8, 9], [pytest.approx(4.5), pytest.approx(2.5)])]


class Uniform(hlgauss.LogitNet):
    """Equal logits."""

    def __init__(self):
        super().__init__(12)
        self.logits = torch.nn.Parameter(torch.zeros(12))

    def forward(self, action, obs):
        return self.logits.expand(len(obs), -1)
