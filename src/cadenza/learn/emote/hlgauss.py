"""Critics that classify the return into bins instead of regressing it.

Equations, with bin edges e_0 ... e_b and centres c_i:
    value     Q = Σ_i softmax(logits)_i c_i
    hl_gauss  p_i = (F(e_{i+1}) - F(e_i)) / (F(e_b) - F(e_0)),  F the normal CDF around the target
    two_hot   all mass on the two centres around the target, so that Σ p_i c_i is the target
    loss      Σ_i -p_i log softmax(logits)_i, averaged over rows
Source:  arXiv:2403.03950 (HL-Gauss: section 3.1; two-hot: section 2.2).
Axes:    B = batch, b = bins.
Limits:  targets are clamped into [e_0, e_b] (two-hot: between the outer centres); the log
         ``training/<name>_clipped`` is their share.
"""

from abc import ABC, abstractmethod
from typing import Literal, Unpack, get_args

import torch
from torch import Tensor, nn, optim

from cadenza.core.arrays import require_shape
from cadenza.core.errors import InputError, refuse
from cadenza.learn.agents.hlgauss import (
    HLGaussConfig,
    LogitMlp,
    LogitNet,
    QNet,
    bin_edges,
    hl_gauss_probabilities,
    soft_cross_entropy,
)
from cadenza.learn.emote.targets import CriticKeywords, CriticLoss, Observations

__all__ = [
    "HLGaussLoss",
    "LogitMlp",
    "LogitNet",
    "QLoss",
    "QNet",
    "TwoHotLoss",
    "hl_gauss_probabilities",
    "soft_cross_entropy",
    "two_hot_probabilities",
]

#: How a target value becomes a distribution over bins.
TargetEncoding = Literal["hl_gauss", "two_hot"]


def two_hot_probabilities(target: Tensor, centers: Tensor) -> Tensor:
    """Return the two-point distribution on ``centers`` whose mean is the target, (B, b).

    Targets, (B, 1), are clamped between the outer of the equidistant, rising centres, (b,).
    """
    width = (centers[-1] - centers[0]) / (len(centers) - 1)
    position = ((target.float() - centers[0]) / width).clamp(0.0, len(centers) - 1.0)
    lower = position.floor().clamp_max(len(centers) - 2.0)
    share = position - lower  # of the upper centre, in [0, 1]
    probabilities = torch.zeros(len(target), len(centers), device=target.device)
    probabilities.scatter_(1, lower.long(), 1.0 - share)
    return probabilities.scatter_(1, lower.long() + 1, share)


class ClassificationLoss(nn.Module, ABC):
    """Cross-entropy between logits of bins and what a subclass makes of the target."""

    def __init__(self, min_value: float, max_value: float, num_bins: int) -> None:
        super().__init__()
        self.min_value = min_value
        self.max_value = max_value
        self.num_bins = num_bins

    @abstractmethod
    def transform_to_probs(self, target: Tensor) -> Tensor:
        """Return the soft labels, shape (B, b), of ``target``, shape (B, 1)."""

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the loss, shape (), of ``logits`` (B, b) for the values ``target`` (B, 1)."""
        owner = type(self).__name__
        require_shape(f"{owner}: target", target, ("rows", 1))
        require_shape(f"{owner}: logits", logits, (len(target), self.num_bins))
        return soft_cross_entropy(logits, self.transform_to_probs(target)).mean()


class HLGaussLoss(ClassificationLoss):
    """Cross-entropy between ``num_bins`` bins and a normal distribution around the target.

    ``sigma`` > 0 is in the unit of the values.

    Raises:
        InputError: The support is empty or ``sigma`` is not positive.
    """

    support: Tensor

    def __init__(self, min_value: float, max_value: float, num_bins: int, sigma: float) -> None:
        super().__init__(min_value, max_value, num_bins)
        if not sigma > 0.0:
            refuse(InputError, "HLGaussLoss", expected="sigma > 0", got=sigma)
        self.sigma = sigma
        self.register_buffer("support", bin_edges(min_value, max_value, num_bins))

    def transform_to_probs(self, target: Tensor) -> Tensor:
        """Return the soft labels, shape (B, b), of ``target``, shape (B, 1)."""
        return hl_gauss_probabilities(target, self.support, self.sigma)


class TwoHotLoss(ClassificationLoss):
    """Cross-entropy between bins and the two bins around the target."""

    centers: Tensor

    def __init__(self, min_value: float, max_value: float, num_bins: int) -> None:
        super().__init__(min_value, max_value, num_bins)
        edges = bin_edges(min_value, max_value, num_bins)
        self.register_buffer("centers", (edges[:-1] + edges[1:]) / 2)

    def transform_to_probs(self, target: Tensor) -> Tensor:
        """Return the soft labels, shape (B, b), of ``target``, shape (B, 1)."""
        return two_hot_probabilities(target, self.centers)


class QLoss(CriticLoss[QNet]):
    """Classification loss of a `QNet`; takes the place of `cadenza.learn.emote.sac.QLoss`.

    Arguments not named here are those of `LossCallback`.

    Args:
        smoothing_ratio: σ in bin widths (HL-Gauss only; the default is the paper's choice).
        target_encoding: How a target becomes a distribution.

    Raises:
        InputError: Unknown ``target_encoding``.
    """

    def __init__(
        self,
        *,
        name: str,
        q: QNet,
        opt: optim.Optimizer,
        smoothing_ratio: float = HLGaussConfig().smoothing_ratio,
        target_encoding: TargetEncoding = "hl_gauss",
        **others: Unpack[CriticKeywords],
    ) -> None:
        super().__init__(name=name, q=q, opt=opt, **others)
        low, high, bins = q.min_value, q.max_value, q.num_bins
        if target_encoding not in get_args(TargetEncoding):
            expected = "target_encoding 'hl_gauss' or 'two_hot'"
            refuse(InputError, "QLoss", expected=expected, got=repr(target_encoding))
        encoding = (
            HLGaussLoss(low, high, bins, smoothing_ratio * (high - low) / bins)
            if target_encoding == "hl_gauss"
            else TwoHotLoss(low, high, bins)
        )
        self.classification_loss: ClassificationLoss = encoding.to(q.centers.device)

    def rows(
        self, observation: Observations, actions: Tensor, q_target: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return mean values and cross-entropies; targets are clamped into the support."""
        net = self.q_network
        logits: Tensor = net.logit_net(actions, **observation)
        labels = self.classification_loss.transform_to_probs(q_target)
        outside = (q_target < net.min_value) | (q_target > net.max_value)
        self.log_mean(f"training/{self.name}_clipped", outside.float())
        return net.q_from_logit(logits.detach()), soft_cross_entropy(logits, labels)
