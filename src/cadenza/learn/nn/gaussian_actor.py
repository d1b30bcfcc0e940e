"""Gaussian policy network with the parameter names and order of HARL's stochastic policy.

Equations, for an observation s:
    x0 = LayerNorm(s)
    x1 = LayerNorm(ReLU(W0 x0 + b0)),  x2 likewise, one line per hidden layer
    μ  = Wm x + bm,   σ = σ_max · sigmoid(log_std),   π(a|s) = Π_d Normal(a_d; μ_d, σ_d)
HARL's own files may hold a net without the first LayerNorm, with another activation, or with
logits W x + b of choices in the place of μ and σ; `from_state_dict` reads those, too.
Source:  HARL, arXiv:2304.09870; normalisation follows the activation.
Axes:    B = batch, O = observation, H = hidden, A = action.
Limits:  σ does not depend on s and stays within (0, σ_max), σ_max = 0.5 unless set, and is not part
         of the state dict; samples are neither squashed nor clipped.
"""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from cadenza.core.errors import CheckpointError, InputError
from cadenza.learn.nn.initialization import orthogonal_linear
from cadenza.learn.nn.layer_kinds import layers_of
from cadenza.learn.nn.layers import Layer
from cadenza.learn.nn.portable import Output, PortableNetwork, flat_network

#: Gain of the hidden layers: `torch.nn.init.calculate_gain("relu")`.
HIDDEN_GAIN: Final = math.sqrt(2.0)
#: Gain of the mean head (HARL's default): first actions start close to zero mean.
OUTPUT_GAIN: Final = 0.01
#: Largest standard deviation, in units of the action, unless set (HARL's ``std_y_coef``).
MAX_STANDARD_DEVIATION: Final = 0.5
#: Key of that bound in a policy checkpoint; absent means HARL's.
STANDARD_DEVIATION_KEY: Final = "actor_max_std"
#: First value of ``log_std`` (HARL's ``std_x_coef``); σ starts at 0.5 · sigmoid(1) = 0.3655.
INITIAL_LOG_STD: Final = 1.0
#: Added to the variance inside every LayerNorm; torch's default.
LAYER_NORM_EPSILON: Final = 1e-5
#: Activations by the names of HARL's ``activation_func``, and of our settings.
ACTIVATIONS: Final[Mapping[str, Callable[[Tensor], Tensor]]] = {
    "elu": functional.elu,
    "gelu": functional.gelu,
    "hardswish": functional.hardswish,
    "identity": torch.clone,
    "leaky_relu": functional.leaky_relu,
    "relu": torch.relu,
    "selu": torch.selu,
    "sigmoid": torch.sigmoid,
    "silu": functional.silu,
    "tanh": torch.tanh,
}
#: Key of its name in a checkpoint, and partners' option.
ACTIVATION_KEY: Final = "activation_func"
#: Parameters of a hidden layer, and of the head's last layer.
_HIDDEN_PARAMETERS: Final = 4
_LAST_PARAMETERS: Final = 2

_LOGGER = logging.getLogger(__name__)


def named_activation(
    owner: str, payload: Mapping[str, Any], options: Mapping[str, str], *, is_foreign: bool
) -> str:
    """Return the activation of the actor in a checkpoint, which no weight shows.

    The checkpoint or the options name it. ReLU is that of ego training, whose checkpoints hold a
    critic, and HARL's default, assumed with a warning for a file that another library wrote.

    Raises:
        CheckpointError: Neither names it, or they name two.
    """
    said = {str(place[ACTIVATION_KEY]) for place in (payload, options) if ACTIVATION_KEY in place}
    if not said and is_foreign:
        _LOGGER.warning(
            "%s: the weights do not show which activation the actor was trained with; it uses "
            "HARL's default, relu. Confirm or correct it with the option %r.",
            owner,
            ACTIVATION_KEY,
        )
    if not said and (is_foreign or "critic" in payload):
        said = {"relu"}
    if len(said) != 1 or not said <= set(ACTIVATIONS):
        raise CheckpointError(
            f"{owner}: expected the checkpoint or the option {ACTIVATION_KEY!r} to name the "
            f"activation of its hidden layers, one of {', '.join(ACTIVATIONS)}, got "
            f"{' and '.join(sorted(said)) or 'neither'}: no weight shows it, and another one gives "
            "other actions."
        )
    return said.pop()


