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

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Unpack, cast

import numpy as np
import torch
from torch import Tensor, nn, optim
from torch.nn import functional

from cadenza.core.checks import require_counts, whole_number
from cadenza.core.errors import CheckpointError, InputError, refuse
from cadenza.learn.callbacks.loss import LossCallback, LossKeywords, observed_input
from cadenza.learn.memory.proxy import MemoryTableProxy
from cadenza.learn.memory.table import ArrayMemoryTable
from cadenza.learn.nn.initialization import initialized_linear, normal_init_
from cadenza.learn.nn.layers import NoisyModule, let_noise_go_on, mlp
from cadenza.learn.proxies import AgentObservations, AgentResponses


class _ConditionedPerceptron(nn.Module):
    """Hidden ReLU layers on [data | condition], and linear ``HEADS`` on top of them.

    Args:
        input_size: Columns of the data, >= 1.
        output_size: Columns of each head, >= 1.
        device: Where the parameters live.
        hidden_sizes: Units per hidden layer, at least one layer.
        condition_size: C; 0 takes no condition.
        generator: Draws the weights; None is `default_generator`.
    """

    HEADS: ClassVar[tuple[str, ...]]

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
        whole_number(f"{type(self).__name__}: condition_size", condition_size, least=0)
        layers = len(hidden_sizes)
        require_counts(type(self).__name__, inputs=input_size, outputs=output_size, layers=layers)
        self.device: torch.device = torch.device(device)
        self.input_size = input_size
        self.output_size = output_size
        self.condition_size = condition_size
        self.net: nn.Sequential = mlp(
            input_size + condition_size, hidden_sizes, generator=generator
        )
        for head in self.HEADS:
            width = hidden_sizes[-1]
            layer = initialized_linear(width, output_size, gain=1.0, generator=generator)
            self.add_module(head, layer)
        self.to(self.device)

    def outputs(self, data: Tensor, condition: Tensor | None) -> list[Tensor]:
        """Return the output of every head for [data | condition]."""
        columns = 0 if condition is None else condition.shape[-1]
        if columns != self.condition_size:
            expected = f"a condition with {self.condition_size} columns"
            advice = "condition_size and the conditioning function must agree"
            refuse(InputError, type(self).__name__, expected=expected, got=columns, do=advice)
        features = self.net(data if condition is None else torch.cat([data, condition], dim=-1))
        return [self.get_submodule(head)(features) for head in self.HEADS]


