"""Rows against partners known from old packets: `cadenza.safety.rows.stale` on tensors.

Axes:  all arguments broadcast to one shape, for example (B environments, N partners).
"""

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from cadenza.safety.batched.levels import PairTensors, barrier_values, root, sampled_level
from cadenza.safety.bounds import MIN_BOUND


class StalenessBatch(NamedTuple):
    """How far true states may be from the extrapolated ones; see `stale.Staleness`."""

    position: Tensor
    velocity: Tensor
    sine: Tensor
    cosine: Tensor
    tilt: Tensor


class StaleLevels(NamedTuple):
    """Level, h and largest h in the uncertainty; see `stale.StaleLevel`."""

    level: Tensor
    h: Tensor
    h_best: Tensor


def staleness_batch(
    age_s: Tensor, partner_accel: Tensor, dt: float, distance: Tensor, contact: Tensor
) -> StalenessBatch:
    """Return the uncertainty that ages leave.

    Args:
        age_s: A, s.
        partner_accel: a_p, m/s^2.
        dt: Control step, s.
        distance: Distance to the extrapolated centre, m.
        contact: Sum of the radii and the safety margin, m, > 0.
    """
    velocity = partner_accel * age_s
    position = 0.5 * velocity * (age_s + dt)
    sine = (position / torch.maximum(distance, contact)).clamp_max(1.0)
    cosine = root((1.0 - sine) * (1.0 + sine))
    tilt = sine / root(0.5 * (1.0 + cosine))
    return StalenessBatch(position, velocity, sine, cosine, tilt)


def worst_closing_speed_batch(closing: Tensor, tangential: Tensor, open_: StalenessBatch) -> Tensor:
    """Return the largest closing speed along any normal and velocity of the uncertainty, m/s."""
    turned = torch.where(
        tangential * open_.cosine >= closing * open_.sine,
        closing * open_.cosine + tangential * open_.sine,
        root(closing * closing + tangential * tangential),
    )
    return open_.velocity + turned


def worst_tangential_speed_batch(
    closing: Tensor, tangential: Tensor, speed_change: Tensor, open_: StalenessBatch
) -> Tensor:
    """Return the tangential speed within the uncertainty with the largest allowance, m/s."""
    speed = root(closing * closing + tangential * tangential)
    room = open_.velocity + open_.sine * speed
    lowest = (tangential - room).clamp_min(0.0)
    return torch.minimum(torch.maximum(0.75 * speed_change, lowest), tangential + room)


def stale_levels(
    distance: Tensor,
    contact: Tensor,
    closing: Tensor,
    tangential: Tensor,
    pair: PairTensors,
    open_: StalenessBatch,
) -> StaleLevels:
    """Return the levels of rows that cover every state of the uncertainty.

    Args:
        distance: r to the extrapolated centre, m.
        contact: D, m.
        closing: w at the extrapolated state, m/s.
        tangential: t there, m/s.
        pair: The pairs' constants, ``alpha`` already derated.
        open_: What the ages leave open.
    """
    worst = worst_closing_speed_batch(closing, tangential, open_)
    best = -worst_closing_speed_batch(-closing, tangential, open_)
    turned = worst_tangential_speed_batch(closing, tangential, pair.relative_accel * pair.dt, open_)
    nearest = distance - open_.position
    level, _ = sampled_level(nearest, contact, worst, turned, pair)
    # The true excess may be 0 as well as less, and then asks for its own limit.
    touching, _ = sampled_level(contact, contact, worst, turned, pair)
    level = torch.where(nearest < contact, torch.minimum(level, touching), level)
    excess, constants = distance - contact, (pair.alpha, pair.dt, pair.gamma)
    return StaleLevels(
        level=level,
        h=barrier_values(excess, closing, *constants),
        h_best=barrier_values(excess + open_.position, best, *constants),
    )


def derated_batch(
    pair: PairTensors, reach: Tensor, contact: Tensor, max_age_s: float
) -> tuple[PairTensors, Tensor]:
    """Return the constants for packets up to a declared age, and where authority is left.

    Where none is left, alpha is the smallest one, whose row asks for all the box can give.

    Args:
        pair: Constants for current packets.
        reach: Largest Euclidean acceleration of the ego, broadcasting to the pairs, m/s^2.
        contact: D, m.
        max_age_s: Declared bound on the age, s, > 0.
    """
    age = torch.full_like(contact, max_age_s)
    open_ = staleness_batch(age, pair.partner_accel, pair.dt, torch.zeros_like(contact), contact)
    alpha = pair.alpha - reach * open_.tilt
    left = (alpha >= MIN_BOUND) & (open_.sine < 1.0)
    return replace(pair, alpha=torch.where(left, alpha, MIN_BOUND)), left
