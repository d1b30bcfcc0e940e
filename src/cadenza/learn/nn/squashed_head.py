"""Bounded continuous actions for on-policy learners: a Gaussian seen through tanh.

Equations, for the actor's output μ and a spread σ = exp(log_std) of its own:
    u = μ + σ ε,   a = tanh(u)
    log π(a) = Σ_j [ log N(u_j; μ_j, σ_j) − log(1 − tanh² u_j) ]
    H(π) = Σ_j [ ½ + ½ log 2π + log σ_j + E_ε log(1 − tanh²(μ_j + σ_j ε)) ]
Source:  arXiv:1812.05905, appendix C; the expectation by Gauss–Hermite quadrature.
Axes:    B = batch, A = action components.
Limits:  the pre-action u stands for the action everywhere, so that no tanh has to be undone; the
         caller squashes it for the environment. Densities are those of tanh(u): the constant for
         stretching [−1, 1] to other bounds is left out, and cancels in every ratio.
"""

import math
from typing import Final

import numpy as np
import torch
from torch import Tensor, nn

from cadenza.learn.nn.gaussian_policy import squashed_log_probability
from cadenza.learn.nn.policy_networks import DiagonalGaussianHead

#: Nodes of the quadrature: within 1e-4 nats per component for σ up to 1, 1e-2 up to e².
QUADRATURE_NODES: Final = 32
_LOG_TWO: Final = math.log(2.0)


class SquashedGaussianHead(nn.Module):
    """Independent normal components squashed by tanh.

    Args:
        components: A, >= 1.
        initial_log_std: First value of log σ, in log units of the pre-action.

    Raises:
        InputError: ``components`` is below one.
    """

    def __init__(self, components: int, initial_log_std: float = 0.0) -> None:
        super().__init__()
        self.gaussian = DiagonalGaussianHead(components, initial_log_std)
        self.outputs = components
        nodes, weights = np.polynomial.hermite_e.hermegauss(QUADRATURE_NODES)
        weights = weights / weights.sum()
        # Constants, so no part of the state: they follow the device, not a checkpoint.
        self.register_buffer("_nodes", torch.tensor(nodes, dtype=torch.float32), persistent=False)
        self.register_buffer(
            "_weights", torch.tensor(weights, dtype=torch.float32), persistent=False
        )

    def sample(self, output: Tensor, generator: torch.Generator) -> Tensor:
        """Return drawn pre-actions, (B, A) float32."""
        return self.gaussian.sample(output, generator)

    def mode(self, output: Tensor) -> Tensor:
        """Return the means before squashing, (B, A): tanh of them is the median action."""
        return output

    def log_prob(self, output: Tensor, actions: Tensor) -> Tensor:
        """Return the log-density of tanh(u), shape (B,); ``actions`` are pre-actions u, (B, A)."""
        log_std = self.gaussian.log_std
        epsilon = (actions - output) * torch.exp(-log_std)
        return squashed_log_probability(actions, epsilon, log_std).squeeze(-1)

    def entropy(self, output: Tensor) -> Tensor:
        """Return the entropy of tanh(u), nats, shape (B,); at most A log 2."""
        nodes, weights = self.get_buffer("_nodes"), self.get_buffer("_weights")
        u = output.unsqueeze(-1) + self.gaussian.log_std.exp().unsqueeze(-1) * nodes  # (B, A, Q)
        log_slope = 2.0 * (_LOG_TWO - u - nn.functional.softplus(-2.0 * u))
        return self.gaussian.entropy(output) + (log_slope * weights).sum((-1, -2))
