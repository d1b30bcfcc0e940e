"""State of agents' bounding balls, as the safety rows read it: of one agent, or of many envs.

Axes:   d = Cartesian dimension, 2 or 3; B = environments, R = agents.
Units:  m, m/s, s.
Limits: no joint state. With ``age_s`` > 0 it describes the past; `cadenza.safety.cbf` says what
        that still tells about the present.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, cast

import numpy as np

from cadenza.core.arrays import FloatArray, require_shape
from cadenza.core.checks import real_array, real_number, shown
from cadenza.core.errors import InputError, refuse

#: Cartesian dimensions the rows are proved for: the plane and space.
POSITION_DIMS: Final = (2, 3)
_SHAPES: Final = tuple((dim,) for dim in POSITION_DIMS)
#: Largest magnitude of any SI quantity the stack accepts. Sums and squares of larger numbers lose
#: the millimetres that matter (float64 resolves 1e-7 at 1e9) and end in overflow.
MAX_MAGNITUDE: Final = 1e9


@dataclass(frozen=True, slots=True, eq=False, init=False)
class AgentSnapshot:
    """Motion of one agent's collision ball at one control step.

    The numbers are copies, so a snapshot that was built is valid for good. The arrays are read-only
    and made when they are first read: the rows need none.

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

    def __init__(
        self,
        position: FloatArray | Sequence[float],
        velocity: FloatArray | Sequence[float],
        radius: float,
        age_s: float = 0.0,
    ) -> None:
        """Check the numbers and keep them; see the class for arguments and errors."""
        p = _as_numbers("AgentSnapshot.position", position)
        v = _as_numbers("AgentSnapshot.velocity", velocity)
        if len(p) != len(v):
            raise InputError(
                f"AgentSnapshot.velocity: expected {len(p)} entries like the position, got "
                f"{len(v)}."
            )
        if type(radius) is not float:
            radius = real_number("AgentSnapshot.radius", radius)
        if not 0.0 < radius <= MAX_MAGNITUDE:
            raise InputError(
                f"AgentSnapshot.radius: expected a finite length > 0 m, got {radius}; "
                "check the collision model."
            )
        if type(age_s) is not float:
            age_s = real_number("AgentSnapshot.age_s", age_s)
        if not 0.0 <= age_s <= MAX_MAGNITUDE:
            raise InputError(
                f"AgentSnapshot.age_s: expected a finite time >= 0 s, got {age_s}; pass the time "
                "since the packet was measured."
            )
        _set(self, "radius", radius)
        _set(self, "age_s", age_s)
        _set(self, "position_numbers", p)
        _set(self, "velocity_numbers", v)

    if not TYPE_CHECKING:  # a type checker reports names that do not exist

        def __getattr__(self, name: str) -> FloatArray:
            """Return an array that is read for the first time."""
            if name not in ("position", "velocity"):
                raise AttributeError(
                    f"AgentSnapshot has no attribute {name!r}.", name=name, obj=self
                )
            array = np.array(getattr(self, f"{name}_numbers"))
            array.setflags(write=False)
            _set(self, name, array)
            return array

    @classmethod
    def of_numbers(
        cls, position: Sequence[float], velocity: Sequence[float], radius: float
    ) -> "AgentSnapshot":
        """Return the snapshot of plain numbers; see the class for arguments and errors."""
        return cls(position, velocity, radius)

    def position_after(self, time_s: float) -> tuple[float, ...]:
        """Return the centre ``time_s`` later at the same velocity, m, as plain numbers."""
        p, v = self.position_numbers, self.velocity_numbers
        if len(p) == 2:  # written out: a forecast per partner and step
            return p[0] + v[0] * time_s, p[1] + v[1] * time_s
        return tuple([p_k + v[k] * time_s for k, p_k in enumerate(p)])

    def moved_on(self, time_s: float) -> "AgentSnapshot":
        """Return the agent ``time_s`` later at the same velocity, as current.

        Raises:
            InputError: It leaves the range of accepted numbers.
        """
        position = self.position_after(time_s)
        _require_in_range("AgentSnapshot.position", position)
        moved = object.__new__(AgentSnapshot)  # all but the position was checked before
        _set(moved, "radius", self.radius)
        _set(moved, "age_s", 0.0)
        _set(moved, "position_numbers", position)
        _set(moved, "velocity_numbers", self.velocity_numbers)
        return moved

    def aged(self, age_s: float) -> "AgentSnapshot":
        """Return the same motion with another age, s.

        Raises:
            InputError: The age is negative or not finite.
        """
        return AgentSnapshot(self.position_numbers, self.velocity_numbers, self.radius, age_s)


@dataclass(frozen=True, slots=True, eq=False, init=False)
class WheeledSnapshot(AgentSnapshot):
    """Motion of an agent on wheels, which also faces somewhere: at rest its velocity cannot tell.

    Attributes:
        heading: Counter-clockwise from +x, rad.
        yaw_rate: Rate of the heading, rad/s.

    Raises:
        InputError: As for `AgentSnapshot`, or a heading or rate that is not a finite number.
    """

    heading: float
    yaw_rate: float

    def __init__(
        self,
        position: FloatArray | Sequence[float],
        velocity: FloatArray | Sequence[float],
        radius: float,
        age_s: float = 0.0,
        *,
        heading: float,
        yaw_rate: float,
    ) -> None:
        """Check the numbers and keep them; see the class for arguments and errors."""
        AgentSnapshot.__init__(self, position, velocity, radius, age_s)
        for name, value in (("heading", heading), ("yaw_rate", yaw_rate)):
            number = real_number(f"WheeledSnapshot.{name}", value)
            _require_in_range(f"WheeledSnapshot.{name}", (number,))
            _set(self, name, number)


