"""Soft actor-critic with critics that classify the return into bins instead of regressing it.

Equations, with bin edges e_0 ... e_b and centres c_i:
    value     Q = Σ_i softmax(logits)_i c_i
    labels    p_i = (F(e_{i+1}) - F(e_i)) / (F(e_b) - F(e_0)),  F the normal CDF around the target
    loss      Σ_i -p_i log softmax(logits)_i, averaged over rows
Source:  arXiv:2403.03950, section 3.1.
Axes:    B = batch, b = bins.
Limits:  targets are clamped into [e_0, e_b]; the figure ``clipped`` is their share.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final, Never, Self, Unpack, cast

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from cadenza.core.errors import InputError
from cadenza.learn.agents.off_policy import TD_ERRORS, mean_loss
from cadenza.learn.agents.replay import ReplayAgent, ReplayKeywords
from cadenza.learn.agents.sac import SACConfig, SACLearner, SACSettings, SoftConfig
from cadenza.learn.agents.updates import Figures
from cadenza.learn.env.making import EnvLike
from cadenza.learn.nn.layers import apply_layers, mlp
from cadenza.learn.optimizers import may_look
from cadenza.learn.settings import Count

#: Smallest mass inside the support that is divided by; float32's smallest normal number.
_MIN_MASS: Final = torch.finfo(torch.float32).tiny
#: Largest share of a batch whose targets may leave the range of the histograms.
MOST_CLIPPED: Final = 0.05


class HLGaussConfig(SACConfig):
    """Soft actor-critic with histogram critics.

    Attributes:
        min_value: Lower end of the discounted returns' range.
        max_value: Upper end, > ``min_value``; targets beyond are clipped, and a training is refused
            once more than a twentieth of a batch is.
        bins: Bins, >= 2.
        smoothing_ratio: Deviation of the target's Gaussian, in bins, > 0.
    """

    min_value: float = -200.0
    max_value: float = 50.0
    bins: Count = Field(default=101, ge=2)
    smoothing_ratio: float = Field(default=0.75, gt=0.0)

    @model_validator(mode="after")
    def _range_is_not_empty(self) -> Self:
        if not self.min_value < self.max_value:
            raise ValueError(
                f"min_value: expected less than max_value ({self.max_value}), got {self.min_value}"
            )
        return self


class HLGaussSettings(SACSettings, total=False):
    """Keywords of `HLGaussConfig`."""

    min_value: float
    max_value: float
    bins: int
    smoothing_ratio: float


def bin_edges(min_value: float, max_value: float, num_bins: int) -> Tensor:
    """Return the edges of equally wide bins, (b + 1,).

    Raises:
        InputError: The support is empty.
    """
    if not min_value < max_value or num_bins < 2:
        raise InputError(
            "HL-Gauss support: expected min_value < max_value and num_bins >= 2, got "
            f"{min_value}, {max_value} and {num_bins}."
        )
    return torch.linspace(min_value, max_value, num_bins + 1)


def hl_gauss_probabilities(target: Tensor, edges: Tensor, sigma: float) -> Tensor:
    """Return the mass of N(target, sigma²) in every bin, (B, b), renormalised to the support.

    ``target`` (B, 1) is clamped into the support; ``edges`` (b + 1,) rise.
    """
    inside = target.float().clamp(edges[0], edges[-1])
    cdf = torch.erf((edges - inside) / (math.sqrt(2.0) * sigma))  # (B, b + 1), up to constants
    mass = (cdf[:, -1:] - cdf[:, :1]).clamp_min(_MIN_MASS)
    return (cdf[:, 1:] - cdf[:, :-1]) / mass


def soft_cross_entropy(logits: Tensor, probabilities: Tensor) -> Tensor:
    """Return the cross-entropy of ``logits`` against soft labels, both (B, b), as (B, 1)."""
    return -(probabilities * torch.log_softmax(logits.float(), dim=1)).sum(1, keepdim=True)


class LogitNet(nn.Module, ABC):
    """A network that gives one logit for each of ``num_bins`` >= 2 bins."""

    def __init__(self, num_bins: int) -> None:
        super().__init__()
        if num_bins < 2:
            raise InputError(f"LogitNet: expected num_bins >= 2, got {num_bins}.")
        self.num_bins = num_bins

    @abstractmethod
    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Return logits, shape (B, b)."""


