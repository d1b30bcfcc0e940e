"""What the ego can do against each partner: the constants of a pair's row.

alpha = min(credited capacity, box authority in the weakest direction) - partner's bound.
"""

import math
from dataclasses import dataclass

import numpy as np

from cadenza.core.arrays import FloatArray, require_finite
from cadenza.core.errors import ConfigurationError
from cadenza.safety.barrier import PairParameters, Plant
from cadenza.safety.bounds import MAX_BOUND, MIN_BOUND, Bounds
from cadenza.safety.control_models import DoubleIntegratorControlModel
from cadenza.safety.protocols import AgentControlModel
from cadenza.safety.snapshot import AgentSnapshot


@dataclass(frozen=True, slots=True, eq=False)
class EgoAuthority:
    """How the ego's action box acts on its ball.

    Attributes:
        jacobian: J with acceleration = J u, shape (d, n); None when it is the identity.
        every_direction: Acceleration the ego is credited with along any direction, m/s^2.
        reach: Largest Euclidean acceleration any action of the box produces, m/s^2.
    """

    jacobian: FloatArray | None
    every_direction: float
    reach: float


def measure_authority(
    model: AgentControlModel, snapshot: AgentSnapshot, bounds: Bounds
) -> EgoAuthority:
    """Return the ego's authority at its current state.

    Along a unit vector n the box |u_k| <= c reaches c |J^T n|_1 >= c |J^T n|_2, so the smallest
    singular value of J bounds the weakest direction from below.

    Raises:
        InputError: The model returns something that is not finite.
    """
    c = bounds.action_linf_component
    capacity = model.max_cartesian_accel(bounds)
    if isinstance(model, DoubleIntegratorControlModel):
        return EgoAuthority(None, min(capacity, c), c * math.sqrt(model.action_dim))
    columns = [
        model.action_to_cartesian_accel(snapshot, unit)
        for unit in np.eye(model.action_dim, dtype=np.float64)
    ]
    jacobian: FloatArray = np.stack(columns, axis=1)
    require_finite(f"control model of {model.uid!r}: Jacobian", jacobian)
    singular = np.linalg.svd(jacobian, compute_uv=False)
    weakest = float(singular[-1]) if jacobian.shape[0] <= jacobian.shape[1] else 0.0
    column_sum = float(np.linalg.norm(jacobian, axis=0).sum())
    strongest = min(float(singular[0]) * math.sqrt(model.action_dim), column_sum)
    return EgoAuthority(jacobian, min(capacity, c * weakest), c * strongest)


def pair_parameters(
    authority: EgoAuthority,
    partner: AgentControlModel,
    bounds: Bounds,
    *,
    dt: float,
    gamma: float,
    plant: Plant,
) -> PairParameters:
    """Return the constants of the row against one partner.

    Raises:
        ConfigurationError: The partner's bound is not a finite number >= 0, or leaves the ego no
            authority, in which case nothing can be guaranteed against it.
    """
    partner_accel = partner.max_cartesian_accel(bounds)
    if not 0.0 <= partner_accel <= MAX_BOUND:
        raise ConfigurationError(
            f"control model of {partner.uid!r}: expected max_cartesian_accel >= 0 m/s^2, "
            f"got {partner_accel}."
        )
    alpha = authority.every_direction - partner_accel
    if not alpha >= MIN_BOUND:
        raise ConfigurationError(
            "ego-only filter: expected an ego authority above every partner's bound, got "
            f"{authority.every_direction:.4g} m/s^2 against {partner_accel:.4g} m/s^2 of "
            f"{partner.uid!r}; declare what the partner can really do, e.g. "
            "DoubleIntegratorControlModel(uid, action_dim, capacity=...)."
        )
    return PairParameters(
        alpha=alpha,
        partner_accel=partner_accel,
        relative_accel=authority.reach + partner_accel,
        dt=dt,
        gamma=gamma,
        plant=plant,
    )
