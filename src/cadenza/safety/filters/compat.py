"""The compatibility filter: the classical row and the published filter, for comparison only.

Row:      doi:10.1109/TRO.2017.2659727; the quantities are those of `cadenza.safety.cbf`.
Barrier:  h = max(sqrt(2 alpha e), 1e-3) - w for e > 0, -w in contact (`continuous_barrier`)
          dh/dt + gamma h^k + lambda >= 0, k = 1 (exponential) or 3 (the cubic of the source):
              -n @ a_i + n @ a_j <= b,   b = -(alpha / psi) w [e > 0] + t^2 / r + gamma h^k + lambda
          psi = max(sqrt(2 alpha e), 1e-3); on overlap the terms of e are dropped. Centres closer
          than 1e-9 m have n = +x, h = -D and b = -1000 + lambda, which no usual box meets.
Limits:   proved for continuous control only; see docs/safety.md for how it fails when sampled.
Old:      an old packet counts with its worst excess and closing speed, no credit for sliding past.
Upstream: `compat="upstream"` repeats the published filter, faults included: alpha is the sum of
          both declared capacities as if the partner braked too, its acceleration is the
          forecast's, ages are ignored, lambda enters as it is, and an infeasible step raises.
Promise:  none; every step is ``uncertified``.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, TypeAlias, Unpack

from cadenza.core.errors import ConfigurationError
from cadenza.safety.authority import (
    EgoAuthority,
    PairConstants,
    StepConstants,
    credited_constants,
)
from cadenza.safety.cbf import (
    COINCIDENT_DISTANCE,
    PSI_FLOOR,
    PairParameters,
    continuous_barrier,
    pair_geometry,
    staleness,
    worst_closing_speed,
)
from cadenza.safety.contracts import MAX_BOUND, MIN_BOUND, AgentControlModel, Bounds
from cadenza.safety.filter_options import CbfPower, EgoOnlyKeywords, EgoOnlyOptions
from cadenza.safety.filters.ego_only import EgoOnlyCBFQP
from cadenza.safety.filters.ego_rows import EgoRows, forecast_push
from cadenza.safety.snapshot import AgentSnapshot
from cadenza.safety.solvers import QPSolver

#: Level of a row, m/s^2, and its barrier value, m/s, from r, D, w, t and the pair's constants.
LevelFunction: TypeAlias = Callable[
    [float, float, float, float, PairParameters], tuple[float, float]
]


#: Level of the row of coincident centres at lambda = 0, m/s^2: far out of any box's reach.
COINCIDENT_LEVEL: Final = -1e3


def wae_level(
    distance: float,
    contact_distance: float,
    closing_speed: float,
    tangential_speed: float,
    pair: PairParameters,
    power: CbfPower = 1,
) -> tuple[float, float]:
    """Return b at lambda = 0, m/s^2, and h, m/s, as `cadenza.safety.cbf.row_level` does.

    Args:
        distance: r, m.
        contact_distance: D, m.
        closing_speed: w, m/s.
        tangential_speed: t, m/s.
        pair: Its ``alpha`` is the relative braking the pair is credited with, its ``gamma`` the
            gain of the class-K function, 1/s for k = 1 and s/m^2 for k = 3.
        power: k.
    """
    alpha, gamma = pair.alpha, pair.gamma
    if distance < COINCIDENT_DISTANCE:
        return COINCIDENT_LEVEL, -contact_distance
    excess = distance - contact_distance
    h = continuous_barrier(excess, closing_speed, alpha)
    level = tangential_speed * tangential_speed / distance + gamma * (h if power == 1 else h**3)
    if excess > 0.0:
        level -= alpha * closing_speed / max(math.sqrt(2.0 * alpha * excess), PSI_FLOOR)
    return level, h


def classical_constants(
    ego: AgentControlModel,
    authority: EgoAuthority,
    partners: Sequence[AgentControlModel],
    states: Sequence[AgentSnapshot],
    contacts: Sequence[float],
    bounds: Bounds,
    options: EgoOnlyOptions,
    *,
    dt: float,
) -> PairConstants:
    """Return the constants against all partners: `cadenza.safety.authority.pair_constants`.

    Raises:
        ConfigurationError: An agent has no authority left, or declares a bound that is none.
    """
    del contacts  # no step is too long for a row without a certificate
    if not options.upstream:
        known = credited_constants(authority, partners, states, bounds, options, dt=dt)
        return replace(known, covered=False)
    parameters = [
        PairParameters(
            alpha=_both_capacities(ego, model, bounds),
            partner_accel=0.0,
            relative_accel=0.0,
            dt=dt,
            gamma=options.cbf_gamma,
            plant=options.plant,
        )
        for model in partners
    ]
    return PairConstants(parameters, None, covered=False, lasting=authority.jacobian is None)


def _both_capacities(ego: AgentControlModel, partner: AgentControlModel, bounds: Bounds) -> float:
    alpha = ego.max_cartesian_accel(bounds) + partner.max_cartesian_accel(bounds)
    if not MIN_BOUND <= alpha <= 2.0 * MAX_BOUND:
        raise ConfigurationError(
            f"control models of {ego.uid!r} and {partner.uid!r}: expected max_cartesian_accel > 0 "
            f"m/s^2 of one of them at least, got {alpha} in total."
        )
    return alpha


class CompatFilter(EgoOnlyCBFQP):
    """The ego-only filter of ``barrier="wae"``, with or without ``compat="upstream"``."""

    _pair_constants = staticmethod(classical_constants)

    def __init__(
        self,
        *,
        control_models: Mapping[str, AgentControlModel],
        solver: QPSolver | None = None,
        **options: Unpack[EgoOnlyKeywords],
    ) -> None:
        super().__init__(control_models=control_models, solver=solver, **options)
        self._level = partial(wae_level, power=self.options.cbf_power)
        self._as_given = self.options.upstream
        self._flat = False

    def require_runnable(self, ego_uid: str, bounds: Bounds, dt: float) -> None:
        """Refuse agents without authority; the published filter asks nothing else of them."""
        if not self.options.upstream:
            super().require_runnable(ego_uid, bounds, dt)
            return
        for uid, model in self._models.items():
            if uid != ego_uid:
                _both_capacities(self._models[ego_uid], model, bounds)

    def constraints(
        self,
        ego: AgentSnapshot,
        partners: Sequence[AgentSnapshot],
        ahead: Sequence[AgentSnapshot],
        constants: StepConstants,
        *,
        beside_obstacles: bool = False,
    ) -> EgoRows:
        """Return the rows of this step at lambda = 0; partners in the order of the pairs."""
        del beside_obstacles  # nothing is passive here
        rows = EgoRows([], [], [], [], [], True)
        authority, shares = constants.authority, constants.of_pairs.shares
        error = constants.options.prediction_error
        for j, partner in enumerate(partners):
            pair = constants.of_pairs.parameters[j]
            normal, distance, contact, closing, tangential = self._geometry(ego, partner)
            level, h = self._level(distance, contact, closing, tangential, pair)
            push = 0.0 if shares else self._push(normal, partner, ahead[j], pair, error)
            share = shares[j] if shares else 1.0
            if partner.age_s > 0.0 and not self.options.upstream:
                open_ = staleness(partner.age_s, pair.partner_accel, pair.dt, distance, contact)
                worst = worst_closing_speed(closing, tangential, open_)
                level, _ = self._level(distance - open_.position, contact, worst, 0.0, pair)
                tilting = authority.reach
                if error is not None:
                    tilting += pair.partner_accel
                level = share * level - (push + tilting * open_.tilt)
            else:
                level = (share * level if shares else level) - push
            if h < 0.0 or distance < contact:
                rows.violated = True
            if authority.bias is not None:
                level += authority.drift(normal)
            rows.add(authority.row(normal), level, h, distance - contact, closing)
        return rows

    def _turned(self, pair: PairParameters) -> float:
        """Return 0: no certificate asks for a control step that is short enough."""
        del pair
        return 0.0

    def _barrier(self, ego: AgentSnapshot, partner: AgentSnapshot, pair: PairParameters) -> float:
        """Return h of one pair, m/s, as the rows have it."""
        _, distance, contact, closing, tangential = self._geometry(ego, partner)
        return self._level(distance, contact, closing, tangential, pair)[1]

    def _geometry(
        self, ego: AgentSnapshot, partner: AgentSnapshot
    ) -> tuple[list[float], float, float, float, float]:
        """Return n, r, D, w and t of a pair; the published filter ignores ages."""
        age_s = 0.0 if self.options.upstream else partner.age_s
        normal, distance, closing, tangential = pair_geometry(
            ego.position_numbers,
            ego.velocity_numbers,
            partner.position_after(age_s) if age_s > 0.0 else partner.position_numbers,
            partner.velocity_numbers,
        )
        contact = ego.radius + self.options.margin_m + partner.radius
        return normal, distance, contact, closing, tangential

    def _push(
        self,
        normal: list[float],
        partner: AgentSnapshot,
        forecast: AgentSnapshot,
        pair: PairParameters,
        error: float | None,
    ) -> float:
        """Return the assumed partner acceleration along the normal, towards the ego, m/s^2."""
        if self.options.upstream:
            return forecast_push(normal, partner, forecast, pair.dt)
        push = forecast_push(normal, partner, forecast, pair.dt + partner.age_s)
        if error is not None:
            return push + error
        return max(push, pair.partner_accel)


def ego_filter(
    *,
    control_models: Mapping[str, AgentControlModel],
    solver: QPSolver | None = None,
    **options: Unpack[EgoOnlyKeywords],
) -> EgoOnlyCBFQP:
    """Return the ego-only filter that the options ask for; see `EgoOnlyCBFQP` for arguments."""
    kind = EgoOnlyCBFQP if options.get("barrier", "sampled") == "sampled" else CompatFilter
    return kind(control_models=control_models, solver=solver, **options)
