"""Rows of many environments at once: the formulas of `cadenza.safety.barrier` on tensors.

Pair (i, j):  n, r, e, w, t, c_max, tau and h as in `cadenza.safety.barrier`.
Axes:         B environments, N agents, P pairs, d Cartesian dimensions.
Gradients:    finite everywhere, also where centres coincide and where a branch is not taken: each
              square root and quotient sees an argument that is valid in the branch it serves.
Capture:      no branch depends on data; options are Python values.
"""

from typing import Final, NamedTuple

import torch
from torch import Tensor

from cadenza.safety.barrier import COINCIDENT_DISTANCE, DEFAULT_CBF_GAMMA, Plant

#: Smallest argument of a square root that is differentiated: its derivative stays finite, and
#: square roots of everything below are below 1e-150.
_TINY: Final = {torch.float64: 1e-300, torch.float32: 1e-37}


class PairRowsBatch(NamedTuple):
    """Rows of all pairs of all environments, before the partner's push and lambda.

    Attributes:
        normal: n, unit vectors from the second agent's centre to the first's, shape (B, P, d).
        level: (c_max - tau - w) / dt, shape (B, P), m/s^2.
        h: Barrier values, shape (B, P), m/s.
        margin: Free distance less the safety margin, e, shape (B, P), m.
        closing: Closing speeds w, shape (B, P), m/s.
        time_left: Time until the margin is used up at today's speed, shape (B, P), s; inf if never.
    """

    normal: Tensor
    level: Tensor
    h: Tensor
    margin: Tensor
    closing: Tensor
    time_left: Tensor


class PairGeometry(NamedTuple):
    """Relative motion of pairs: normal (..., d), distance, closing and tangential speed (...)."""

    normal: Tensor
    distance: Tensor
    closing: Tensor
    tangential: Tensor


def pair_rows_batch(
    p: Tensor,
    v: Tensor,
    R: Tensor,
    alpha: Tensor | float,
    pairs: Tensor,
    dt: float,
    *,
    relative_accel: Tensor | float,
    gamma: float = DEFAULT_CBF_GAMMA,
    plant: Plant = "zoh",
    margin_m: float = 0.0,
) -> PairRowsBatch:
    """Return the sampled-data rows of the given pairs in every environment.

    Args:
        p: Centres, shape (B, N, d), m.
        v: Velocities, shape (B, N, d), m/s.
        R: Radii, shape (N,) or (B, N), m.
        alpha: Braking authority left against the worst partner, m/s^2, > 0; a number or a tensor
            that broadcasts to (B, P).
        pairs: Indices of the agents of each pair, shape (P, 2), integer.
        dt: Control step, s.
        relative_accel: A, bound on the relative acceleration, m/s^2; like ``alpha``. Read for
            ``plant="zoh"`` only.
        gamma: Rate at which overlap is undone, 1/s.
        plant: How the plant integrates one step.
        margin_m: Distance kept in addition to the radii, m.
    """
    first, second = pairs[:, 0], pairs[:, 1]
    geometry = pair_geometry_batch(p[:, first] - p[:, second], v[:, first] - v[:, second])
    contact = R[..., first] + R[..., second] + margin_m
    return rows_of_geometry(
        geometry, contact, alpha, relative_accel, dt=dt, gamma=gamma, plant=plant
    )


def pair_geometry_batch(offset: Tensor, velocity: Tensor) -> PairGeometry:
    """Return normal, distance, closing and tangential speed of relative motions.

    Args:
        offset: First centre less second centre, shape (..., d), m.
        velocity: First velocity less second velocity, shape (..., d), m/s.
    """
    x = offset.unbind(-1)
    distance = _norm(x)
    apart = distance >= COINCIDENT_DISTANCE
    safe = torch.where(apart, distance, 1.0)
    n = [torch.where(apart, x_k / safe, 1.0 if k == 0 else 0.0) for k, x_k in enumerate(x)]
    v_k = velocity.unbind(-1)
    separating = sum((a * b for a, b in zip(n[1:], v_k[1:], strict=True)), n[0] * v_k[0])
    if len(n) == 2:
        tangential = (n[0] * v_k[1] - n[1] * v_k[0]).abs()
    else:
        tangential = _norm([a - separating * b for a, b in zip(v_k, n, strict=True)])
    return PairGeometry(torch.stack(n, -1), distance, -separating, tangential)


