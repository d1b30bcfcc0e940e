"""Control models: how an agent's action moves its collision ball.

Start at:    `DoubleIntegratorControlModel`; for an arm `JacobianControlModel`, for a wheeled base
             `DifferentialDriveControlModel`; for a base that takes velocities `VelocityModel`
             or `UnicycleModel`.
Promise:     acceleration is linear in the action, plus a bias where the embodiment has one; each
             such class satisfies `cadenza.safety.protocols.AgentControlModel`. `VelocityModel`,
             `UnicycleModel` and `PartnerBound` are read by `cadenza.safety.backup`.
May import:  `core` and the contracts of `safety`.  Must not import: filters and solvers.
Adding one:  one file here; a map that depends on the state also offers `jacobian` and
             `bias_accel` of `StateDependentControlModel`.
"""

from cadenza.safety.control_models.differential_drive import (
    BodyDrive,
    DifferentialDriveControlModel,
    WheelDrive,
)
from cadenza.safety.control_models.double_integrator import DoubleIntegratorControlModel
from cadenza.safety.control_models.jacobian import (
    DEFAULT_DLS_DAMPING,
    JacobianControlModel,
    MissingJacobianError,
)
from cadenza.safety.control_models.unicycle import UnicycleModel
from cadenza.safety.control_models.velocity import PartnerBound, VelocityModel

__all__ = [
    "DEFAULT_DLS_DAMPING",
    "BodyDrive",
    "DifferentialDriveControlModel",
    "DoubleIntegratorControlModel",
    "JacobianControlModel",
    "MissingJacobianError",
    "PartnerBound",
    "UnicycleModel",
    "VelocityModel",
    "WheelDrive",
]
