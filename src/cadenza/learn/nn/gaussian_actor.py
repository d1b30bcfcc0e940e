"""Gaussian policy network with the parameter names and order of HARL's stochastic policy.

Equations, for an observation s:
    x0 = LayerNorm(s)
    x1 = LayerNorm(ReLU(W0 x0 + b0)),  x2 likewise, one line per hidden layer
    μ  = Wm x + bm,   σ = σ_max · sigmoid(log_std),   π(a|s) = Π_d Normal(a_d; μ_d, σ_d)
Source:  HARL, arXiv:2304.09870; normalisation follows the activation.
Axes:    B = batch, O = observation, H = hidden, A = action.
Limits:  σ does not depend on s and stays within (0, σ_max), σ_max = 0.5 unless set, and is not part
         of the state dict; samples are neither squashed nor clipped.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, cast

import torch
from torch import Tensor, nn

from cadenza.core.errors import CheckpointError, InputError
from cadenza.learn.nn.initialization import orthogonal_linear

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
#: Parameters before the first hidden layer, per hidden layer, and after the last one.
_NORM_PARAMETERS: Final = 2
_HIDDEN_PARAMETERS: Final = 4
_HEAD_PARAMETERS: Final = 3


def actor_mean(parameters: Sequence[Tensor], observations: Tensor) -> Tensor:
    """Return the mean actions, (B, A), of the policy whose `GaussianActor.parameters` these are.

    Matrices are transposed, (inputs, outputs), as products from the right want them. The values are
    those of `GaussianActor.forward`; for one row, calling its modules takes almost three times as
    long.
    """
    x = _layer_norm(observations, parameters[0], parameters[1])
    head = len(parameters) - _HEAD_PARAMETERS
    for i in range(_NORM_PARAMETERS, head, _HIDDEN_PARAMETERS):
        x = torch.relu_(torch.addmm(parameters[i + 1], x, parameters[i]))
        x = _layer_norm(x, parameters[i + 2], parameters[i + 3])
    return torch.addmm(parameters[-1], x, parameters[-2])


def actor_standard_deviation(
    log_std: Tensor, max_standard_deviation: float = MAX_STANDARD_DEVIATION
) -> Tensor:
    """Return σ, shape (A,), from ``log_std``, shape (A,)."""
    return torch.sigmoid(log_std / INITIAL_LOG_STD) * max_standard_deviation


class GaussianActor(nn.Module):
    """Policy whose state dict is interchangeable with HARL's.

    Args:
        generator: CPU generator that initialises the weights, advanced as HARL's construction
            advances the global one.
        max_standard_deviation: σ_max, in units of the action, > 0.

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
            layers += [linear, nn.ReLU(), nn.LayerNorm(width, eps=LAYER_NORM_EPSILON)]
        feature_norm = nn.LayerNorm(observation_dim, eps=LAYER_NORM_EPSILON)
        mlp = nn.ModuleDict({"fc": nn.Sequential(*layers)})
        self.base = nn.ModuleDict({"feature_norm": feature_norm, "mlp": mlp})
        action_out = _DiagonalGaussian(hidden_sizes[-1], action_dim, generator)
        self.act = nn.ModuleDict({"action_out": action_out})
        self.max_standard_deviation = max_standard_deviation

    @classmethod
    def from_state_dict(
        cls,
        state: Mapping[str, Tensor],
        *,
        max_standard_deviation: float = MAX_STANDARD_DEVIATION,
    ) -> "GaussianActor":
        """Return an actor of the sizes that ``state``, ours or HARL's without recurrence, implies.

        No weight shows the σ_max it was trained with.

        Raises:
            CheckpointError: A weight is missing, superfluous or of the wrong shape.
        """
        try:
            observation_dim = state["base.feature_norm.weight"].shape[0]
            action_dim = state["act.action_out.fc_mean.weight"].shape[0]
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
            )
            actor.load_state_dict(dict(state), strict=True)
        except (KeyError, IndexError, RuntimeError, InputError) as error:
            raise CheckpointError(
                "GaussianActor.from_state_dict: expected the weights of one Gaussian actor "
                f"(base.*, act.action_out.*), got keys {sorted(state)}: {error}"
            ) from error
        return actor

    def forward(self, observations: Tensor) -> Tensor:
        """Return mean actions, shape (B, A), for ``observations``, shape (B, O)."""
        base, act = cast("Any", self.base), cast("Any", self.act)
        return act.action_out.fc_mean(base.mlp.fc(base.feature_norm(observations)))

    def standard_deviation(self) -> Tensor:
        """Return σ, shape (A,)."""
        log_std = cast("Any", self.act).action_out.log_std
        return actor_standard_deviation(log_std, self.max_standard_deviation)


class _DiagonalGaussian(nn.Module):
    """Mean head and state-independent spread; ``log_std`` precedes the head in parameter order."""

    def __init__(self, inputs: int, action_dim: int, generator: torch.Generator) -> None:
        super().__init__()
        self.fc_mean = orthogonal_linear(inputs, action_dim, gain=OUTPUT_GAIN, generator=generator)
        self.log_std = nn.Parameter(torch.full((action_dim,), INITIAL_LOG_STD))


def _layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return torch.layer_norm(x, weight.shape, weight, bias, LAYER_NORM_EPSILON)
