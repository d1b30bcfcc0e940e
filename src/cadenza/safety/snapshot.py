"""State of one agent's bounding ball, as the safety rows read it.

Axes:   d = Cartesian dimension, 2 or 3.
Units:  m, m/s.
Limits: no age and no joint state; the snapshot is taken to be current.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from cadenza.core.arrays import FloatArray
from cadenza.core.errors import InputError

#: Cartesian dimensions the rows are proved for: the plane and space.
POSITION_DIMS: Final = (2, 3)
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

    Raises:
        InputError: Wrong shape, an entry that is not a finite number, or a radius <= 0.
    """

    position: FloatArray
    velocity: FloatArray
    radius: float

    def __post_init__(self) -> None:
        position = _as_vector("AgentSnapshot.position", self.position)
        velocity = _as_vector("AgentSnapshot.velocity", self.velocity)
        if position.shape != velocity.shape:
            raise InputError(
                f"AgentSnapshot.velocity: expected shape {position.shape} like the position, "
                f"got {velocity.shape}."
            )
        radius = float(self.radius)
        if not 0.0 < radius <= MAX_MAGNITUDE:
            raise InputError(
                f"AgentSnapshot.radius: expected a finite length > 0 m, got {radius}; "
                "check the collision model."
            )
        object.__setattr__(self, "position", position)
        object.__setattr__(self, "velocity", velocity)
        object.__setattr__(self, "radius", radius)


def _as_vector(name: str, values: FloatArray) -> FloatArray:
    """Return ``values`` as a finite read-only copy of 2 or 3 entries, or raise naming it."""
    try:
        vector = np.array(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name}: expected 2 or 3 numbers, got {values!r}.") from error
    if vector.ndim != 1 or vector.shape[0] not in POSITION_DIMS:
        raise InputError(f"{name}: expected shape (2,) or (3,), got {vector.shape}.")
    for entry in vector.tolist():
        if not abs(entry) <= MAX_MAGNITUDE:
            raise InputError(
                f"{name}: expected finite numbers up to {MAX_MAGNITUDE:.0e}, got {vector.tolist()}."
            )
    vector.flags.writeable = False  # what was checked here stays true
    return vector
