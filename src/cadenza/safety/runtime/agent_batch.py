"""State of every agent's bounding ball in many environments at once.

Axes:   B = environments, R = agents, d = Cartesian dimension, 2 or 3.
Units:  m, m/s, s.
"""

from dataclasses import dataclass

import numpy as np

from cadenza.core.arrays import FloatArray, require_shape
from cadenza.core.checks import real_array
from cadenza.core.errors import InputError
from cadenza.safety.snapshot import MAX_MAGNITUDE, POSITION_DIMS, AgentSnapshot


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
