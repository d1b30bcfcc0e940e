"""What the ego can do against each partner: the constants of a pair's row.

Action map:  a = J u + beta, |u_k| <= c; J = Jacobian, beta = bias acceleration (J' q' of an arm).
Support:     along a unit vector n the box reaches  c |J^T n|_1 + n @ beta.
Weakest:     its minimum over all n is the distance from the origin to the boundary of the set of
             reachable accelerations, a zonotope centred at beta. The nearest point of a polytope
             lies on a facet, and facets of a zonotope are normal to d - 1 columns of J, so
                 weakest = min over facet normals m of  c |J^T m|_1 - |m @ beta|,
             exactly, while the origin is inside; outside, the minimum is negative.
alpha:       unknown partner: min(declared capacity, weakest) less the partner's bound, and less
             what the declared packet age costs; sharing partner: what the split leaves the pair.
Limits:      J and beta are those of this instant; the certificate takes alpha as constant, which
             holds while the weakest direction reaches the declared capacity.
"""

import itertools
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from cadenza.core.arrays import FloatArray, require_finite, require_shape
from cadenza.core.errors import ConfigurationError
from cadenza.safety.budget_split import (
    BudgetSplitStrategy,
    delivered_fractions,
    shared_authority,
)
from cadenza.safety.cbf import PairParameters, Plant, braking_meets_row, derated
from cadenza.safety.contracts import (
    MAX_BOUND,
    MIN_BOUND,
    AgentControlModel,
    Bounds,
    StateDependentControlModel,
    canonical_pair_key,
)
from cadenza.safety.control_models import DoubleIntegratorControlModel
from cadenza.safety.filter_options import EgoOnlyOptions
from cadenza.safety.snapshot import MAX_MAGNITUDE, AgentSnapshot

#: Sine of the angle between two columns of J below which they count as parallel: float64 gives
#: their normal no direction, and dropping it moves the weakest direction by rounding only.
_PARALLEL: Final = 1e-12
#: Axes that follow and precede x, y, z: the cross product, without the overhead of `np.cross`.
_NEXT: Final = [1, 2, 0]
_LAST: Final = [2, 0, 1]
#: Most action components whose 2^n corners are compared; 256 rows of a product cost microseconds.
MAX_CORNERS_DIM: Final = 8
#: Relative shortfall of a declared capacity that rounding explains.
_ROUNDING: Final = 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class EgoAuthority:
    """How the ego's action box acts on its ball.

    Attributes:
        jacobian: J with acceleration = J u + bias, shape (d, n); None when it is the identity.
        bias: Acceleration under a zero action, d numbers, m/s^2; None when it vanishes.
        every_direction: Acceleration the ego is credited with along any direction, m/s^2, >= 0.
        reach: Largest Euclidean acceleration the box produces, or a bound on it, m/s^2.
        capacity: What the control model declares, m/s^2.
    """

    jacobian: FloatArray | None
    bias: tuple[float, ...] | None
    every_direction: float
    reach: float
    capacity: float

    @property
    def certified(self) -> bool:
        """Whether the credit is a constant of the agent, as the invariance certificate needs.

        It is for an identity map, and for any other while the box reaches the whole declared
        capacity in the weakest direction.
        """
        if self.jacobian is None:
            return True
        return self.every_direction >= self.capacity * (1.0 - _ROUNDING)

    def row(self, normal: Sequence[float], sign: float = -1.0) -> list[float]:
        """Return ``sign`` n^T J: how the action enters a row along ``normal``."""
        if self.jacobian is None:
            return [sign * n_k for n_k in normal]
        return (sign * (self.jacobian.T @ normal)).tolist()

    def drift(self, normal: Sequence[float]) -> float:
        """Return n @ bias, m/s^2."""
        if self.bias is None:
            return 0.0
        return sum([n_k * b_k for n_k, b_k in zip(normal, self.bias, strict=True)])