#: Sets a field of a frozen instance.
_set: Final = object.__setattr__


def _as_numbers(name: str, values: FloatArray | Sequence[float]) -> tuple[float, ...]:
    """Return 2 or 3 finite entries as plain numbers."""
    entries: object = values
    if type(values) is np.ndarray and values.ndim == 1 and values.dtype.char == "d":
        entries = values.tolist()
    if type(entries) is list and 2 <= len(numbers := cast("list[float]", entries)) <= 3:
        for number in numbers:  # NaN fails too
            if type(number) is not float or not -MAX_MAGNITUDE <= number <= MAX_MAGNITUDE:
                break
        else:
            return tuple(numbers)
    array = np.array(real_array(name, values), dtype=np.float64)
    if array.shape not in _SHAPES:
        raise InputError(f"{name}: expected shape (2,) or (3,), got {array.shape}.")
    checked: tuple[float, ...] = tuple(array.tolist())
    _require_in_range(name, checked)
    return checked


def _require_in_range(name: str, numbers: tuple[float, ...]) -> None:
    """Raise InputError unless every number is finite and at most `MAX_MAGNITUDE`."""
    for number in numbers:
        if not -MAX_MAGNITUDE <= number <= MAX_MAGNITUDE:
            raise InputError(
                f"{name}: expected finite numbers up to {MAX_MAGNITUDE:.0e}, got {list(numbers)}."
            )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)  # eq=False: array == is ambiguous
class AgentBatch:
    """Motion of all agents' collision balls at one control step.

    Attributes:
        uids: Agents in the order of the second axis, distinct.
        positions: Centres in the world frame, shape (B, R, d), m.
        velocities: Rates of change of ``positions``, shape (B, R, d), m/s.
        radii: Ball radii, shape (R,), m, > 0.
        ages_s: Time since position and velocity were measured, shape (B, R), s, >= 0; None where
            every state is current. A batch that knows ages gives them in every step.

    Raises:
        InputError: Wrong shapes, repeated ids, or a number that is not finite or out of range.
    """

    uids: tuple[str, ...]
    positions: FloatArray
    velocities: FloatArray
    radii: FloatArray
    ages_s: FloatArray | None = None

    def __post_init__(self) -> None:
        if not isinstance(cast("object", self.uids), tuple | list):
            raise InputError(
                f"AgentBatch.uids: expected a tuple of agent ids, got {shown(self.uids)}."
            )
        for name in ("positions", "velocities", "radii", "ages_s"):
            if name != "ages_s" or self.ages_s is not None:
                numbers = real_array(f"AgentBatch.{name}", getattr(self, name))
                object.__setattr__(self, name, numbers.astype(np.float64, copy=False))
        shape = self.positions.shape
        if len(set(self.uids)) != len(self.uids):
            raise InputError(f"AgentBatch.uids: expected distinct ids, got {self.uids}.")
        if len(shape) != 3 or shape[1] != len(self.uids) or shape[2] not in POSITION_DIMS:
            raise InputError(
                f"AgentBatch.positions: expected shape (B, {len(self.uids)}, 2 or 3), got {shape}."
            )
        require_shape("AgentBatch.velocities", self.velocities, shape)
        require_shape("AgentBatch.radii", self.radii, (shape[1],))
        for name in ("positions", "velocities"):
            if not bool((np.abs(getattr(self, name)) <= MAX_MAGNITUDE).all()):  # NaN fails too
                raise InputError(
                    f"AgentBatch.{name}: expected finite numbers up to {MAX_MAGNITUDE:.0e}, got "
                    "others; look for an exploding state in the environment."
                )
        if not bool(((self.radii > 0.0) & (self.radii <= MAX_MAGNITUDE)).all()):
            raise InputError(
                f"AgentBatch.radii: expected lengths > 0 m, got {self.radii}; check the collision "
                "models."
            )

        if self.ages_s is not None:
            require_shape("AgentBatch.ages_s", self.ages_s, shape[:2])
            if not bool(((self.ages_s >= 0.0) & (self.ages_s <= MAX_MAGNITUDE)).all()):
                raise InputError(
                    "AgentBatch.ages_s: expected finite times >= 0 s, got others; pass the time "
                    "since each packet was measured."
                )

    def snapshots(self, row: int) -> dict[str, AgentSnapshot]:
        """Return the agents of one environment, as the scalar layers read them."""
        ages = [0.0] * len(self.uids) if self.ages_s is None else self.ages_s[row].tolist()
        return {
            uid: AgentSnapshot(
                self.positions[row, index],
                self.velocities[row, index],
                float(self.radii[index]),
                ages[index],
            )
            for index, uid in enumerate(self.uids)
        }


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WheeledBatch(AgentBatch):
    """Motion of all agents where the guarded one is on wheels; see `WheeledSnapshot`.

    Attributes:
        headings: Where the guarded agent faces, counter-clockwise from +x, shape (B,), rad.
        yaw_rates: Rates of ``headings``, shape (B,), rad/s.

    Raises:
        InputError: As for `AgentBatch`, or headings or rates of another shape or not finite.
    """

    headings: FloatArray
    yaw_rates: FloatArray

    def __post_init__(self) -> None:
        AgentBatch.__post_init__(self)
        for name in ("headings", "yaw_rates"):
            numbers = real_array(f"WheeledBatch.{name}", getattr(self, name))
            object.__setattr__(self, name, numbers.astype(np.float64, copy=False))
            require_shape(f"WheeledBatch.{name}", numbers, (len(self.positions),))
            if not bool((np.abs(numbers) <= MAX_MAGNITUDE).all()):  # NaN fails too
                expected = f"finite numbers up to {MAX_MAGNITUDE:.0e}"
                refuse(InputError, f"WheeledBatch.{name}", expected=expected, got=numbers)
