"""Envs: the tasks robots share, what changes how they sense and act, and pictures of both.

Start at:    `CrossingEnv` and `MPECooperativePushEnv`; `VectorCrossingEnv` and
             `VectorMPECooperativePushEnv` step thousands of copies with the bytes of one. Arms are
             in `envs.mujoco`; `make_stage1_pickplace_env` has real robots (extra ``maniskill``).
Promise:     equal (root_seed, seed, actions) give equal bytes, on every machine; malformed input is
             an error that names the robot.
May import:  `core`, `safety` (snapshots and bounds), `comm` (channels).  Must not import:
             `partners`, `aht`.
Adding one:  one file per task with the attributes of `CrossingEnv`, then a `TaskSpec` in
             `benchmark`; other interfaces come from `adapters`, and `parallel_task` takes foreign
             environments in.
"""

from typing import TYPE_CHECKING, Final

from cadenza.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from cadenza.envs.adapters import EgoGymEnv
    from cadenza.envs.crossing import CrossingEnv, VectorCrossingEnv
    from cadenza.envs.inputs import ChamberEnvCompatibilityError
    from cadenza.envs.listening import CommShapingWrapper
    from cadenza.envs.maniskill.stage0 import Stage0StateSynthesizer
    from cadenza.envs.maniskill.stage1_pickplace import (
        ConditionConfig,
        Stage1ASStateSynthesizer,
        Stage1OMChannelFilter,
        build_control_models_for_condition,
        make_stage1_pickplace_env,
        resolve_condition,
    )
    from cadenza.envs.mpe import MPECooperativePushEnv, VectorMPECooperativePushEnv
    from cadenza.envs.panda_kinematics import PandaJacobianProvider
    from cadenza.envs.parallel_task import ParallelTask
    from cadenza.envs.wrappers import (
        PartnerIdAnnotationWrapper,
        PerAgentActionRepeatWrapper,
        TextureFilterObsWrapper,
    )

__all__ = [
    "ChamberEnvCompatibilityError",
    "CommShapingWrapper",
    "ConditionConfig",
    "CrossingEnv",
    "EgoGymEnv",
    "MPECooperativePushEnv",
    "PandaJacobianProvider",
    "ParallelTask",
    "PartnerIdAnnotationWrapper",
    "PerAgentActionRepeatWrapper",
    "Stage0StateSynthesizer",
    "Stage1ASStateSynthesizer",
    "Stage1OMChannelFilter",
    "TextureFilterObsWrapper",
    "VectorCrossingEnv",
    "VectorMPECooperativePushEnv",
    "build_control_models_for_condition",
    "make_stage1_pickplace_env",
    "resolve_condition",
]

#: Short names and the modules that define them; imported at first use.
_EXPORTS: Final = {
    "ChamberEnvCompatibilityError": "inputs",
    "CommShapingWrapper": "listening",
    "ConditionConfig": "maniskill.stage1_pickplace",
    "CrossingEnv": "crossing",
    "EgoGymEnv": "adapters",
    "MPECooperativePushEnv": "mpe",
    "PandaJacobianProvider": "panda_kinematics",
    "ParallelTask": "parallel_task",
    "PartnerIdAnnotationWrapper": "wrappers",
    "PerAgentActionRepeatWrapper": "wrappers",
    "Stage0StateSynthesizer": "maniskill.stage0",
    "Stage1ASStateSynthesizer": "maniskill.stage1_pickplace",
    "Stage1OMChannelFilter": "maniskill.stage1_pickplace",
    "TextureFilterObsWrapper": "wrappers",
    "VectorCrossingEnv": "crossing",
    "VectorMPECooperativePushEnv": "mpe",
    "build_control_models_for_condition": "maniskill.stage1_pickplace",
    "make_stage1_pickplace_env": "maniskill.stage1_pickplace",
    "resolve_condition": "maniskill.stage1_pickplace",
}

__dir__, __getattr__ = lazy_names(__name__, _EXPORTS)
