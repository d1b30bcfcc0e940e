"""GenRL: learn an action space from recorded actions, then let a policy act in it.

`VAELoss` learns the space, `PolicyWrapper` acts in it, and `MemoryProxyWithEncoder` stores what was
done as points of the space; a policy's outputs and the stored latents live in one range.

Model:    (m, s) = encoder(x, c),  z = m + e^s * noise,  x_hat = decoder(z, c).
Loss:     mean (x - x_hat)^2 + beta KL, with
          KL = mean_i [ sum_j (e^s + m^2 / 2 - s) ] - Z   (default, of the original engine),
          KL = mean_i [ 1/2 sum_j (e^(2 s) + m^2 - 1 - 2 s) ]   (``exact_kl``);
          both have their minimum at m = 0, s = 0, the default half the curvature in s.
Source:   Kingma and Welling, arXiv:1312.6114, appendix B: the exact form.
Axes:     B = rows, X = data (action) columns, Z = latent columns, C = condition columns,
          O = observation columns, K = agents.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn, optim
from torch.nn import functional

from cadenza.core.errors import CheckpointError, InputError
from cadenza.core.types import AgentId, DictObservation, DictResponse
from cadenza.learn.callbacks.loss import LossCallback, observed_input
from cadenza.learn.memory.proxy import MemoryTableProxy
from cadenza.learn.memory.table import ArrayMemoryTable
from cadenza.learn.nn.initialization import initialised_linear, normal_init_
from cadenza.learn.nn.layers import NoisyModule, let_noise_go_on, relu_mlp
from cadenza.learn.settings import SHARED_DEFAULTS


class _ConditionedPerceptron(nn.Module, ABC):
    """Hidden ReLU layers on [data | condition]; the outputs on top are the subclass's."""

    def __init__(
        self,
        input_size: int,
        output_size: int,
        device: torch.device | str,
        hidden_sizes: Sequence[int],
        condition_size: int = 0,
        *,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self._check_sizes(input_size, output_size, hidden_sizes, condition_size)
        self.device: torch.device = torch.device(device)
        self.input_size = input_size
        self.output_size = output_size
        self.condition_size = condition_size
        self.net: nn.Sequential = relu_mlp(
            input_size + condition_size, hidden_sizes, generator=generator
        )
        self._add_outputs(hidden_sizes[-1], generator)  # draws after the hidden layers
        self.to(self.device)

    @abstractmethod
    def _add_outputs(self, features: int, generator: torch.Generator | None) -> None:
        """Make the output layers on ``features`` units."""

    def _features(self, data: Tensor, condition: Tensor | None) -> Tensor:
        """Return the last hidden layer for [data | condition]."""
        columns = 0 if condition is None else condition.shape[-1]
        if columns != self.condition_size:
            raise InputError(
                f"{type(self).__name__}: expected a condition with {self.condition_size} columns, "
                f"got {columns}; condition_size and the conditioning function must agree."
            )
        features: Tensor = self.net(
            data if condition is None else torch.cat([data, condition], dim=-1)
        )
        return features

    def _check_sizes(
        self, inputs: int, outputs: int, hidden_sizes: Sequence[int], condition_size: int
    ) -> None:
        """Raise unless every size makes sense."""
        if min(inputs, outputs, *hidden_sizes, len(hidden_sizes)) < 1 or condition_size < 0:
            raise InputError(
                f"{type(self).__name__}: expected sizes >= 1, at least one hidden layer and "
                f"condition_size >= 0, got {inputs}, {outputs}, {list(hidden_sizes)} and "
                f"{condition_size}."
            )


class FullyConnectedEncoder(_ConditionedPerceptron):
    """ReLU perceptron of [data | condition] with two outputs.

    Args:
        input_size: X, >= 1.
        output_size: Z, >= 1.
        device: Where the parameters live.
        hidden_sizes: Units per hidden layer, at least one layer.
        condition_size: C; 0 takes no condition.
        generator: Draws the weights; None is `default_generator`.

    Raises:
        InputError: A size is out of range.
    """

    def _add_outputs(self, features: int, generator: torch.Generator | None) -> None:
        self.mean: nn.Linear = _output_layer(features, self.output_size, generator)
        self.log_std: nn.Linear = _output_layer(features, self.output_size, generator)

    def forward(self, data: Tensor, condition: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return mean and log standard deviation, each (B, Z).

        Args:
            data: Shape (B, X).
            condition: Shape (B, C), or None where C = 0.
        """
        features = self._features(data, condition)
        return self.mean(features), self.log_std(features)


class FullyConnectedDecoder(_ConditionedPerceptron):
    """ReLU perceptron of [latent | condition]; a tanh keeps its output in [-1, 1].

    Args:
        latent_size: Z, >= 1.
        output_size: X, >= 1.
        device: Where the parameters live.
        hidden_sizes: Units per hidden layer, at least one layer.
        condition_size: C; 0 takes no condition.
        generator: Draws the weights; None is `default_generator`.

    Raises:
        InputError: A size is out of range.
    """

    def __init__(
        self,
        latent_size: int,
        output_size: int,
        device: torch.device | str,
        hidden_sizes: Sequence[int],
        condition_size: int = 0,
        *,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(
            latent_size, output_size, device, hidden_sizes, condition_size, generator=generator
        )

    def _add_outputs(self, features: int, generator: torch.Generator | None) -> None:
        self.out: nn.Linear = _output_layer(features, self.output_size, generator)

    def forward(self, latent: Tensor, condition: Tensor | None = None) -> Tensor:
        """Return data, shape (B, X), in [-1, 1].

        Args:
            latent: Shape (B, Z).
            condition: Shape (B, C), or None where C = 0.
        """
        return torch.tanh(self.out(self._features(latent, condition)))


def _output_layer(features: int, outputs: int, generator: torch.Generator | None) -> nn.Linear:
    return initialised_linear(features, outputs, gain=1.0, generator=generator)


def _require_attributes(module: nn.Module, role: str) -> None:
    """Raise `InputError` unless ``module`` has what encoders and decoders have."""
    needed = ("device", "input_size", "output_size", "condition_size")
    missing = [name for name in needed if not hasattr(module, name)]
    if missing:
        raise InputError(
            f"{role}: expected a module with the attributes {', '.join(needed)}, got "
            f"{type(module).__name__} without {', '.join(missing)}."
        )


def _size(module: nn.Module, name: str) -> int:
    """Return one size of an encoder or decoder."""
    return int(getattr(module, name))


def kl_to_standard_normal(mu: Tensor, log_std: Tensor) -> Tensor:
    """Return the mean over rows of KL(N(mu, e^(2 log_std)) | N(0, 1)), a scalar, in nats.

    Args:
        mu: Shape (B, Z).
        log_std: Shape (B, Z).
    """
    per_row = 0.5 * (torch.exp(2.0 * log_std) + mu.square() - 1.0 - 2.0 * log_std).sum(dim=1)
    return per_row.mean()


def kl_upper_form(mu: Tensor, log_std: Tensor) -> Tensor:
    """Return the default divergence of the module's header, a scalar; 0 at mu = log_std = 0."""
    per_row = (torch.exp(log_std) + 0.5 * mu.square() - log_std).sum(dim=1)
    return per_row.mean() - mu.shape[1]


class VariationalAutoencoder(NoisyModule):
    """Encoder, noise, decoder.

    Args:
        encoder: Maps data (B, X) and a condition to mean and log standard deviation, (B, Z) each;
            has the attributes of `FullyConnectedEncoder`.
        decoder: Maps latents (B, Z) and a condition to data (B, X); has those attributes, too.
        exact_kl: Use the Gaussian divergence instead of the default form.
        keep_weights: Start from the weights that encoder and decoder have, instead of drawing
            almost zero ones (`normal_init_`). From almost zero weights the divergence outweighs the
            restoration, and training may never leave a decoder that ignores its latent.

    Raises:
        InputError: The sizes of encoder and decoder differ, or an attribute is missing.
    """

    def __init__(
        self,
        encoder: nn.Module,
        decoder: nn.Module,
        device: torch.device | str,
        beta: float = 0.01,
        *,
        exact_kl: bool = False,
        keep_weights: bool = False,
        generator: torch.Generator | None = None,
        init_generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(generator)
        _require_attributes(encoder, "encoder")
        _require_attributes(decoder, "decoder")
        latents, inputs = _size(encoder, "output_size"), _size(decoder, "input_size")
        if latents != inputs:
            raise InputError(
                f"VariationalAutoencoder: expected decoder.input_size = {latents} "
                f"(encoder.output_size), got {inputs}."
            )
        self.device: torch.device = torch.device(device)
        self.latent_size = latents
        self.beta = beta
        self.exact_kl = exact_kl
        self.encoder = encoder
        self.decoder = decoder
        let_noise_go_on(self)
        if not keep_weights:
            for module in (*encoder.modules(), *decoder.modules()):
                normal_init_(module, generator=init_generator)
        self.to(self.device)

    def forward(
        self, x: Tensor, condition: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return x_hat (like ``x``), mean (B, Z), log standard deviation (B, Z), latent (B, Z).

        Args:
            x: Shape (B, X).
            condition: Shape (B, C), or None.
        """
        mu, log_std = self.encoder(x, condition)
        noise = torch.randn(
            mu.shape, generator=self.generator, device=self.generator.device, dtype=mu.dtype
        )
        latent = mu + noise.to(mu.device) * torch.exp(log_std)
        x_hat = self.decoder(latent, condition).reshape(x.shape)
        return x_hat, mu, log_std, latent

    def loss(
        self, x: Tensor, x_hat: Tensor, mu: Tensor, log_std: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of the module's header and its two parts.

        Args:
            x: Shape (B, X).
            x_hat: Shape (B, X).
            mu: Shape (B, Z).
            log_std: Shape (B, Z).
        """
        restore_loss = functional.mse_loss(x_hat, x)
        divergence = kl_to_standard_normal if self.exact_kl else kl_upper_form
        kl_loss = divergence(mu, log_std)
        loss = restore_loss + self.beta * kl_loss
        return loss, {"restore_loss": restore_loss.detach(), "kl_loss": kl_loss.detach()}


def unconditioned(_: Tensor) -> None:
    """Return no condition, whatever the observation."""


class VAELoss(LossCallback):
    """Trains an auto-encoder of actions, conditioned on what was observed.

    Arguments not named here are those of `LossCallback`.

    Args:
        input_key: Observation that is the condition.
        conditioning_func: Observation (B, D) to condition (B, C), or to None.
    """

    def __init__(
        self,
        *,
        vae: VariationalAutoencoder,
        opt: optim.Optimizer,
        lr_schedule: optim.lr_scheduler.LRScheduler | None = None,
        max_grad_norm: float = SHARED_DEFAULTS.max_gradient_norm,
        name: str = "vae",
        data_group: str = "default",
        input_key: str = "obs",
        conditioning_func: Callable[[Tensor], Tensor | None] = unconditioned,
    ) -> None:
        super().__init__(
            name=name,
            network=vae,
            optimizer=opt,
            lr_schedule=lr_schedule,
            max_grad_norm=max_grad_norm,
            data_group=data_group,
        )
        self.vae = vae
        self._input_key = input_key
        self._conditioning_func = conditioning_func

    def loss(self, observation: dict[str, Tensor], actions: Tensor) -> Tensor:
        """Return the auto-encoder's loss on ``actions`` (B, X).

        Raises:
            InputError: The observation lacks ``input_key``.
        """
        seen = observed_input("VAELoss", observation, self._input_key)
        condition = self._conditioning_func(seen)
        restored, mu, log_std, _ = self.vae(actions, condition)
        loss, parts = self.vae.loss(actions, restored, mu, log_std)
        self.log_scalar("vae/restore_loss", parts["restore_loss"])
        self.log_scalar("vae/kl_loss", parts["kl_loss"])
        return loss


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
        """Load the entries that belong to this half; a whole auto-encoder's state serves both."""
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
    """A frozen decoder that takes latents in the range of a policy, times ``latent_multiplier``.

    ``condition_fn`` makes its condition of an observation (B, O), or None.
    """

    def __init__(
        self,
        decoder: nn.Module,
        condition_fn: Condition,
        latent_multiplier: float = LATENT_MULTIPLIER,
    ) -> None:
        super().__init__()
        _require_attributes(decoder, "decoder")
        self.decoder = decoder
        self.condition_fn = condition_fn
        self.latent_multiplier = latent_multiplier
        self.latent_size: int = _size(decoder, "input_size")
        self.output_size: int = _size(decoder, "output_size")
        self.condition_size: int = _size(decoder, "condition_size")
        self.device: torch.device = torch.device(cast("Any", decoder).device)
        self.freeze()

    def forward(self, latent: Tensor, observation: Tensor | None = None) -> Tensor:
        """Return decoded actions, shape (B, X).

        Args:
            latent: In the policy's range, shape (B, Z).
            observation: Shape (B, O), or None for a decoder without condition.
        """
        condition = None if observation is None else self.condition_fn(observation)
        return self.decoder(latent * self.latent_multiplier, condition)


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
        _require_attributes(encoder, "encoder")
        self.encoder = encoder
        self.condition_fn = condition_fn
        self.action_size: int = _size(encoder, "input_size")
        self.latent_size: int = _size(encoder, "output_size")
        self.condition_size: int = _size(encoder, "condition_size")
        self.device: torch.device = torch.device(cast("Any", encoder).device)
        self.freeze()

    def forward(self, action: Tensor, observation: Tensor | None = None) -> Tensor:
        """Return mean latents in the auto-encoder's range, shape (B, Z).

        Args:
            action: Shape (B, X).
            observation: Shape (B, O), or None for an encoder without condition.
        """
        condition = None if observation is None else self.condition_fn(observation)
        mean, _ = self.encoder(action, condition)
        return mean


class PolicyWrapper(nn.Module):
    """A policy over latents that acts through a decoder."""

    def __init__(self, decoder: DecoderWrapper, policy: nn.Module) -> None:
        super().__init__()
        self.decoder = decoder
        self.policy = policy
        self.latent_size: int = decoder.latent_size

    def forward(self, obs: Tensor, epsilon: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        """Return actions (B, X), and in training mode log-probabilities of the latents (B, 1).

        The first Z columns of ``epsilon`` are the policy's noise, so that noise sized for actions
        fits.
        """
        noise = None if epsilon is None else epsilon[:, : self.latent_size]
        output: Tensor | tuple[Tensor, Tensor] = self.policy(obs, noise)
        if isinstance(output, tuple):
            latent, log_probability = output
            return self.decoder(latent, obs), log_probability
        return cast("torch.Tensor", self.decoder(output, obs))


class MemoryProxyWithEncoder(MemoryTableProxy):
    """A `MemoryTableProxy` that replaces each action by its latent before it is stored.

    Latents are stored in the range in which a policy over latents acts: the encoder's mean divided
    by the multiplier of `DecoderWrapper`. Everything else in observations and responses is stored
    as it came; empty actions pass through.

    Args:
        latent_multiplier: Multiplier of the decoder that acts; 1 stores the encoder's mean.

    Raises:
        InputError: ``latent_multiplier`` is zero.
    """

    def __init__(
        self,
        memory_table: ArrayMemoryTable,
        encoder: EncoderWrapper,
        minimum_length_threshold: int | None = None,
        use_terminal: bool = False,
        input_key: str = "obs",
        action_key: str = "actions",
        *,
        latent_multiplier: float = LATENT_MULTIPLIER,
        name: str = "memproxy",
        save_table: bool = True,
    ) -> None:
        super().__init__(
            memory_table, minimum_length_threshold, use_terminal, name=name, save_table=save_table
        )
        if latent_multiplier == 0.0:
            raise InputError(
                "MemoryProxyWithEncoder: expected a latent_multiplier other than 0, got 0.0; use "
                "the decoder's."
            )
        self._encoder = encoder
        self._input_key = input_key
        self._action_key = action_key
        self._multiplier = latent_multiplier

    def add(
        self,
        observations: Mapping[AgentId, DictObservation],
        responses: Mapping[AgentId, DictResponse],
    ) -> None:
        """Store one step of every agent, actions encoded.

        Raises:
            InputError: A response lacks the action, or its agent has no observation.
        """
        acting = [
            agent for agent, response in responses.items() if self._has_action(agent, response)
        ]
        if acting:
            latents = self._encoded(acting, observations, responses)
            encoded = {
                agent: replace(
                    responses[agent],
                    list_data={**responses[agent].list_data, self._action_key: latents[i].tolist()},
                )
                for i, agent in enumerate(acting)
            }
            responses = {**responses, **encoded}
        super().add(observations, responses)

    def _has_action(self, agent: AgentId, response: DictResponse) -> bool:
        """Return whether there is an action to encode."""
        if self._action_key not in response.list_data:
            raise InputError(
                f"MemoryProxyWithEncoder.add: expected list_data[{self._action_key!r}] in the "
                f"response of agent {agent}, got {sorted(response.list_data)}; set action_key."
            )
        return len(response.list_data[self._action_key]) > 0

    def _encoded(
        self,
        acting: list[AgentId],
        observations: Mapping[AgentId, DictObservation],
        responses: Mapping[AgentId, DictResponse],
    ) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        """Return latents in the policy's range, float32, shape (K, Z)."""
        missing = [a for a in acting if a not in observations]
        if missing:
            raise InputError(
                f"MemoryProxyWithEncoder.add: expected an observation for every response, got none "
                f"for agents {missing}."
            )
        blind = [a for a in acting if self._input_key not in observations[a].array_data]
        if blind:
            raise InputError(
                f"MemoryProxyWithEncoder.add: expected array_data[{self._input_key!r}] in every "
                f"observation, got none for agents {blind}; set input_key."
            )
        actions = np.stack(
            [np.asarray(responses[a].list_data[self._action_key], np.float32) for a in acting]
        )
        inputs = np.stack(
            [np.asarray(observations[a].array_data[self._input_key], np.float32) for a in acting]
        )
        device = self._encoder.device
        with torch.no_grad():
            latents = self._encoder(
                torch.as_tensor(actions, device=device), torch.as_tensor(inputs, device=device)
            )
        return (latents / self._multiplier).float().cpu().numpy()
