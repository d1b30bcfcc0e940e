"""Action-value networks: Q(a, o) for a flat observation, or behind a shared encoder.

Called with the action first, then the observation spaces by name: ``q(actions, **observation)``.
Axes:  B = batch, O = observation, A = action.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from cadenza.core.errors import InputError
from cadenza.learn.nn.relu_mlp import apply_layers, relu_mlp


class ActionValueMlp(nn.Module):
    """ReLU perceptron on the observation and action side by side; one value per row.

    Args:
        observation_dim: O, >= 1.
        action_dim: A, >= 1.
        hidden_dims: Widths of the hidden layers.
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
        self.q = relu_mlp(observation_dim + action_dim, hidden_dims, 1, generator=generator)

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
        self.action_value_mlp = ActionValueMlp(
            encoder_out_dim, action_dim, hidden_dims, generator=generator
        )

    def forward(self, action: Tensor, obs: Tensor) -> Tensor:
        """Return values, shape (B, 1), of ``action``, shape (B, A), in ``obs``."""
        value: Tensor = self.action_value_mlp(action, self.shared_enc(obs))
        return value
