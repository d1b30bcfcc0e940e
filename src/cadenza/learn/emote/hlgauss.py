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

from typing import Final, Literal

import torch
from torch import Tensor, nn, optim

from cadenza.core.errors import InputError
from cadenza.learn.agents.hlgauss import (
    HLGaussConfig,
    LogitMlp,
    LogitNet,
    QNet,
    bin_edges,
    hl_gauss_probabilities,
    soft_cross_entropy,
)
from cadenza.learn.emote.targets import CriticLoss, Observations, PrioritizedMemory

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
_DEFAULTS: Final = HLGaussConfig()


def two_hot_probabilities(target: Tensor, centers: Tensor) -> Tensor:
    """Return the two-point distribution on ``centers`` whose mean is the target.

    Args:
        target: Shape (B, 1); clamped between the outer centres.
        centers: Equidistant, rising, shape (b,), b >= 2.

    Returns:
        Shape (B, b); rows sum to 1.
    """
    width = (centers[-1] - centers[0]) / (len(centers) - 1)
    position = ((target.float() - centers[0]) / width).clamp(0.0, len(centers) - 1.0)
    lower = position.floor().clamp_max(len(centers) - 2.0)
    share = position - lower  # of the upper centre, in [0, 1]
    probabilities = torch.zeros(len(target), len(centers), device=target.device)
    probabilities.scatter_(1, lower.long(), 1.0 - share)
    return probabilities.scatter_(1, lower.long() + 1, share)


class HLGaussLoss(nn.Module):
    """Cross-entropy between ``num_bins`` bins and a normal distribution around the target.

    ``sigma`` > 0 is in the unit of the values.

    Raises:
        InputError: The support is empty or ``sigma`` is not positive.
    """

    support: Tensor

    def __init__(self, min_value: float, max_value: float, num_bins: int, sigma: float) -> None:
        super().__init__()
        if not sigma > 0.0:
            raise InputError(f"HLGaussLoss: expected sigma > 0, got {sigma}.")
        self.min_value = min_value
        self.max_value = max_value
        self.num_bins = num_bins
        self.sigma = sigma
        self.register_buffer("support", bin_edges(min_value, max_value, num_bins))

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the loss, shape (), of ``logits`` (B, b) for the values ``target`` (B, 1)."""
        _require_rows("HLGaussLoss", logits, target, self.num_bins)
        return soft_cross_entropy(logits, self.transform_to_probs(target)).mean()

    def transform_to_probs(self, target: Tensor) -> Tensor:
        """Return the soft labels, shape (B, b), of ``target``, shape (B, 1)."""
        return hl_gauss_probabilities(target, self.support, self.sigma)


class TwoHotLoss(nn.Module):
    """Cross-entropy between bins and the two bins around the target.

    Args:
        min_value: Lower end of the support.
        max_value: Upper end, > ``min_value``.
        num_bins: b, >= 2.

    Raises:
        InputError: The support is empty.
    """

    centers: Tensor

    def __init__(self, min_value: float, max_value: float, num_bins: int) -> None:
        super().__init__()
        edges = bin_edges(min_value, max_value, num_bins)
        self.num_bins = num_bins
        self.register_buffer("centers", (edges[:-1] + edges[1:]) / 2)

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the loss, shape (), of ``logits`` (B, b) for the values ``target`` (B, 1)."""
        _require_rows("TwoHotLoss", logits, target, self.num_bins)
        return soft_cross_entropy(logits, self.transform_to_probs(target)).mean()

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
        lr_schedule: optim.lr_scheduler.LRScheduler | None = None,
        max_grad_norm: float = _DEFAULTS.max_gradient_norm,
        smoothing_ratio: float = _DEFAULTS.smoothing_ratio,
        data_group: str = "default",
        log_per_param_weights: bool = False,
        log_per_param_grads: bool = False,
        target_encoding: TargetEncoding = "hl_gauss",
        prioritized_memory: PrioritizedMemory | None = None,
    ) -> None:
        super().__init__(
            name=name,
            q=q,
            opt=opt,
            lr_schedule=lr_schedule,
            max_grad_norm=max_grad_norm,
            data_group=data_group,
            log_per_param_weights=log_per_param_weights,
            log_per_param_grads=log_per_param_grads,
            prioritized_memory=prioritized_memory,
        )
        low, high, bins = q.min_value, q.max_value, q.num_bins
        if target_encoding == "hl_gauss":
            encoding: HLGaussLoss | TwoHotLoss = HLGaussLoss(
                low, high, bins, smoothing_ratio * (high - low) / bins
            )
        elif target_encoding == "two_hot":
            encoding = TwoHotLoss(low, high, bins)
        else:
            raise InputError(
                f"QLoss: expected target_encoding 'hl_gauss' or 'two_hot', got {target_encoding!r}."
            )
        self.classification_loss: HLGaussLoss | TwoHotLoss = encoding.to(q.centers.device)

    def rows(
        self, observation: Observations, actions: Tensor, q_target: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return mean values and cross-entropies; targets are clamped into the support."""
        logits: Tensor = self.q_network.logit_net(actions, **observation)
        labels = self.classification_loss.transform_to_probs(q_target)
        net = self.q_network
        outside = (q_target < net.min_value) | (q_target > net.max_value)
        self.log_mean(f"training/{self.name}_clipped", outside.float())
        return self.q_network.q_from_logit(logits.detach()), soft_cross_entropy(logits, labels)


def _require_rows(owner: str, logits: Tensor, target: Tensor, num_bins: int) -> None:
    if logits.shape != (len(target), num_bins) or target.shape != (len(target), 1):
        raise InputError(
            f"{owner}: expected logits (B, {num_bins}) and target (B, 1), got "
            f"{tuple(logits.shape)} and {tuple(target.shape)}."
        )