class FullyConnectedEncoder(_ConditionedPerceptron):
    """ReLU perceptron of [data | condition], from X columns to two outputs of Z."""

    HEADS: ClassVar[tuple[str, ...]] = ("mean", "log_std")

    def forward(self, data: Tensor, condition: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return mean and log standard deviation, each (B, Z), of data (B, X) under (B, C)."""
        mean, log_std = self.outputs(data, condition)
        return mean, log_std


class FullyConnectedDecoder(_ConditionedPerceptron):
    """ReLU perceptron of [latent | condition]; a tanh keeps its output in [-1, 1]."""

    HEADS: ClassVar[tuple[str, ...]] = ("out",)

    def forward(self, latent: Tensor, condition: Tensor | None = None) -> Tensor:
        """Return data (B, X) in [-1, 1] of latents (B, Z) under a condition (B, C)."""
        return torch.tanh(self.outputs(latent, condition)[0])


def _sizes(module: nn.Module, role: str) -> tuple[int, int, int, torch.device]:
    """Return inputs, outputs, condition's columns and device of an encoder or decoder."""
    needed = ("device", "input_size", "output_size", "condition_size")
    missing = [name for name in needed if not hasattr(module, name)]
    if missing:
        got = f"{type(module).__name__} without {', '.join(missing)}"
        expected = f"a module with the attributes {', '.join(needed)}"
        refuse(InputError, role, expected=expected, got=got)
    device, inputs, outputs, condition = (getattr(module, name) for name in needed)
    return int(inputs), int(outputs), int(condition), torch.device(device)


def kl_to_standard_normal(mu: Tensor, log_std: Tensor) -> Tensor:
    """Return the mean over rows of KL(N(mu, e^(2 log_std)) | N(0, 1)), a scalar, in nats."""
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
        latents, inputs = _sizes(encoder, "encoder")[1], _sizes(decoder, "decoder")[0]
        if latents != inputs:
            expected = f"decoder.input_size = {latents} (encoder.output_size)"
            refuse(InputError, "VariationalAutoencoder", expected=expected, got=inputs)
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
        """Return x_hat, mean, log standard deviation and latent, (B, Z) each, of (B, X)."""
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
        """Return the loss of the module's header and its two parts; arguments as of `forward`."""
        restore_loss = functional.mse_loss(x_hat, x)
        divergence = kl_to_standard_normal if self.exact_kl else kl_upper_form
        kl_loss = divergence(mu, log_std)
        loss = restore_loss + self.beta * kl_loss
        return loss, {"restore_loss": restore_loss.detach(), "kl_loss": kl_loss.detach()}


#: Makes a condition, (B, C) or None, of an observation, (B, O).
Condition = Callable[[Tensor], Tensor | None]


def unconditioned(_: Tensor) -> None:
    """Return no condition, whatever the observation."""


class VAELoss(LossCallback):
    """Trains an auto-encoder of actions, conditioned on what was observed.

    Arguments not named here are those of `LossCallback`.

    Args:
        input_key: Observation that is the condition.
        conditioning_func: Makes the condition of it.
    """

    def __init__(
        self,
        *,
        vae: VariationalAutoencoder,
        opt: optim.Optimizer,
        name: str = "vae",
        input_key: str = "obs",
        conditioning_func: Condition = unconditioned,
        **others: Unpack[LossKeywords],
    ) -> None:
        super().__init__(name=name, network=vae, optimizer=opt, **others)
        self.vae = vae
        self._input_key = input_key
        self._conditioning_func = conditioning_func

    def loss(self, observation: dict[str, Tensor], actions: Tensor) -> Tensor:
        """Return the auto-encoder's loss on ``actions`` (B, X)."""
        condition = self._conditioning_func(observed_input("VAELoss", observation, self._input_key))
        restored, mu, log_std, _ = self.vae(actions, condition)
        loss, parts = self.vae.loss(actions, restored, mu, log_std)
        for key, value in parts.items():
            self.log_scalar(f"vae/{key}", value)
        return loss


#: Policies act in (-1, 1); latents of a trained encoder are standard normal, so 99.7 % lie in
#: (-3, 3). A policy's output is multiplied by this before it is decoded.
LATENT_MULTIPLIER = 3.0


class _FrozenPart(nn.Module):
    """Half of an auto-encoder, under ``ROLE``, whose parameters never change, except by loading.

    ``condition_fn`` makes its condition of an observation (B, O), or None.
    """

    ROLE: ClassVar[str]

    def __init__(self, part: nn.Module, condition_fn: Condition) -> None:
        super().__init__()
        _, _, self.condition_size, self.device = _sizes(part, self.ROLE)
        self.add_module(self.ROLE, part)
        self.condition_fn = condition_fn
        self.requires_grad_(False)

    def _run(self, rows: Tensor, observation: Tensor | None) -> Any:
        condition = None if observation is None else self.condition_fn(observation)
        return self.get_submodule(self.ROLE)(rows, condition)

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
        self.requires_grad_(False)
        return result


class DecoderWrapper(_FrozenPart):
    """A frozen decoder that takes latents in the range of a policy, times ``latent_multiplier``."""

    ROLE: ClassVar[str] = "decoder"

    def __init__(
        self,
        decoder: nn.Module,
        condition_fn: Condition,
        latent_multiplier: float = LATENT_MULTIPLIER,
    ) -> None:
        super().__init__(decoder, condition_fn)
        self.latent_multiplier = latent_multiplier
        self.latent_size, self.output_size = _sizes(decoder, self.ROLE)[:2]

    def forward(self, latent: Tensor, observation: Tensor | None = None) -> Tensor:
        """Return actions (B, X) of latents (B, Z) in the policy's range, under (B, O) or None."""
        return self._run(latent * self.latent_multiplier, observation)


class EncoderWrapper(_FrozenPart):
    """A frozen encoder that returns the mean latent, (B, Z), of an action, (B, X)."""

    ROLE: ClassVar[str] = "encoder"

    def __init__(self, encoder: nn.Module, condition_fn: Condition) -> None:
        super().__init__(encoder, condition_fn)
        self.action_size, self.latent_size = _sizes(encoder, self.ROLE)[:2]

    def forward(self, action: Tensor, observation: Tensor | None = None) -> Tensor:
        """Return mean latents in the auto-encoder's range, (B, Z), under (B, O) or None."""
        return self._run(action, observation)[0]


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

    ``latent_multiplier`` is that of the decoder that acts; 1 stores the encoder's mean.
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
            expected = "a latent_multiplier other than 0"
            refuse(InputError, "MemoryProxyWithEncoder", expected=expected, got="0.0")
        self._encoder = encoder
        self._input_key = input_key
        self._action_key = action_key
        self._multiplier = latent_multiplier

    def add(self, observations: AgentObservations, responses: AgentResponses) -> None:
        """Store one step of every agent, actions encoded."""
        owner, key = "MemoryProxyWithEncoder.add", self._action_key
        if wrong := [a for a, response in responses.items() if key not in response.list_data]:
            expected = f"list_data[{key!r}] in every response"
            got = f"none for agents {wrong}"
            refuse(InputError, owner, expected=expected, got=got, do="set action_key")
        acting = [a for a, response in responses.items() if len(response.list_data[key]) > 0]
        if missing := [a for a in acting if a not in observations]:
            got = f"none for agents {missing}"
            refuse(InputError, owner, expected="an observation for every response", got=got)
        if blind := [a for a in acting if self._input_key not in observations[a].array_data]:
            expected = f"array_data[{self._input_key!r}] in every observation"
            got = f"none for agents {blind}"
            refuse(InputError, owner, expected=expected, got=got, do="set input_key")
        if acting:
            latents = self._encoded(
                [responses[agent].list_data[key] for agent in acting],
                [observations[agent].array_data[self._input_key] for agent in acting],
            )
            responses = dict(responses)
            for agent, latent in zip(acting, latents, strict=True):
                told = {**responses[agent].list_data, key: latent}
                responses[agent] = replace(responses[agent], list_data=told)
        super().add(observations, responses)

    def _encoded(self, actions: Sequence[Any], observations: Sequence[Any]) -> list[list[float]]:
        """Return latents in the policy's range, (K, Z)."""
        both = (np.asarray(rows, np.float32) for rows in (actions, observations))
        with torch.no_grad():
            inputs = (torch.as_tensor(rows, device=self._encoder.device) for rows in both)
            latents: Tensor = self._encoder(*inputs)
        return (latents / self._multiplier).float().cpu().numpy().tolist()
