"""From a barrier to a row on the action: Lie derivatives and relative degree by autodiff.

Chain:    psi_0 = h;  psi_k = L_f psi_{k-1} - cost_k + alpha_k(psi_{k-1}),  k = 1 .. r - 1
Row:      L_g psi_{r-1} u  >=  -(L_f psi_{r-1} - cost_r + alpha_r(psi_{r-1}))
          cost_k is the most the disturbances can take from d/dt psi_{k-1}, so each stage holds
          whatever they do; without disturbances L_g psi_{r-1} = L_g L_f^{r-1} h.
Promise:  psi_k >= 0 for all k < r at the start and the row met at all times keep h >= 0 at all
          times. That is a statement about continuous time; see `cadenza.safety.affine.filter`.
Degree:   r is the first stage at whose gradient the action acts: |L_g psi| > tolerance
          |grad psi| |g| (Frobenius) at the sample states.
Source:   Nguyen and Sreenath, doi:10.1109/ACC.2016.7524935; Xiao and Belta, arXiv:1903.04706.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

import torch
from torch import Tensor

from cadenza.core.checks import checked_integer, require_kinds
from cadenza.core.errors import ConfigurationError
from cadenza.safety.affine.barriers import Barrier, ClassK, apply_class_k
from cadenza.safety.affine.dynamics import (
    ControlAffineDynamics,
    Disturbance,
    generic_states,
    require_dynamics,
    total_cost,
)

#: Share of |grad psi| |g| below which L_g psi counts as zero: autodiff in float64 leaves about
#: 1e-16 where the formula is zero, and more after cancellation.
AUTHORITY_TOLERANCE: Final = 1e-9
#: Largest relative degree looked for unless the caller says otherwise.
DEFAULT_MAX_DEGREE: Final = 4

#: psi_{k-1} and the stages before it.
_Stage: TypeAlias = Callable[[Tensor], tuple[Tensor, tuple[Tensor, ...]]]


class AffineRow(NamedTuple):
    """Row of one barrier at one state: ``gain @ u + level >= 0``."""

    gain: Tensor  # L_g psi_{r-1}, shape (k,)
    level: Tensor  # L_f psi_{r-1} - cost + alpha_r(psi_{r-1}), shape ()
    h: Tensor  # The barrier itself, shape ()
    lowest: Tensor  # min over k < r of psi_k, shape (); negative outside the guaranteed set
    #: |gain| / (|grad psi_{r-1}| |g|), shape (); zero where the action does not act
    authority: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class LiftedBarrier:
    """A barrier with its relative degree and its row."""

    name: str  # The barrier's
    weight: float  # The barrier's
    degree: int  # Relative degree r, >= 1
    row: Callable[[Tensor], AffineRow]  # Row at a state (n,); `torch.func.vmap` makes batches of it
    stages: Callable[[Tensor], Tensor]  # psi_0 .. psi_{r-1} at a state (n,), shape (r,).


def lift(
    barrier: Barrier,
    dynamics: ControlAffineDynamics,
    max_degree: int = DEFAULT_MAX_DEGREE,
    *,
    samples: Tensor | None = None,
    disturbances: Sequence[Disturbance] = (),
) -> LiftedBarrier:
    """Return the barrier's row after finding its relative degree.

    Args:
        barrier: The condition.
        dynamics: The robot.
        max_degree: Largest relative degree that is tried, >= 1.
        samples: States at which it is decided, shape (M, n), float64: in general position, where
            the barrier is smooth. None takes 64 fixed points of [-2, 2]^n.
        disturbances: What else moves the robot.

    Raises:
        ConfigurationError: No input up to ``max_degree``; a degree that differs between samples; a
            number of gains other than the degree; a function that is no scalar, not finite or not
            fit for `torch.func.vmap`; malformed samples or options.
    """
    require_kinds(
        "lift",
        barrier=(barrier, Barrier),
        dynamics=(dynamics, ControlAffineDynamics),
        disturbances=(disturbances, [Disturbance]),
        samples=(samples, Tensor | None),
    )
    states = _samples(dynamics, samples)
    checked_integer("lift: max_degree", max_degree)
    require_dynamics(dynamics, states[0])
    _require_batchable(barrier, states)

    def first(x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        return barrier.function(x), ()

    psi: _Stage = first
    for degree in range(1, max_degree + 1):
        alpha = barrier.gain(degree)
        row = _row(psi, alpha, dynamics, disturbances)
        at_samples: AffineRow = torch.func.vmap(row)(states)
        if not all(bool(torch.isfinite(part).all()) for part in at_samples):
            raise ConfigurationError(
                f"lift: barrier {barrier.name!r}: expected finite derivatives of order {degree} at "
                "all samples, got some that are not; pass samples where the barrier is smooth."
            )
        acts = at_samples.authority > AUTHORITY_TOLERANCE
        if bool(acts.all()):
            if isinstance(barrier.gains, tuple) and len(barrier.gains) != degree:
                raise ConfigurationError(
                    f"Barrier {barrier.name!r}: expected {degree} gains for relative degree "
                    f"{degree}, got {len(barrier.gains)}."
                )
            return LiftedBarrier(barrier.name, barrier.weight, degree, row, _stages(psi))
        if bool(acts.any()):
            raise ConfigurationError(
                f"lift: barrier {barrier.name!r}: expected one relative degree at all samples, got "
                f"degree {degree} at {float(acts.double().mean()):.0%} of them; pass samples of "
                "the region that counts, or change the barrier."
            )
        psi = _next_stage(psi, alpha, dynamics, disturbances)
    raise ConfigurationError(
        f"lift: barrier {barrier.name!r}: expected the input to appear in one of its first "
        f"{max_degree} derivatives, got none at any sample; the barrier may depend on states the "
        "input does not move, or max_degree is too small."
    )


def _next_stage(
    psi: _Stage,
    alpha: ClassK,
    dynamics: ControlAffineDynamics,
    disturbances: Sequence[Disturbance],
) -> _Stage:
    """Return psi_k from psi_{k-1}."""

    def following(x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        gradient, value, before = _differentiated(psi, x)
        rate = gradient @ dynamics.drift(x) - total_cost(disturbances, gradient, x)
        return rate + apply_class_k(alpha, value), (*before, value)

    return following


def _row(
    psi: _Stage,
    alpha: ClassK,
    dynamics: ControlAffineDynamics,
    disturbances: Sequence[Disturbance],
) -> Callable[[Tensor], AffineRow]:
    """Return the row that keeps psi >= 0."""

    def row(x: Tensor) -> AffineRow:
        gradient, value, before = _differentiated(psi, x)
        g = dynamics.input_map(x)
        gain = gradient @ g
        rate = gradient @ dynamics.drift(x) - total_cost(disturbances, gradient, x)
        stages = torch.stack([*before, value])
        scale = torch.sqrt((gradient @ gradient) * (g * g).sum())
        authority = torch.sqrt(gain @ gain) / torch.where(scale > 0.0, scale, 1.0)
        level = rate + apply_class_k(alpha, value)
        return AffineRow(gain, level, stages[0], stages.amin(), authority)

    return row


def _stages(psi: _Stage) -> Callable[[Tensor], Tensor]:
    def stages(x: Tensor) -> Tensor:
        value, before = psi(x)
        return torch.stack([*before, value])

    return stages


def _differentiated(psi: _Stage, x: Tensor) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
    """Return the gradient of psi, its value and the stages before it."""
    found: Any = torch.func.grad_and_value(psi, has_aux=True)(x)
    gradient, (value, before) = found
    return gradient, value, before


def _samples(dynamics: ControlAffineDynamics, samples: Tensor | None) -> Tensor:
    """Return the states at which the degree is decided, after checking them."""
    n = dynamics.state_dim
    if samples is None:
        return generic_states(n)
    shaped = samples.ndim == 2 and samples.shape[0] > 0 and samples.shape[1] == n
    if not (shaped and samples.dtype == torch.float64 and bool(torch.isfinite(samples).all())):
        raise ConfigurationError(
            f"lift: samples: expected finite float64 states, shape (M, {n}) with M >= 1, got "
            f"{samples.dtype} {tuple(samples.shape)}."
        )
    return samples


def _require_batchable(barrier: Barrier, states: Tensor) -> None:
    try:
        values = torch.func.vmap(barrier.function)(states)
    except RuntimeError as error:
        raise ConfigurationError(
            f"lift: barrier {barrier.name!r}: expected a branch-free torch function that "
            f"torch.func.vmap can batch, got: {error}"
        ) from error
    if values.shape != states.shape[:1] or values.dtype != torch.float64:
        raise ConfigurationError(
            f"lift: barrier {barrier.name!r}: expected one float64 number per state, got "
            f"{values.dtype} {tuple(values.shape)} for {states.shape[0]} states."
        )
