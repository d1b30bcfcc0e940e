"""The arm as the pairwise filter sees it: a ball around the end effector.

The filter between agents reads a ball's position and velocity and asks a control model how the
action accelerates it. Both come from one `ArmState`, so they cannot disagree; the operational-space
filter then looks after the rest of the arm.

Units:  m, m/s, m/s^2.
"""

import numpy as np

from cadenza.core.arrays import FloatArray
from cadenza.core.errors import NotReadyError
from cadenza.safety.arms.state import ArmState
from cadenza.safety.control_models import JacobianControlModel
from cadenza.safety.control_models.jacobian import ActionKind
from cadenza.safety.snapshot import AgentSnapshot


class EndEffectorBall:
    """Ball around the end effector of one arm.

    Args:
        radius: Of the ball, m, > 0: it must contain the hand and what it holds.
    """

    def __init__(self, radius: float) -> None:
        self._radius = radius
        self._state: ArmState | None = None

    def snapshot(self, state: ArmState) -> AgentSnapshot:
        """Return the ball at ``state``, which answers later questions about this snapshot."""
        self._state = state
        return AgentSnapshot(state.ee_position, state.ee_jacobian[:3] @ state.q_dot, self._radius)

    def jacobian(self, snapshot: AgentSnapshot) -> FloatArray:
        """Return J of the ball's centre, shape (3, n).

        Raises:
            NotReadyError: The snapshot is not the last one made here.
        """
        return self._state_behind(snapshot).ee_jacobian[:3]

    def bias(self, snapshot: AgentSnapshot) -> FloatArray:
        """Return J' q' of the ball's centre, shape (3,), m/s^2.

        Raises:
            NotReadyError: The snapshot is not the last one made here.
        """
        return self._state_behind(snapshot).ee_bias[:3]

    def control_model(
        self,
        uid: str,
        n_joints: int,
        *,
        max_cartesian_accel: float,
        action_kind: ActionKind = "joint_acceleration",
        control_timestep_s: float | None = None,
    ) -> JacobianControlModel:
        """Return the control model of this ball.

        Args:
            uid: Agent id.
            n_joints: Number of joints.
            max_cartesian_accel: Acceleration the arm is credited with in every direction, m/s^2;
                the filter lowers it to what the action box reaches.
            action_kind: What the filtered action is.
            control_timestep_s: Control step, s, for velocities and position steps.
        """
        return JacobianControlModel(
            uid,
            n_joints,
            3,
            jacobian_fn=self.jacobian,
            max_cartesian_accel_value=max_cartesian_accel,
            action_kind=action_kind,
            control_timestep_s=control_timestep_s,
            bias_fn=self.bias,
        )

    def _state_behind(self, snapshot: AgentSnapshot) -> ArmState:
        state = self._state
        if state is None or not np.array_equal(snapshot.position, state.ee_position):
            raise NotReadyError(
                "EndEffectorBall: expected the snapshot made last, got another one; call "
                "snapshot(state) first in every step."
            )
        return state
