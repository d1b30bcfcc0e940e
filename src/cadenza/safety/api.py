"""The contracts of the safety stack under one import path.

Everything here is defined in the module that owns it; this module only gathers the names that
callers of the stack need in signatures and at its edges.
"""

from typing import TYPE_CHECKING

from cadenza.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from cadenza.core.arrays import FloatArray as FloatArray
    from cadenza.safety.contracts import DEFAULT_EPSILON as DEFAULT_EPSILON
    from cadenza.safety.contracts import DEFAULT_ETA as DEFAULT_ETA
    from cadenza.safety.contracts import DEFAULT_WARMUP_STEPS as DEFAULT_WARMUP_STEPS
    from cadenza.safety.contracts import AgentControlModel as AgentControlModel
    from cadenza.safety.contracts import Bounds as Bounds
    from cadenza.safety.contracts import EgoOnlySafetyFilter as EgoOnlySafetyFilter
    from cadenza.safety.contracts import EmergencyController as EmergencyController
    from cadenza.safety.contracts import FilterInfo as FilterInfo
    from cadenza.safety.contracts import JointSafetyFilter as JointSafetyFilter
    from cadenza.safety.contracts import LambdaDict as LambdaDict
    from cadenza.safety.contracts import SafetyFilter as SafetyFilter
    from cadenza.safety.contracts import SafetyMode as SafetyMode
    from cadenza.safety.contracts import SafetyState as SafetyState
    from cadenza.safety.contracts import StateDependentControlModel as StateDependentControlModel
    from cadenza.safety.contracts import canonical_pair_key as canonical_pair_key
    from cadenza.safety.contracts import canonical_pair_order as canonical_pair_order
    from cadenza.safety.contracts import lambda_from_jsonable as lambda_from_jsonable
    from cadenza.safety.contracts import lambda_to_jsonable as lambda_to_jsonable
    from cadenza.safety.contracts import make_ego_pair_keys as make_ego_pair_keys
    from cadenza.safety.contracts import make_lambda_dict as make_lambda_dict
    from cadenza.safety.contracts import make_pair_keys as make_pair_keys
    from cadenza.safety.control_models import DEFAULT_DLS_DAMPING as DEFAULT_DLS_DAMPING
    from cadenza.safety.control_models import (
        DifferentialDriveControlModel as DifferentialDriveControlModel,
    )
    from cadenza.safety.control_models import (
        DoubleIntegratorControlModel as DoubleIntegratorControlModel,
    )
    from cadenza.safety.control_models import JacobianControlModel as JacobianControlModel
    from cadenza.safety.emergency import (
        CartesianAccelEmergencyController as CartesianAccelEmergencyController,
    )
    from cadenza.safety.errors import ConcertoSafetyInfeasible as ConcertoSafetyInfeasible
    from cadenza.safety.snapshot import AgentSnapshot as AgentSnapshot
else:
    __dir__, __getattr__ = lazy_names(
        __name__,
        deprecated={
            "SafetyFilter": "write EgoOnlySafetyFilter or JointSafetyFilter; it goes in 0.3.0"
        },
    )
