"""What one solve of the operational-space filter reports.

Units:  joint velocities rad/s, accelerations rad/s^2, torques Nm; slack in the unit of its row: m/s
        and rad/s at velocity level, m/s^2 at torque level.
"""

from dataclasses import dataclass
from typing import Final

from cadenza.core.arrays import FloatArray
from cadenza.core.lazy_names import Deferred

#: Slack above which a row counts as relaxed; a tenth of a millimetre per second.
SLACK_ACTIVE_FLOOR: Final = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OSCBFResult(Deferred):
    """Command of one step and how it came about; what follows from it is made when it is read.

    Attributes:
        q_dot: Joint velocities to command, or at torque level those after the step, shape (n,).
        slack: By how much each row is missed, shape (m,), >= 0.
        solve_ms: Time in the solver, ms.
        active_rows: Rows whose slack exceeds `SLACK_ACTIVE_FLOOR`.
        max_slack: Largest slack; 0 without rows.
        slack_l2: Euclidean norm of ``slack``.
        solver_status: ``inactive`` (nothing changed), ``optimal``, or why no admissible command was
            found: ``infeasible``, ``max_iter``, ``numerical``, ``bad_input``.
        row_names: Name of each row, m names; empty for rows the caller built.
        hard_rows: Whether each row is hard, m flags; empty when all are soft.
        binding_rows: Rows met with equality, or missed.
        conflicting_joints: Joints whose limits contradict each other in this state, so that the
            command keeps to the acceleration limit and misses another one.
        q_ddot: Joint accelerations, shape (n,); torque level only.
        torque: Actuator torques to command, shape (n,); torque level only.
    """

    q_dot: FloatArray
    slack: FloatArray
    solve_ms: float
    active_rows: tuple[int, ...]
    max_slack: float
    slack_l2: float
    solver_status: str
    row_names: tuple[str, ...] = ()
    hard_rows: tuple[bool, ...] = ()
    binding_rows: tuple[int, ...] = ()
    conflicting_joints: tuple[int, ...] = ()
    q_ddot: FloatArray | None = None
    torque: FloatArray | None = None

    @property
    def certified(self) -> bool:
        """Whether every hard row and every joint limit holds."""
        return self.solver_status in ("inactive", "optimal") and not self.conflicting_joints

    @property
    def braking(self) -> bool:
        """Whether the command is the least violation at the lowest speed."""
        return self.solver_status not in ("inactive", "optimal")
