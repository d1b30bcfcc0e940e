"""What adversarial rewards share: the discriminator's loss, its gradient penalty, and its network.

Equation:  L = mean (D(x⁺) - 1)² + mean (D(x⁻) + 1)² + w mean_i |∂D(x⁺_i)/∂x⁺_i|²
Sources:   least-squares objective arXiv:1611.04076; with this penalty, for motion priors:
           arXiv:2104.02180, eq. 5 and 6.
Axes:      B = rows, K = inputs of the discriminator.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from cadenza.core.errors import InputError
from cadenza.learn.nn.relu_mlp import relu_mlp


class Discriminator(nn.Module):
    """ReLU perceptron with one unbounded output per row: near 1 for real, near -1 for made.

    Args:
        input_dim: K, >= 1.
        hidden_dims: Widths of the hidden layers.
        generator: Source of the initial weights; None draws from the package's own.

    Raises:
        InputError: A width is below one.
    """

    def __init__(
        self,
        input_dim: int,
        hidden_dims: Sequence[int] = (256, 256),
        *,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.mlp = relu_mlp(input_dim, hidden_dims, outputs=1, generator=generator)

    def forward(self, features: Tensor) -> Tensor:
        """Return scores, shape (B, 1), for ``features``, shape (B, K)."""
        return self.mlp(features)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DiscriminatorOutcome:
    """Loss of one batch, and what it is made of.

    Attributes:
        positive: mean (D(x⁺) - 1)².
        negative: mean (D(x⁻) + 1)².
        gradient: w times the gradient penalty.
        positive_scores: D(x⁺), shape (B, 1).
        negative_scores: D(x⁻), shape (B', 1).
    """

    positive: Tensor
    negative: Tensor
    gradient: Tensor
    positive_scores: Tensor
    negative_scores: Tensor

    @property
    def total(self) -> Tensor:
        """The loss."""
        return self.positive + self.negative + self.gradient


def gradient_loss_function(model_output: Tensor, model_input: Tensor) -> Tensor:
    """Return the mean over rows of |∂(Σ_j output_j)/∂input_i|², differentiable.

    Args:
        model_output: What a network made of ``model_input``; rows must not influence each other.
        model_input: Its input, shape (B, ...), part of the graph of ``model_output``.

    Returns:
        A scalar.
    """
    (gradient,) = torch.autograd.grad(
        model_output,
        model_input,
        grad_outputs=torch.ones_like(model_output),
        create_graph=True,
    )
    return gradient.square().flatten(1).sum(1).mean()


def discriminator_outcome(
    discriminator: nn.Module, real: Tensor, made: Tensor, gradient_weight: float
) -> DiscriminatorOutcome:
    """Return the loss that teaches ``discriminator`` to tell ``real`` from ``made``.

    Args:
        discriminator: Maps (B, K) to (B, 1).
        real: Rows that belong to +1, shape (B, K).
        made: Rows that belong to -1, shape (B', K).
        gradient_weight: w, weight of the gradient penalty on ``real``.

    Raises:
        InputError: The discriminator gives another shape than (B, 1).
    """
    real = real.detach().requires_grad_()
    scores = discriminator_scores(discriminator, real)
    made_scores = discriminator_scores(discriminator, made.detach())
    return DiscriminatorOutcome(
        positive=(scores - 1.0).square().mean(),
        negative=(made_scores + 1.0).square().mean(),
        gradient=gradient_weight * gradient_loss_function(scores, real),
        positive_scores=scores.detach(),
        negative_scores=made_scores.detach(),
    )


def discriminator_scores(discriminator: nn.Module, rows: Tensor) -> Tensor:
    """Return the discriminator's output, shape (B, 1).

    Raises:
        InputError: It has another shape.
    """
    scores: Tensor = discriminator(rows)
    if scores.shape != (rows.shape[0], 1):
        raise InputError(
            f"discriminator: expected output of shape {(rows.shape[0], 1)} for {rows.shape[0]} "
            f"rows, got {tuple(scores.shape)}; end it with one linear unit."
        )
    return scores


def spread(values: Tensor) -> Tensor:
    """Return the sample standard deviation; 0 for a single value, where it is not defined."""
    return values.std(correction=min(1, values.numel() - 1))
