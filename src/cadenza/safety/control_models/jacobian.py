"""An agent that moves its collision ball through a Jacobian: an arm, a mobile manipulator.

With J(q) the Jacobian of the ball's velocity, v = J q', the ball's acceleration over one control
step dt is, by what the action u is:

    joint_acceleration      a = J u + beta                   beta = J' q'
    joint_velocity          a = J u / dt - v / dt + beta     the joints reach q' = u in the step
    joint_position_delta    a = J u / dt^2 - v / dt + beta   the joints move by u in the step

In each case a = (J / dt^k) u + bias: linear in the action, plus a bias that the filter reads
apart from it (`cadenza.safety.protocols.StateDependentControlModel`).

Inverse:  damped least squares, u = dt^k J^T (J J^T + lambda^2 I)^-1 a; Nakamura and Hanafusa,
          doi:10.1115/1.3143764. Damping acts on J itself, whatever the action is.
Units:    rad or m per joint, s, m/s^2.
Limits:   J and beta are held for the whole step; velocity and position targets are taken as
          reached within it, so declare the capacity of the real drives.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias, cast, get_args

import numpy as np

from cadenza.core.arrays import FloatArray, require_finite, require_shape
from cadenza.core.checks import is_real, is_whole, require_kinds
from cadenza.core.errors import InputError, NotReadyError
from cadenza.safety.bounds import Bounds
from cadenza.safety.snapshot import AgentSnapshot

#: Damping of the inverse, in the unit of J. Its relative error is (damping / sigma)^2 along a
#: direction of singular value sigma: 1e-6 where the arm is well conditioned (sigma = 1).
DEFAULT_DLS_DAMPING: Final = 1e-3

#: What the action of an arm is.
ActionKind: TypeAlias = Literal["joint_acceleration", "joint_velocity", "joint_position_delta"]

#: How often an action of each kind is divided by dt on its way to an acceleration.
_TIME_POWER: Final[dict[str, int]] = {
    "joint_acceleration": 0,
    "joint_velocity": 1,
    "joint_position_delta": 2,
}


class MissingJacobianError(NotReadyError, NotImplementedError):
    """A control model without kinematics was asked to map an action."""


@dataclass(slots=True)
class JacobianControlModel:
    """Control model of an agent whose kinematics are a Jacobian.

    Attributes:
        uid: Agent id.
        action_dim: Number of joints, n.
        position_dim: Cartesian dimension of the ball, d.
        jacobian_fn: Returns J, shape (d, n), for the agent's snapshot; called once per snapshot
            object, whoever asks. None leaves the model without kinematics: it only declares a
            capacity, which is all that is asked of a partner.
        damping: Of the inverse, >= 0, in the unit of J.
        max_cartesian_accel_value: Credited acceleration, m/s^2. For the agent that is filtered:
            what it reaches in every direction; for a partner: what it never exceeds.
        action_kind: What the action is.
        control_timestep_s: dt, s; for velocities and position steps, and for them only.
        bias_fn: Returns beta = J' q', shape (d,), m/s^2; None takes it as zero.

    Raises:
        InputError: A dimension, the damping, the action kind or dt is out of range.
        ConfigurationError: The id is no text, or a function none.
    """

    uid: str
    action_dim: int
    position_dim: int
    jacobian_fn: Callable[[AgentSnapshot], FloatArray] | None = None
    damping: float = DEFAULT_DLS_DAMPING
    max_cartesian_accel_value: float = math.nan
    action_kind: ActionKind = field(default="joint_acceleration", kw_only=True)
    control_timestep_s: float | None = field(default=None, kw_only=True)
    bias_fn: Callable[[AgentSnapshot], FloatArray] | None = field(default=None, kw_only=True)
    _last: tuple[AgentSnapshot, object, FloatArray] | None = field(
        default=None, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        for name, lowest in (("action_dim", 1), ("position_dim", 2)):
            value = getattr(self, name)
            self._require(name, is_whole(value) and value >= lowest, f">= {lowest}", value)
        self._require("position_dim", self.position_dim <= 3, "2 or 3", self.position_dim)
        self._require(
            "damping",
            is_real(self.damping) and 0.0 <= self.damping < math.inf,
            "a number >= 0",
            self.damping,
        )
        require_kinds(
            f"JacobianControlModel({self.uid!r})",
            uid=(self.uid, str),
            jacobian_fn=(self.jacobian_fn, Callable | None),
            bias_fn=(self.bias_fn, Callable | None),
        )
        value = self.max_cartesian_accel_value
        self._require("max_cartesian_accel_value", is_real(value), "an acceleration, m/s^2", value)
        kinds, kind = get_args(ActionKind), cast("object", self.action_kind)
        fits = isinstance(kind, str) and kind in kinds
        self._require("action_kind", fits, f"one of {kinds}", kind)
        dt = self.control_timestep_s
        if self.action_kind == "joint_acceleration":
            self._require("control_timestep_s", dt is None, "None for accelerations", dt)
        else:
            self._require(
                "control_timestep_s",
                is_real(dt) and 0.0 < dt < math.inf,
                "a time > 0 s, which turns velocities and positions into accelerations",
                dt,
            )

    def jacobian(self, state: AgentSnapshot) -> FloatArray:
        """Return J / dt^k, shape (d, n): the map from actions to accelerations.

        Raises:
            MissingJacobianError: The model has no ``jacobian_fn``.
            InputError: ``jacobian_fn`` returned a wrong shape or something not finite.
        """
        scale = self._action_scale()
        kinematic = self._kinematic_jacobian(state)
        return kinematic if scale == 1.0 else kinematic / scale

    def bias_accel(self, state: AgentSnapshot) -> FloatArray:
        """Return the acceleration under a zero action, shape (d,), m/s^2.

        Raises:
            InputError: The state has another dimension than the model, or ``bias_fn`` returned a
                wrong shape or something not finite.
        """
        require_shape(f"state of {self.uid!r}: velocity", state.velocity, (self.position_dim,))
        bias: FloatArray = np.zeros(self.position_dim)
        if self.bias_fn is not None:
            bias = np.asarray(self.bias_fn(state), dtype=np.float64)
            require_shape(f"bias_fn of {self.uid!r}", bias, (self.position_dim,))
            require_finite(f"bias_fn of {self.uid!r}", bias)
        if self.control_timestep_s is not None:
            bias = bias - state.velocity / self.control_timestep_s
        return bias

    def action_to_cartesian_accel(self, state: AgentSnapshot, action: FloatArray) -> FloatArray:
        """Return the linear part of the acceleration, shape (d,), m/s^2; add `bias_accel` to it.

        Raises:
            MissingJacobianError: The model has no ``jacobian_fn``.
            InputError: Wrong shape, or see `jacobian`.
        """
        require_shape(f"action shape of {self.uid!r}", action, (self.action_dim,))
        return self.jacobian(state) @ action

    def cartesian_accel_to_action(
        self, state: AgentSnapshot, cartesian_accel: FloatArray
    ) -> FloatArray:
        """Return an action, shape (n,), whose linear part is the acceleration, if one exists.

        Near a singular posture the damping trades accuracy for a bounded action.

        Raises:
            MissingJacobianError: The model has no ``jacobian_fn``.
            InputError: Wrong shape, a singular posture without damping, or see `jacobian`.
        """
        name = f"cartesian_accel shape of {self.uid!r}"
        require_shape(name, cartesian_accel, (self.position_dim,))
        jacobian = self._kinematic_jacobian(state)
        gram = jacobian @ jacobian.T + self.damping**2 * np.eye(self.position_dim)
        try:
            weights = np.linalg.solve(gram, cartesian_accel)
        except np.linalg.LinAlgError as error:
            raise InputError(
                f"control model of {self.uid!r}: expected damping > 0 in a singular posture, got "
                f"{self.damping}; no action is the inverse there."
            ) from error
        return self._action_scale() * (jacobian.T @ weights)

    def max_cartesian_accel(self, bounds: Bounds) -> float:
        """Return ``max_cartesian_accel_value``, m/s^2; the shared bounds do not enter.

        Raises:
            InputError: The value was left at its placeholder, or is not finite.
        """
        del bounds
        value = self.max_cartesian_accel_value
        if is_real(value) and math.isnan(value):
            raise InputError(
                f"JacobianControlModel({self.uid!r}): expected max_cartesian_accel_value, which "
                "was not given; pass what this robot reaches in every direction if it is filtered, "
                "what it never exceeds if it is a partner, m/s^2."
            )
        finite = is_real(value) and math.isfinite(value)
        self._require("max_cartesian_accel_value", finite, "a finite number", value)
        return value

    def _kinematic_jacobian(self, state: AgentSnapshot) -> FloatArray:
        """Return J; the answer for the last snapshot object is kept, snapshots never change."""
        if self.jacobian_fn is None:
            raise MissingJacobianError(
                f"control model of {self.uid!r}: expected a jacobian_fn that maps actions to "
                "accelerations, got None; pass the kinematics of the embodiment."
            )
        last = self._last
        if last is not None and last[0] is state and last[1] is self.jacobian_fn:
            return last[2]
        jacobian = np.array(self.jacobian_fn(state), dtype=np.float64)
        name = f"jacobian_fn of {self.uid!r}"
        require_shape(name, jacobian, (self.position_dim, self.action_dim))
        require_finite(name, jacobian)
        jacobian.flags.writeable = False
        self._last = (state, self.jacobian_fn, jacobian)
        return jacobian

    def _action_scale(self) -> float:
        """Return dt^k of the action kind."""
        dt = self.control_timestep_s
        return 1.0 if dt is None else dt ** _TIME_POWER[self.action_kind]

    def _require(self, name: str, holds: bool, expected: str, value: Any) -> None:
        if not holds:
            raise InputError(
                f"JacobianControlModel({self.uid!r}).{name}: expected {expected}, got {value!r}."
            )