def read_action_map(
    model: AgentControlModel, snapshot: AgentSnapshot
) -> tuple[FloatArray, FloatArray]:
    """Return J, shape (d, n), and the bias, shape (d,), m/s^2, of a model at one state.

    A `StateDependentControlModel` is asked for both; any other model is linear, so its columns
    are its answers to unit actions.

    Raises:
        InputError: The model returns a wrong shape or something that is not finite.
    """
    name = f"control model of {model.uid!r}"
    shape = (model.position_dim, model.action_dim)
    if isinstance(model, StateDependentControlModel):
        jacobian = np.asarray(model.jacobian(snapshot), dtype=np.float64)
        bias = np.asarray(model.bias_accel(snapshot), dtype=np.float64)
    else:
        columns = [
            model.action_to_cartesian_accel(snapshot, unit)
            for unit in np.eye(model.action_dim, dtype=np.float64)
        ]
        jacobian, bias = np.stack(columns, axis=1), np.zeros(shape[0])
    require_shape(f"{name}: Jacobian", jacobian, shape)
    require_finite(f"{name}: Jacobian", jacobian)
    require_shape(f"{name}: bias acceleration", bias, shape[:1])
    require_finite(f"{name}: bias acceleration", bias)
    return jacobian, bias


def weakest_support(jacobian: FloatArray, bias: FloatArray, c: float) -> float:
    """Return the least acceleration that the box |u_k| <= c reaches along any direction, m/s^2.

    J has shape (d, n), d = 2 or 3, beta (d,). Exact where it is >= 0; otherwise some number <= 0.
    """
    if jacobian.shape[0] == 2:
        normals = np.stack((-jacobian[1], jacobian[0]), axis=1)  # (n, 2)
        lengths = np.hypot(normals[:, 0], normals[:, 1])
        facets = lengths > 0.0
    else:
        left, right = _column_pairs(jacobian.shape[1])
        first, second = jacobian.T[left], jacobian.T[right]  # (n (n - 1) / 2, 3)
        normals = first[:, _NEXT] * second[:, _LAST] - first[:, _LAST] * second[:, _NEXT]
        lengths = np.linalg.norm(normals, axis=1)
        scale = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
        facets = lengths > _PARALLEL * scale
    if not facets.any():
        return -float(np.linalg.norm(bias))
    units = normals[facets] / lengths[facets, None]
    support = c * np.abs(units @ jacobian).sum(axis=1) - np.abs(units @ bias)
    return float(support.min())


def largest_reach(jacobian: FloatArray, bias: FloatArray, c: float) -> float:
    """Return the largest Euclidean acceleration that the box |u_k| <= c produces, m/s^2.

    J has shape (d, n), beta (d,). Up to `MAX_CORNERS_DIM` components all corners of the box are
    compared; beyond, the result is an upper bound.
    """
    n = jacobian.shape[1]
    if n <= MAX_CORNERS_DIM:
        accelerations = c * (_corners(n) @ jacobian.T) + bias  # (2^n, d)
        return math.sqrt(float(np.einsum("ij,ij->i", accelerations, accelerations).max()))
    column_sum = float(np.linalg.norm(jacobian, axis=0).sum())
    spectral = float(np.linalg.norm(jacobian, 2)) * math.sqrt(n)
    return c * min(spectral, column_sum) + float(np.linalg.norm(bias))


@lru_cache(maxsize=MAX_CORNERS_DIM)
def _corners(n: int) -> FloatArray:
    return np.array(list(itertools.product((-1.0, 1.0), repeat=n)))


