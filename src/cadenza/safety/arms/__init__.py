"""Arms: kinematics and dynamics of a manipulator, in the form the operational-space filter reads.

Start at:    `MujocoArm` (an arm from a MuJoCo model) and `ArmState` (everything about one instant).
Promise:     one call evaluates pose, Jacobians, their rates, inertia, bias forces and all collision
             spheres of one instant; a state never changes after it was made.
May import:  `core` and `safety`.  Must not import: any other folder of the package. MuJoCo itself
             is imported when the first arm is built (extra `mujoco`).
Adding one:  a class with the methods of `ArmModel`; the operational-space filter asks for no more.
"""

import importlib
from typing import Any, Final

#: Short names and the modules that define them; imported at first use.
_EXPORTS: Final = {
    "SEVEN_DOF_ARM": "mujoco_arm",
    "ArmModel": "state",
    "ArmState": "state",
    "EndEffectorBall": "outer",
    "JointLimits": "limits",
    "MujocoArm": "mujoco_arm",
}


def __getattr__(name: str) -> Any:
    """Import the module that defines ``name`` and return the object."""
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_EXPORTS[name]}"), name)
