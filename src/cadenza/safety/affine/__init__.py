"""Control-affine safety filter: any robot of the form x' = f(x) + g(x) u, barriers by autodiff.

Start at:    `AffineCBFFilter`; its parts are `ControlAffineDynamics` (what a robot supplies),
             `Barrier` (what must stay >= 0) and `docs/affine.md` (what is guaranteed).
Promise:     the action stays in its box; it is unchanged, bit for bit, while no row is active; a
             step without a solution goes to a named fallback, never to the nominal action.
May import:  the solvers, projections and contracts of `safety`, `core`, torch.
Adding one:  a robot in `models`, a barrier in `barriers`, a fallback with `FALLBACKS.register`.
"""

from typing import TYPE_CHECKING

from cadenza.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from .barriers import Barrier as Barrier
    from .barriers import LiftedBarrier as LiftedBarrier
    from .barriers import half_plane as half_plane
    from .barriers import keep_out_ball as keep_out_ball
    from .barriers import lift as lift
    from .barriers import minimum_separation as minimum_separation
    from .barriers import speed_limit as speed_limit
    from .barriers import state_box as state_box
    from .barriers import turning_circle_clearance as turning_circle_clearance
    from .dynamics import AcceleratedUnicycle as AcceleratedUnicycle
    from .dynamics import BrakingDynamics as BrakingDynamics
    from .dynamics import ControlAffineDynamics as ControlAffineDynamics
    from .dynamics import Disturbance as Disturbance
    from .dynamics import DoubleIntegrator as DoubleIntegrator
    from .dynamics import DubinsCar as DubinsCar
    from .dynamics import JointDynamics as JointDynamics
    from .dynamics import KinematicUnicycle as KinematicUnicycle
    from .dynamics import PlanarQuadrotor as PlanarQuadrotor
    from .filter import FALLBACKS as FALLBACKS
    from .filter import AffineBatchInfo as AffineBatchInfo
    from .filter import AffineCBFFilter as AffineCBFFilter
    from .filter import AffineInfo as AffineInfo
    from .filter import FallbackRequest as FallbackRequest
    from .filter import SampledData as SampledData
    from .filter import estimate_rates as estimate_rates
else:
    __dir__, __getattr__ = lazy_names(__name__)
