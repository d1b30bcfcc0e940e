"""Numeric envelope of one task, as every safety layer reads it."""

from dataclasses import dataclass, fields
from typing import Any, Final

from cadenza.core.checks import is_real, shown
from cadenza.core.errors import InputError

#: Fields that may be zero: an ideal link, a task without contact forces.
_MAY_BE_ZERO: Final = frozenset({"comm_latency_ms", "force_limit"})
#: Range of every positive field, in its own unit; outside it the row maths under- or overflows.
MIN_BOUND: Final = 1e-9
MAX_BOUND: Final = 1e9


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds that the safety stack may rely on; the first two are independent of each other.

    Attributes:
        action_linf_component: Every action component obeys ``|u[k]| <=`` this, in the action's
            unit; the box of the filter's QP.
        cartesian_accel_capacity: Largest Euclidean norm of the Cartesian acceleration an agent
            is credited with, m/s^2. Setting it to ``action_linf_component`` is always safe;
            ``sqrt(d)`` times that only describes the corners of the box.
        action_rate: Largest change of the action between two steps, action unit per step.
        comm_latency_ms: Mean latency of the communication link, ms.
        force_limit: Contact force above which braking separates the agents, N; 0 means no limit.

    Raises:
        InputError: A field is not a number, not positive where it must be, or absurdly large.
    """

    action_linf_component: float
    cartesian_accel_capacity: float
    action_rate: float
    comm_latency_ms: float
    force_limit: float

    def __post_init__(self) -> None:
        for field in fields(self):
            value: Any = getattr(self, field.name)
            lowest = 0.0 if field.name in _MAY_BE_ZERO else MIN_BOUND
            if not (is_real(value) and lowest <= value <= MAX_BOUND):
                raise InputError(
                    f"Bounds.{field.name}: expected a number in [{lowest:g}, {MAX_BOUND:g}], "
                    f"got {shown(value)}."
                )
            object.__setattr__(self, field.name, float(value))