def rows_of_geometry(
    geometry: PairGeometry,
    contact: Tensor,
    alpha: Tensor | float,
    relative_accel: Tensor | float,
    *,
    dt: float,
    gamma: float,
    plant: Plant,
) -> PairRowsBatch:
    """Return the rows of pairs whose relative motion is known.

    Args:
        geometry: Relative motion, shape (B, P).
        contact: Sum of the radii and the safety margin, broadcasting to (B, P), m.
        alpha: See `pair_rows_batch`.
        relative_accel: See `pair_rows_batch`.
        dt: Control step, s.
        gamma: Rate at which overlap is undone, 1/s.
        plant: How the plant integrates one step.
    """
    distance, closing = geometry.distance, geometry.closing
    excess = distance - contact
    limit = _next_closing_limit(excess, closing, alpha, dt, gamma, plant)
    if plant == "zoh":
        nearest = distance - 0.5 * dt * (closing + limit)
        limit = limit - _tangential_allowance(
            geometry.tangential, relative_accel, torch.maximum(nearest, contact), dt
        )
    h = _barrier_value(excess, closing, alpha, dt, gamma)
    return PairRowsBatch(
        normal=geometry.normal,
        level=(limit - closing) / dt,
        h=h,
        margin=excess,
        closing=closing,
        time_left=time_left(excess, closing),
    )


def time_left(margin: Tensor, closing: Tensor) -> Tensor:
    """Return the time until ``margin`` is used up at the speed ``closing``, s; inf if never."""
    approaching = closing > 0.0
    quotient = margin / torch.where(approaching, closing, 1.0)
    return torch.where(margin <= 0.0, 0.0, torch.where(approaching, quotient, torch.inf))


def _next_closing_limit(
    excess: Tensor, w: Tensor, alpha: Tensor | float, dt: float, gamma: float, plant: Plant
) -> Tensor:
    """Return c_max before the tangential allowance, m/s; inside the margin gamma e."""
    e = excess.clamp_min(0.0)
    three = 3.0 * alpha * dt
    limit = 4.0 * alpha * e / (three + (three * three + 8.0 * alpha * e) ** 0.5)
    if plant == "zoh":
        spare = 2.0 * (e - 0.5 * w * dt) / alpha
        radicand = dt * dt + spare
        slow = alpha * spare / (dt + _root(radicand))
        slow = torch.where(radicand <= 0.0, -alpha * dt, slow)
        limit = torch.where(w <= limit, limit, slow)
    return torch.where(excess < 0.0, gamma * excess, limit)


def _barrier_value(
    excess: Tensor, w: Tensor, alpha: Tensor | float, dt: float, gamma: float
) -> Tensor:
    """Return h, m/s."""
    e = excess.clamp_min(0.0)
    reach = alpha * dt
    safe_speed = 4.0 * alpha * e / (reach + (reach * reach + 8.0 * alpha * e) ** 0.5)
    return torch.where(excess < 0.0, gamma * excess, safe_speed) - w


def _tangential_allowance(
    tangential: Tensor, relative_accel: Tensor | float, next_distance: Tensor, dt: float
) -> Tensor:
    """Return tau, m/s."""
    turn = torch.as_tensor(relative_accel * dt, dtype=tangential.dtype, device=tangential.device)
    change = torch.minimum(turn, 1.5 * tangential)
    gain = (change - tangential) * (2.0 * tangential - change)
    return 0.5 * dt * gain.clamp_min(0.0) / next_distance


def _norm(entries: "list[Tensor] | tuple[Tensor, ...]") -> Tensor:
    """Return the Euclidean norm over the entries, with gradient zero at zero."""
    squared = entries[0] * entries[0]
    for entry in entries[1:]:
        squared = squared + entry * entry
    return _root(squared)


def _root(values: Tensor) -> Tensor:
    """Return the square root, 0 for negative numbers, with finite gradients."""
    tiny = _TINY[values.dtype]
    return torch.where(values > tiny, values.clamp_min(tiny).sqrt(), 0.0)
