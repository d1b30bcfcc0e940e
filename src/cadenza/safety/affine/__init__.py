"""Control-affine safety filter: any robot of the form x' = f(x) + g(x) u, barriers by autodiff.

Start at:    `AffineCBFFilter`; its parts are `ControlAffineDynamics` (what a robot supplies),
             `Barrier` (what must stay >= 0) and `docs/affine.md` (what is guaranteed).
Promise:     the action stays in its box; it is unchanged, bit for bit, while no row is active; a
             step without a solution goes to a named fallback, never to the nominal action.
May import:  the solvers, projections and contracts of `safety`, `core`, torch.
Adding one:  a robot in `models`, a barrier in `barriers`, a fallback with `FALLBACKS.register`.
"""

from typing import Final

from cadenza.core.lazy_names import lazy_names

#: Short names and the modules that define them; imported at first use, for torch is slow to load.
_EXPORTS: Final = {
    "FALLBACKS": "filter",
    "AcceleratedUnicycle": "models",
    "AffineBatchInfo": "filter",
    "AffineCBFFilter": "filter",
    "AffineInfo": "filter",
    "Barrier": "barriers",
    "BrakingDynamics": "dynamics",
    "ControlAffineDynamics": "dynamics",
    "Disturbance": "dynamics",
    "DoubleIntegrator": "models",
    "DubinsCar": "models",
    "FallbackRequest": "filter",
    "JointDynamics": "dynamics",
    "KinematicUnicycle": "models",
    "LiftedBarrier": "lifting",
    "PlanarQuadrotor": "models",
    "SampledData": "filter",
    "estimate_rates": "filter",
    "half_plane": "barriers",
    "keep_out_ball": "barriers",
    "lift": "lifting",
    "minimum_separation": "barriers",
    "speed_limit": "barriers",
    "state_box": "barriers",
    "turning_circle_clearance": "barriers",
}

__dir__, __getattr__ = lazy_names(__name__, _EXPORTS)
