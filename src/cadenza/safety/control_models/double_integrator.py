"""An agent whose action is the Cartesian acceleration of its collision ball."""

from dataclasses import dataclass
from typing import cast

from cadenza.core.arrays import FloatArray, require_shape
from cadenza.core.checks import is_real, is_whole
from cadenza.core.errors import InputError
from cadenza.safety.bounds import MAX_BOUND, Bounds
from cadenza.safety.snapshot import POSITION_DIMS, AgentSnapshot


@dataclass(frozen=True, slots=True)
class DoubleIntegratorControlModel:
    """An agent whose action is the Cartesian acceleration of its ball.

    Attributes:
        uid: Agent id.
        action_dim: Number of action components; also the Cartesian dimension.
        capacity: Largest Euclidean norm of this agent's own acceleration, m/s^2, >= 0; zero
            describes an obstacle that keeps its velocity. None takes
            ``Bounds.cartesian_accel_capacity``, which all agents share.

    Raises:
        InputError: An id that is no text, ``action_dim`` other than 2 or 3, or a capacity that is
            negative or not finite.
    """

    uid: str
    action_dim: int
    capacity: float | None = None

    def __post_init__(self) -> None:
        uid = cast("object", self.uid)
        if not isinstance(uid, str):
            raise InputError(
                f"DoubleIntegratorControlModel.uid: expected an agent id as text, got {uid!r}."
            )
        if not (is_whole(self.action_dim) and self.action_dim in POSITION_DIMS):
            raise InputError(
                f"DoubleIntegratorControlModel({self.uid!r}).action_dim: expected 2 or 3, the "
                f"Cartesian dimension, got {self.action_dim!r}."
            )
        if self.capacity is not None and not (
            is_real(self.capacity) and 0.0 <= self.capacity <= MAX_BOUND
        ):
            raise InputError(
                f"DoubleIntegratorControlModel({self.uid!r}).capacity: expected a finite "
                f"acceleration >= 0 m/s^2, got {self.capacity!r}."
            )

    @property
    def position_dim(self) -> int:
        """Cartesian dimension of the ball."""
        return self.action_dim

    def action_to_cartesian_accel(self, state: AgentSnapshot, action: FloatArray) -> FloatArray:
        """Return ``action``: it already is the acceleration, shape (action_dim,), m/s^2.

        Raises:
            InputError: Wrong shape.
        """
        del state
        require_shape(f"action shape of {self.uid!r}", action, (self.action_dim,))
        return action

    def cartesian_accel_to_action(
        self, state: AgentSnapshot, cartesian_accel: FloatArray
    ) -> FloatArray:
        """Return ``cartesian_accel``: it already is the action, shape (action_dim,).

        Raises:
            InputError: Wrong shape.
        """
        del state
        name = f"cartesian_accel shape of {self.uid!r}"
        require_shape(name, cartesian_accel, (self.action_dim,))
        return cartesian_accel

    def max_cartesian_accel(self, bounds: Bounds) -> float:
        """Return the largest acceleration this agent is credited with, m/s^2."""
        return bounds.cartesian_accel_capacity if self.capacity is None else self.capacity
