"""How many steps the next chunk has.

A sampler owns its randomness: a generator or a seed. An `OnlineDataset` gives every iterator a copy
with a generator of its own, so that no two loader workers draw the same sizes.

Axes:  K = components of a mixture.
"""

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Final, Self, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cadenza.core.checks import checked_flag, checked_integer, checked_optional_integer
from cadenza.core.device import generator_fault
from cadenza.core.errors import ConfigurationError, ConfigurationTypeError
from cadenza.core.seeding import derive_substream

#: Purpose of the stream that ``seed`` selects.
STREAM_NAME: Final = "stream.chunk_sizes"
#: Seed of a sampler that got neither ``generator`` nor ``seed``.
DEFAULT_SEED: Final = 0
#: Seeds of generators are unsigned words of 64 bits.
_SEED_MASK: Final = 2**64 - 1


class ChunkSizeSampler(ABC):
    """Draws chunk sizes; a subclass needs nothing but `__call__`."""

    @abstractmethod
    def __call__(self) -> int:
        """Return a number of steps, >= 1."""

    @property
    def seed(self) -> int | None:
        """The seed it was given; None lets the dataset's seed decide."""
        return None

    def require_within(self, longest: int) -> None:  # noqa: B027 -- nothing is known of a subclass
        """Refuse to be used where chunks have at most ``longest`` steps, if sizes may exceed it.

        Raises:
            ConfigurationError: A size beyond ``longest`` is possible.
        """

    def copy_for(self, generator: torch.Generator, longest: int) -> "ChunkSizeSampler":
        """Return a sampler of the same sizes that draws from ``generator``, at most ``longest``.

        A subclass without this method is used as it is and owns its randomness.
        """
        del generator, longest
        return self


