"""Classifying critics."""

import math
from itertools import pairwise

import pytest
import torch
from torch.optim import SGD

from cadenza.core.errors import InputError
from cadenza.learn.algorithms.hlgauss import (
    HLGaussLoss,
    LogitNet,
    QLoss,
    QNet,
    hl_gauss_probabilities,
)
from tests.unit.learn.algorithms.sac_parts import batch


class FreeLogits(LogitNet):
    """The same logits for every row."""

    def __init__(self, logits):
        super().__init__(len(logits))
        self.logits = torch.nn.Parameter(torch.tensor(logits))

    def forward(self, action, obs):
        return self.logits.expand(len(obs), -1)


def normal_cdf(x, mean, sigma):
    return 0.5 * math.erfc((mean - x) / (sigma * math.sqrt(2)))


def test_soft_labels_are_the_normal_mass_of_each_bin():
    loss = HLGaussLoss(-1.0, 1.0, 4, 0.375)
    found = loss.transform_to_probs(torch.tensor([[0.3]]))[0].tolist()
    edges = [normal_cdf(x, 0.3, 0.375) for x in (-1, -0.5, 0, 0.5, 1)]
    expected = [(b - a) / (edges[-1] - edges[0]) for a, b in pairwise(edges)]
    assert found == pytest.approx(expected, abs=1e-6)
    assert found == pytest.approx([0.0167, 0.2017, 0.5071, 0.2745], abs=5e-5)


@pytest.mark.parametrize(("target", "edge"), [(-1e9, -1.0), (1e9, 1.0)])
def test_target_outside_the_support_is_labelled_as_its_edge(target, edge):
    found = HLGaussLoss(-1.0, 1.0, 4, 0.375).transform_to_probs(torch.tensor([[target]]))[0]
    mass = [normal_cdf(x, edge, 0.375) for x in (-1, -0.5, 0, 0.5, 1)]
    expected = [(b - a) / (mass[-1] - mass[0]) for a, b in pairwise(mass)]
    assert found.tolist() == pytest.approx(expected, abs=1e-5)


def test_gradient_is_softmax_minus_labels():
    loss = HLGaussLoss(-1.0, 1.0, 4, 0.375)
    logits = torch.tensor([[0.0, 1.0, 2.0, -1.0]], requires_grad=True)
    loss(logits, torch.tensor([[0.3]])).backward()
    expected = torch.softmax(logits.detach(), 1) - loss.transform_to_probs(torch.tensor([[0.3]]))
    torch.testing.assert_close(logits.grad, expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("target", [-1e9, -1.0, 1.0, 1e9])
@pytest.mark.parametrize("sigma", [1e-3, 0.375, 100.0])
def test_labels_far_outside_the_support_are_finite_and_sum_to_one(target, sigma):
    found = hl_gauss_probabilities(torch.tensor([[target]]), torch.linspace(-1, 1, 5), sigma)
    assert found.sum().item() == pytest.approx(1.0, abs=1e-5)
    assert found.min() >= 0
    clamped = torch.tensor([[max(-1.0, min(1.0, target))]])
    assert torch.equal(found, hl_gauss_probabilities(clamped, torch.linspace(-1, 1, 5), sigma))


def test_value_is_the_mean_of_the_bins():
    net = QNet(FreeLogits([0.0, 0.0, math.log(2.0)]), -3.0, 3.0)
    assert net.centers.tolist() == [-2.0, 0.0, 2.0]
    # Shares of a quarter, a quarter and a half
    assert net(torch.zeros(2, 1), obs=torch.zeros(2, 1)).flatten().tolist() == [0.5, 0.5]
    assert QNet(FreeLogits([0.0, 0.0]), 0.0, 4.0)(torch.zeros(1, 1), torch.zeros(1, 1)) == 2.0
    with pytest.raises(InputError, match=r"expected num_bins >= 2, got 1"):
        FreeLogits([0.0])


def q_loss(logits, **kwargs):
    net = QNet(FreeLogits(logits), -1.0, 1.0)
    return QLoss(
        name="q", q=net, opt=SGD(net.parameters(), 1.0), max_grad_norm=100.0, **kwargs
    ), net


def data_with(target):
    return batch([0, 0], [0, 0], [0, 0], [1, 1], q_target=torch.full((2, 1), target))


def test_q_loss_smooths_by_the_ratio_of_the_bin_width():
    loss, net = q_loss([0.0] * 4, smoothing_ratio=0.75)
    loss.backward(default=data_with(0.3))
    # σ = 0.75·2/4 = 0.375: dL/dl = 1/4 - p, and SGD with rate 1 makes the logits p - 1/4
    expected = [p - 0.25 for p in (0.0167, 0.2017, 0.5071, 0.2745)]
    assert net.logit_net.logits.tolist() == pytest.approx(expected, abs=1e-4)
    assert loss.scalar_logs["training/q_prediction"] == 0.0


def test_q_loss_with_two_hot_targets_moves_two_bins_up():
    loss, net = q_loss([0.0] * 4, target_encoding="two_hot")
    loss.backward(default=data_with(0.0))
    assert net.logit_net.logits.tolist() == pytest.approx([-0.25, 0.25, 0.25, -0.25], abs=1e-6)


def test_each_row_of_a_classification_has_a_loss_of_its_own():
    loss, _ = q_loss([0.0, 1.0, 2.0, -1.0], target_encoding="two_hot")
    rows = data_with(0.25) | {"q_target": torch.tensor([[0.25], [-0.75]])}
    actions, observations = rows["actions"], rows["observation"]
    values, losses = loss.rows(observations, actions, rows["q_target"])
    # Each target is the middle of a bin, so its loss is -log softmax at that bin
    expected = -torch.log_softmax(torch.tensor([0.0, 1.0, 2.0, -1.0]), 0)[[2, 0]]
    assert values.shape == (2, 1)
    torch.testing.assert_close(losses, expected[:, None])


def test_q_loss_clamps_targets_beyond_the_support():
    values = []
    for target in (1.0, 50.0):
        loss, _ = q_loss([0.0, 1.0, 0.0, 1.0])
        loss.backward(default=data_with(target))
        values.append(loss.scalar_logs["loss/q_loss"])
    assert values[0] == values[1]
