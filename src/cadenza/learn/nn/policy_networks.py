"""Actors and critics of on-policy algorithms, for discrete and for continuous actions.

Equations, with separate trunks f and g, of tanh layers by default:
    discrete:    π(a|s) = softmax(W f(s) + b)_a
    continuous:  π(a|s) = Π_d Normal(a_d; μ_d, σ_d),   μ = W f(s) + b,   σ = exp(log_std)
    factored:    π(a|s) = Π_d softmax((W f(s) + b)_d)_{a_d}, a choice per component d
    squashed:    u as a in the line of continuous actions,   a = tanh(u)
                 log π(a) = Σ_d [ log N(u_d; μ_d, σ_d) − log(1 − tanh² u_d) ]
                 H(π) = Σ_d [ ½ + ½ log 2π + log σ_d + E_ε log(1 − tanh²(μ_d + σ_d ε)) ]
    value:       V(s) = w g(s) + c
Source:  orthogonal weights with gains √2, 0.01 and 1 and zero biases: arXiv:2006.05990 and
         arXiv:2005.12729, whose ablations single them out. Squashing: arXiv:1812.05905, appendix C;
         the expectation by Gauss–Hermite quadrature.
Axes:    B = batch, O = observation, S = critic observation, A = action components, K = choices,
         D = components of several choices, J = their logits.
Limits:  samples are not clipped; of squashed ones the pre-action u stands for the action
         everywhere, so that no tanh has to be undone. The caller clips or squashes for the
         environment. The constant for stretching [−1, 1] to other bounds is left out, and cancels
         in every ratio.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from cadenza.core.errors import InputError
from cadenza.learn.nn.gaussian_policy import squashed_log_probability
from cadenza.learn.nn.initialization import default_linear, orthogonal_linear
from cadenza.learn.nn.layers import ACTIVATIONS, EncoderFactory, with_encoder
from cadenza.learn.nn.recurrent import NEVER, Memory, MemoryKind, Recurrent, masked

HIDDEN_GAIN: Final = math.sqrt(2.0)
#: First actions are almost uniform, or have almost zero mean.
POLICY_GAIN: Final = 0.01
VALUE_GAIN: Final = 1.0

#: Nodes of the quadrature: within 1e-4 nats per component for σ up to 1, 1e-2 up to e².
QUADRATURE_NODES: Final = 32
_HALF_LOG_2PI: Final = 0.5 * math.log(2.0 * math.pi)
_LOG_TWO: Final = math.log(2.0)


class ActionHead(Protocol):
    """How the actor's last layer becomes a distribution of actions."""

    @property
    def outputs(self) -> int:
        """Entries of the actor's output, per row."""
        ...

    def sample(self, output: Tensor, generator: torch.Generator) -> Tensor:
        """Return one drawn action per row; int64 (B,) or (B, D), or float32 (B, A)."""
        ...

    def mode(self, output: Tensor) -> Tensor:
        """Return the most probable action per row."""
        ...

    def log_prob(self, output: Tensor, actions: Tensor) -> Tensor:
        """Return log π(a|s), shape (B,)."""
        ...

    def entropy(self, output: Tensor) -> Tensor:
        """Return the entropy per row, nats, shape (B,)."""
        ...


def _log_exponential(like: Tensor, generator: torch.Generator) -> Tensor:
    """Return log E of exponential draws E in the shape of ``like``, and where that is."""
    drawn = torch.empty_like(like, device=generator.device).exponential_(generator=generator)
    return drawn.log_().to(like.device)


class CategoricalHead(nn.Module):
    """One of K choices."""

    def __init__(self, choices: int) -> None:
        super().__init__()
        if choices < 1:
            raise InputError(f"CategoricalHead: expected choices >= 1, got {choices}.")
        self.outputs = choices

    def sample(self, output: Tensor, generator: torch.Generator) -> Tensor:
        """Return drawn choices, (B,) int64, by the Gumbel-max trick: argmax(logit − log E)."""
        return torch.argmax(output - _log_exponential(output, generator), dim=-1)

    def mode(self, output: Tensor) -> Tensor:
        """Return the most probable choices, (B,) int64."""
        return torch.argmax(output, dim=-1)

    def log_prob(self, output: Tensor, actions: Tensor) -> Tensor:
        """Return log π(a|s), shape (B,); ``actions`` are (B,) int64."""
        return torch.log_softmax(output, dim=-1).gather(-1, actions.unsqueeze(-1)).squeeze(-1)

    def entropy(self, output: Tensor) -> Tensor:
        """Return the entropy, nats, shape (B,)."""
        log_probs = torch.log_softmax(output, dim=-1)
        return -(log_probs.exp() * log_probs).sum(-1)


