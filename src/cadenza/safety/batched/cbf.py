"""Geometry and levels of the rows of many pairs at once: `cadenza.safety.cbf` on tensors.

Pair (i, j):  n, r, e, w, t, c_max, tau and h as there.
Gradients:    finite everywhere, also in a branch that is not taken: each root and quotient sees
              an argument that is valid in the branch it serves.
Axes:         all arguments broadcast to one shape, e.g. (B environments, P pairs); d Cartesian
              dimensions.
Capture:      no branch depends on data; options are Python values.
"""

from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import torch
from torch import Tensor

from cadenza.safety.cbf import (
    CERTIFICATE_TOLERANCE,
    COINCIDENT_DISTANCE,
    OVERLAP_TOLERANCE,
    Plant,
)
from cadenza.safety.contracts import MIN_BOUND

#: Smallest argument of a square root that is differentiated; its derivative stays finite, and the
#: roots of everything below are below 1e-150 (float32: 1e-18).
_TINY: Final = {torch.float64: 1e-300, torch.float32: 1e-37}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PairTensors:
    """Constants of pairs, (N,) or (B, N): `cadenza.safety.cbf.PairParameters` with tensors."""

    alpha: Tensor  # Braking authority left against the worst partner, m/s^2, > 0
    partner_accel: Tensor  # a_p, bound on the partner's acceleration, m/s^2, >= 0
    relative_accel: Tensor  # A, bound on the relative acceleration, m/s^2
    dt: float  # Control step, s
    gamma: float  # Rate at which overlap is undone, 1/s
    plant: Plant  # How the plant integrates one step
    unheld_accel: Tensor  # Bound on the acceleration that may change within a step, m/s^2
    #: The ego's share of each row, shape (N,); None if the partners do not cooperate
    shares: Tensor | None
    covered: Tensor  # Where the invariance certificate may hold, broadcasting to (B,)

    @property
    def push(self) -> Tensor:
        """What partners add to the closing acceleration, m/s^2; none that share the row."""
        return self.partner_accel if self.shares is None else torch.zeros_like(self.partner_accel)

    def shared(self, level: Tensor) -> Tensor:
        """Return the ego's share of a level."""
        return level if self.shares is None else self.shares * level


def sampled_level(
    distance: Tensor, contact: Tensor, closing: Tensor, tangential: Tensor, pair: PairTensors
) -> tuple[Tensor, Tensor]:
    """Return the level and barrier value of `cadenza.safety.cbf.row_level` from r, D, w and t."""
    alpha, dt = pair.alpha, pair.dt
    excess = distance - contact
    limit = _next_closing_limit(excess, closing, pair)
    if pair.plant == "zoh":
        nearest = torch.maximum(contact, distance - 0.5 * dt * (closing + limit))
        change = pair.relative_accel * dt
        kappa = (1.0 - pair.unheld_accel * dt * dt / (12.0 * contact)).clamp_min(0.5)
        back = torch.minimum(0.5 * tangential / kappa, change - tangential).clamp_min(0.0)
        gain = torch.minimum(back * (tangential - kappa * back), 0.125 * change * change)
        limit = limit - 0.5 * dt * gain / nearest
    return (limit - closing) / dt, barrier_values(excess, closing, alpha, dt, pair.gamma)


def barrier_values(
    excess: Tensor, closing: Tensor, alpha: Tensor, dt: float, gamma: float
) -> Tensor:
    """Return h, m/s; for e < 0 its sign says nothing, see `cadenza.safety.cbf`."""
    e = excess.clamp_min(0.0)
    reach = alpha * dt
    fastest = 4.0 * alpha * e / (reach + root(reach * reach + 8.0 * alpha * e))
    return torch.where(excess < 0.0, gamma * excess, fastest) - closing


def _next_closing_limit(excess: Tensor, closing: Tensor, pair: PairTensors) -> Tensor:
    """Return c_max before the tangential allowance, m/s; inside the margin gamma e."""
    alpha, dt = pair.alpha, pair.dt
    e = excess.clamp_min(0.0)
    three = 3.0 * alpha * dt
    limit = 4.0 * alpha * e / (three + root(three * three + 8.0 * alpha * e))
    if pair.plant == "zoh":
        spare = 2.0 * (e - 0.5 * closing * dt) / alpha
        radicand = dt * dt + spare
        slowing = alpha * spare / (dt + root(radicand))
        slowing = torch.where(radicand <= 0.0, -alpha * dt, slowing)
        limit = torch.where(closing <= limit, limit, slowing)
    return torch.where(excess < 0.0, pair.gamma * excess, limit)


def root(values: Tensor) -> Tensor:
    """Return the square root, 0 for negative numbers.

    Its gradients are finite. Not by `torch.sqrt`: on a CPU that wakes all threads even for small
    arrays, which takes milliseconds where other processes compute.
    """
    tiny = _TINY[values.dtype]
    positive = values.clamp_min(tiny)
    inverse = positive.rsqrt()
    # To two units in the last place. One Newton step rounds it well, and exactly where `addcmul`
    # is one fused operation.
    rough = positive * inverse
    missing = torch.addcmul(positive, rough, rough, value=-1.0)
    exact = torch.addcmul(rough, inverse, missing, value=0.5)
    return torch.where(values > tiny, exact, 0.0)


class PairGeometry(NamedTuple):
    """Relative motion of pairs: normal (..., d); distance, closing and tangential speed (...)."""

    normal: Tensor
    distance: Tensor
    closing: Tensor
    tangential: Tensor


def pair_geometry_batch(offset: Tensor, velocity: Tensor) -> PairGeometry:
    """Return the relative motion from differences of centres and of velocities, (..., d)."""
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


