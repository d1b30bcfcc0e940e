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

from typing import TYPE_CHECKING

from cadenza.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from .adapters import EgoGymEnv as EgoGymEnv
    from .crossing import CrossingEnv as CrossingEnv
    from .crossing import VectorCrossingEnv as VectorCrossingEnv
    from .doorway import DoorwayDiffDriveEnv as DoorwayDiffDriveEnv
    from .doorway import DoorwayEnv as DoorwayEnv
    from .doorway import VectorDoorwayDiffDriveEnv as VectorDoorwayDiffDriveEnv
    from .doorway import VectorDoorwayEnv as VectorDoorwayEnv
    from .inputs import ChamberEnvCompatibilityError as ChamberEnvCompatibilityError
    from .listening import CommShapingWrapper as CommShapingWrapper
    from .maniskill.stage0 import Stage0StateSynthesizer as Stage0StateSynthesizer
    from .maniskill.stage1_pickplace import ConditionConfig as ConditionConfig
    from .maniskill.stage1_pickplace import Stage1ASStateSynthesizer as Stage1ASStateSynthesizer
    from .maniskill.stage1_pickplace import Stage1OMChannelFilter as Stage1OMChannelFilter
    from .maniskill.stage1_pickplace import (
        build_control_models_for_condition as build_control_models_for_condition,
    )
    from .maniskill.stage1_pickplace import make_stage1_pickplace_env as make_stage1_pickplace_env
    from .maniskill.stage1_pickplace import resolve_condition as resolve_condition
    from .mpe import MPECooperativePushEnv as MPECooperativePushEnv
    from .mpe import VectorMPECooperativePushEnv as VectorMPECooperativePushEnv
    from .panda_kinematics import PandaJacobianProvider as PandaJacobianProvider
    from .parallel_task import ParallelTask as ParallelTask
    from .wrappers import PartnerIdAnnotationWrapper as PartnerIdAnnotationWrapper
    from .wrappers import PerAgentActionRepeatWrapper as PerAgentActionRepeatWrapper
    from .wrappers import TextureFilterObsWrapper as TextureFilterObsWrapper
else:
    __dir__, __getattr__ = lazy_names(__name__)