def actor_mean(
    parameters: Sequence[Tensor],
    observations: Tensor,
    activation: Callable[[Tensor], Tensor] = torch.relu_,
) -> Tensor:
    """Return the means, (B, A), or logits of the policy whose `GaussianActor.parameters` these are.

    Matrices are transposed, (inputs, outputs), as products from the right want them. The values are
    those of `GaussianActor.forward`; for one row, calling its modules takes almost three times as
    long.
    """
    x, first = observations, 0
    if parameters[0].ndim == 1:  # with feature normalization
        x, first = _layer_norm(x, parameters[0], parameters[1]), 2
    end = len(parameters) - _LAST_PARAMETERS - _HIDDEN_PARAMETERS
    for i in range(first, end + 1, _HIDDEN_PARAMETERS):
        x = activation(torch.addmm(parameters[i + 1], x, parameters[i]))
        x = _layer_norm(x, parameters[i + 2], parameters[i + 3])
    return torch.addmm(parameters[-1], x, parameters[-2])


def actor_standard_deviation(
    log_std: Tensor,
    max_standard_deviation: float = MAX_STANDARD_DEVIATION,
    scale: float = INITIAL_LOG_STD,
) -> Tensor:
    """Return σ, shape (A,), from ``log_std``, shape (A,); ``scale`` is HARL's ``std_x_coef``."""
    return torch.sigmoid(log_std / scale) * max_standard_deviation


