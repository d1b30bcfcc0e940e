"""Barriers, functions of the state that must stay >= 0, ready ones, and their rows on the action.

Chain:    psi_0 = h;  psi_k = L_f psi_{k-1} - cost_k + alpha_k(psi_{k-1}),  k = 1 .. r - 1
Row:      L_g psi_{r-1} u  >=  -(L_f psi_{r-1} - cost_r + alpha_r(psi_{r-1}))
          cost_k is the most the disturbances can take from d/dt psi_{k-1}, so each stage holds
          whatever they do; without disturbances L_g psi_{r-1} = L_g L_f^{r-1} h.
Promise:  psi_k >= 0 for all k < r at the start and the row met at all times keep h >= 0 at all
          times. That is a statement about continuous time; see `cadenza.safety.affine.filter`.
Degree:   r is the first stage at whose gradient the action acts: |L_g psi| > tolerance
          |grad psi| |g| (Frobenius) at the sample states.
Class K:  gains of the chain psi_k = d/dt psi_{k-1} + alpha_k(psi_{k-1}), psi_0 = h. A number a is
          the linear function s -> a s, which makes the barrier an exponential one; a function makes
          it a general high-order one.
Ready:    every function takes ``gains``, ``name`` and ``weight`` of its `Barrier`, and raises
          ConfigurationError for a number out of range. A place is where in the state a vector
          stands: its indices, or a torch function of the state, such as a point ahead of a wheeled
          robot. Squares instead of distances keep them smooth, also at the centre of a ball.
Source:   Nguyen and Sreenath, doi:10.1109/ACC.2016.7524935; Xiao and Belta, arXiv:1903.04706.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, TypeAlias, cast

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from cadenza.core.checks import (
    checked_integer,
    is_real,
    is_whole,
    require_callable,
    require_kinds,
    require_positive,
    shown,
)
from cadenza.core.errors import ConfigurationError, refuse
from cadenza.safety.affine.dynamics import (
    ControlAffineDynamics,
    Disturbance,
    float_array,
    generic_states,
    require_dynamics,
    total_cost,
)

#: A class-K function: a rate in 1/s, or a strictly increasing torch function with value 0 at 0.
ClassK: TypeAlias = float | Callable[[Tensor], Tensor]
#: One for each stage, first that of h; a single number serves every stage.
Gains: TypeAlias = float | tuple[ClassK, ...]
#: Indices of a vector in the state, or a function from a state (n,) to the vector.
Place: TypeAlias = Sequence[int] | Callable[[Tensor], Tensor]

#: Share of |grad psi| |g| below which L_g psi counts as zero: autodiff in float64 leaves about
#: 1e-16 where the formula is zero, and more after cancellation.
AUTHORITY_TOLERANCE: Final = 1e-9
#: Largest relative degree looked for unless the caller says otherwise.
DEFAULT_MAX_DEGREE: Final = 4

#: psi_{k-1} and the stages before it.
_Stage: TypeAlias = Callable[[Tensor], tuple[Tensor, tuple[Tensor, ...]]]
#: Where a class-K function is looked at before it is trusted.
_PROBES: Final = (-1.0, -1e-2, 0.0, 1e-2, 1.0)


@dataclass(frozen=True, slots=True, eq=False)
class Barrier:
    """One condition h(x) >= 0.

    Attributes:
        name: How messages and telemetry call it.
        function: h: branch-free torch function from a state (n,) to a number ().
        gains: Its class-K functions.
        weight: Price of missing its row when not all rows can be met, relative to others, > 0.

    Raises:
        ConfigurationError: No name, no gains, a rate or weight that is not finite and positive, or
            a function that is not of class K at the places looked at.
    """

    name: str
    function: Callable[[Tensor], Tensor]
    gains: Gains = 1.0
    weight: float = 1.0

    def __post_init__(self) -> None:
        if not (isinstance(cast("object", self.name), str) and self.name):
            refuse(ConfigurationError, "Barrier.name", expected="a name", got=shown(self.name))
        require_callable(f"Barrier {self.name!r}.function", self.function, "a function of a state")
        require_positive(f"Barrier {self.name!r}.weight", self.weight)
        gains = self.gains if isinstance(self.gains, tuple) else (self.gains,)
        name = f"Barrier {self.name!r}.gains"
        if not gains:
            refuse(ConfigurationError, name, expected="at least one", got="none")
        for gain in gains:
            _require_class_k(name, gain)

    def gain(self, stage: int) -> ClassK:
        """Return alpha_stage, counted from 1.

        Raises:
            ConfigurationError: The barrier brought fewer gains.
        """
        if not isinstance(self.gains, tuple):
            return self.gains
        if stage > len(self.gains):
            refuse(
                ConfigurationError,
                f"Barrier {self.name!r}",
                expected="a gain for each stage up to its relative degree",
                got=f"{len(self.gains)} and the input does not appear before stage {stage}",
                do="pass one more gain, or a single number for all",
            )
        return self.gains[stage - 1]


def apply_class_k(alpha: ClassK, value: Tensor) -> Tensor:
    """Return alpha(value)."""
    return alpha(value) if callable(alpha) else alpha * value


def keep_out_ball(
    center: ArrayLike,
    radius: float,
    *,
    gains: Gains = 1.0,
    position: Place = (0, 1),
    name: str = "ball",
    weight: float = 1.0,
) -> Barrier:
    """Return h = |p - center|^2 - radius^2, m^2.

    Args:
        center: Centre, shape (d,), m.
        radius: Sum of the radii of obstacle and robot, m, > 0.
        gains: See the module, as ``name`` and ``weight``.
        position: Where p stands, d numbers.
        name: Of the barrier.
        weight: Of the barrier.
    """
    require_positive(f"keep_out_ball {name!r}.radius", radius)
    middle, place = _vector(f"keep_out_ball {name!r}.center", center), _reader(position)
    return _outside(lambda x: place(x) - middle.to(x.device), radius, name, gains, weight)


def half_plane(
    normal: ArrayLike,
    offset_m: float,
    *,
    gains: Gains = 1.0,
    position: Place = (0, 1),
    name: str = "half plane",
    weight: float = 1.0,
) -> Barrier:
    """Return h = n @ p - offset, m, with n the unit vector along ``normal``.

    ``normal``, shape (d,), points into the allowed side, and p stands at ``position``; the plane
    lies ``offset_m`` from the origin along n.
    """
    direction, place = _vector(f"half_plane {name!r}.normal", normal), _reader(position)
    length = float(torch.sqrt(direction @ direction))
    if not length > 0.0 or not (is_real(offset_m) and math.isfinite(offset_m)):
        refuse(
            ConfigurationError,
            f"half_plane {name!r}",
            expected="a normal other than zero and a finite offset",
            got=f"{direction.numpy().tolist()} and {offset_m}",
        )
    unit = direction / length

    def h(x: Tensor) -> Tensor:
        return place(x) @ unit.to(x.device) - offset_m

    return Barrier(name, h, gains, weight)


def speed_limit(
    limit: float,
    *,
    velocity: Place,
    gains: Gains = 1.0,
    name: str = "speed",
    weight: float = 1.0,
) -> Barrier:
    """Return h = limit^2 - |v|^2, (m/s)^2, with v at ``velocity`` and ``limit`` > 0 in m/s."""
    require_positive(f"speed_limit {name!r}.limit", limit)
    place = _reader(velocity)

    def h(x: Tensor) -> Tensor:
        v = place(x)
        return limit * limit - v @ v

    return Barrier(name, h, gains, weight)


def state_box(
    lower: ArrayLike,
    upper: ArrayLike,
    *,
    gains: float = 1.0,
    name: str = "box",
    weight: float = 1.0,
) -> tuple[Barrier, ...]:
    """Return one barrier per finite bound: h = x_i - lower_i and h = upper_i - x_i.

    Both bounds have shape (n,), the units of the state and infinity where there is none. ``gains``
    is one rate for all stages, 1/s: the relative degree may differ between components.
    """
    low, high = float_array(f"state_box {name!r}", lower), float_array(f"state_box {name!r}", upper)
    if low.ndim != 1 or low.shape != high.shape or not (low < high).all():
        expected, got = "lower < upper, both of shape (n,)", f"{low.tolist()} and {high.tolist()}"
        refuse(ConfigurationError, f"state_box {name!r}", expected=expected, got=got)

    def bound(label: str, i: int, sign: float, offset: float) -> Barrier:
        return Barrier(f"{name}[{i}] {label}", lambda x: sign * x[i] + offset, gains, weight)

    barriers: list[Barrier] = []
    for i, (least, most) in enumerate(zip(low.tolist(), high.tolist(), strict=True)):
        if math.isfinite(least):
            barriers.append(bound("lower", i, 1.0, -least))
        if math.isfinite(most):
            barriers.append(bound("upper", i, -1.0, most))
    return tuple(barriers)


def minimum_separation(
    distance_m: float,
    *,
    first: Place,
    second: Place,
    gains: Gains = 1.0,
    name: str = "separation",
    weight: float = 1.0,
) -> Barrier:
    """Return h = |p1 - p2|^2 - distance^2, m^2, for two agents of one joint state.

    Their centres stand at ``first`` and ``second``; ``distance_m`` > 0.
    """
    require_positive(f"minimum_separation {name!r}.distance_m", distance_m)
    one, other = _reader(first), _reader(second)
    return _outside(lambda x: one(x) - other(x), distance_m, name, gains, weight)


def turning_circle_clearance(
    center: ArrayLike,
    radius: float,
    *,
    turning_radius_m: float,
    side: Literal["left", "right"] = "left",
    gains: Gains = 1.0,
    name: str = "turning circle",
    weight: float = 1.0,
) -> Barrier:
    """Return h = |c - center| - (radius + turning radius), m, with c the turning circle's centre.

    For a state (px, py, th, ...) with p' along th, such as a Dubins car. While h >= 0 the robot
    can circle on that side for ever without touching the ball, at the turn rate speed / turning
    radius, with h constant; so the row is met by an action of any box that contains this rate.

    Args:
        center: Centre of the ball, shape (2,), m.
        radius: Sum of the radii of obstacle and robot, m, > 0.
        turning_radius_m: Radius of the circle, m, > 0: speed over the largest turn rate, or more.
        side: On which side of the robot the circle lies.
        gains: See the module, as ``name`` and ``weight``.
        name: Of the barrier.
        weight: Of the barrier.
    """
    owner = f"turning_circle_clearance {name!r}"
    require_positive(f"{owner}.radius", radius)
    require_positive(f"{owner}.turning_radius_m", turning_radius_m)
    if side not in ("left", "right"):
        got = repr(side)
        refuse(ConfigurationError, f"{owner}.side", expected="'left' or 'right'", got=got)
    middle = _vector(f"{owner}.center", center)
    arm = turning_radius_m if side == "left" else -turning_radius_m

    def h(x: Tensor) -> Tensor:
        circle = x[:2] + arm * torch.stack([-torch.sin(x[2]), torch.cos(x[2])])
        apart = circle - middle.to(x.device)
        return torch.sqrt(apart @ apart) - (radius + turning_radius_m)

    return Barrier(name, h, gains, weight)


def _outside(
    apart: Callable[[Tensor], Tensor], radius: float, name: str, gains: Gains, weight: float
) -> Barrier:
    """Return h = |apart|^2 - radius^2."""

    def h(x: Tensor) -> Tensor:
        offset = apart(x)
        return offset @ offset - radius * radius

    return Barrier(name, h, gains, weight)


def _require_class_k(name: str, alpha: ClassK) -> None:
    if not callable(alpha):
        if not (is_real(alpha) and 0.0 < alpha < math.inf):
            refuse(ConfigurationError, name, expected="finite rates > 0 1/s", got=alpha)
        return
    values = [float(alpha(probe)) for probe in torch.tensor(_PROBES, dtype=torch.float64)]
    increasing = all(low < high for low, high in itertools.pairwise(values))
    if not (increasing and values[2] == 0.0):
        expected = "a strictly increasing function with value 0 at 0"
        refuse(ConfigurationError, name, expected=expected, got=f"{values} at {_PROBES}")


def _reader(place: Place) -> Callable[[Tensor], Tensor]:
    """Return the function that reads a vector off a state; neighbouring indices become a slice."""
    if callable(place):
        return place
    given = cast("object", place)
    indices = list(cast("Iterable[int]", given)) if isinstance(given, Iterable) else []
    if not indices or not all(map(is_whole, indices)):
        expected = "at least one index of the state, or a function of it"
        refuse(ConfigurationError, "place", expected=expected, got=shown(cast("object", place)))
    first, last = indices[0], indices[-1] + 1
    if indices == list(range(first, last)):
        return lambda x: x[first:last]
    return lambda x: x[indices]


def _vector(name: str, values: ArrayLike) -> Tensor:
    vector = float_array(name, values)
    if vector.ndim != 1 or not np.isfinite(vector).all():
        expected = "a vector of finite numbers"
        refuse(ConfigurationError, name, expected=expected, got=vector.tolist())
    return torch.as_tensor(vector)


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
    name = f"lift: barrier {barrier.name!r}"
    states = _samples(dynamics, samples)
    checked_integer("lift: max_degree", max_degree)
    require_dynamics(dynamics, states[0])
    _require_batchable(name, barrier, states)

    def first(x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        return barrier.function(x), ()

    psi: _Stage = first
    for degree in range(1, max_degree + 1):
        alpha = barrier.gain(degree)
        row = _row(psi, alpha, dynamics, disturbances)
        at_samples: AffineRow = torch.func.vmap(row)(states)
        if not all(bool(torch.isfinite(part).all()) for part in at_samples):
            refuse(
                ConfigurationError,
                name,
                expected=f"finite derivatives of order {degree} at all samples",
                got="some that are not",
                do="pass samples where the barrier is smooth",
            )
        acts = at_samples.authority > AUTHORITY_TOLERANCE
        if bool(acts.all()):
            if isinstance(barrier.gains, tuple) and len(barrier.gains) != degree:
                expected = f"{degree} gains for relative degree {degree}"
                refuse(ConfigurationError, name, expected=expected, got=len(barrier.gains))
            return LiftedBarrier(barrier.name, barrier.weight, degree, row, _stages(psi))
        if bool(acts.any()):
            refuse(
                ConfigurationError,
                name,
                expected="one relative degree at all samples",
                got=f"degree {degree} at {float(acts.double().mean()):.0%} of them",
                do="pass samples of the region that counts, or change the barrier",
            )
        psi = _next_stage(psi, alpha, dynamics, disturbances)
    return refuse(
        ConfigurationError,
        name,
        expected=f"the input to appear in one of its first {max_degree} derivatives",
        got="none at any sample",
        do="the barrier may depend on states the input does not move, or max_degree is too small",
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
        expected = f"finite float64 states, shape (M, {n}) with M >= 1"
        got = f"{samples.dtype} {tuple(samples.shape)}"
        refuse(ConfigurationError, "lift: samples", expected=expected, got=got)
    return samples


def _require_batchable(name: str, barrier: Barrier, states: Tensor) -> None:
    try:
        values = torch.func.vmap(barrier.function)(states)
    except RuntimeError as error:
        raise ConfigurationError(
            f"{name}: expected a branch-free torch function that torch.func.vmap can batch, got: "
            f"{error}"
        ) from error
    if values.shape != states.shape[:1] or values.dtype != torch.float64:
        got = f"{values.dtype} {tuple(values.shape)} for {states.shape[0]} states"
        refuse(ConfigurationError, name, expected="one float64 number per state", got=got)
