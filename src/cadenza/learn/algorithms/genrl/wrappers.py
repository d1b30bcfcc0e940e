"""Trained auto-encoders as fixed parts of a policy and of a memory.

Axes:  B = rows, X = action columns, Z = latent columns, O = observation columns.
"""

from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from cadenza.core.errors import CheckpointError
from cadenza.learn.algorithms.genrl.networks import as_decoder, as_encoder

Condition = Callable[[Tensor], Tensor | None]

#: Policies act in (-1, 1); latents of a trained encoder are standard normal, so 99.7 % lie in
#: (-3, 3). A policy's output is multiplied by this before it is decoded.
LATENT_MULTIPLIER = 3.0


class _FrozenPart(nn.Module):
    """Half of an auto-encoder whose parameters never change, except by loading."""

    def freeze(self) -> None:
        """Take the parameters out of every optimisation."""
        self.requires_grad_(False)

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Load the entries that belong to this half; a whole auto-encoder's state serves both.

        Args:
            state_dict: Parameters by name.
            strict: Raise if the state lacks an entry of this half.
            assign: See `torch.nn.Module.load_state_dict`.

        Raises:
            CheckpointError: The state holds nothing of this half.
            RuntimeError: With ``strict``, an entry is missing; or a shape differs.
        """
        own = set(self.state_dict())
        found = {key: value for key, value in state_dict.items() if key in own}
        if not found:
            raise CheckpointError(
                f"{type(self).__name__}.load_state_dict: expected entries such as "
                f"{sorted(own)[:3]}, got {sorted(state_dict)[:3]}; give the state dict of the "
                "auto-encoder."
            )
        result = super().load_state_dict(found, strict=strict, assign=assign)
        self.freeze()
        return result


class DecoderWrapper(_FrozenPart):
    """A frozen decoder that takes latents in the range of a policy.

    Args:
        decoder: Decoder of a trained auto-encoder.
        condition_fn: Observation (B, O) to condition, or to None.
        latent_multiplier: Latent per unit of policy output.

    Attributes:
        latent_size: Z.
        output_size: X.
        condition_size: Columns of the condition.
        device: Where the decoder lives.
    """

    def __init__(
        self,
        decoder: nn.Module,
        condition_fn: Condition,
        latent_multiplier: float = LATENT_MULTIPLIER,
    ) -> None:
        super().__init__()
        contract = as_decoder(decoder)
        self.decoder = decoder
        self.condition_fn = condition_fn
        self.latent_multiplier = latent_multiplier
        self.latent_size = contract.input_size
        self.output_size = contract.output_size
        self.condition_size = contract.condition_size
        self.device = contract.device
        self.freeze()

    def forward(self, latent: Tensor, observation: Tensor | None = None) -> Tensor:
        """Return decoded actions, shape (B, X).

        Args:
            latent: In the policy's range, shape (B, Z).
            observation: Shape (B, O), or None for a decoder without condition.
        """
        condition = None if observation is None else self.condition_fn(observation)
        return as_decoder(self.decoder)(latent * self.latent_multiplier, condition)


class EncoderWrapper(_FrozenPart):
    """A frozen encoder that returns the mean latent of an action.

    Args:
        encoder: Encoder of a trained auto-encoder.
        condition_fn: Observation (B, O) to condition, or to None.

    Attributes:
        action_size: X.
        latent_size: Z.
        condition_size: Columns of the condition.
        device: Where the encoder lives.
    """

    def __init__(self, encoder: nn.Module, condition_fn: Condition) -> None:
        super().__init__()
        contract = as_encoder(encoder)
        self.encoder = encoder
        self.condition_fn = condition_fn
        self.action_size = contract.input_size
        self.latent_size = contract.output_size
        self.condition_size = contract.condition_size
        self.device = contract.device
        self.freeze()

    def forward(self, action: Tensor, observation: Tensor | None = None) -> Tensor:
        """Return mean latents in the auto-encoder's range, shape (B, Z).

        Args:
            action: Shape (B, X).
            observation: Shape (B, O), or None for an encoder without condition.
        """
        condition = None if observation is None else self.condition_fn(observation)
        mean, _ = as_encoder(self.encoder)(action, condition)
        return mean


class PolicyWrapper(nn.Module):
    """A policy over latents that acts through a decoder.

    Args:
        decoder: Turns the policy's latents into actions.
        policy: In training mode returns (latents, log-probabilities), else latents.
    """

    def __init__(self, decoder: DecoderWrapper, policy: nn.Module) -> None:
        super().__init__()
        self.decoder = decoder
        self.policy = policy
        self.latent_size = decoder.latent_size

    def forward(self, obs: Tensor, epsilon: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        """Return actions (B, X), and in training mode log-probabilities of the latents (B, 1).

        Args:
            obs: Shape (B, O).
            epsilon: Noise of the policy; its first Z columns are used, so noise sized for the
                actions fits too.
        """
        noise = None if epsilon is None else epsilon[:, : self.latent_size]
        output: Tensor | tuple[Tensor, Tensor] = self.policy(obs, noise)
        if isinstance(output, tuple):
            latent, log_probability = output
            return self.decoder(latent, obs), log_probability
        return cast("torch.Tensor", self.decoder(output, obs))
