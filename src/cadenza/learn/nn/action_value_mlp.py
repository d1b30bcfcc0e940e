"""Action-value networks: Q(a, o) for a flat observation, or behind a shared encoder.

Called with the action first, then the observation spaces by name: ``q(actions, **observation)``.
For discrete actions `DiscreteQMlp` has one output per action.

Equation:  Q(o)_a = f(o)_a,  or dueling  Q(o)_a = V(h) + A(h)_a - mean_a' A(h)_a',  h = f(o)
Source:    dueling heads: arXiv:1511.06581, eq. 9.
Axes:      B = batch, O = observation, A = action, or actions to choose from.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from cadenza.core.errors import InputError
from cadenza.learn.nn.initialization import initialized_linear
from cadenza.learn.nn.layers import Layer, apply_layers, mlp


class ActionValueMlp(nn.Module):
    """Perceptron on the observation and action side by side; one value per row.

    Args:
        observation_dim: O, >= 1.
        action_dim: A, >= 1.
        hidden_dims: Widths of the hidden layers.
        activation: One of `cadenza.learn.nn.layers.ACTIVATIONS`.
        generator: Source of the initial weights; None draws from the package's own.

    Raises:
        InputError: A width is below one.
    """

    def __init__(
        self,
        observation_dim: int,
        action_dim: int,
        hidden_dims: Sequence[int],
        *,
        activation: str = "relu",
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        if min(observation_dim, action_dim) < 1:
            raise InputError(
                "ActionValueMlp: expected observation_dim >= 1 and action_dim >= 1, got "
                f"{observation_dim} and {action_dim}."
            )
        self.obs_dim = observation_dim
        self.action_dim = action_dim
        self.q: nn.Sequential = mlp(
            observation_dim + action_dim,
            hidden_dims,
            1,
            activation=activation,
            generator=generator,
        )

    def forward(self, action: Tensor, obs: Tensor) -> Tensor:
        """Return values, shape (B, 1), of ``action``, shape (B, A), in ``obs``, shape (B, O).

        Raises:
            InputError: A shape differs.
        """
        rows = obs.shape[0] if obs.ndim else 0
        if obs.shape != (rows, self.obs_dim) or action.shape != (rows, self.action_dim):
            raise InputError(
                f"ActionValueMlp: expected action (B, {self.action_dim}) and obs "
                f"(B, {self.obs_dim}) with equal B, got {tuple(action.shape)} and "
                f"{tuple(obs.shape)}; the action comes first."
            )
        return apply_layers(self.q, torch.cat((obs, action), dim=1))


class SharedEncoderActionValueNet(nn.Module):
    """An `ActionValueMlp` on the output of an encoder that other networks share.

    Args:
        shared_enc: Maps an observation to shape (B, ``encoder_out_dim``).
        encoder_out_dim: Width of the encoding, >= 1.
        action_dim: A, >= 1.
        hidden_dims: Widths of the hidden layers.
        generator: Source of the initial weights; None draws from the package's own.
    """

    def __init__(
        self,
        shared_enc: nn.Module,
        encoder_out_dim: int,
        action_dim: int,
        hidden_dims: Sequence[int],
        *,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.shared_enc = shared_enc
        self.action_value_mlp: ActionValueMlp = ActionValueMlp(
            encoder_out_dim, action_dim, hidden_dims, generator=generator
        )

    def forward(self, action: Tensor, obs: Tensor) -> Tensor:
        """Return values, shape (B, 1), of ``action``, shape (B, A), in ``obs``."""
        value: Tensor = self.action_value_mlp(action, self.shared_enc(obs))
        return value


def dueling_values(state_value: Tensor, advantages: Tensor) -> Tensor:
    """Return Q, (B, A), from V, (B, 1), and advantages, (B, A), whose mean is taken out."""
    return state_value + advantages - advantages.mean(dim=1, keepdim=True)


class DiscreteQMlp(nn.Module):
    """Perceptron with one value per action.

    Args:
        observation_dim: O, >= 1.
        num_actions: A, >= 1.
        hidden_dims: Widths of the hidden layers, at least one.
        activation: One of `cadenza.learn.nn.layers.ACTIVATIONS`.
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
        activation: str = "relu",
        dueling: bool = False,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        if num_actions < 1:
            raise InputError(f"DiscreteQMlp: expected num_actions >= 1, got {num_actions}.")
        self.trunk: nn.Sequential = mlp(
            observation_dim, hidden_dims, activation=activation, generator=generator
        )
        width = hidden_dims[-1]
        self.advantages: nn.Linear = initialized_linear(
            width, num_actions, gain=1.0, generator=generator
        )
        self.state_value: nn.Linear | None = (
            initialized_linear(width, 1, gain=1.0, generator=generator) if dueling else None
        )

    def forward(self, obs: Tensor) -> Tensor:
        """Return action values, shape (B, A), for ``obs``, shape (B, O)."""
        features = self.trunk(obs)
        advantages = apply_layers([self.advantages], features)
        if self.state_value is None:
            return advantages
        return dueling_values(apply_layers([self.state_value], features), advantages)

    def portable(self) -> "Sequence[nn.Module | Layer]":
        """Return the layers of a policy file."""
        value, advantages = self.state_value, self.advantages
        if value is None:
            return [self.trunk, advantages]
        heads = {
            "value_weight": value.weight,
            "value_bias": value.bias,
            "advantage_weight": advantages.weight,
            "advantage_bias": advantages.bias,
        }
        return [self.trunk, Layer("dueling", tensors=heads)]
