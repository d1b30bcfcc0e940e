"""Arms: kinematics and dynamics of a manipulator, in the form the operational-space filter reads.

Start at:    `MujocoArm` (an arm from a MuJoCo model) and `ArmState` (everything about one instant).
Promise:     one call evaluates pose, Jacobians, their rates, inertia, bias forces and all collision
             spheres of one instant; a state never changes after it was made.
May import:  `core` and `safety`.  Must not import: any other folder of the package. MuJoCo itself
             is imported when the first arm is built (extra `mujoco`).
Adding one:  a class with the methods of `ArmModel`; the operational-space filter asks for no more.
"""

from typing import TYPE_CHECKING

from cadenza.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from .arm import SEVEN_DOF_ARM as SEVEN_DOF_ARM
    from .arm import ArmModel as ArmModel
    from .arm import ArmState as ArmState
    from .arm import EndEffectorBall as EndEffectorBall
    from .arm import JointLimits as JointLimits
    from .arm import MujocoArm as MujocoArm
else:
    __dir__, __getattr__ = lazy_names(__name__)