class StalenessBatch(NamedTuple):
    """How far true states may be from the extrapolated ones; see `cadenza.safety.cbf.Staleness`."""

    position: Tensor
    velocity: Tensor
    sine: Tensor
    cosine: Tensor
    tilt: Tensor


def staleness_batch(
    age_s: Tensor, partner_accel: Tensor, dt: float, distance: Tensor, contact: Tensor
) -> StalenessBatch:
    """Return the uncertainty that ages leave; ``distance`` is that to the extrapolated centre."""
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


def stale_levels(
    distance: Tensor,
    contact: Tensor,
    closing: Tensor,
    tangential: Tensor,
    pair: PairTensors,
    open_: StalenessBatch,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the levels of rows that cover every state of the uncertainty, h and the largest h.

    r, w and t are those of the extrapolated state; ``pair.alpha`` is already derated.
    """
    worst = worst_closing_speed_batch(closing, tangential, open_)
    best = -worst_closing_speed_batch(-closing, tangential, open_)
    # The tangential speed within the uncertainty that has the largest allowance.
    speed = root(closing * closing + tangential * tangential)
    room = open_.velocity + open_.sine * speed
    slowest = torch.maximum(
        0.75 * (pair.relative_accel * pair.dt), (tangential - room).clamp_min(0.0)
    )
    turned = torch.minimum(slowest, tangential + room)
    nearest = distance - open_.position
    level, _ = sampled_level(nearest, contact, worst, turned, pair)
    # The true excess may be 0 as well as less, and then asks for its own limit.
    touching, _ = sampled_level(contact, contact, worst, turned, pair)
    level = torch.where(nearest < contact, torch.minimum(level, touching), level)
    excess, constants = distance - contact, (pair.alpha, pair.dt, pair.gamma)
    h = barrier_values(excess, closing, *constants)
    return level, h, barrier_values(excess + open_.position, best, *constants)


class OffersBatch(NamedTuple):
    """Chosen directions k of all pairs; see `cadenza.safety.filters.ego_rows`."""

    direction: Tensor  # Unit vectors, shape (B, N, d)
    level: Tensor  # Largest closing acceleration along them, shape (B, N), m/s^2
    proved: Tensor  # Whether the pair is known to be in their safe set, shape (B, N)
    uncovered: Tensor  # Nothing is proved, or the measurements contradict the memory, (B, N)


def offers_batch(
    motion: tuple[Tensor, Tensor],
    normal: Tensor,
    contact: Tensor,
    errors: tuple[Tensor, Tensor],
    pair: PairTensors,
    credit: float,
    remembered: Tensor | None,
    action: Tensor,
) -> OffersBatch:
    """Return `offers_of` and `choose` of `cadenza.safety.filters.ego_rows`.

    Args:
        motion: Ego's centres and velocities less the extrapolated partners', (B, N, d) each.
        normal: Unit vectors along the former.
        contact: D, shape (B, N), m.
        errors: delta, m, and sigma, m/s, shape (B, N).
        pair: The pairs' constants.
        credit: Acceleration of the ego in every direction, m/s^2.
        remembered: The last directions, zero where there is none; None if there is none at all.
        action: The nominal actions, inside the box, shape (B, d).
    """
    (offset, velocity), (delta, sigma) = motion, errors

    def level(excess: Tensor, closing: Tensor) -> Tensor:
        limit = _next_closing_limit(excess, closing, pair)
        return (limit - closing) / pair.dt - pair.partner_accel

    def bounds_along(k: Tensor) -> tuple[Tensor, Tensor]:
        return (k * offset).sum(-1) - delta - contact, sigma - (k * velocity).sum(-1)

    excess, closing = bounds_along(normal)
    h = barrier_values(excess, closing, pair.alpha, pair.dt, pair.gamma)
    shown = (excess >= 0.0) & (h >= 0.0)
    fresh = level(excess, closing)
    fresh = torch.where(shown, fresh.clamp_min(-credit), fresh)
    if remembered is None:
        return OffersBatch(normal, fresh, shown, ~shown)
    least, fastest = bounds_along(remembered)
    most = least + 2.0 * delta
    best = barrier_values(
        most.clamp_min(0.0), fastest - 2.0 * sigma, pair.alpha, pair.dt, pair.gamma
    )
    known = (remembered != 0.0).any(-1)
    contradiction = known & ((most < -OVERLAP_TOLERANCE) | (best < -CERTIFICATE_TOLERANCE))
    known = known & ~contradiction
    kept = level(least.clamp_min(0.0), fastest).clamp_min(-credit)

    def missed(k: Tensor, at: Tensor) -> Tensor:
        return (-(k * action.unsqueeze(1)).sum(-1) - at).clamp_min(0.0)

    take = known & (~shown | (missed(remembered, kept) < missed(normal, fresh)))
    return OffersBatch(
        torch.where(take.unsqueeze(-1), remembered, normal),
        torch.where(take, kept, fresh),
        shown | known,
        ~(shown | known) | contradiction,
    )


def derated_batch(
    pair: PairTensors, reach: Tensor, contact: Tensor, max_age_s: float
) -> tuple[PairTensors, Tensor]:
    """Return the constants for packets up to a declared age, and where authority is left.

    Where none is left, alpha is the smallest one, whose row asks for all the box can give.
    ``reach`` is the largest Euclidean acceleration of the ego, m/s^2.
    """
    age = torch.full_like(contact, max_age_s)
    open_ = staleness_batch(age, pair.partner_accel, pair.dt, torch.zeros_like(contact), contact)
    alpha = pair.alpha - reach * open_.tilt
    left = (alpha >= MIN_BOUND) & (open_.sine < 1.0)
    return replace(pair, alpha=torch.where(left, alpha, MIN_BOUND)), left