class LogitMlp(LogitNet):
    """Perceptron on observation and action, one logit per bin."""

    def __init__(
        self,
        observation_dim: int,
        action_dim: int,
        hidden_dims: Sequence[int],
        num_bins: int,
        *,
        activation: str = "relu",
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(num_bins)
        self.mlp: nn.Sequential = mlp(
            observation_dim + action_dim,
            hidden_dims,
            num_bins,
            activation=activation,
            generator=generator,
        )

    def forward(self, action: Tensor, obs: Tensor) -> Tensor:
        """Return logits, shape (B, b), of ``action``, shape (B, A), in ``obs``, shape (B, O)."""
        return apply_layers(self.mlp, torch.cat((obs, action), dim=1))


class EncodedLogits(LogitNet):
    """Logits of a network behind an encoder."""

    def __init__(self, network: nn.Module, num_bins: int) -> None:
        super().__init__(num_bins)
        self.network = network

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Return logits, (B, bins)."""
        return self.network(*args, **kwargs)


class QNet(nn.Module):
    """A critic made from a `LogitNet` over ``min_value`` ... ``max_value``; call it like any other.

    Raises:
        InputError: The support is empty.
    """

    centers: Tensor

    def __init__(self, logit_net: LogitNet, min_value: float, max_value: float) -> None:
        super().__init__()
        edges = bin_edges(min_value, max_value, logit_net.num_bins)
        self.logit_net = logit_net
        self.min_value = min_value
        self.max_value = max_value
        self.num_bins: int = logit_net.num_bins
        self.register_buffer("centers", (edges[:-1] + edges[1:]) / 2)

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Return values, shape (B, 1)."""
        return self.q_from_logit(self.logit_net(*args, **kwargs))

    def q_from_logit(self, logits: Tensor) -> Tensor:
        """Return the mean of the distribution, shape (B, 1), that ``logits``, (B, b), describe."""
        return (torch.softmax(logits.float(), dim=1) * self.centers).sum(1, keepdim=True)


class HLGaussLearner(SACLearner):
    """SAC whose critics are histograms; ``seed`` is the root of the streams ``learn.hlgauss.*``."""

    NAME: ClassVar[str] = "hlgauss"
    Config: ClassVar[type[SoftConfig]] = HLGaussConfig

    def _critic(self, config: SoftConfig) -> nn.Module:
        config = self._histogram = cast("HLGaussConfig", config)
        self._edges = bin_edges(config.min_value, config.max_value, config.bins).to(self.device)
        self._sigma = config.smoothing_ratio * (config.max_value - config.min_value) / config.bins
        logits, encoded, features = self._encoded(
            lambda width: self._with_default_weights(
                LogitMlp(
                    width,
                    self.action_width,
                    config.critic_sizes or config.hidden_sizes,
                    config.bins,
                    activation=config.activation,
                    generator=self.weights,
                )
            )
        )
        net = EncodedLogits(encoded, config.bins) if features else logits
        return QNet(net, config.min_value, config.max_value)

    def _critic_losses(
        self, states: Tensor, actions: Tensor, y: Tensor, weights: Tensor | None
    ) -> tuple[dict[str, Tensor], Figures]:
        labels = hl_gauss_probabilities(y, self._edges, self._sigma)
        losses: dict[str, Tensor] = {}
        outside = (y < self._histogram.min_value) | (y > self._histogram.max_value)
        figures = {"clipped": outside.float().mean()}
        for name in ("q1", "q2"):
            critic = cast("QNet", self.networks[name])
            logits = critic.logit_net(actions, obs=states)
            losses[name] = mean_loss(soft_cross_entropy(logits, labels), weights)
            values = critic.q_from_logit(logits.detach())
            figures[f"{name}_prediction"] = values.mean()
            if weights is not None:
                figures[TD_ERRORS] = (values - y)[:, 0]
        return losses, figures

    def update(self, batch: Mapping[str, Any]) -> Figures:
        """Do one update; return figures of it by name.

        Raises:
            InputError: Histograms of returns are too narrow for many of the targets.
        """
        figures = super().update(batch)
        is_looked_at = may_look(self.device, self.updates)
        if is_looked_at and (share := float(figures["clipped"])) > MOST_CLIPPED:
            config = self._histogram
            raise InputError(
                f"hlgauss: expected targets within min_value = {config.min_value:g} and "
                f"max_value = {config.max_value:g}, got {share:.0%} of a batch outside; set "
                "both to the range of discounted returns, or scale the rewards."
            )
        return figures


class _HLGaussKeywords(ReplayKeywords, HLGaussSettings, total=False): ...


class HLGauss(ReplayAgent[HLGaussConfig]):
    """Soft actor-critic with critics that predict histograms; arXiv:2403.03950, `HLGaussConfig`."""

    Config = HLGaussConfig
    Learner = HLGaussLearner

    def __init__(self, env: EnvLike, *others: Never, **settings: Unpack[_HLGaussKeywords]) -> None:
        super().__init__(env, *others, **settings)
