"""Rows of one step on the ego's action in many environments: `filters.ego_rows` on tensors.

Axes:  B environments, N partners, n action components, d Cartesian dimensions.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from cadenza.safety.batched.constants import EgoConstants
from cadenza.safety.batched.levels import BatchLevelFunction, sampled_level
from cadenza.safety.batched.rows import PairGeometry, pair_geometry_batch, time_left
from cadenza.safety.batched.stale import stale_levels, staleness_batch, worst_closing_speed_batch
from cadenza.safety.filters.ego_rows import AGE_ROUNDING
from cadenza.safety.rows.barrier import (
    CERTIFICATE_TOLERANCE,
    OVERLAP_TOLERANCE,
    braking_meets_row,
)


class Motion(NamedTuple):
    """Motion of one ego and its partners in every environment.

    Attributes:
        ego_position: Shape (B, d), m.
        ego_velocity: Shape (B, d), m/s.
        positions: Last reported centres of the partners, shape (B, N, d), m.
        velocities: Their velocities, shape (B, N, d), m/s.
        contact: Sums of the radii and the safety margin, broadcasting to (B, N), m.
        age_s: Ages of the reports, shape (B, N), s; None if all are current.
        predicted: The partners' velocities one step ahead, shape (B, N, d); None for unchanged.
    """

    ego_position: Tensor
    ego_velocity: Tensor
    positions: Tensor
    velocities: Tensor
    contact: Tensor
    age_s: Tensor | None
    predicted: Tensor | None


class EgoRowsBatch(NamedTuple):
    """Rows before lambda.

    Attributes:
        a: Row vectors on the ego's action, shape (B, N, n).
        level: Right-hand sides at lambda = 0, shape (B, N), m/s^2.
        h: Barrier values at the best estimate of the state, shape (B, N), m/s.
        margin: Free distance less the safety margin, shape (B, N), m.
        time_left: Time until the margin is used up at today's speed, shape (B, N), s.
        uncovered: The certificate does not cover the step, shape (B,).
        outside: A state is outside the safe set, shape (B,).
    """

    a: Tensor
    level: Tensor
    h: Tensor
    margin: Tensor
    time_left: Tensor
    uncovered: Tensor
    outside: Tensor


@dataclass(frozen=True, slots=True)
class BatchRowRule:
    """How rows are built, the same in every step; see `cadenza.safety.filters.ego_rows.RowRule`."""

    level: BatchLevelFunction
    prediction_error: float | None
    max_age_s: float
    always_feasible: bool = True


def build_ego_rows_batch(
    motion: Motion, constants: EgoConstants, rule: BatchRowRule
) -> EgoRowsBatch:
    """Return the rows against all partners in every environment."""
    positions = motion.positions
    if motion.age_s is not None:
        positions = positions + motion.velocities * motion.age_s.unsqueeze(-1)
    geometry = pair_geometry_batch(
        motion.ego_position.unsqueeze(1) - positions,
        motion.ego_velocity.unsqueeze(1) - motion.velocities,
    )
    normal, distance, closing, tangential = geometry
    contact = motion.contact.expand_as(distance)
    push, broken = _push(geometry, motion, constants, rule)
    level, h = rule.level(distance, contact, closing, tangential, constants.pair)
    level = level if constants.shares is None else constants.shares * level
    level = level - push
    outside = (h < -CERTIFICATE_TOLERANCE) | (distance - contact < -OVERLAP_TOLERANCE)
    if motion.age_s is not None:
        old_level, old_h, old_uncovered = _stale(
            geometry, motion.age_s, contact, push, constants, rule
        )
        old = motion.age_s > 0.0
        level, h = torch.where(old, old_level, level), torch.where(old, old_h, h)
        outside, broken = outside & ~old, broken | (old & old_uncovered)
    if constants.bias is not None:
        level = level + (normal * constants.bias.unsqueeze(1)).sum(-1)
    margin = distance - contact
    a = -normal if constants.jacobian is None else -(normal @ constants.jacobian)
    lost = broken.any(1) | ~constants.covered
    return EgoRowsBatch(a, level, h, margin, time_left(margin, closing), lost, outside.any(1))


def _push(
    geometry: PairGeometry, motion: Motion, constants: EgoConstants, rule: BatchRowRule
) -> tuple[Tensor, Tensor]:
    """Return the assumed partner acceleration towards the ego, m/s^2, and who breaks a bound."""
    nobody = torch.zeros_like(geometry.distance, dtype=torch.bool)
    if constants.shares is not None:
        return torch.zeros_like(geometry.distance), nobody
    if motion.predicted is None:
        push = torch.zeros_like(geometry.distance)
    else:
        change = (geometry.normal * (motion.predicted - motion.velocities)).sum(-1)
        elapsed = constants.pair.dt if motion.age_s is None else constants.pair.dt + motion.age_s
        push = change / elapsed
    if rule.prediction_error is not None:
        return push + rule.prediction_error, nobody
    bound = constants.pair.partner_accel
    return torch.maximum(push, bound), push > bound


def _stale(
    geometry: PairGeometry,
    age: Tensor,
    contact: Tensor,
    push: Tensor,
    constants: EgoConstants,
    rule: BatchRowRule,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return level less push, h and what is uncovered for partners known from the past."""
    _, distance, closing, tangential = geometry
    pair = constants.pair
    open_ = staleness_batch(age, pair.partner_accel, pair.dt, distance, contact)
    # Both accelerations act along the true normal; the worst push needs no correction.
    tilting = constants.reach
    if rule.prediction_error is not None:
        tilting = tilting + pair.partner_accel
    loss = push + tilting * open_.tilt
    if rule.level is not sampled_level:
        worst = worst_closing_speed_batch(closing, tangential, open_)
        still = torch.zeros_like(tangential)
        level, _ = rule.level(distance - open_.position, contact, worst, still, pair)
        _, h = rule.level(distance, contact, closing, tangential, pair)
        shared = level if constants.shares is None else constants.shares * level
        return shared - loss, h, torch.zeros_like(h, dtype=torch.bool)
    stale = stale_levels(distance, contact, closing, tangential, pair, open_)
    level = stale.level if constants.shares is None else constants.shares * stale.level
    level = level - loss
    too_old = age > rule.max_age_s * (1.0 + AGE_ROUNDING)
    overlapping = distance - contact + open_.position < -OVERLAP_TOLERANCE
    outside = too_old | (stale.h_best < -CERTIFICATE_TOLERANCE) | overlapping
    floored = torch.maximum(level, -constants.every_direction)
    lone = rule.always_feasible and distance.shape[1] == 1
    sure = braking_meets_row(pair, contact) & lone
    uncovered = outside | ((level < -constants.every_direction) & ~sure)
    return torch.where(outside, level, floored), stale.h, uncovered
