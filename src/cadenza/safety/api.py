"""The contracts of the safety stack under one import path.

Everything here is defined in the module that owns it; this module only gathers the names that
callers of the stack need in signatures and at its edges.
"""

from typing import TYPE_CHECKING

from cadenza.core.arrays import FloatArray
from cadenza.core.lazy_names import lazy_names
from cadenza.safety.contracts import (
    DEFAULT_EPSILON,
    DEFAULT_ETA,
    DEFAULT_WARMUP_STEPS,
    AgentControlModel,
    Bounds,
    EgoOnlySafetyFilter,
    EmergencyController,
    FilterInfo,
    JointSafetyFilter,
    LambdaDict,
    SafetyMode,
    SafetyState,
    StateDependentControlModel,
    canonical_pair_key,
    canonical_pair_order,
    lambda_from_jsonable,
    lambda_to_jsonable,
    make_ego_pair_keys,
    make_lambda_dict,
    make_pair_keys,
)
from cadenza.safety.control_models import (
    DEFAULT_DLS_DAMPING,
    DifferentialDriveControlModel,
    DoubleIntegratorControlModel,
    JacobianControlModel,
)
from cadenza.safety.emergency import CartesianAccelEmergencyController
from cadenza.safety.errors import ConcertoSafetyInfeasible
from cadenza.safety.snapshot import AgentSnapshot

__all__ = [
    "DEFAULT_DLS_DAMPING",
    "DEFAULT_EPSILON",
    "DEFAULT_ETA",
    "DEFAULT_WARMUP_STEPS",
    "AgentControlModel",
    "AgentSnapshot",
    "Bounds",
    "CartesianAccelEmergencyController",
    "ConcertoSafetyInfeasible",
    "DifferentialDriveControlModel",
    "DoubleIntegratorControlModel",
    "EgoOnlySafetyFilter",
    "EmergencyController",
    "FilterInfo",
    "FloatArray",
    "JacobianControlModel",
    "JointSafetyFilter",
    "LambdaDict",
    "SafetyMode",
    "SafetyState",
    "StateDependentControlModel",
    "canonical_pair_key",
    "canonical_pair_order",
    "lambda_from_jsonable",
    "lambda_to_jsonable",
    "make_ego_pair_keys",
    "make_lambda_dict",
    "make_pair_keys",
]

if TYPE_CHECKING:
    from cadenza.safety.contracts import SafetyFilter as SafetyFilter
else:
    _, __getattr__ = lazy_names(
        __name__,
        deprecated={
            "SafetyFilter": "write EgoOnlySafetyFilter or JointSafetyFilter; it goes in 0.3.0"
        },
    )
