"""Rows of pairs in many environments at once: geometry and levels on tensors.

Pair (i, j):  n, r, e, w, t, c_max, tau and h as in `cadenza.safety.rows.barrier`.
Axes:         B environments, N agents, P pairs, d Cartesian dimensions.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from cadenza.safety.batched.levels import PairTensors, root, sampled_level
from cadenza.safety.rows.barrier import COINCIDENT_DISTANCE, DEFAULT_CBF_GAMMA, Plant


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
    """Relative motion of pairs: normal (..., d); distance, closing and tangential speed (...)."""

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
    normal, distance, closing, tangential = pair_geometry_batch(
        p[:, first] - p[:, second], v[:, first] - v[:, second]
    )
    contact = (R[..., first] + R[..., second] + margin_m).expand_as(distance)
    pair = PairTensors(
        alpha=_like(p, alpha),
        partner_accel=torch.zeros((), dtype=p.dtype, device=p.device),
        relative_accel=_like(p, relative_accel),
        dt=dt,
        gamma=gamma,
        plant=plant,
    )
    level, h = sampled_level(distance, contact, closing, tangential, pair)
    margin = distance - contact
    return PairRowsBatch(normal, level, h, margin, closing, time_left(margin, closing))


def pair_geometry_batch(offset: Tensor, velocity: Tensor) -> PairGeometry:
    """Return normal, distance, closing and tangential speed of relative motions.

    Args:
        offset: First centre less second centre, shape (..., d), m.
        velocity: First velocity less second velocity, shape (..., d), m/s.
    """
    x, v = offset.unbind(-1), velocity.unbind(-1)
    distance = _norm(x)
    apart = distance >= COINCIDENT_DISTANCE
    safe = torch.where(apart, distance, 1.0)
    n = [torch.where(apart, x_k / safe, 1.0 if k == 0 else 0.0) for k, x_k in enumerate(x)]
    separating = n[0] * v[0]
    for n_k, v_k in zip(n[1:], v[1:], strict=True):
        separating = separating + n_k * v_k
    if len(n) == 2:
        tangential = (n[0] * v[1] - n[1] * v[0]).abs()
    else:
        tangential = _norm([v_k - separating * n_k for v_k, n_k in zip(v, n, strict=True)])
    return PairGeometry(torch.stack(n, -1), distance, -separating, tangential)


def time_left(margin: Tensor, closing: Tensor) -> Tensor:
    """Return the time until ``margin`` is used up at the speed ``closing``, s; inf if never."""
    approaching = closing > 0.0
    quotient = margin / torch.where(approaching, closing, 1.0)
    return torch.where(margin <= 0.0, 0.0, torch.where(approaching, quotient, torch.inf))


def _norm(entries: "list[Tensor] | tuple[Tensor, ...]") -> Tensor:
    """Return the Euclidean norm over the entries, with gradient zero at zero."""
    squared = entries[0] * entries[0]
    for entry in entries[1:]:
        squared = squared + entry * entry
    return root(squared)


def _like(p: Tensor, value: Tensor | float) -> Tensor:
    """Return ``value`` as a tensor; a number is filled in on the device, for graph captures."""
    if isinstance(value, Tensor):
        return value
    return torch.full((), float(value), dtype=p.dtype, device=p.device)