class _SeededSampler(ChunkSizeSampler):
    """A sampler whose draws come from a `torch.Generator`."""

    def __init__(self, generator: torch.Generator | None, seed: int | None) -> None:
        if generator is not None and seed is not None:
            raise ConfigurationError(
                f"{type(self).__name__}: expected generator or seed, got both; leave one out."
            )
        name = type(self).__name__
        self._seed = checked_optional_integer(f"{name}.seed", seed, least=0)
        if generator is not None:
            fault = generator_fault(generator)
            if fault is not None:
                raise ConfigurationTypeError(f"{name}.generator: {fault}.")
            self._seed = generator.initial_seed() & _SEED_MASK
        root = DEFAULT_SEED if seed is None else seed
        first = derive_substream(STREAM_NAME, root_seed=root).integer_seed()
        self.generator: torch.Generator = generator or torch.Generator().manual_seed(first)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state with the generator's as bytes, which travel to every new process."""
        return {**vars(self), "generator": self.generator.get_state().numpy().tobytes()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Go on where the original was."""
        vars(self).update(state)
        words = torch.frombuffer(bytearray(state["generator"]), dtype=torch.uint8)
        self.generator = torch.Generator()
        self.generator.set_state(words)

    @property
    def seed(self) -> int | None:
        """The seed, or that of the generator it was given."""
        return self._seed

    def copy_for(self, generator: torch.Generator, longest: int) -> Self:
        """Return a sampler of the same sizes that draws from ``generator``.

        Raises:
            ConfigurationError: A size beyond ``longest`` is possible.
        """
        self.require_within(longest)
        made = copy.copy(self)
        made.generator = generator
        return made


class UniformChunkSampler(_SeededSampler):
    """Integers from ``low`` to ``high``, both included, each as likely as the others."""

    def __init__(
        self,
        low: int,
        high: int,
        *,
        generator: torch.Generator | None = None,
        seed: int | None = None,
    ) -> None:
        """Keep the bounds, 1 <= ``low`` <= ``high``.

        Draws come from ``generator`` or ``seed``; with neither, from 0, or the seed of the dataset
        that uses the sampler.

        Raises:
            ConfigurationError: ``low`` < 1, ``high`` < ``low``, or both sources are given.
            ConfigurationTypeError: An argument is of another type.
        """
        super().__init__(generator, seed)
        self.low: int = checked_integer("UniformChunkSampler.low", low)
        self.high: int = checked_integer("UniformChunkSampler.high", high)
        _require_ordered("UniformChunkSampler", self.low, self.high)

    def __call__(self) -> int:
        """Return the next size."""
        return int(torch.randint(self.low, self.high + 1, (), generator=self.generator))

    def require_within(self, longest: int) -> None:
        """Refuse a ``high`` beyond ``longest``.

        Raises:
            ConfigurationError: ``high`` is larger.
        """
        _require_at_most("UniformChunkSampler.high", self.high, longest)

    def __repr__(self) -> str:
        """Return the call that makes it, without its randomness."""
        return f"UniformChunkSampler(low={self.low}, high={self.high})"


class GMMChunkSampler(_SeededSampler):
    """Sizes from a mixture of Gaussians, rounded to integers.

    By default a size beyond a bound becomes the bound, which then gets the probability of the
    whole tail. With ``truncate`` the mixture is taken on condition that the rounded size lies
    within the bounds: inside, sizes keep the proportions of the mixture.
    """

    def __init__(
        self,
        means: Sequence[float],
        stds: Sequence[float],
        weights: Sequence[float] | None = None,
        low: int | None = None,
        high: int | None = None,
        *,
        truncate: bool = False,
        generator: torch.Generator | None = None,
        seed: int | None = None,
    ) -> None:
        """Keep the mixture; draws come from ``generator`` or ``seed`` as of `UniformChunkSampler`.

        Args:
            means: Mean of each component, shape (K,), K >= 1.
            stds: Standard deviation of each, shape (K,), > 0.
            weights: Weight of each, shape (K,), >= 0, with a sum > 0; None weighs all alike.
            low: Smallest size, >= 1; None is 1.
            high: Largest size, >= ``low``; None leaves sizes unbounded, in a dataset bounded by the
                steps of the longest episode.
            truncate: Condition on the bounds instead of moving sizes to them; needs ``high``.
            generator: Source of the draws.
            seed: Seed of the draws, instead of ``generator``.

        Raises:
            ConfigurationError: An argument is out of range or of another length than the others, or
                both sources are given.
            ConfigurationTypeError: An argument is of another type.
        """
        super().__init__(generator, seed)
        self.means: NDArray[np.float64] = _finite("means", means)
        self.stds: NDArray[np.float64] = _finite("stds", stds)
        given = [1.0] * len(self.means) if weights is None else weights
        self.weights: NDArray[np.float64] = _finite("weights", given)
        _require_mixture(self.means, self.stds, self.weights)
        self.weights /= self.weights.sum()
        self.low: int | None = checked_optional_integer("GMMChunkSampler.low", low)
        self.high: int | None = checked_optional_integer("GMMChunkSampler.high", high)
        _require_ordered("GMMChunkSampler", self.low or 1, self.high)
        self.truncate: bool = checked_flag("GMMChunkSampler.truncate", truncate)
        self._cumulative = np.cumsum(self.weights)
        self._sizes: NDArray[np.float64] | None = None
        if self.truncate:
            self._sizes = np.cumsum(self._size_table())

    def _size_table(self) -> NDArray[np.float64]:
        """Return the probability of each size within the bounds."""
        if self.high is None:
            raise ConfigurationError(
                "GMMChunkSampler: expected high with truncate=True, got None; give the bound."
            )
        return truncated_mixture(self.means, self.stds, self.weights, self.low or 1, self.high)

    def __call__(self) -> int:
        """Return the next size."""
        u = float(torch.rand((), dtype=torch.float64, generator=self.generator))
        if self._sizes is not None:
            return (self.low or 1) + first_at_least(u, self._sizes)
        component = first_at_least(u, self._cumulative)
        z = float(torch.randn((), dtype=torch.float64, generator=self.generator))
        x = float(self.means[component]) + float(self.stds[component]) * z
        return rounded_size(x, self.low, self.high)

    def require_within(self, longest: int) -> None:
        """Refuse bounds beyond ``longest``.

        Raises:
            ConfigurationError: ``low`` or ``high`` is larger.
        """
        _require_at_most("GMMChunkSampler.low", self.low, longest)
        _require_at_most("GMMChunkSampler.high", self.high, longest)

    def copy_for(self, generator: torch.Generator, longest: int) -> Self:
        """Return the mixture with ``generator``; without ``high`` it is bounded by ``longest``.

        Raises:
            ConfigurationError: ``low`` or ``high`` is larger than ``longest``.
        """
        made = super().copy_for(generator, longest)
        if made.high is None:
            made.high = longest
        return made

    def __repr__(self) -> str:
        """Return the call that makes it, without its randomness."""
        return (
            f"GMMChunkSampler(means={self.means.tolist()}, stds={self.stds.tolist()}, "
            f"weights={self.weights.tolist()}, low={self.low}, high={self.high}, "
            f"truncate={self.truncate})"
        )


def first_at_least(u: float, cumulative: NDArray[np.float64]) -> int:
    """Return the first index whose cumulative weight is at least ``u``, else the last one."""
    return min(int(np.searchsorted(cumulative, u, side="left")), len(cumulative) - 1)


def rounded_size(x: float, low: int | None, high: int | None) -> int:
    """Return ``x`` rounded, halves to the even neighbour, moved to >= 1, ``low`` and ``high``."""
    size = max(1, round(x))
    if low is not None:
        size = max(size, low)
    return size if high is None else min(size, high)


def truncated_mixture(
    means: NDArray[np.float64],
    stds: NDArray[np.float64],
    weights: NDArray[np.float64],
    low: int,
    high: int,
) -> NDArray[np.float64]:
    """Return P(c | low <= c <= high) of a rounded mixture of Gaussians, (high - low + 1,), sum 1.

    P(c) is proportional to sum_k w_k (F((c + 1/2 - m_k) / s_k) - F((c - 1/2 - m_k) / s_k)), F the
    normal distribution function; computed by logarithms, so bounds far from all means are exact.
    Means m, deviations s > 0 and weights w, sum 1, have the shape (K,).

    Raises:
        ConfigurationError: Float64 cannot express any of the mixture's mass within the bounds.
    """
    edges = np.arange(low, high + 2, dtype=np.float64) - 0.5
    with np.errstate(over="ignore"):
        z = (edges - means[:, None]) / stds[:, None]  # (K, high - low + 2)
    # The normal distribution is even: measure each interval from the tail that it lies nearer to.
    mirrored = z[:, :-1] + z[:, 1:] > 0.0
    near = _log_ndtr(np.where(mirrored, -z[:, :-1], z[:, 1:]))
    far = _log_ndtr(np.where(mirrored, -z[:, 1:], z[:, :-1]))
    # Weight 0, and intervals whose mass float64 cannot express, have the logarithm -inf.
    with np.errstate(divide="ignore", invalid="ignore"):
        log_mass = near + np.log(-np.expm1(far - near)) + np.log(weights)[:, None]
    total = np.logaddexp.reduce(np.nan_to_num(log_mass, nan=-np.inf), axis=0)
    if not total.max() > -np.inf:
        raise ConfigurationError(
            f"GMMChunkSampler: expected a mixture that reaches [{low}, {high}], got none of its "
            "mass there; move the bounds or the means, or widen stds."
        )
    mass = np.exp(total - total.max())
    return mass / mass.sum()


def _log_ndtr(z: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the logarithm of the normal distribution function."""
    log_ndtr: Callable[[Tensor], Tensor] = cast("Any", torch.special).log_ndtr
    return log_ndtr(torch.as_tensor(z)).numpy()


def _finite(name: str, values: Sequence[float]) -> NDArray[np.float64]:
    try:
        array = np.asarray(values)
    except ValueError:  # lists of several lengths
        array = np.array("", object)
    numbers = array.dtype.kind in "iuf" and array.ndim == 1 and bool(np.isfinite(array).all())
    if not numbers:
        raise ConfigurationError(
            f"GMMChunkSampler.{name}: expected finite numbers in a list, got {values!r}."
        )
    return array.astype(np.float64)


def _require_mixture(
    means: NDArray[np.float64], stds: NDArray[np.float64], weights: NDArray[np.float64]
) -> None:
    if not len(means):
        raise ConfigurationError("GMMChunkSampler.means: expected at least one, got none.")
    for name, values in (("stds", stds), ("weights", weights)):
        if len(values) != len(means):
            raise ConfigurationError(
                f"GMMChunkSampler.{name}: expected {len(means)} (one per mean), got {len(values)}."
            )
    if (stds <= 0.0).any():
        raise ConfigurationError(f"GMMChunkSampler.stds: expected > 0, got {stds.tolist()}.")
    with np.errstate(over="ignore"):
        total = float(weights.sum())
    if (weights < 0.0).any() or not 0.0 < total < math.inf:
        raise ConfigurationError(
            f"GMMChunkSampler.weights: expected >= 0 with a finite sum > 0, got {weights.tolist()}."
        )


def _require_ordered(name: str, low: int, high: int | None) -> None:
    if high is not None and high < low:
        raise ConfigurationError(f"{name}: expected low <= high, got {low} and {high}.")


def _require_at_most(name: str, value: int | None, longest: int) -> None:
    if value is not None and value > longest:
        raise ConfigurationError(
            f"{name}: expected at most {longest} (steps of the longest episode), got {value}; "
            "lower it or raise max_episode_steps."
        )
