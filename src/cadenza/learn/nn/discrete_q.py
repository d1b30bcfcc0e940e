"""Action values for discrete actions: one output per action.

Equation:  Q(o)_a = f(o)_a,  or dueling  Q(o)_a = V(h) + A(h)_a - mean_a' A(h)_a',  h = f(o)
Source:    dueling heads: arXiv:1511.06581, eq. 9.
Axes:      B = batch, O = observation, A = actions.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from cadenza.core.errors import InputError
from cadenza.learn.nn.initialization import initialised_linear
from cadenza.learn.nn.relu_mlp import apply_layers, relu_mlp


def dueling_values(state_value: Tensor, advantages: Tensor) -> Tensor:
    """Return Q, shape (B, A), from V, shape (B, 1), and advantages, shape (B, A).

    The mean advantage is taken out, so V is the mean of the action values.
    """
    return state_value + advantages - advantages.mean(dim=1, keepdim=True)


class DiscreteQMlp(nn.Module):
    """ReLU perceptron with one value per action.

    Args:
        observation_dim: O, >= 1.
        num_actions: A, >= 1.
        hidden_dims: Widths of the hidden layers, at least one.
        dueling: Split the last layer into a state value and advantages.
        generator: Source of the initial weights; None draws from the package's own.

    Raises:
        InputError: A width is below one or there is no hidden layer.
    """

    def __init__(
        self,
        observation_dim: int,
        num_actions: int,
        hidden_dims: Sequence[int],
        *,
        dueling: bool = False,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        if num_actions < 1:
            raise InputError(f"DiscreteQMlp: expected num_actions >= 1, got {num_actions}.")
        self.trunk = relu_mlp(observation_dim, hidden_dims, generator=generator)
        width = hidden_dims[-1]
        self.advantages = initialised_linear(width, num_actions, gain=1.0, generator=generator)
        self.state_value = (
            initialised_linear(width, 1, gain=1.0, generator=generator) if dueling else None
        )

    def forward(self, obs: Tensor) -> Tensor:
        """Return action values, shape (B, A), for ``obs``, shape (B, O)."""
        features = self.trunk(obs)
        advantages = apply_layers([self.advantages], features)
        if self.state_value is None:
            return advantages
        return dueling_values(apply_layers([self.state_value], features), advantages)
