"""Safety: keeps the ego's action clear of partners whose intentions are unknown.

Start at:    `SafetyDriver` (one call per control step of an env), `SafetyRuntime` (the same without
             an env) and `docs/safety.md` (what it guarantees).
Promise:     the action stays in its box; it is unchanged, bit for bit, while no row is active; and
             after a failed solve it is the least unsafe action, never one that was not checked.
May import:  `core`.  Must not import: any other folder of the package.
Layout:      `contracts` (`api` gathers them), `cbf` (every formula of one pair), `authority`,
             `passive`, `solvers`, `filters`, `conformal`, braking and emergency controllers,
             `runtime` (what a robot calls), `record` (of its steps);
             `backup` (robots that take velocities; obstacles), `batched` (many environments),
             `wrappers` (Gymnasium), `arms` and `oscbf`, `affine` (any control-affine robot),
             `reporting`, `verifier`.
"""

from typing import TYPE_CHECKING

from cadenza.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from cadenza.core.arrays import FloatArray as FloatArray

    from .backup import BackupFilter as BackupFilter
    from .batched.driver import BatchedSafetyDriver as BatchedSafetyDriver
    from .batched.filter import BatchedEgoFilter as BatchedEgoFilter
    from .cbf_qp import ExpCBFQP as ExpCBFQP
    from .cbf_qp import solve_qp_stub as solve_qp_stub
    from .contracts import DEFAULT_EPSILON as DEFAULT_EPSILON
    from .contracts import DEFAULT_ETA as DEFAULT_ETA
    from .contracts import DEFAULT_WARMUP_STEPS as DEFAULT_WARMUP_STEPS
    from .contracts import AgentControlModel as AgentControlModel
    from .contracts import Bounds as Bounds
    from .contracts import EgoOnlySafetyFilter as EgoOnlySafetyFilter
    from .contracts import EmergencyController as EmergencyController
    from .contracts import FilterInfo as FilterInfo
    from .contracts import JointSafetyFilter as JointSafetyFilter
    from .contracts import LambdaDict as LambdaDict
    from .contracts import SafetyFilter as SafetyFilter
    from .contracts import SafetyMode as SafetyMode
    from .contracts import SafetyState as SafetyState
    from .contracts import StateDependentControlModel as StateDependentControlModel
    from .contracts import canonical_pair_key as canonical_pair_key
    from .contracts import canonical_pair_order as canonical_pair_order
    from .contracts import lambda_from_jsonable as lambda_from_jsonable
    from .contracts import lambda_to_jsonable as lambda_to_jsonable
    from .contracts import make_ego_pair_keys as make_ego_pair_keys
    from .contracts import make_lambda_dict as make_lambda_dict
    from .contracts import make_pair_keys as make_pair_keys
    from .control_models import DEFAULT_DLS_DAMPING as DEFAULT_DLS_DAMPING
    from .control_models import DifferentialDriveControlModel as DifferentialDriveControlModel
    from .control_models import DoubleIntegratorControlModel as DoubleIntegratorControlModel
    from .control_models import JacobianControlModel as JacobianControlModel
    from .control_models import PartnerBound as PartnerBound
    from .control_models import UnicycleModel as UnicycleModel
    from .control_models import VelocityModel as VelocityModel
    from .emergency import CartesianAccelEmergencyController as CartesianAccelEmergencyController
    from .emergency import JacobianEmergencyController as JacobianEmergencyController
    from .errors import ConcertoSafetyInfeasible as ConcertoSafetyInfeasible
    from .runtime.driver import SafetyDriver as SafetyDriver
    from .runtime.options import SafetyOptions as SafetyOptions
    from .runtime.runtime import SafetyRuntime as SafetyRuntime
    from .snapshot import AgentBatch as AgentBatch
    from .snapshot import AgentSnapshot as AgentSnapshot
    from .snapshot import WheeledSnapshot as WheeledSnapshot
    from .wrappers.single import SafetyFilterWrapper as SafetyFilterWrapper
    from .wrappers.vector import VectorSafetyFilterWrapper as VectorSafetyFilterWrapper
else:
    __dir__, __getattr__ = lazy_names(
        __name__,
        deprecated={
            "SafetyFilter": "write EgoOnlySafetyFilter or JointSafetyFilter; it goes in 0.3.0"
        },
    )
