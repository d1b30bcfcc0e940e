"""Row of the classical continuous-time barrier, for comparison with published results.

Barrier:  h = max(sqrt(2 alpha e), 1e-3) - w for e > 0, -w in contact (`barrier.continuous_barrier`)
Row:      dh/dt + gamma h^k + lambda >= 0, that is, with n from the partner's centre to the ego's,
              -n @ a_i + n @ a_j <= b,   b = -(alpha / psi) w [e > 0] + t^2 / r + gamma h^k + lambda
          psi = max(sqrt(2 alpha e), 1e-3); k = 1 (exponential) or 3 (the cubic of the source).
Overlap:  the terms of e are dropped: b = t^2 / r - gamma w^k + lambda; h = -w.
Centres:  closer than 1e-9 m there is no normal: n = +x, h = -D and b = -1000 + lambda, which no
          usual box meets; the step then goes to the caller's fallback.
Source:   Wang, Ames and Egerstedt, doi:10.1109/TRO.2017.2659727, with the cubic class-K function.
Limits:   proved for continuous control only. Sampled, it lets the agents touch by a millimetre to
          centimetres, and near contact alpha / psi grows to 1e3 / s, so that creeping up to a
          partner is infeasible. With alpha = alpha_i + alpha_j it also counts on a partner that
          brakes, and drives through one that does not. `rows.barrier` has neither fault.
"""

import math
from collections.abc import Sequence
from typing import Final, Literal, TypeAlias

from cadenza.safety.rows.barrier import (
    COINCIDENT_DISTANCE,
    PSI_FLOOR,
    LevelFunction,
    PairParameters,
    continuous_barrier,
    pair_geometry,
)
from cadenza.safety.snapshot import AgentSnapshot

#: Exponent k of h in the class-K function.
CbfPower: TypeAlias = Literal[1, 3]
CBF_POWERS: Final = (1, 3)
#: Level of the row of coincident centres at lambda = 0, m/s^2: far out of any box's reach.
COINCIDENT_LEVEL: Final = -1e3


def wae_level(
    distance: float,
    contact_distance: float,
    closing_speed: float,
    tangential_speed: float,
    *,
    alpha: float,
    gamma: float,
    power: CbfPower = 1,
) -> tuple[float, float]:
    """Return b at lambda = 0, m/s^2, and h, m/s.

    Args:
        distance: r, m.
        contact_distance: D, m.
        closing_speed: w, m/s.
        tangential_speed: t, m/s.
        alpha: Relative braking the pair is credited with, m/s^2, > 0.
        gamma: Gain of the class-K function, 1/s for k = 1 and s/m^2 for k = 3.
        power: k.
    """
    if distance < COINCIDENT_DISTANCE:
        return COINCIDENT_LEVEL, -contact_distance
    excess = distance - contact_distance
    h = continuous_barrier(excess, closing_speed, alpha)
    level = tangential_speed * tangential_speed / distance + gamma * (h if power == 1 else h**3)
    if excess > 0.0:
        level -= alpha * closing_speed / max(math.sqrt(2.0 * alpha * excess), PSI_FLOOR)
    return level, h


def wae_row_level(power: CbfPower) -> LevelFunction:
    """Return `wae_level` for one exponent, in the form of `barrier.row_level`."""

    def level(
        distance: float,
        contact_distance: float,
        closing_speed: float,
        tangential_speed: float,
        pair: PairParameters,
    ) -> tuple[float, float]:
        return wae_level(
            distance,
            contact_distance,
            closing_speed,
            tangential_speed,
            alpha=pair.alpha,
            gamma=pair.gamma,
            power=power,
        )

    return level


def cartesian_row(
    snap_i: AgentSnapshot,
    snap_j: AgentSnapshot,
    *,
    alpha_pair: float,
    gamma: float,
    lambda_: float,
    power: CbfPower = 1,
) -> tuple[list[float], list[float], float, float]:
    """Return the row of a pair on both accelerations.

    Returns:
        Row on a_i (-n, d numbers), row on a_j (+n), b (m/s^2) and h (m/s).
    """
    normal, distance, closing, tangential = pair_geometry(
        snap_i.position_numbers,
        snap_i.velocity_numbers,
        snap_j.position_numbers,
        snap_j.velocity_numbers,
    )
    level, h = wae_level(
        distance,
        snap_i.radius + snap_j.radius,
        closing,
        tangential,
        alpha=alpha_pair,
        gamma=gamma,
        power=power,
    )
    return [-n_k for n_k in normal], normal, level + lambda_, h


def ego_only_row(
    ego: AgentSnapshot,
    partner: AgentSnapshot,
    predicted: AgentSnapshot,
    *,
    alpha_pair: float,
    gamma: float,
    lambda_: float,
    dt: float,
    power: CbfPower = 1,
) -> tuple[list[float], float, float]:
    """Return the row on the ego's acceleration alone, the partner's taken from its forecast.

    Args:
        ego: The ego now.
        partner: The partner now.
        predicted: The partner ``dt`` ahead.
        alpha_pair: Relative braking the pair is credited with, m/s^2.
        gamma: Gain of the class-K function.
        lambda_: Slack, m/s^2.
        dt: Control step, s.
        power: k.

    Returns:
        Row (-n, d numbers), b - n @ a_partner (m/s^2) and h (m/s).
    """
    row, normal, level, h = cartesian_row(
        ego, partner, alpha_pair=alpha_pair, gamma=gamma, lambda_=lambda_, power=power
    )
    accel = predicted_acceleration(partner.velocity_numbers, predicted.velocity_numbers, dt)
    return row, level - sum([n * a for n, a in zip(normal, accel, strict=True)]), h


def predicted_acceleration(
    now: Sequence[float], ahead: Sequence[float], elapsed_s: float
) -> list[float]:
    """Return (ahead - now) / elapsed_s: mean acceleration between two velocities, m/s^2."""
    return [(later - earlier) / elapsed_s for earlier, later in zip(now, ahead, strict=True)]
