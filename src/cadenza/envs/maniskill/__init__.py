"""ManiSkill tasks: real robots in SAPIEN's physics, with or without a renderer.

Start at:    `make_stage1_pickplace_env` (pick and place beside a partner) and `make_stage0_env`
             (three robots, no task).
Promise:     importing this folder needs no simulator; a factory that cannot deliver raises
             `ChamberEnvCompatibilityError`, which names what is missing. State observations need no
             GPU, no Vulkan and no display.
May import:  `core`, `safety` (snapshots, bounds, control models) and the rest of `envs`.
Adding one:  one file per task on `simulator`, whose class is a `BaseEnv` of ManiSkill; then a
             factory and a `TaskSpec` in `benchmark`.
"""

from typing import TYPE_CHECKING, Final

from cadenza.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from cadenza.envs.maniskill.panda_partner import PandaPartner
    from cadenza.envs.maniskill.stage0 import make_stage0_env, make_stage0_training_env
    from cadenza.envs.maniskill.stage1_conditions import (
        ConditionConfig,
        build_control_models_for_condition,
        resolve_condition,
    )
    from cadenza.envs.maniskill.stage1_pickplace import make_stage1_pickplace_env
    from cadenza.envs.panda_kinematics import PandaJacobianProvider

__all__ = [
    "ConditionConfig",
    "PandaJacobianProvider",
    "PandaPartner",
    "build_control_models_for_condition",
    "make_stage0_env",
    "make_stage0_training_env",
    "make_stage1_pickplace_env",
    "resolve_condition",
]

#: Short names and the modules that define them; imported at first use.
_EXPORTS: Final = {
    "ConditionConfig": "stage1_conditions",
    "PandaJacobianProvider": ".panda_kinematics",
    "PandaPartner": "panda_partner",
    "build_control_models_for_condition": "stage1_conditions",
    "make_stage0_env": "stage0",
    "make_stage0_training_env": "stage0",
    "make_stage1_pickplace_env": "stage1_pickplace",
    "resolve_condition": "stage1_conditions",
}

__dir__, __getattr__ = lazy_names(__name__, _EXPORTS)
