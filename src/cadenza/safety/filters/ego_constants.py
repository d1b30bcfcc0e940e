"""Constants of the ego's rows: what each pair is credited with under the filter's options.

alpha:  unknown partner   weakest direction of the ego less the partner's bound, and less what the
                          declared packet age costs (`cadenza.safety.rows.stale`);
        sharing partner   what the split leaves the pair (`cadenza.safety.budget_split`);
        compat="upstream" both declared capacities, as if the partner braked too.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from cadenza.core.errors import ConfigurationError
from cadenza.safety.bounds import MAX_BOUND, MIN_BOUND, Bounds
from cadenza.safety.budget_split import (
    BudgetSplitStrategy,
    delivered_fractions,
    shared_authority,
)
from cadenza.safety.filters.ego_options import EgoOnlyOptions
from cadenza.safety.filters.projection import Box
from cadenza.safety.pairs import canonical_pair_key
from cadenza.safety.protocols import AgentControlModel
from cadenza.safety.rows.authority import EgoAuthority, measure_authority, pair_parameters
from cadenza.safety.rows.barrier import PairParameters, braking_meets_row
from cadenza.safety.rows.stale import derated
from cadenza.safety.snapshot import AgentSnapshot

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class PairConstants:
    """Constants of one step's rows.

    Attributes:
        parameters: One per partner.
        shares: The ego's share of each row; None if the partners do not cooperate.
        covered: The invariance certificate may cover steps with these constants.
        lasting: They hold for every state, so they may be kept for the next step.
    """

    parameters: list[PairParameters]
    shares: list[float] | None
    covered: bool
    lasting: bool


@dataclass(frozen=True, slots=True)
class EgoPairs:
    """The ego's pairs among a set of agents, in the string order of the partners."""

    ego_uid: str
    uids: tuple[str, ...]
    partners: list[str]
    keys: list[tuple[str, str]]

    @classmethod
    def of(cls, ego_uid: str, uids: tuple[str, ...]) -> "EgoPairs":
        """Return the pairs of ``ego_uid`` among ``uids``."""
        partners = sorted(uid for uid in uids if uid != ego_uid)
        keys = [canonical_pair_key(ego_uid, uid) for uid in partners]
        return cls(ego_uid, uids, partners, keys)


@dataclass(frozen=True, slots=True, eq=False)
class StepConstants:
    """What the rows need that does not change while agents, bounds and step stay the same."""

    pairs: EgoPairs
    bounds: Bounds
    dt: float
    contacts: list[float] | None
    declared: list[float] | None
    authority: EgoAuthority
    of_pairs: PairConstants
    box: Box


def pair_constants(
    ego_model: AgentControlModel,
    authority: EgoAuthority,
    partners: Sequence[AgentControlModel],
    states: Sequence[AgentSnapshot],
    contacts: Sequence[float],
    bounds: Bounds,
    options: EgoOnlyOptions,
    *,
    dt: float,
) -> PairConstants:
    """Return the constants against all partners.

    Args:
        ego_model: The ego's control model.
        authority: What its box does at its current state.
        partners: The partners' control models.
        states: Their snapshots, in the same order.
        contacts: Contact distances, margin included, m.
        bounds: Box of the actions and shared capacity.
        options: The filter's options.
        dt: Control step, s.

    Raises:
        ConfigurationError: An agent has no authority left, or declares a bound that is none.
        InputError: A model returns a wrong shape or something that is not finite.
    """
    fixed_map = authority.jacobian is None
    if options.passive and not fixed_map:
        raise no_passive_ego(ego_model)
    covered = options.barrier == "sampled" and authority.certified
    base = PairParameters(
        alpha=MIN_BOUND,
        partner_accel=0.0,
        relative_accel=0.0,
        dt=dt,
        gamma=options.cbf_gamma,
        plant=options.plant,
    )
    if options.upstream:
        parameters = [
            replace(base, alpha=_both_capacities(ego_model, model, bounds)) for model in partners
        ]
        return PairConstants(parameters, None, covered=False, lasting=fixed_map)
    if options.strategy is not None:
        return _shared_constants(
            options.strategy, authority, partners, states, bounds, base, covered=covered
        )
    parameters = [
        pair_parameters(
            authority,
            model,
            bounds,
            dt=dt,
            gamma=options.cbf_gamma,
            plant=options.plant,
            prediction_error=options.prediction_error,
            refuse=not (options.passive and len(partners) > 1),  # braking needs no authority
        )
        for model in partners
    ]
    if options.barrier == "sampled":
        _require_short_step(partners, parameters, contacts)
    if options.max_age_s > 0.0:
        parameters = [
            derated(pair, authority.reach, contact, options.max_age_s, refuse=fixed_map)
            for pair, contact in zip(parameters, contacts, strict=True)
        ]
        covered = covered and fixed_map  # the reach of a Jacobian, and so alpha', would vary
    pairs = zip(parameters, contacts, strict=True)
    if covered and not all(braking_meets_row(pair, contact) for pair, contact in pairs):
        _log.info(
            "at dt = %g s no action may meet a row; a lone partner seen by current packets is "
            "then answered by a push straight away, any other such step is uncertified.",
            dt,
        )
    return PairConstants(parameters, None, covered=covered, lasting=fixed_map)


