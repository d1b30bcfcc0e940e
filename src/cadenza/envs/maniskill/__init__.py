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

from typing import TYPE_CHECKING

from cadenza.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from cadenza.envs.panda_kinematics import PandaJacobianProvider as PandaJacobianProvider

    from .panda_partner import PandaPartner as PandaPartner
    from .stage0 import make_stage0_env as make_stage0_env
    from .stage0 import make_stage0_training_env as make_stage0_training_env
    from .stage1_conditions import ConditionConfig as ConditionConfig
    from .stage1_conditions import (
        build_control_models_for_condition as build_control_models_for_condition,
    )
    from .stage1_conditions import resolve_condition as resolve_condition
    from .stage1_pickplace import make_stage1_pickplace_env as make_stage1_pickplace_env
else:
    __dir__, __getattr__ = lazy_names(__name__)