@lru_cache(maxsize=32)
def _column_pairs(n: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    pairs = np.array(list(itertools.combinations(range(n), 2)), dtype=np.intp).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


def measure_authority(
    model: AgentControlModel, snapshot: AgentSnapshot, bounds: Bounds
) -> EgoAuthority:
    """Return the ego's authority at its current state.

    Raises:
        InputError: The model returns a wrong shape or something that is not finite.
    """
    if isinstance(model, DoubleIntegratorControlModel):
        return _of_box(model, bounds)
    c, capacity = bounds.action_linf_component, model.max_cartesian_accel(bounds)
    jacobian, bias = read_action_map(model, snapshot)
    weakest = max(0.0, weakest_support(jacobian, bias, c))
    return EgoAuthority(
        jacobian,
        tuple(bias.tolist()) if bias.any() else None,
        min(capacity, weakest),
        largest_reach(jacobian, bias, c),
        capacity,
    )


def _of_box(model: DoubleIntegratorControlModel, bounds: Bounds) -> EgoAuthority:
    """Return the authority of an agent whose action is its acceleration, in every state."""
    c, capacity = bounds.action_linf_component, model.max_cartesian_accel(bounds)
    return EgoAuthority(None, None, min(capacity, c), c * math.sqrt(model.action_dim), capacity)


def pair_parameters(
    authority: EgoAuthority,
    partner: AgentControlModel,
    bounds: Bounds,
    *,
    dt: float,
    gamma: float,
    plant: Plant,
    prediction_error: float | None = None,
    refuse: bool = True,
) -> PairParameters:
    """Return the constants of the row against one partner.

    An ego that merely passes a posture without authority gets the smallest alpha instead of an
    error: its row then asks for all the box can give, and `EgoAuthority.certified` is False. So
    does any ego without ``refuse``.

    Raises:
        ConfigurationError: The partner's bound is not a finite number >= 0, or leaves the ego no
            authority in any state, in which case nothing can be guaranteed against it.
    """
    partner_accel = _partner_bound(partner, bounds)
    alpha = authority.every_direction - partner_accel
    if not alpha >= MIN_BOUND:
        if refuse and not _only_this_posture(authority, partner_accel):
            raise _no_authority(authority.every_direction, partner, partner_accel)
        alpha = MIN_BOUND
    return PairParameters(
        alpha=alpha,
        partner_accel=partner_accel,
        relative_accel=authority.reach + partner_accel,
        dt=dt,
        gamma=gamma,
        plant=plant,
        unheld_accel=partner_accel if prediction_error is None else prediction_error,
    )


def check_authority(
    model: AgentControlModel,
    bounds: Bounds,
    *,
    snapshot: AgentSnapshot | None = None,
) -> EgoAuthority | None:
    """Refuse a control model that declares what its action box cannot do; for constructors.

    Args:
        model: The agent whose action is filtered.
        bounds: Its box.
        snapshot: A representative state, e.g. the first of an episode; None checks only what
            does not depend on the state.

    Returns:
        The authority at ``snapshot``; None without one, unless the map is the identity.

    Raises:
        ConfigurationError: No action of the box reaches the declared capacity.
        InputError: The model returns a wrong shape or something that is not finite.
    """
    capacity = model.max_cartesian_accel(bounds)
    if not MIN_BOUND <= capacity <= MAX_BOUND:
        raise ConfigurationError(
            f"control model of {model.uid!r}: expected max_cartesian_accel > 0 m/s^2, got "
            f"{capacity}; an agent without authority cannot be guarded."
        )
    if isinstance(model, DoubleIntegratorControlModel):
        authority = _of_box(model, bounds)
    elif snapshot is None:
        return None
    else:
        authority = measure_authority(model, snapshot, bounds)
    if capacity > authority.reach * (1.0 + _ROUNDING):
        raise ConfigurationError(
            f"control model of {model.uid!r}: expected a declared capacity that the action box "
            f"|u_k| <= {bounds.action_linf_component:.4g} can produce, got a modelled authority "
            f"of {authority.every_direction:.4g} m/s^2 in the weakest and at most "
            f"{authority.reach:.4g} m/s^2 in the strongest direction against "
            f"{capacity:.4g} m/s^2 declared; check what the action is (acceleration, velocity or "
            "position), its control timestep and the unit of the box, or declare less."
        )
    return authority


def require_runnable(
    ego: AgentControlModel,
    partners: Sequence[AgentControlModel],
    bounds: Bounds,
    options: EgoOnlyOptions,
    *,
    dt: float,
) -> None:
    """Refuse agents between which no state leaves a row that can be kept; for constructors.

    Radii are not known yet: what only they decide is left to the first step.

    Raises:
        ConfigurationError: The first step, and every other, would raise it.
    """
    models, split = (ego, *partners), options.strategy is not None
    if all(
        isinstance(model, DoubleIntegratorControlModel) for model in models[: None if split else 1]
    ):
        still = AgentSnapshot(np.zeros(ego.position_dim), np.zeros(ego.position_dim), 1.0)
        contacts = [MAX_MAGNITUDE] * len(partners)
        authority = measure_authority(ego, still, bounds)
        pair_constants(
            ego, authority, partners, [still] * len(partners), contacts, bounds, options, dt=dt
        )
        return
    if options.passive:
        raise no_passive_ego(ego)
    if not split:
        capacity = ego.max_cartesian_accel(bounds)
        for partner in partners:
            partner_accel = _partner_bound(partner, bounds)
            if not capacity - partner_accel >= MIN_BOUND:
                raise _no_authority(capacity, partner, partner_accel)


def _partner_bound(partner: AgentControlModel, bounds: Bounds) -> float:
    partner_accel = partner.max_cartesian_accel(bounds)
    if not 0.0 <= partner_accel <= MAX_BOUND:
        raise ConfigurationError(
            f"control model of {partner.uid!r}: expected max_cartesian_accel >= 0 m/s^2, "
            f"got {partner_accel}."
        )
    return partner_accel


def _only_this_posture(authority: EgoAuthority, partner_accel: float) -> bool:
    """Whether another state could give the ego authority over the partner."""
    if authority.jacobian is None or authority.capacity - partner_accel < MIN_BOUND:
        return False
    rows, columns = authority.jacobian.shape
    return columns >= rows


def _no_authority(
    own_accel: float, partner: AgentControlModel, partner_accel: float
) -> ConfigurationError:
    return ConfigurationError(
        "ego-only filter: expected an ego authority above every partner's bound, got "
        f"{own_accel:.4g} m/s^2 against {partner_accel:.4g} m/s^2 of "
        f"{partner.uid!r}; declare what the partner can really do, e.g. "
        "DoubleIntegratorControlModel(uid, action_dim, capacity=...)."
    )


_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class PairConstants:
    """Constants of one step's rows.

    A certificate may cover steps with them if ``covered``; ``lasting`` ones hold for every state.
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

    def states(
        self, agents: Mapping[str, AgentSnapshot]
    ) -> tuple[AgentSnapshot, list[AgentSnapshot]]:
        """Return the ego, and the partners in the order of the pairs."""
        return agents[self.ego_uid], [agents[uid] for uid in self.partners]


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
    box: tuple[list[float], list[float]]
    options: EgoOnlyOptions  # Those of the filter; without forecasts' error where it is not trusted
    #: Partner, pair, its parameters, and a_p dt^2, m, at most six contact distances; 0 for any
    rows: list[tuple[str, tuple[str, str], PairParameters, float]]
    planar: bool  # They hold, in a plane, until agents, bounds or control step change


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

    Raises:
        ConfigurationError: An agent has no authority left, or declares a bound that is none.
        InputError: A model returns a wrong shape or something that is not finite.
    """
    fixed_map = authority.jacobian is None
    if options.passive and not fixed_map:
        raise no_passive_ego(ego_model)
    known = credited_constants(authority, partners, states, bounds, options, dt=dt)
    if options.strategy is not None or options.measures:
        return known  # nothing turns along a fixed direction, and its ages cost no authority
    covered, parameters = known.covered, known.parameters
    for partner, pair, contact in zip(partners, parameters, contacts, strict=True):
        if pair.is_step_too_long(contact):
            raise step_too_long(partner.uid, pair, contact)
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


def credited_constants(
    authority: EgoAuthority,
    partners: Sequence[AgentControlModel],
    states: Sequence[AgentSnapshot],
    bounds: Bounds,
    options: EgoOnlyOptions,
    *,
    dt: float,
) -> PairConstants:
    """Return what the agents declare and their boxes reach, for current packets; see above."""
    covered = authority.certified
    base = PairParameters(
        alpha=MIN_BOUND,
        partner_accel=0.0,
        relative_accel=0.0,
        dt=dt,
        gamma=options.cbf_gamma,
        plant=options.plant,
    )
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
    return PairConstants(parameters, None, covered=covered, lasting=authority.jacobian is None)


def no_passive_ego(ego_model: AgentControlModel) -> ConfigurationError:
    """Return the error for an ego that cannot be braked along a straight line."""
    return ConfigurationError(
        f'filter: guarantee="passive": expected a DoubleIntegratorControlModel of '
        f"{ego_model.uid!r}, got {type(ego_model).__name__}; leave the option out."
    )


def step_too_long(uid: str, pair: PairParameters, contact: float) -> ConfigurationError:
    """Return the error for a control step in which a partner may outturn the ego."""
    return ConfigurationError(
        f"ego-only filter: expected a_p dt^2 <= 6 D, got {pair.unheld_accel:.4g} m/s^2 of {uid!r} "
        f"and dt = {pair.dt:.4g} s at a contact distance of {contact:.4g} m; shorten the control "
        "step."
    )


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
