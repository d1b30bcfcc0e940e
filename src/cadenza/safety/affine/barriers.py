"""A barrier as its author writes it: a function of the state that must stay >= 0.

Class K:  gains of the chain psi_k = d/dt psi_{k-1} + alpha_k(psi_{k-1}), psi_0 = h. A number a is
          the linear function s -> a s, which makes the barrier an exponential one; a function makes
          it a general high-order one.
Source:   Nguyen and Sreenath, doi:10.1109/ACC.2016.7524935; Xiao and Belta, arXiv:1903.04706.
"""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

import torch
from torch import Tensor

from cadenza.core.errors import ConfigurationError

#: A class-K function: a rate in 1/s, or a strictly increasing torch function with value 0 at 0.
ClassK: TypeAlias = float | Callable[[Tensor], Tensor]

#: Where a class-K function is looked at before it is trusted.
_PROBES: Final = (-1.0, -1e-2, 0.0, 1e-2, 1.0)


@dataclass(frozen=True, slots=True, eq=False)
class Barrier:
    """One condition h(x) >= 0.

    Attributes:
        name: How messages and telemetry call it.
        function: h: branch-free torch function from a state (n,) to a number ().
        gains: One class-K function for each stage, first that of h; a single number serves every
            stage, however many there are.
        weight: Price of missing its row when not all rows can be met, relative to others, > 0.

    Raises:
        ConfigurationError: No name, no gains, a rate or weight that is not finite and positive, or
            a function that is not of class K at the places looked at.
    """

    name: str
    function: Callable[[Tensor], Tensor]
    gains: float | tuple[ClassK, ...] = 1.0
    weight: float = 1.0

    def __post_init__(self) -> None:
        if not self.name:
            raise ConfigurationError("Barrier.name: expected a name, got an empty one.")
        if not 0.0 < self.weight < math.inf:
            raise ConfigurationError(
                f"Barrier {self.name!r}.weight: expected a finite number > 0, got {self.weight}."
            )
        gains = self.gains if isinstance(self.gains, tuple) else (self.gains,)
        if not gains:
            raise ConfigurationError(
                f"Barrier {self.name!r}.gains: expected at least one, got none."
            )
        for gain in gains:
            _require_class_k(self.name, gain)

    def gain(self, stage: int) -> ClassK:
        """Return alpha_stage, counted from 1.

        Raises:
            ConfigurationError: The barrier brought fewer gains.
        """
        if not isinstance(self.gains, tuple):
            return self.gains
        if stage > len(self.gains):
            raise ConfigurationError(
                f"Barrier {self.name!r}: expected a gain for each stage up to its relative degree, "
                f"got {len(self.gains)} and the input does not appear before stage {stage}; pass "
                "one more gain, or a single number for all."
            )
        return self.gains[stage - 1]

    def require_degree(self, degree: int) -> None:
        """Raise ConfigurationError if there are more gains than stages."""
        if isinstance(self.gains, tuple) and len(self.gains) != degree:
            raise ConfigurationError(
                f"Barrier {self.name!r}: expected {degree} gains for relative degree {degree}, "
                f"got {len(self.gains)}."
            )


def apply_class_k(alpha: ClassK, value: Tensor) -> Tensor:
    """Return alpha(value)."""
    return alpha(value) if callable(alpha) else alpha * value


def _require_class_k(name: str, alpha: ClassK) -> None:
    if not callable(alpha):
        if not 0.0 < alpha < math.inf:
            raise ConfigurationError(
                f"Barrier {name!r}.gains: expected finite rates > 0 1/s, got {alpha}."
            )
        return
    probes = torch.tensor(_PROBES, dtype=torch.float64)
    values = [float(alpha(probe)) for probe in probes]
    increasing = all(low < high for low, high in itertools.pairwise(values))
    if not (increasing and values[2] == 0.0):
        raise ConfigurationError(
            f"Barrier {name!r}.gains: expected a strictly increasing function with value 0 at 0, "
            f"got {values} at {_PROBES}."
        )