def no_passive_ego(ego_model: AgentControlModel) -> ConfigurationError:
    """Return the error for an ego that cannot be braked along a straight line."""
    return ConfigurationError(
        f'filter: multi_partner="passive": expected a DoubleIntegratorControlModel of '
        f"{ego_model.uid!r}, got {type(ego_model).__name__}; leave the option out."
    )


def _require_short_step(
    partners: Sequence[AgentControlModel],
    parameters: Sequence[PairParameters],
    contacts: Sequence[float],
) -> None:
    """Raise ConfigurationError for a control step in which a partner may outturn the ego."""
    for partner, pair, contact in zip(partners, parameters, contacts, strict=True):
        if pair.is_step_too_long(contact):
            raise ConfigurationError(
                f"ego-only filter: expected a_p dt^2 <= 6 D, got {pair.unheld_accel:.4g} m/s^2 of "
                f"{partner.uid!r} and dt = {pair.dt:.4g} s at a contact distance of {contact:.4g} "
                "m; shorten the control step."
            )


def _both_capacities(ego: AgentControlModel, partner: AgentControlModel, bounds: Bounds) -> float:
    alpha = ego.max_cartesian_accel(bounds) + partner.max_cartesian_accel(bounds)
    if not MIN_BOUND <= alpha <= 2.0 * MAX_BOUND:
        raise ConfigurationError(
            f"control models of {ego.uid!r} and {partner.uid!r}: expected max_cartesian_accel > 0 "
            f"m/s^2 of one of them at least, got {alpha} in total."
        )
    return alpha


def _shared_constants(
    strategy: BudgetSplitStrategy,
    ego: EgoAuthority,
    partners: Sequence[AgentControlModel],
    states: Sequence[AgentSnapshot],
    bounds: Bounds,
    base: PairParameters,
    *,
    covered: bool,
) -> PairConstants:
    """Return the constants of rows that the partners share.

    Raises:
        ConfigurationError: An agent has no authority.
    """
    theirs = [
        measure_authority(model, state, bounds)
        for model, state in zip(partners, states, strict=True)
    ]
    own, other = delivered_fractions(strategy)
    split = [_shared(strategy, ego, partner, base) for partner in theirs]
    return PairConstants(
        [pair for pair, _ in split],
        [share for _, share in split],
        # A ramp reaches the speed that the row asks for, but moves the ball later.
        covered=covered and own == other == 1.0 and all(their.certified for their in theirs),
        lasting=ego.jacobian is None and all(their.jacobian is None for their in theirs),
    )


def _shared(
    strategy: BudgetSplitStrategy,
    ego: EgoAuthority,
    partner: EgoAuthority,
    base: PairParameters,
) -> tuple[PairParameters, float]:
    """Return the constants of a shared row and the ego's share of it."""
    alpha, share = shared_authority(strategy, ego.every_direction, partner.every_direction)
    return replace(
        base,
        alpha=alpha,
        partner_accel=partner.reach,
        relative_accel=ego.reach + partner.reach,
    ), share
