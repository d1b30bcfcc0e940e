"""The filter for unknown partners: it decides the ego's action and trusts only bounds.

Every partner contributes one row (`ego_rows`) built for the worst acceleration its control model
declares; `projection` solves them together.

Units:  actions in the ego's action unit, everything else SI.
Limits: the certificate needs a constant ego authority in every direction (true for a double
        integrator) and one partner; with several partners the rows can conflict, and the step is
        then flagged.
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from cadenza.core.arrays import FloatArray
from cadenza.safety.bounds import Bounds
from cadenza.safety.budget_split import BudgetSplitStrategy, delivered_fractions
from cadenza.safety.control_models.double_integrator import DoubleIntegratorControlModel
from cadenza.safety.errors import ConcertoSafetyInfeasible
from cadenza.safety.filters.arguments import (
    require_action,
    require_call,
    require_kind,
    require_lambda,
    require_member,
    require_models,
    require_previous,
    require_snapshot,
    require_snapshots,
)
from cadenza.safety.filters.ego_constants import EgoPairs, StepConstants, pair_constants
from cadenza.safety.filters.ego_options import (
    Barrier,
    Compat,
    EgoOnlyOptions,
    MultiPartner,
    OnInfeasible,
    RateLimit,
)
from cadenza.safety.filters.ego_rows import (
    EgoRows,
    RowRule,
    build_ego_rows,
    pair_barriers,
)
from cadenza.safety.filters.mode import SafetyMode
from cadenza.safety.filters.projection import RowSet
from cadenza.safety.filters.row_solution import Box, Solution, solve_rows
from cadenza.safety.pairs import LambdaDict
from cadenza.safety.protocols import AgentControlModel
from cadenza.safety.rows.authority import measure_authority
from cadenza.safety.rows.barrier import DEFAULT_CBF_GAMMA, Plant, barrier_violation
from cadenza.safety.rows.passive import PASSIVE_MET, PassiveScene, passive_action
from cadenza.safety.rows.wae import CbfPower
from cadenza.safety.snapshot import AgentSnapshot
from cadenza.safety.solvers import QPSolver, SolveStatus, as_solver
from cadenza.safety.state import FilterInfo, SafetyState


def rate_box(previous: list[float], rate: float, box: Box) -> Box:
    """Return the part of the box within ``rate`` of the previous action, in every component.

    A previous action outside the box leaves the bound next to it.
    """
    lower, upper = box
    return (
        [
            min(max(p - rate, low), high)
            for p, low, high in zip(previous, lower, upper, strict=True)
        ],
        [
            max(min(p + rate, high), low)
            for p, low, high in zip(previous, lower, upper, strict=True)
        ],
    )


def inside(x: list[float], box: Box) -> bool:
    """Return whether every component lies within its bounds."""
    return all(low <= x_k <= high for x_k, low, high in zip(x, *box, strict=True))


def report(
    u: list[float],
    rows: EgoRows,
    solution: Solution,
    keys: list[tuple[str, str]],
    elapsed_ms: float,
    *,
    changed: bool,
    gamma: float,
) -> FilterInfo:
    """Return the record of one step without a rate limit; ``gamma`` is for overlap, 1/s."""
    solved = solution.status is SolveStatus.OPTIMAL
    relaxed = bool(keys) and max(solution.lambda_) > 0.0
    outside = bool(keys) and (min(rows.h) < 0.0 or min(rows.margin) < 0.0)
    return {
        "lambda": dict(zip(keys, solution.lambda_, strict=True)),
        "constraint_violation": np.array(
            [barrier_violation(h, e, gamma) for h, e in zip(rows.h, rows.margin, strict=True)]
        )
        if outside
        else np.zeros(len(keys)),
        "prediction_gap_loss": None,
        "fallback_fired": False,
        "qp_solve_ms": elapsed_ms,
        "slack": np.zeros(len(keys)) if solved else np.array(solution.missed(rows)),
        "margin": np.array(rows.margin),
        "status": solution.status.value if changed or not solved else "inactive",
        "intervention": math.dist(solution.x, u) if changed else 0.0,
        "uncertified": not solution.proved
        or relaxed
        or rows.uncovered
        or (rows.outside and rows.passive is None),
        "rate_active": False,
        "rate_exceeded": False,
    }


class EgoOnlyCBFQP:
    """Ego-only filter; see `EgoOnlyOptions` for what the options do.

    Args:
        control_models: Model of every agent by id. A partner's ``max_cartesian_accel`` is the
            bound the certificate trusts.
        solver: Solves several active rows; None means DAQP.
        cbf_gamma: See `EgoOnlyOptions`, as for all that follow.
        plant: How the plant integrates.
        margin_m: Distance beside the radii, m.
        prediction_error: Trust in forecasts, m/s^2.
        on_infeasible: What to do when no action meets every row.
        barrier: Which row.
        compat: Reproduce the published filter.
        cbf_power: Exponent of the classical row.
        max_age_s: Packet age the guarantee covers, s.
        budget_split: Share rows with partners that run the same filter.
        rate_limit: What ``Bounds.action_rate`` does.
        multi_partner: What several partners are met by.
        contact_speed: Own speed tolerated at a contact, m/s.

    Raises:
        ConfigurationError: No control models, a model filed under another id, or options that
            are out of range or do not go together.
    """

    def __init__(
        self,
        *,
        control_models: Mapping[str, AgentControlModel],
        solver: QPSolver | None = None,
        cbf_gamma: float = DEFAULT_CBF_GAMMA,
        plant: Plant = "zoh",
        margin_m: float = 0.0,
        prediction_error: float | None = None,
        on_infeasible: OnInfeasible = "least_violation",
        barrier: Barrier = "sampled",
        compat: Compat | None = None,
        cbf_power: CbfPower = 1,
        max_age_s: float = 0.0,
        budget_split: BudgetSplitStrategy | str | None = None,
        rate_limit: RateLimit = "off",
        multi_partner: MultiPartner = "rows",
        contact_speed: float = 0.0,
    ) -> None:
        require_models(control_models)
        self._options = EgoOnlyOptions(
            cbf_gamma=cbf_gamma,
            plant=plant,
            margin_m=margin_m,
            prediction_error=prediction_error,
            on_infeasible=on_infeasible,
            barrier=barrier,
            compat=compat,
            cbf_power=cbf_power,
            max_age_s=max_age_s,
            budget_split=budget_split,
            rate_limit=rate_limit,
            multi_partner=multi_partner,
            contact_speed=contact_speed,
        )
        self._models = dict(control_models)
        #: Agents whose declared capacity is asked for in every step: their models may change.
        self._mutable = {
            uid: model
            for uid, model in control_models.items()
            if type(model) is not DoubleIntegratorControlModel
        }
        self._solver = as_solver(solver)
        self._rule = RowRule(
            level=self._options.level_function(),
            margin_m=margin_m,
            prediction_error=0.0 if self._options.upstream else prediction_error,
            max_age_s=max_age_s,
            ignore_age=self._options.upstream,
            always_feasible=self._options.always_feasible,
        )
        self._undoing_rate = self._options.undoing_rate
        self._brakes_radially = self._options.brakes_radially
        self._limits_rate = rate_limit != "off"
        self._constants: StepConstants | None = None

    @property
    def mode(self) -> SafetyMode:
        """Whose actions may change."""
        return SafetyMode.EGO_ONLY

    @property
    def options(self) -> EgoOnlyOptions:
        """The options the filter was built with."""
        return self._options

    def reset(self, *, seed: int | None = None) -> None:
        """Start an episode. There is nothing to forget: no draws, and every solve starts cold."""
        del seed

    def filter(
        self,
        proposed_action: FloatArray,
        obs: Mapping[str, Any],
        state: SafetyState,
        bounds: Bounds,
        *,
        ego_uid: str,
        partner_predicted_states: dict[str, AgentSnapshot],
        dt: float,
        previous_action: FloatArray | None = None,
    ) -> tuple[FloatArray, FilterInfo]:
        """Return the action closest to the proposed one that keeps the ego in the safe set.

        Args:
            proposed_action: Nominal action, shape (action_dim,).
            obs: ``obs["agent_states"]`` holds every agent's snapshot by id; nothing else is read.
            state: Slack per ego pair; read, never changed.
            bounds: Box of the action, shared capacity, and the rate limit if that is on.
            ego_uid: The agent whose action this is.
            partner_predicted_states: Every partner's snapshot one ``dt`` ahead of now, however
                old its packet is.
            dt: Control step, s.
            previous_action: Action executed in the last step, shape (action_dim,); None on the
                first step of an episode, which then has no rate limit. Not looked at while the
                rate limit is off.

        Returns:
            A fresh float64 action, shape (action_dim,), with the proposed bits when no row and no
            bound is active; and the record of the step.

        Raises:
            InputError: An argument is missing, malformed or not finite.
            TypeError: The action is not an array.
            UnknownNameError: An agent has no control model or no prediction.
            ConfigurationError: The ego has no authority left against a partner.
            ConcertoSafetyInfeasible: No action meets every row and the options say "raise".
        """
        agents = require_call(proposed_action, obs, ego_uid, partner_predicted_states, dt)
        require_kind("state", state, SafetyState)
        require_kind("bounds", bounds, Bounds)
        require_member(ego_uid, self._models, "control_models")
        pairs = self._pairs_of(ego_uid, agents)
        require_lambda(state.lambda_, pairs.key_set)
        u = require_action(proposed_action, self._models[ego_uid].action_dim)
        rows = self._rows(agents, partner_predicted_states, pairs, bounds, dt)
        return self._decide(proposed_action, u, rows, pairs, state, bounds, previous_action)

    def filter_checked(
        self,
        action: FloatArray,
        agents: dict[str, AgentSnapshot],
        ahead: Mapping[str, AgentSnapshot],
        state: SafetyState,
        bounds: Bounds,
        *,
        ego_uid: str,
        dt: float,
        previous_action: FloatArray | None,
    ) -> tuple[FloatArray, FilterInfo]:
        """Do as `filter` with what the caller checked: all but kind and size of snapshots."""
        pairs = self._pairs_of(ego_uid, agents)
        rows = self._rows(agents, ahead, pairs, bounds, dt)
        return self._decide(action, action.tolist(), rows, pairs, state, bounds, previous_action)

    def _decide(
        self,
        proposed_action: FloatArray,
        u: list[float],
        rows: EgoRows,
        pairs: EgoPairs,
        state: SafetyState,
        bounds: Bounds,
        previous_action: FloatArray | None,
    ) -> tuple[FloatArray, FilterInfo]:
        """Return the action that meets the rows, and the record; ``u`` are the action's numbers."""
        c = bounds.action_linf_component
        box = ([-c] * len(u), [c] * len(u))
        narrow = box
        if self._limits_rate and previous_action is not None:
            narrow = rate_box(require_previous(previous_action, len(u)), bounds.action_rate, box)
        wanted = [state.lambda_[key] for key in pairs.keys]
        started = time.perf_counter()
        solution = self._solve(u, rows, wanted, narrow, box)
        if rows.passive is not None:
            solution = _passively(solution, rows, rows.passive)
        elapsed_ms = (time.perf_counter() - started) * 1e3
        changed = solution.x != u
        action = np.array(solution.x if changed else proposed_action, dtype=np.float64)
        info = report(
            u, rows, solution, pairs.keys, elapsed_ms, changed=changed, gamma=self._undoing_rate
        )
        if narrow is not box:
            info["rate_active"] = not inside(u, narrow)
            info["rate_exceeded"] = not inside(solution.x, narrow)
        return action, info

    def barrier_values(
        self, agents: Mapping[str, AgentSnapshot], bounds: Bounds, *, ego_uid: str, dt: float
    ) -> LambdaDict:
        """Return h of every ego pair, m/s, with the geometry and constants of the rows."""
        pairs = self._pairs_of(ego_uid, agents)
        ego, partners = self._states(agents, pairs)
        constants = self._constants_of(ego, partners, pairs, bounds, dt)
        return dict(zip(pairs.keys, self._barriers(ego, partners, constants), strict=True))

    def barrier_drops(
        self,
        before: Mapping[str, AgentSnapshot],
        after: Mapping[str, AgentSnapshot],
        bounds: Bounds,
        *,
        ego_uid: str,
        dt: float,
    ) -> LambdaDict:
        """Return by how much h of every ego pair is lower in ``after``, m/s.

        Args:
            before: The same agents as in ``after``; a forecast, so their kind and size are checked.
            after: Agents that the caller checked.
            bounds: As in `filter`.
            ego_uid: As in `filter`.
            dt: As in `filter`.
        """
        pairs = self._pairs_of(ego_uid, after)
        ego, partners = after[ego_uid], [after[uid] for uid in pairs.partners]
        constants = self._constants_of(ego, partners, pairs, bounds, dt)
        low = self._barriers(ego, partners, constants)
        ego, partners = self._states(before, pairs)
        if not constants.of_pairs.lasting:
            constants = self._constants_of(ego, partners, pairs, bounds, dt)
        high = self._barriers(ego, partners, constants)
        return {key: high[j] - low[j] for j, key in enumerate(pairs.keys)}

    def _barriers(
        self, ego: AgentSnapshot, partners: list[AgentSnapshot], constants: StepConstants
    ) -> list[float]:
        """Return h of every pair, m/s."""
        parameters, rule = constants.of_pairs.parameters, self._rule
        for partner in partners:
            if partner.age_s > 0.0 and not rule.ignore_age:
                authority = constants.authority
                return build_ego_rows(ego, partners, partners, parameters, authority, rule).h
        return pair_barriers(ego, partners, parameters, rule)

    def _pairs_of(self, ego_uid: str, agents: Mapping[str, AgentSnapshot]) -> EgoPairs:
        """Return the ego's pairs; the last answer is kept, agents rarely change."""
        uids = tuple(agents)
        last = self._constants
        if last is not None and last.pairs.uids == uids and last.pairs.ego_uid == ego_uid:
            return last.pairs
        return EgoPairs.of(ego_uid, uids)

    def _rows(
        self,
        agents: Mapping[str, AgentSnapshot],
        predicted: Mapping[str, AgentSnapshot],
        pairs: EgoPairs,
        bounds: Bounds,
        dt: float,
    ) -> EgoRows:
        """Return the rows of this step at lambda = 0."""
        ego, now = self._states(agents, pairs)
        dim = len(ego.position_numbers)
        ahead = require_snapshots("partner_predicted_states", predicted, pairs.partners, dim)
        constants = self._constants_of(ego, now, pairs, bounds, dt)
        of_pairs, authority = constants.of_pairs, constants.authority
        rows = build_ego_rows(
            ego, now, ahead, of_pairs.parameters, authority, self._rule, of_pairs.shares
        )
        if not of_pairs.covered:
            rows.uncovered = True
        if len(now) == 1 and authority.jacobian is None and self._brakes_radially:
            rows.radial_accel = authority.every_direction
        elif len(now) > 1 and self._options.passive:
            partners = [(s.position, s.velocity) for s in now]
            positions, velocities = (np.array(values) for values in zip(*partners, strict=True))
            rows.passive = PassiveScene(
                ego.position - positions,
                ego.velocity,
                velocities,
                np.array([pair.partner_accel for pair in of_pairs.parameters]),
                np.array(self._contacts(ego, now)),
                authority.every_direction,
                dt,
                self._options.contact_speed,
            )
        return rows

    def _states(
        self, agents: Mapping[str, AgentSnapshot], pairs: EgoPairs
    ) -> tuple[AgentSnapshot, list[AgentSnapshot]]:
        """Return the ego and its partners, checked."""
        dim = self._models[pairs.ego_uid].position_dim
        ego = require_snapshot("agent_states of the ego", agents[pairs.ego_uid], dim)
        if self._constants is None or self._constants.pairs is not pairs:
            for uid in pairs.partners:
                require_member(uid, self._models, "control_models")
        return ego, require_snapshots("agent_states", agents, pairs.partners, dim)

    def _constants_of(
        self,
        ego: AgentSnapshot,
        partners: Sequence[AgentSnapshot],
        pairs: EgoPairs,
        bounds: Bounds,
        dt: float,
    ) -> StepConstants:
        """Return the constants of the rows; kept while nothing they depend on changes."""
        contacts = None
        if self._rule.max_age_s > 0.0:  # the only case in which the radii enter the constants
            contacts = self._contacts(ego, partners)
        declared = self._declared(pairs, bounds) if self._mutable else None
        last = self._constants
        if (
            last is not None
            and last.pairs is pairs
            and (last.bounds is bounds or last.bounds == bounds)
            and last.dt == dt
            and last.contacts == contacts
            and last.declared == declared
            and last.of_pairs.lasting
        ):
            return last
        model = self._models[pairs.ego_uid]
        authority = measure_authority(model, ego, bounds)
        of_pairs = pair_constants(
            model,
            authority,
            [self._models[uid] for uid in pairs.partners],
            partners,
            contacts or self._contacts(ego, partners),
            bounds,
            self._options,
            dt=dt,
        )
        if self._options.strategy is not None and authority.bias is not None:
            # The share is that of a command which arrives in part; the bias acts in full.
            own, _ = delivered_fractions(self._options.strategy)
            authority = replace(authority, bias=tuple(b / own for b in authority.bias))
        self._constants = StepConstants(pairs, bounds, dt, contacts, declared, authority, of_pairs)
        return self._constants

    def _contacts(self, ego: AgentSnapshot, partners: Sequence[AgentSnapshot]) -> list[float]:
        """Return the contact distances, margin included, m."""
        return [ego.radius + self._rule.margin_m + partner.radius for partner in partners]

    def _declared(self, pairs: EgoPairs, bounds: Bounds) -> list[float]:
        """Return the capacities that models which may change declare now, m/s^2."""
        mutable = self._mutable
        return [mutable[uid].max_cartesian_accel(bounds) for uid in pairs.uids if uid in mutable]

    def _solve(
        self, u: list[float], rows: EgoRows, wanted: list[float], narrow: Box, box: Box
    ) -> Solution:
        """Solve in the narrow box, and in the whole one if the rows need it and the rate may.

        Raises:
            ConcertoSafetyInfeasible: No action meets every row and the options say "raise".
        """
        as_given = self._options.upstream
        solution = solve_rows(u, rows, wanted, narrow, self._solver, as_given=as_given)
        if solution.status is SolveStatus.OPTIMAL:
            return solution
        if narrow is not box and self._options.rate_limit == "soft":
            solution = solve_rows(u, rows, wanted, box, self._solver, as_given=as_given)
        if solution.status is SolveStatus.OPTIMAL:
            return solution
        if self._options.raises:
            raise ConcertoSafetyInfeasible(
                f"filter: no action in the box meets every row ({solution.status.value}); "
                "use the braking fallback for this step."
            )
        if rows.radial_accel is None or rows.uncovered or rows.outside:
            return solution
        radial = [-rows.radial_accel * a_k for a_k in rows.a[0]]
        return replace(solution, x=radial, proved=True)


def _passively(solution: Solution, rows: EgoRows, scene: PassiveScene) -> Solution:
    """Return ``solution`` where it keeps passive safety, else what does."""
    action, kept = passive_action(np, scene, np.array(solution.x))
    x, status = action.tolist(), solution.status
    if x != solution.x:
        row_set = RowSet(rows.a, solution.b, rows.h, rows.time_left)
        _, missed = row_set.most_violated(x)
        status = SolveStatus.OPTIMAL if missed <= PASSIVE_MET else SolveStatus.INFEASIBLE
    return replace(solution, x=x, status=status, proved=bool(kept))
