"""Control-affine safety filter: any robot of the form x' = f(x) + g(x) u, barriers by autodiff.

Start at:    `AffineCBFFilter`; its parts are `ControlAffineDynamics` (what a robot supplies),
             `Barrier` (what must stay >= 0) and `docs/affine.md` (what is guaranteed).
Promise:     the action stays in its box; it is unchanged, bit for bit, while no row is active; a
             step without a solution goes to a named fallback, never to the nominal action.
May import:  the solvers, projections and contracts of `safety`, `core`, torch.
Adding one:  a robot in `models`, a barrier in `shapes`, a fallback with `FALLBACKS.register`.
"""

from typing import Final

from cadenza.core.lazy_names import lazy_names

#: Short names and the modules that define them; imported at first use, for torch is slow to load.
_EXPORTS: Final = {
    "FALLBACKS": "fallbacks",
    "AcceleratedUnicycle": "models",
    "AffineBatchInfo": "filter",
    "AffineCBFFilter": "filter",
    "AffineInfo": "filter",
    "Barrier": "barriers",
    "BrakingDynamics": "dynamics",
    "ControlAffineDynamics": "dynamics",
    "Disturbance": "disturbances",
    "DoubleIntegrator": "models",
    "DubinsCar": "models",
    "FallbackRequest": "fallbacks",
    "JointDynamics": "joint",
    "KinematicUnicycle": "models",
    "LiftedBarrier": "lifting",
    "PlanarQuadrotor": "quadrotor",
    "SampledData": "filter",
    "estimate_rates": "filter",
    "half_plane": "shapes",
    "keep_out_ball": "shapes",
    "lift": "lifting",
    "minimum_separation": "shapes",
    "rk4_step": "dynamics",
    "speed_limit": "shapes",
    "state_box": "shapes",
    "turning_circle_clearance": "shapes",
}

__dir__, __getattr__ = lazy_names(__name__, _EXPORTS)
