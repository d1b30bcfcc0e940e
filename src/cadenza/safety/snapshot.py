"""State of one agent's bounding ball, as the safety rows read it.

Axes:   d = Cartesian dimension, 2 or 3.
Units:  m, m/s, s.
Limits: no joint state. With ``age_s`` > 0 it describes the past; `rows.stale` says what
        that still tells about the present.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from cadenza.core.arrays import FloatArray
from cadenza.core.checks import real_array, real_number
from cadenza.core.errors import InputError

#: Cartesian dimensions the rows are proved for: the plane and space.
POSITION_DIMS: Final = (2, 3)
_SHAPES: Final = tuple((dim,) for dim in POSITION_DIMS)
#: Largest magnitude of any SI quantity the stack accepts. Sums and squares of larger numbers lose
#: the millimetres that matter (float64 resolves 1e-7 at 1e9) and end in overflow.
MAX_MAGNITUDE: Final = 1e9


@dataclass(frozen=True, slots=True, eq=False)
class AgentSnapshot:
    """Motion of one agent's collision ball at one control step.

    The arrays are read-only copies, so a snapshot that was built is valid for good.

    Attributes:
        position: Centre in the world frame, shape (d,), m.
        velocity: Rate of change of ``position``, shape (d,), m/s.
        radius: Ball radius, m, > 0.
        age_s: Time since position and velocity were measured, s, >= 0; 0 means this instant.
        position_numbers: ``position`` as plain numbers: the rows are scalar maths on two or three
            of them, where arrays cost more than the arithmetic.
        velocity_numbers: ``velocity`` as plain numbers.

    Raises:
        InputError: Wrong shape, an entry that is not a finite number, a radius <= 0, or a negative
            age.
    """

    position: FloatArray
    velocity: FloatArray
    radius: float
    age_s: float = 0.0
    position_numbers: tuple[float, ...] = field(init=False, repr=False)
    velocity_numbers: tuple[float, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        _fill(self, self.position, self.velocity, self.radius, self.age_s)

    @classmethod
    def of_numbers(
        cls, position: Sequence[float], velocity: Sequence[float], radius: float
    ) -> "AgentSnapshot":
        """Return the snapshot of plain numbers; see the class for arguments and errors."""
        made = object.__new__(cls)
        _fill(made, position, velocity, radius, 0.0)
        return made

    def moved_on(self, time_s: float) -> "AgentSnapshot":
        """Return the agent ``time_s`` later at the same velocity, as current.

        Raises:
            InputError: It leaves the range of accepted numbers.
        """
        p = [
            x + v * time_s
            for x, v in zip(self.position_numbers, self.velocity_numbers, strict=True)
        ]
        position, numbers = _in_range("AgentSnapshot.position", np.array(p))
        moved = object.__new__(AgentSnapshot)  # all but the position was checked before
        _set(moved, "position", position)
        _set(moved, "velocity", self.velocity)
        _set(moved, "radius", self.radius)
        _set(moved, "age_s", 0.0)
        _set(moved, "position_numbers", numbers)
        _set(moved, "velocity_numbers", self.velocity_numbers)
        return moved


#: Sets a field of a frozen instance.
_set: Final = object.__setattr__


def _fill(
    snapshot: AgentSnapshot,
    position: FloatArray | Sequence[float],
    velocity: FloatArray | Sequence[float],
    radius: float,
    age_s: float,
) -> None:
    """Check the numbers and set all fields."""
    position, p = _as_vector("AgentSnapshot.position", position)
    velocity, v = _as_vector("AgentSnapshot.velocity", velocity)
    if len(p) != len(v):
        raise InputError(
            f"AgentSnapshot.velocity: expected {len(p)} entries like the position, got {len(v)}."
        )
    radius = real_number("AgentSnapshot.radius", radius)
    if not 0.0 < radius <= MAX_MAGNITUDE:
        raise InputError(
            f"AgentSnapshot.radius: expected a finite length > 0 m, got {radius}; "
            "check the collision model."
        )
    age_s = real_number("AgentSnapshot.age_s", age_s)
    if not 0.0 <= age_s <= MAX_MAGNITUDE:
        raise InputError(
            f"AgentSnapshot.age_s: expected a finite time >= 0 s, got {age_s}; pass the time "
            "since the packet was measured."
        )
    _set(snapshot, "position", position)
    _set(snapshot, "velocity", velocity)
    _set(snapshot, "radius", radius)
    _set(snapshot, "age_s", age_s)
    _set(snapshot, "position_numbers", p)
    _set(snapshot, "velocity_numbers", v)


def _as_vector(
    name: str, values: FloatArray | Sequence[float]
) -> tuple[FloatArray, tuple[float, ...]]:
    """Return a read-only float64 copy of 2 or 3 finite entries, and the same as plain numbers."""
    if type(values) is not np.ndarray or values.dtype.kind not in "fiu":
        values = real_array(name, values)
    return _in_range(name, np.array(values, dtype=np.float64))


def _in_range(name: str, vector: FloatArray) -> tuple[FloatArray, tuple[float, ...]]:
    """Return ``vector``, read-only from now on, and its entries, after checking both."""
    if vector.shape not in _SHAPES:
        raise InputError(f"{name}: expected shape (2,) or (3,), got {vector.shape}.")
    numbers: tuple[float, ...] = tuple(vector.tolist())
    for entry in numbers:
        if not -MAX_MAGNITUDE <= entry <= MAX_MAGNITUDE:
            raise InputError(
                f"{name}: expected finite numbers up to {MAX_MAGNITUDE:.0e}, got {vector.tolist()}."
            )
    vector.setflags(write=False)  # what was checked here stays true
    return vector, numbers
