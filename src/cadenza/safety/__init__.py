"""Safety: keeps the ego's action clear of partners whose intentions nobody knows.

Start at:    `SafetyDriver` (one call per control step of an env), `SafetyRuntime` (the same without
             an env) and `docs/safety.md` (what it guarantees).
Promise:     the action stays in its box; it is unchanged, bit for bit, while no row is active; and
             after a failed solve it is the least unsafe action, never the unfiltered one.
May import:  `core`.  Must not import: any other folder of the package.
Layout:      contracts (`api` gathers them), `cbf` (every formula of one pair), `authority`,
             `passive`, `solvers`, `filters`, `conformal`, braking and emergency controllers,
             `runtime` (what a robot calls);
             `batched` (many environments), `wrappers` (Gymnasium), `arms` and `oscbf`, `affine`
             (any control-affine robot), `reporting`, `verifier`.
"""

from typing import Final

from cadenza.core.lazy_names import lazy_names

#: Short names and the modules that define them; imported at first use.
_EXPORTS: Final = {
    "DEFAULT_DLS_DAMPING": "control_models",
    "DEFAULT_EPSILON": "state",
    "DEFAULT_ETA": "state",
    "DEFAULT_WARMUP_STEPS": "state",
    "AgentBatch": "snapshot",
    "AgentControlModel": "protocols",
    "AgentSnapshot": "snapshot",
    "BatchedEgoFilter": "batched.filter",
    "BatchedSafetyDriver": "batched.driver",
    "Bounds": "bounds",
    "CartesianAccelEmergencyController": "emergency",
    "ConcertoSafetyInfeasible": "errors",
    "DifferentialDriveControlModel": "control_models",
    "DoubleIntegratorControlModel": "control_models",
    "EgoOnlySafetyFilter": "protocols",
    "EmergencyController": "protocols",
    "ExpCBFQP": "cbf_qp",
    "FilterInfo": "state",
    "FloatArray": "api",
    "JacobianControlModel": "control_models",
    "JacobianEmergencyController": "emergency",
    "JointSafetyFilter": "protocols",
    "LambdaDict": "pairs",
    "SafetyDriver": "runtime.driver",
    "SafetyFilter": "protocols",
    "SafetyFilterWrapper": "wrappers.single",
    "SafetyMode": "protocols",
    "SafetyOptions": "runtime.options",
    "SafetyRuntime": "runtime.runtime",
    "SafetyState": "state",
    "StateDependentControlModel": "protocols",
    "VectorSafetyFilterWrapper": "wrappers.vector",
    "canonical_pair_key": "pairs",
    "canonical_pair_order": "pairs",
    "lambda_from_jsonable": "pairs",
    "lambda_to_jsonable": "pairs",
    "make_ego_pair_keys": "pairs",
    "make_lambda_dict": "pairs",
    "make_pair_keys": "pairs",
    "solve_qp_stub": "cbf_qp",
}

__dir__, __getattr__ = lazy_names(
    __name__,
    _EXPORTS,
    deprecated={"SafetyFilter": "write EgoOnlySafetyFilter or JointSafetyFilter; it goes in 0.3.0"},
)
