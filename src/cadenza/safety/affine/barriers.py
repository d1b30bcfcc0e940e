"""A barrier as its author writes it, a function of the state that must stay >= 0; and ready ones.

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
from typing import Final, Literal, TypeAlias, cast

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from cadenza.core.checks import is_real, is_whole, require_callable, require_positive, shown
from cadenza.core.errors import ConfigurationError
from cadenza.safety.affine.dynamics import float_array

#: A class-K function: a rate in 1/s, or a strictly increasing torch function with value 0 at 0.
ClassK: TypeAlias = float | Callable[[Tensor], Tensor]
#: One for each stage, first that of h; a single number serves every stage.
Gains: TypeAlias = float | tuple[ClassK, ...]
#: Indices of a vector in the state, or a function from a state (n,) to the vector.
Place: TypeAlias = Sequence[int] | Callable[[Tensor], Tensor]

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
            raise ConfigurationError(f"Barrier.name: expected a name, got {shown(self.name)}.")
        require_callable(f"Barrier {self.name!r}.function", self.function, "a function of a state")
        require_positive(f"Barrier {self.name!r}.weight", self.weight)
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

    def h(x: Tensor) -> Tensor:
        apart = place(x) - middle.to(x.device)
        return apart @ apart - radius * radius

    return Barrier(name, h, gains, weight)


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
        raise ConfigurationError(
            f"half_plane {name!r}: expected a normal other than zero and a finite offset, got "
            f"{direction.numpy().tolist()} and {offset_m}."
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
        raise ConfigurationError(
            f"state_box {name!r}: expected lower < upper, both of shape (n,), got {low.tolist()} "
            f"and {high.tolist()}."
        )

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

    def h(x: Tensor) -> Tensor:
        apart = one(x) - other(x)
        return apart @ apart - distance_m * distance_m

    return Barrier(name, h, gains, weight)


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
    require_positive(f"turning_circle_clearance {name!r}.radius", radius)
    require_positive(f"turning_circle_clearance {name!r}.turning_radius_m", turning_radius_m)
    if side not in ("left", "right"):
        raise ConfigurationError(
            f"turning_circle_clearance {name!r}.side: expected 'left' or 'right', got {side!r}."
        )
    middle = _vector(f"turning_circle_clearance {name!r}.center", center)
    arm = turning_radius_m if side == "left" else -turning_radius_m

    def h(x: Tensor) -> Tensor:
        circle = x[:2] + arm * torch.stack([-torch.sin(x[2]), torch.cos(x[2])])
        apart = circle - middle.to(x.device)
        return torch.sqrt(apart @ apart) - (radius + turning_radius_m)

    return Barrier(name, h, gains, weight)


def _require_class_k(name: str, alpha: ClassK) -> None:
    if not callable(alpha):
        if not (is_real(alpha) and 0.0 < alpha < math.inf):
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


def _reader(place: Place) -> Callable[[Tensor], Tensor]:
    """Return the function that reads a vector off a state; neighbouring indices become a slice."""
    if callable(place):
        return place
    given = cast("object", place)
    indices = list(cast("Iterable[int]", given)) if isinstance(given, Iterable) else []
    if not indices or not all(map(is_whole, indices)):
        raise ConfigurationError(
            "place: expected at least one index of the state, or a function of it, got "
            f"{shown(cast('object', place))}."
        )
    first, last = indices[0], indices[-1] + 1
    if indices == list(range(first, last)):
        return lambda x: x[first:last]
    return lambda x: x[indices]


def _vector(name: str, values: ArrayLike) -> Tensor:
    vector = float_array(name, values)
    if vector.ndim != 1 or not np.isfinite(vector).all():
        raise ConfigurationError(
            f"{name}: expected a vector of finite numbers, got {vector.tolist()}."
        )
    return torch.as_tensor(vector)
