"""Ready-made barriers: obstacles and limits.

Places:  a place is where in the state a vector stands: its indices, or a torch function of the
         state, such as a point ahead of a wheeled robot.
Limits:  squares instead of distances keep the functions smooth, also at the centre of a ball.
"""

import math
from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from cadenza.core.errors import ConfigurationError
from cadenza.safety.affine.barriers import Barrier, ClassK
from cadenza.safety.affine.models import require_positive

#: Indices of a vector in the state, or a function from a state (n,) to the vector.
Place: TypeAlias = Sequence[int] | Callable[[Tensor], Tensor]
#: Gains of a barrier.
Gains: TypeAlias = float | tuple[ClassK, ...]


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
        gains: See `Barrier`.
        position: Where p stands, d numbers.
        name: Of the barrier.
        weight: See `Barrier`.

    Raises:
        ConfigurationError: A centre that is not finite or a radius out of range.
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

    Args:
        normal: Points into the allowed side, shape (d,), not zero.
        offset_m: Distance of the plane from the origin along n, m.
        gains: See `Barrier`.
        position: Where p stands, d numbers.
        name: Of the barrier.
        weight: See `Barrier`.

    Raises:
        ConfigurationError: A normal that is zero or not finite, or an offset that is not finite.
    """
    direction, place = _vector(f"half_plane {name!r}.normal", normal), _reader(position)
    length = float(torch.sqrt(direction @ direction))
    if not length > 0.0 or not math.isfinite(offset_m):
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
    """Return h = limit^2 - |v|^2, (m/s)^2.

    Args:
        limit: Largest speed, m/s, > 0.
        velocity: Where v stands.
        gains: See `Barrier`.
        name: Of the barrier.
        weight: See `Barrier`.

    Raises:
        ConfigurationError: A limit out of range.
    """
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

    Args:
        lower: Lower bounds, shape (n,), in the units of the state; -inf for none.
        upper: Upper bounds, likewise; +inf for none.
        gains: Rate of every stage, 1/s: the relative degree may differ between components.
        name: Prefix of the barriers' names.
        weight: See `Barrier`.

    Raises:
        ConfigurationError: Shapes that differ, NaN, or a lower bound not below its upper one.
    """
    low, high = np.array(lower, dtype=np.float64), np.array(upper, dtype=np.float64)
    if low.ndim != 1 or low.shape != high.shape or not (low < high).all():
        raise ConfigurationError(
            f"state_box {name!r}: expected lower < upper, both of shape (n,), got {low.tolist()} "
            f"and {high.tolist()}."
        )
    barriers: list[Barrier] = []
    for i, (least, most) in enumerate(zip(low.tolist(), high.tolist(), strict=True)):
        if math.isfinite(least):
            barriers.append(_bound(f"{name}[{i}] lower", i, 1.0, -least, gains, weight))
        if math.isfinite(most):
            barriers.append(_bound(f"{name}[{i}] upper", i, -1.0, most, gains, weight))
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

    Args:
        distance_m: Smallest distance of the centres, m, > 0.
        first: Where p1 stands.
        second: Where p2 stands.
        gains: See `Barrier`.
        name: Of the barrier.
        weight: See `Barrier`.

    Raises:
        ConfigurationError: A distance out of range.
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
        gains: See `Barrier`.
        name: Of the barrier.
        weight: See `Barrier`.

    Raises:
        ConfigurationError: A number out of range, or another side.
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


def _bound(name: str, i: int, sign: float, offset: float, gains: float, weight: float) -> Barrier:
    return Barrier(name, lambda x: sign * x[i] + offset, gains, weight)


def _reader(place: Place) -> Callable[[Tensor], Tensor]:
    """Return the function that reads a vector off a state; neighbouring indices become a slice."""
    if callable(place):
        return place
    indices = list(place)
    if not indices:
        raise ConfigurationError("place: expected at least one index of the state, got none.")
    first, last = indices[0], indices[-1] + 1
    if indices == list(range(first, last)):
        return lambda x: x[first:last]
    return lambda x: x[indices]


def _vector(name: str, values: ArrayLike) -> Tensor:
    vector = np.array(values, dtype=np.float64)
    if vector.ndim != 1 or not np.isfinite(vector).all():
        raise ConfigurationError(
            f"{name}: expected a vector of finite numbers, got {vector.tolist()}."
        )
    return torch.as_tensor(vector)