class FactoredHead(nn.Module):
    """One of K_d choices in every component d, drawn independently; of two it is a Bernoulli."""

    def __init__(self, counts: Sequence[int]) -> None:
        super().__init__()
        if min(counts, default=0) < 1:
            raise InputError(f"FactoredHead: expected choices >= 1, got {list(counts)}.")
        self.outputs = sum(counts)
        places = torch.arange(max(counts)).expand(len(counts), -1)  # (D, max K)
        absent = places >= torch.tensor(counts)[:, None]
        first = torch.tensor([sum(counts[:d]) for d in range(len(counts))])
        # Constants, so no part of the state.
        self.register_buffer("_places", (first[:, None] + places) * ~absent, persistent=False)
        self.register_buffer("_absent", absent, persistent=False)

    def _table(self, output: Tensor) -> Tensor:
        """Return the logits of every component, (B, D, max K); absent ones are never chosen."""
        return output[:, self.get_buffer("_places")].masked_fill(self.get_buffer("_absent"), NEVER)

    def sample(self, output: Tensor, generator: torch.Generator) -> Tensor:
        """Return drawn choices, (B, D) int64; see `CategoricalHead.sample`."""
        table = self._table(output)
        return torch.argmax(table - _log_exponential(table, generator), dim=-1)

    def mode(self, output: Tensor) -> Tensor:
        """Return the most probable choices, (B, D) int64."""
        return torch.argmax(self._table(output), dim=-1)

    def log_prob(self, output: Tensor, actions: Tensor) -> Tensor:
        """Return log π(a|s), summed over components, shape (B,); ``actions`` are (B, D) int64."""
        log_probs = torch.log_softmax(self._table(output), dim=-1)
        return log_probs.gather(-1, actions.unsqueeze(-1)).sum((-1, -2))

    def entropy(self, output: Tensor) -> Tensor:
        """Return the entropy, summed over components, nats, shape (B,)."""
        log_probs = torch.log_softmax(self._table(output), dim=-1)
        return -(log_probs.exp() * log_probs).sum((-1, -2))


class DiagonalGaussianHead(nn.Module):
    """Independent normal components; log σ, in log units of the action, is a parameter."""

    def __init__(self, components: int, initial_log_std: float = 0.0) -> None:
        super().__init__()
        if components < 1:
            raise InputError(f"DiagonalGaussianHead: expected components >= 1, got {components}.")
        self.outputs = components
        self.log_std: nn.Parameter = nn.Parameter(torch.full((components,), float(initial_log_std)))

    def sample(self, output: Tensor, generator: torch.Generator) -> Tensor:
        """Return drawn actions, (B, A) float32."""
        noise = torch.empty_like(output, device=generator.device).normal_(generator=generator)
        return noise.to(output.device).mul_(self.log_std.detach().exp()).add_(output)

    def mode(self, output: Tensor) -> Tensor:
        """Return the means, (B, A)."""
        return output

    def log_prob(self, output: Tensor, actions: Tensor) -> Tensor:
        """Return the log-density, summed over components, shape (B,)."""
        scaled = (actions - output) * torch.exp(-self.log_std)
        per_component = -0.5 * scaled.square() - self.log_std - _HALF_LOG_2PI
        return per_component.sum(-1)

    def entropy(self, output: Tensor) -> Tensor:
        """Return the entropy, nats, shape (B,); equal in every row."""
        total = (self.log_std + (0.5 + _HALF_LOG_2PI)).sum()
        return total.expand(output.shape[0])


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
        self.gaussian: DiagonalGaussianHead = DiagonalGaussianHead(components, initial_log_std)
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


