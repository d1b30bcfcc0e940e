"""Squashed Gaussian policies: a = tanh(u) with u normal, as soft actor-critic needs them.

Equations, for hidden features h:
    μ = clamp(W_μ h + b_μ, -5, 5),   s = clamp(W_s h + b_s, -20, 2),   σ = exp(s)
    u = μ + σ ε,   a = tanh(u)
    log π(a) = Σ_j [ log N(u_j; μ_j, σ_j) - 2 (ln 2 - u_j - softplus(-2 u_j)) ]
Source:   soft actor-critic, arXiv:1812.05905, appendix C; the last term is ln(1 - tanh²(u)) in the
          form that does not cancel for large |u|.
Axes:     B = batch, H = hidden, A = action.
Noise:    ε comes from a `torch.Generator` that the head owns and its state dict carries; weights
          saved without it load too, and the noise goes on.
"""

import math
from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor, nn

from cadenza.core.errors import InputError
from cadenza.learn.nn.initialization import initialized_linear, xavier_uniform_init_
from cadenza.learn.nn.layers import NoisyModule, apply_layers, let_noise_go_on, mlp

#: Bound of |μ|: tanh(5) = 0.9999, so no action is out of reach. Outside, μ has no gradient.
MAX_MEAN: Final = 5.0
#: Bounds of ln σ (arXiv:1812.05905's published code).
MIN_LOG_STD: Final = -20.0
MAX_LOG_STD: Final = 2.0
#: Gain of the head's layers: the first actions of `GaussianMlpPolicy` are centred on zero.
HEAD_GAIN: Final = 0.01
_HALF_LOG_TWO_PI: Final = 0.5 * math.log(2.0 * math.pi)
_LOG_TWO: Final = math.log(2.0)


def squashed_log_probability(u: Tensor, epsilon: Tensor, log_std: Tensor) -> Tensor:
    """Return log π(tanh u) summed over actions, shape (B, 1).

    Args:
        u: Draws μ + σ ε before the squashing, shape (B, A).
        epsilon: The standard normal draws in them, shape (B, A).
        log_std: ln σ, shape (B, A).
    """
    normal = -0.5 * epsilon * epsilon - log_std - _HALF_LOG_TWO_PI
    squash = 2.0 * (_LOG_TWO - u - nn.functional.softplus(-2.0 * u))
    return (normal - squash).sum(-1, keepdim=True)


def squashed_mean(mean: Tensor) -> Tensor:
    """Return the action without noise, tanh μ, for the mean before its clamp, (B, A)."""
    return torch.tanh(mean.clamp(-MAX_MEAN, MAX_MEAN))


class BasePolicy(nn.Module):
    """Policies whose decision is a function of a drawn pre-action; the identity by default."""

    def post_process(self, actions: Tensor) -> Tensor:
        """Return the decision that belongs to a pre-action; a discrete policy overrides this."""
        return actions

    def infer(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return pre-actions and decisions for the encoder output ``x``, for acting."""
        out: Tensor | tuple[Tensor, ...] = self(x)
        pre_actions = out[0] if isinstance(out, tuple) else out
        return pre_actions, self.post_process(pre_actions)


class GaussianPolicyHead(NoisyModule):
    """Mean and spread from features, and the squashed draw.

    ``generator`` is the source of the noise; None makes one that belongs to this head, seeded 0,
    which shares nothing with the initial weights.
    """

    def __init__(
        self,
        hidden_dim: int,
        action_dim: int,
        *,
        generator: torch.Generator | None = None,
        init_generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(generator)
        if min(hidden_dim, action_dim) < 1:
            raise InputError(
                "GaussianPolicyHead: expected hidden_dim >= 1 and action_dim >= 1, got "
                f"{hidden_dim} and {action_dim}."
            )
        self.action_dim = action_dim
        self.mean: nn.Linear = initialized_linear(
            hidden_dim, action_dim, gain=1.0, generator=init_generator
        )
        self.log_std: nn.Linear = initialized_linear(
            hidden_dim, action_dim, gain=1.0, generator=init_generator
        )
        let_noise_go_on(self)

    def forward(self, x: Tensor, epsilon: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        """Draw an action in training mode; decide without chance in evaluation mode.

        Features are (B, H). Training mode returns actions (B, A), differentiable through the draw,
        and log-probabilities (B, 1), evaluation mode actions only. Noise ``epsilon``, (B, A), is
        drawn if it is None in training, and zero in evaluation, which gives tanh(μ).
        """
        mean = apply_layers([self.mean], x)
        if not self.training and epsilon is None:
            return squashed_mean(mean)
        mean = mean.clamp(-MAX_MEAN, MAX_MEAN)
        log_std = apply_layers([self.log_std], x).clamp(MIN_LOG_STD, MAX_LOG_STD)
        noise = self.draw(len(mean)).to(mean) if epsilon is None else epsilon
        u = torch.addcmul(mean, log_std.exp(), noise)
        if not self.training:
            return torch.tanh(u)
        log_probability = squashed_log_probability(u, noise, log_std)
        return torch.tanh(u), log_probability

    def draw(self, rows: int) -> Tensor:
        """Return the next standard normal draws, (``rows``, A), on the generator's device."""
        device = self.generator.device
        return torch.randn((rows, self.action_dim), generator=self.generator, device=device)


class GaussianMlpPolicy(nn.Module):
    """Perceptron, of one of `ACTIVATIONS` of `layers`, and `GaussianPolicyHead`."""

    def __init__(
        self,
        observation_dim: int,
        action_dim: int,
        hidden_dims: Sequence[int],
        *,
        activation: str = "relu",
        generator: torch.Generator | None = None,
        init_generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.encoder: nn.Sequential = mlp(
            observation_dim, hidden_dims, activation=activation, generator=init_generator
        )
        self.policy: GaussianPolicyHead = GaussianPolicyHead(
            hidden_dims[-1],
            action_dim,
            generator=generator,
            init_generator=init_generator,
        )
        for layer in (self.policy.mean, self.policy.log_std):
            xavier_uniform_init_(layer, HEAD_GAIN, generator=init_generator)

    def forward(self, obs: Tensor, epsilon: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        """Return what `GaussianPolicyHead.forward` does for ``obs``, shape (B, O)."""
        out: Tensor | tuple[Tensor, Tensor] = self.policy(self.encoder(obs), epsilon)
        return out
