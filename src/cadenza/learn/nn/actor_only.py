"""A policy without a critic, for learners that compare returns with one another.

Axes:  B = batch, O = observation.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from cadenza.learn.nn.policy_networks import (
    POLICY_GAIN,
    CategoricalHead,
    DiagonalGaussianHead,
    TanhMlp,
)
from cadenza.learn.nn.squashed_head import SquashedGaussianHead


class ActorOnly(nn.Module):
    """Tanh layers and a distribution of actions; the actor of `ActorCritic` alone.

    Args:
        observation_dim: O.
        head: Distribution of the actions.
        hidden_sizes: Width of the hidden layers.
        generator: CPU generator of the weights.

    Raises:
        InputError: A width is below one.
    """

    def __init__(
        self,
        observation_dim: int,
        head: CategoricalHead | DiagonalGaussianHead | SquashedGaussianHead,
        *,
        hidden_sizes: Sequence[int],
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.actor = TanhMlp(
            observation_dim,
            hidden_sizes,
            head.outputs,
            output_gain=POLICY_GAIN,
            generator=generator,
        )
        self.head = head

    def log_prob(self, observations: Tensor, actions: Tensor) -> Tensor:
        """Return log π(a|s), shape (B,), for rows of observations, (B, O), and actions."""
        return self.head.log_prob(self.actor(observations), actions)
