"""Envs: the tasks robots share, what changes how they sense and act, and pictures of both.

Start at:    `CrossingEnv` and `MPECooperativePushEnv`; `VectorCrossingEnv` and
             `VectorMPECooperativePushEnv` step thousands of copies with the bytes of one. Arms are
             in `envs.mujoco`.
Promise:     equal (root_seed, seed, actions) give equal bytes, on every machine; malformed input is
             an error that names the robot.
May import:  `core`, `safety` (snapshots and bounds).  Must not import: `partners`, `aht`.
Adding one:  one file per task with the attributes of `CrossingEnv`, then a `TaskSpec` in
             `benchmark`; other interfaces come from `adapters`.
"""

from typing import TYPE_CHECKING, Final

from cadenza.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from cadenza.envs.adapters import EgoGymEnv
    from cadenza.envs.crossing import CrossingEnv
    from cadenza.envs.errors import ChamberEnvCompatibilityError
    from cadenza.envs.mpe import MPECooperativePushEnv
    from cadenza.envs.vector_crossing import VectorCrossingEnv
    from cadenza.envs.vector_mpe import VectorMPECooperativePushEnv
    from cadenza.envs.wrappers.action_repeat import PerAgentActionRepeatWrapper
    from cadenza.envs.wrappers.partner_id import PartnerIdAnnotationWrapper
    from cadenza.envs.wrappers.texture_filter import TextureFilterObsWrapper

__all__ = [
    "ChamberEnvCompatibilityError",
    "CrossingEnv",
    "EgoGymEnv",
    "MPECooperativePushEnv",
    "PartnerIdAnnotationWrapper",
    "PerAgentActionRepeatWrapper",
    "TextureFilterObsWrapper",
    "VectorCrossingEnv",
    "VectorMPECooperativePushEnv",
]

#: Short names and the modules that define them; imported at first use.
_EXPORTS: Final = {
    "ChamberEnvCompatibilityError": "errors",
    "CrossingEnv": "crossing",
    "EgoGymEnv": "adapters",
    "MPECooperativePushEnv": "mpe",
    "PartnerIdAnnotationWrapper": "wrappers.partner_id",
    "PerAgentActionRepeatWrapper": "wrappers.action_repeat",
    "TextureFilterObsWrapper": "wrappers.texture_filter",
    "VectorCrossingEnv": "vector_crossing",
    "VectorMPECooperativePushEnv": "vector_mpe",
}

__dir__, __getattr__ = lazy_names(__name__, _EXPORTS)