class GaussianActor(nn.Module):
    """Policy whose state dict is interchangeable with HARL's.

    Args:
        generator: CPU generator that initialises the weights, advanced as HARL's construction
            advances the global one.
        max_standard_deviation: σ_max, in units of the action, > 0.
        activation: Name of `ACTIVATIONS`.
        normalized: Whether states are normalized first.
        chooses: Whether the outputs are logits of choices.

    Raises:
        InputError: A size is below one, there is no hidden layer, or σ_max is not positive.
    """

    def __init__(
        self,
        observation_dim: int,
        action_dim: int,
        *,
        hidden_sizes: Sequence[int],
        generator: torch.Generator,
        max_standard_deviation: float = MAX_STANDARD_DEVIATION,
        activation: str = "relu",
        normalized: bool = True,
        chooses: bool = False,
    ) -> None:
        super().__init__()
        if not max_standard_deviation > 0.0:
            raise InputError(
                f"GaussianActor: expected max_standard_deviation > 0, got {max_standard_deviation}."
            )
        if not hidden_sizes or min(observation_dim, action_dim, *hidden_sizes) < 1:
            raise InputError(
                "GaussianActor: expected every size >= 1 and at least one hidden layer, got "
                f"observation_dim = {observation_dim}, action_dim = {action_dim}, "
                f"hidden_sizes = {list(hidden_sizes)}."
            )
        # HARL's names: base.feature_norm, base.mlp.fc.0, 2, 3, 5, ..., act.action_out
        layers: list[nn.Module] = []
        for inputs, width in pairwise([observation_dim, *hidden_sizes]):
            linear = orthogonal_linear(inputs, width, gain=HIDDEN_GAIN, generator=generator)
            norm = nn.LayerNorm(width, eps=LAYER_NORM_EPSILON)
            layers += [linear, _Activation(activation), norm]
        feature_norm = nn.Identity()
        if normalized:
            feature_norm = nn.LayerNorm(observation_dim, eps=LAYER_NORM_EPSILON)
        mlp = nn.ModuleDict({"fc": nn.Sequential(*layers)})
        self.base: nn.ModuleDict = nn.ModuleDict({"feature_norm": feature_norm, "mlp": mlp})
        head = _Choices if chooses else _DiagonalGaussian
        action_out = head(hidden_sizes[-1], action_dim, generator)
        self.act: nn.ModuleDict = nn.ModuleDict({"action_out": action_out})
        self.max_standard_deviation = max_standard_deviation
        self.activation: str = activation
        self.chooses: bool = chooses
        self.sizes: tuple[int, int] = (observation_dim, action_dim)

    @classmethod
    def from_state_dict(
        cls,
        state: Mapping[str, Tensor],
        *,
        max_standard_deviation: float = MAX_STANDARD_DEVIATION,
        activation: str = "relu",
    ) -> "GaussianActor":
        """Return an actor of the sizes that ``state``, ours or HARL's without recurrence, implies.

        No weight shows σ_max and the activation that it was trained with.

        Raises:
            CheckpointError: A weight is missing, superfluous or of the wrong shape.
        """
        try:
            chooses = "act.action_out.linear.weight" in state
            head = "linear" if chooses else "fc_mean"
            observation_dim = state["base.mlp.fc.0.weight"].shape[1]
            action_dim = state[f"act.action_out.{head}.weight"].shape[0]
            hidden_sizes = [
                state[name].shape[0]
                for name in state
                if name.startswith("base.mlp.fc.") and state[name].ndim == 2
            ]
            actor = cls(
                observation_dim,
                action_dim,
                hidden_sizes=hidden_sizes,
                generator=torch.Generator().manual_seed(0),
                max_standard_deviation=max_standard_deviation,
                activation=activation,
                normalized="base.feature_norm.weight" in state,
                chooses=chooses,
            )
            actor.load_state_dict(dict(state), strict=True)
        except (KeyError, IndexError, RuntimeError, InputError) as error:
            raise CheckpointError(
                "GaussianActor.from_state_dict: expected the weights of one Gaussian actor "
                "(base.*, act.action_out.*; no recurrence, images or several choices at once, "
                f"which an ONNX file may hold), got keys {sorted(state)}: {error}"
            ) from error
        return actor

    def forward(self, observations: Tensor) -> Tensor:
        """Return mean actions, or logits, shape (B, A), for ``observations``, shape (B, O)."""
        base, act = cast("Any", self.base), cast("Any", self.act)
        head = act.action_out.linear if self.chooses else act.action_out.fc_mean
        return head(base.mlp.fc(base.feature_norm(observations)))

    def portable(self) -> Sequence[nn.Module]:
        """Return the layers of a policy file."""
        base, act = cast("Any", self.base), cast("Any", self.act)
        head = act.action_out.linear if self.chooses else act.action_out.fc_mean
        return [base.feature_norm, base.mlp.fc, head]

    def network(self, **facts: Any) -> PortableNetwork:
        """Return the policy as a policy file holds it; means are not bounded, choices begin at 0.

        ``facts`` are further fields of `PortableNetwork`.
        """
        inputs, outputs = self.sizes
        if self.chooses:
            output = Output(kind="choice", choices=np.arange(outputs, dtype=np.float32)[:, None])
        else:
            bound = np.full(outputs, np.inf, np.float32)
            spread = self.standard_deviation().log()
            output = Output(kind="mean", low=-bound, high=bound, log_std=spread)
        return flat_network(layers_of(self), inputs, output, **facts)

    def standard_deviation(self) -> Tensor:
        """Return σ, shape (A,)."""
        log_std = cast("Any", self.act).action_out.log_std
        return actor_standard_deviation(log_std, self.max_standard_deviation)


class _Activation(nn.Module):
    """One of `ACTIVATIONS`."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name, self._function = name, ACTIVATIONS[name]

    def portable(self) -> "Sequence[Layer]":
        """Return the layer of a policy file."""
        return [] if self._name == "identity" else [Layer(self._name)]

    def forward(self, x: Tensor) -> Tensor:
        """Return its values, of the same shape."""
        return self._function(x)


class _Choices(nn.Module):
    """Logits of choices."""

    def __init__(self, inputs: int, action_dim: int, generator: torch.Generator) -> None:
        super().__init__()
        self.linear = orthogonal_linear(inputs, action_dim, gain=OUTPUT_GAIN, generator=generator)


class _DiagonalGaussian(nn.Module):
    """Mean head and state-independent spread; ``log_std`` precedes the head in parameter order."""

    def __init__(self, inputs: int, action_dim: int, generator: torch.Generator) -> None:
        super().__init__()
        self.fc_mean = orthogonal_linear(inputs, action_dim, gain=OUTPUT_GAIN, generator=generator)
        self.log_std = nn.Parameter(torch.full((action_dim,), INITIAL_LOG_STD))


def _layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return torch.layer_norm(x, weight.shape, weight, bias, LAYER_NORM_EPSILON)