class OrthogonalMlp(nn.Module):
    """Layers with an activation and a linear output, orthogonal weights, zero biases.

    Args:
        inputs: Width of a row, >= 1.
        hidden_sizes: Width of each hidden layer.
        outputs: Width of the result, >= 1.
        output_gain: Gain of the last layer.
        activation: One of `cadenza.learn.nn.layers.ACTIVATIONS`.
        generator: CPU generator of the weights.

    Raises:
        InputError: A width is below one.
    """

    def __init__(
        self,
        inputs: int,
        hidden_sizes: Sequence[int],
        outputs: int,
        *,
        output_gain: float,
        activation: str = "tanh",
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        if min(inputs, outputs, *hidden_sizes, 1) < 1:
            raise InputError(
                f"OrthogonalMlp: expected every width >= 1, got inputs = {inputs}, hidden_sizes = "
                f"{list(hidden_sizes)}, outputs = {outputs}."
            )
        self._activation = ACTIVATIONS[activation]()
        widths = [inputs, *hidden_sizes]
        gains = [HIDDEN_GAIN] * len(hidden_sizes) + [output_gain]
        sizes = zip(widths, [*hidden_sizes, outputs], gains, strict=True)
        self.layers: nn.ModuleList = nn.ModuleList(
            orthogonal_linear(i, o, gain=gain, generator=generator) for i, o, gain in sizes
        )

    def portable(self) -> Sequence[nn.Module]:
        """Return the layers of a policy file."""
        *hidden, output = self.layers
        return [*(part for layer in hidden for part in (layer, self._activation)), output]

    def forward(self, x: Tensor) -> Tensor:
        """Return the output, (B, outputs), for ``x``, (B, inputs)."""
        *hidden, output = self.layers
        for layer in hidden:
            x = self._activation(layer(x))
        return output(x)


class Masked(nn.Module):
    """Logits of legal actions: rows (B, O + M) end with 0 or 1 for each of M logits of ``network``.

    A policy file holds ``network`` alone, and masks where it is asked.
    """

    def __init__(self, network: nn.Module, masks: int) -> None:
        super().__init__()
        self.network = network
        self._masks = masks

    def forward(self, rows: Tensor) -> Tensor:
        """Return the logits, (B, M), those of illegal actions `NEVER`."""
        return masked(self.network(rows[:, : -self._masks]), rows, self._masks)

    def portable(self) -> Sequence[nn.Module]:
        """Return the layers of a policy file."""
        return [self.network]


class Policy(nn.Module):
    """A policy, and the state value that judges it, if any.

    The generator draws the weights of the actor first; without ``critic_dim`` there is no critic.
    ``actor`` maps observations, (B, O), to what ``head`` takes; with ``masks``, M of them, as
    `Masked` does, and the critic leaves them out. With ``memory``, a kind and its size, both are
    `Recurrent`, each with a memory of its own. ``critic_sizes`` are ``hidden_sizes`` by default.
    """

    def __init__(
        self,
        observation_dim: int,
        head: ActionHead,
        *,
        hidden_sizes: Sequence[int],
        generator: torch.Generator,
        critic_dim: int | None = None,
        critic_sizes: Sequence[int] | None = None,
        activation: str = "tanh",
        encoder: EncoderFactory | None = None,
        masks: int = 0,
        memory: tuple[MemoryKind, int] | None = None,
    ) -> None:
        super().__init__()

        acts = (head.outputs, POLICY_GAIN, hidden_sizes)
        judges = (1, VALUE_GAIN, hidden_sizes if critic_sizes is None else critic_sizes)

        def layers(inputs: int, outputs: int, gain: float, sizes: Sequence[int]) -> OrthogonalMlp:
            drawn: dict[str, Any] = {"activation": activation, "generator": generator}
            return OrthogonalMlp(inputs, sizes, outputs, output_gain=gain, **drawn)

        def recurrent(inputs: int, end: tuple[int, float, Sequence[int]], masks: int) -> Recurrent:
            kind, size = memory or ("gru", 1)
            cell, before = with_encoder(
                encoder, inputs, lambda width: Memory(kind, width, size, generator)
            )
            return Recurrent(before, cell, layers(size, *end), masks=masks)

        def trunk(inputs: int, end: tuple[int, float, Sequence[int]]) -> nn.Module:
            found, before = with_encoder(encoder, inputs, lambda width: layers(width, *end))
            return nn.Sequential(*before, found) if before else found

        self._masks = masks
        if memory is not None:
            self.actor: nn.Module = recurrent(observation_dim, acts, masks)
            self.critic: nn.Module = recurrent(critic_dim or observation_dim, judges, 0)
        else:
            self.actor = trunk(observation_dim, acts)
            if masks:
                self.actor = Masked(self.actor, masks)
            if critic_dim is not None:
                self.critic = trunk(critic_dim, judges)
        self.head = head

    def log_prob(self, observations: Tensor, actions: Tensor) -> Tensor:
        """Return log π(a|s), shape (B,), for rows of observations, (B, O), and actions."""
        return self.head.log_prob(self.actor(observations), actions)

    def value(self, critic_observations: Tensor) -> Tensor:
        """Return V(s), shape (B,), for rows of shape (B, S)."""
        if self._masks:
            critic_observations = critic_observations[:, : -self._masks]
        return self.critic(critic_observations).squeeze(-1)


class ValueCritic(nn.Module):
    """The critic of HAPPO: tanh layers as of `OrthogonalMlp`, but initialised as torch does it.

    Args:
        observation_dim: O, >= 1.
        hidden_sizes: Widths of the hidden layers, >= 1.
        generator: CPU generator that initialises the weights.

    Raises:
        InputError: A size is below one.
    """

    def __init__(
        self, observation_dim: int, *, hidden_sizes: Sequence[int], generator: torch.Generator
    ) -> None:
        super().__init__()
        widths = [observation_dim, *hidden_sizes]
        if min(widths) < 1:
            raise InputError(
                "ValueCritic: expected every size >= 1, got "
                f"observation_dim = {observation_dim}, hidden_sizes = {list(hidden_sizes)}."
            )
        layers: list[nn.Module] = []
        for width_in, width_out in pairwise(widths):
            layers += [default_linear(width_in, width_out, generator), nn.Tanh()]
        self.net: nn.Sequential = nn.Sequential(*layers, default_linear(widths[-1], 1, generator))

    def forward(self, observations: Tensor) -> Tensor:
        """Return values, shape (B, 1), for ``observations``, shape (B, O)."""
        return self.net(observations)
