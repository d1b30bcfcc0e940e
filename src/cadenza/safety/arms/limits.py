"""What the joints of an arm can do.

Units:  rad, rad/s, rad/s^2, Nm for hinges; m, m/s, m/s^2, N for slides.
"""

from dataclasses import dataclass

import numpy as np

from cadenza.core.arrays import FloatArray
from cadenza.core.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JointLimits:
    """Limits per joint; infinity means none. The arrays are read-only copies.

    Attributes:
        lower: Smallest position, shape (n,).
        upper: Largest position, shape (n,), > ``lower``.
        velocity: Largest speed, shape (n,), > 0.
        acceleration: Largest acceleration, shape (n,), > 0.
        torque: Largest actuator torque, shape (n,), > 0.

    Raises:
        InputError: Shapes differ, an entry is NaN, ``upper`` <= ``lower``, or a limit is <= 0.
    """

    lower: FloatArray
    upper: FloatArray
    velocity: FloatArray
    acceleration: FloatArray
    torque: FloatArray

    def __post_init__(self) -> None:
        shape = np.shape(self.lower)
        if len(shape) != 1 or shape[0] < 1:
            raise InputError(f"JointLimits.lower: expected shape (n,) with n >= 1, got {shape}.")
        for name in ("lower", "upper", "velocity", "acceleration", "torque"):
            values = np.array(getattr(self, name), dtype=np.float64)
            if values.shape != shape:
                raise InputError(f"JointLimits.{name}: expected shape {shape}, got {values.shape}.")
            smallest = -np.inf if name in ("lower", "upper") else 0.0
            if np.isnan(values).any() or not (values >= smallest).all():
                raise InputError(
                    f"JointLimits.{name}: expected {'numbers' if smallest < 0.0 else 'limits > 0'}"
                    f", got {values}; write infinity where there is no limit."
                )
            if smallest == 0.0 and not (values > 0.0).all():
                raise InputError(
                    f"JointLimits.{name}: expected limits > 0, got {values}; a joint that cannot "
                    "move does not belong into the model."
                )
            values.setflags(write=False)
            object.__setattr__(self, name, values)
        if not (self.upper > self.lower).all():
            raise InputError(
                f"JointLimits.upper: expected > lower, got lower {self.lower}, upper {self.upper}."
            )

    @property
    def n_joints(self) -> int:
        """Number of joints."""
        return int(self.lower.shape[0])

    @classmethod
    def unlimited(cls, n_joints: int) -> "JointLimits":
        """Return limits that bind nowhere."""
        most = np.full(n_joints, np.inf)
        return cls(lower=-most, upper=most, velocity=most, acceleration=most, torque=most)
