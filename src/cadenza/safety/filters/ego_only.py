"""The filter for unknown partners: it decides the ego's action and trusts only bounds.

Rows:    those of `cadenza.safety.filters.ego_rows`, with lambda_j added to each level.
Units:   actions in the ego's action unit, everything else SI.
Limits:  the certificate needs a constant ego authority in every direction (true for a double
         integrator) and one partner; with several the rows can conflict, and the step is flagged.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any, Final, Unpack

import numpy as np

from cadenza.core.arrays import FloatArray
from cadenza.safety.authority import (
    EgoPairs,
    PairConstants,
    StepConstants,
    measure_authority,
    pair_constants,
    require_runnable,
    step_too_long,
)
from cadenza.safety.budget_split import delivered_fractions
from cadenza.safety.cbf import (
    CERTIFICATE_TOLERANCE,
    OVERLAP_TOLERANCE,
    PairParameters,
    expecting,
    planar_barrier,
    planar_row_level,
)
from cadenza.safety.contracts import (
    AgentControlModel,
    Bounds,
    FilterInfo,
    LambdaDict,
    SafetyMode,
    SafetyState,
)
from cadenza.safety.control_models import DoubleIntegratorControlModel
from cadenza.safety.errors import ConcertoSafetyInfeasible
from cadenza.safety.filter_options import EgoOnlyKeywords, EgoOnlyOptions
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
from cadenza.safety.filters.ego_rows import (
    DirectionMemory,
    EgoRows,
    Offer,
    build_ego_rows,
    choose,
    pair_barrier,
)
from cadenza.safety.filters.projection import (
    Box,
    Solution,
    clipped,
    granted,
    inside,
    nearest_in_closed_form,
    project,
    rate_box,
    residual,
)
from cadenza.safety.passive import PASSIVE_MET, PassiveScene, passive_action
from cadenza.safety.snapshot import MAX_MAGNITUDE, AgentSnapshot
from cadenza.safety.solvers import QPSolver, SolveStatus, as_solver


class EgoOnlyCBFQP:
    """Ego-only filter with the proved row; `ego_filter` picks the one that options ask for.

    Args:
        control_models: Model of every agent by id. A partner's ``max_cartesian_accel`` is the
            bound the certificate trusts.
        solver: Solves several active rows; None means DAQP.
        options: Fields of `EgoOnlyOptions`, which says what each does.

    Attributes:
        mode: Whose actions may change.
        options: As given, checked.
        directions: Directions along which pairs are known to be safe; empty without stated errors.

    Raises:
        ConfigurationError: No control models, a model filed under another id, or options that
            are out of range or do not go together.
    """

    mode: Final = SafetyMode.EGO_ONLY
    #: Returns the constants of the pairs.
    _pair_constants = staticmethod(pair_constants)

    def __init__(
        self,
        *,
        control_models: Mapping[str, AgentControlModel],
        solver: QPSolver | None = None,
        **options: Unpack[EgoOnlyKeywords],
    ) -> None:
        require_models(control_models)
        self.options: EgoOnlyOptions = EgoOnlyOptions(**options)
        #: The same for forecasts that are not trusted.
        self._doubting = replace(self.options, prediction_error=None)
        self._models = dict(control_models)
        #: Agents whose declared capacity is asked for in every step: their models may change.
        self._mutable = {
            uid: model
            for uid, model in control_models.items()
            if type(model) is not DoubleIntegratorControlModel
        }
        self._solver = as_solver(solver)
        #: The published filter's way: lambda as it is given, and declarations never doubted.
        self._as_given = False
        self._passive = self.options.passive
        self.directions: DirectionMemory = DirectionMemory()
        self._expected: dict[str, float] = {}
        #: Whether the rows of current packets are those of `planar_rows`.
        self._flat = (
            not self.options.measures
            and self.options.strategy is None
            and self.options.prediction_error is None
        )
        self._constants: StepConstants | None = None

    @property
    def planar(self) -> StepConstants | None:
        """The constants of the last step, if `planar_constraints` may take them; else None."""
        last = self._constants
        return last if last is not None and last.planar and self._flat else None

    def expect(self, accels: Mapping[str, float]) -> None:
        """Build rows for these accelerations of partners, m/s^2, which disprove what was declared.

        No step is certified with them; nothing believes the declarations again.
        """
        if accels != self._expected:
            self._expected, self._constants = dict(accels), None

    def reset(self, *, seed: int | None = None) -> None:
        """Start an episode, without remembered directions. Nothing is drawn from ``seed``."""
        del seed
        self.directions.forget()

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
        last = self._constants
        if (  # a call that differs from the last one in numbers alone
            last is not None
            and bounds is last.bounds
            and (type(ego_uid), type(dt), type(state)) == (str, float, SafetyState)
            and (ego_uid, dt) == (last.pairs.ego_uid, last.dt)
            and type(proposed_action) is np.ndarray
            and (type(obs), type(partner_predicted_states)) == (dict, dict)
        ):
            wanted = _known_lambda(state.lambda_, last.pairs.keys)
            rows = self.planar_constraints(obs.get("agent_states"), partner_predicted_states)
            if rows is not None and wanted is not None:
                u = require_action(proposed_action, 2)
                return self.project(proposed_action, u, rows, wanted, last, previous_action)
        agents = require_call(proposed_action, obs, ego_uid, partner_predicted_states, dt)
        require_kind("state", state, SafetyState)
        require_kind("bounds", bounds, Bounds)
        require_member(ego_uid, self._models, "control_models")
        pairs, model = self.pairs_of(ego_uid, agents), self._models[ego_uid]
        wanted = require_lambda(state.lambda_, pairs.keys)
        u = require_action(proposed_action, model.action_dim)
        ego, partners = self._states(agents, pairs)
        dim = len(ego.position_numbers)
        ahead = require_snapshots(
            "partner_predicted_states", partner_predicted_states, pairs.partners, dim
        )
        constants = self.constants_of(ego, partners, pairs, bounds, dt)
        rows = self.constraints(ego, partners, ahead, constants)
        return self.project(proposed_action, u, rows, wanted, constants, previous_action)

    # What follows trusts its arguments: `filter` and the runtime check at their own doors.

    def require_runnable(self, ego_uid: str, bounds: Bounds, dt: float) -> None:
        """Refuse agents between which no step can run.

        Raises:
            ConfigurationError: The first step, and every other, would raise it.
        """
        partners = [model for uid, model in self._models.items() if uid != ego_uid]
        require_runnable(self._models[ego_uid], partners, bounds, self.options, dt=dt)

    def pairs_of(self, ego_uid: str, agents: Mapping[str, AgentSnapshot]) -> EgoPairs:
        """Return the ego's pairs; the last answer is kept, agents rarely change."""
        uids = tuple(agents)
        last = self._constants
        if last is not None and last.pairs.uids == uids and last.pairs.ego_uid == ego_uid:
            return last.pairs
        return EgoPairs.of(ego_uid, uids)

    def constants_of(
        self,
        ego: AgentSnapshot,
        partners: Sequence[AgentSnapshot],
        pairs: EgoPairs,
        bounds: Bounds,
        dt: float,
        *,
        trusts: bool = True,
    ) -> StepConstants:
        """Return the constants of the rows; kept while nothing they depend on changes.

        ``trusts`` says whether the forecasts keep to ``prediction_error``, where that is set.

        Raises:
            ConfigurationError: The ego has no authority left against a partner.
            InputError: A model returns a wrong shape or something that is not finite.
        """
        contacts, options = None, self.options if trusts else self._doubting
        if options.max_age_s > 0.0:  # the only case in which the radii enter the constants
            contacts = self._contacts(ego, partners)
        declared = None
        if self._mutable:  # what these declare may change
            mutable = [self._mutable[uid] for uid in pairs.uids if uid in self._mutable]
            declared = [model.max_cartesian_accel(bounds) for model in mutable]
        last = self._constants
        if (
            last is not None
            and last.options is options
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
        of_pairs = self._pair_constants(
            model,
            authority,
            [self._models[uid] for uid in pairs.partners],
            partners,
            contacts or self._contacts(ego, partners),
            bounds,
            options,
            dt=dt,
        )
        if options.strategy is not None and authority.bias is not None:
            # The share is that of a command which arrives in part; the bias acts in full.
            own, _ = delivered_fractions(options.strategy)
            authority = replace(authority, bias=tuple(b / own for b in authority.bias))
        turned = [self._turned(pair) for pair in of_pairs.parameters]
        if self._expected:
            of_pairs = self._as_seen(of_pairs, pairs, authority.every_direction)
        c, size = bounds.action_linf_component, model.action_dim
        box = ([-c] * size, [c] * size)
        rows = list(zip(pairs.partners, pairs.keys, of_pairs.parameters, turned, strict=True))
        planar = of_pairs.lasting and contacts is None and declared is None and size == 2
        self._constants = StepConstants(
            pairs, bounds, dt, contacts, declared, authority, of_pairs, box, options, rows, planar
        )
        return self._constants

    def _as_seen(self, of_pairs: PairConstants, pairs: EgoPairs, credit: float) -> PairConstants:
        """Return the constants for what partners showed, with which nothing is certified."""
        parameters = of_pairs.parameters
        if of_pairs.shares is None and not self._as_given:
            seen = [self._expected.get(uid, 0.0) for uid in pairs.partners]
            parameters = [expecting(p, credit, a) for p, a in zip(parameters, seen, strict=True)]
        return replace(of_pairs, parameters=parameters, covered=False)

    def planar_constraints(
        self,
        agents: object,
        ahead: Mapping[str, AgentSnapshot] | None = None,
        *,
        beside_obstacles: bool = False,
    ) -> EgoRows | None:
        """Return `constraints` with the constants of the last step, to the bit, in flat code.

        None where the constants may have changed, the pairs are in no plane, an option asks for
        other rows, a packet is old, a partner is not forecast to keep its velocity (``ahead``; None
        says that all are), or anything is no sound snapshot.
        """
        last = self.planar
        if last is None or type(agents) is not dict:
            return None
        known: dict[str, AgentSnapshot] = agents  # pyright: ignore[reportUnknownVariableType] -- looked at one by one
        rows = planar_rows(known, ahead, last, self.options.margin_m)
        if rows is not None and self._passive:
            self._be_passive(rows, *last.pairs.states(known), last, beside_obstacles)
        return rows

    def constraints(
        self,
        ego: AgentSnapshot,
        partners: Sequence[AgentSnapshot],
        ahead: Sequence[AgentSnapshot],
        constants: StepConstants,
        *,
        beside_obstacles: bool = False,
    ) -> EgoRows:
        """Return the rows of this step at lambda = 0; partners in the order of the pairs.

        A passive ego yields to a lone partner, which takes room that it lacks ``beside_obstacles``:
        there it stops, as it does beside several.

        Raises:
            ConfigurationError: The control step is too long for the radii.
        """
        radius = ego.radius + self.options.margin_m
        for partner, (uid, _, pair, turned) in zip(partners, constants.rows, strict=True):
            if 6.0 * (radius + partner.radius) < turned:
                raise step_too_long(uid, pair, radius + partner.radius)
        kept = self.directions.kept
        rows = build_ego_rows(
            ego,
            partners,
            ahead,
            constants.of_pairs.parameters,
            constants.authority,
            constants.options,
            constants.of_pairs.shares,
            [kept.get(uid) for uid in constants.pairs.partners] if kept else (),
        )
        if not constants.of_pairs.covered:
            rows.uncovered = True
        if self._passive:
            self._be_passive(rows, ego, partners, constants, beside_obstacles)
        return rows

    def _be_passive(
        self,
        rows: EgoRows,
        ego: AgentSnapshot,
        partners: Sequence[AgentSnapshot],
        constants: StepConstants,
        beside_obstacles: bool,
    ) -> None:
        """Add what passive safety is judged by, where stopping is the answer to the partners."""
        if len(partners) < (1 if beside_obstacles else 2):
            return
        motion = [(s.position, s.velocity) for s in partners]
        positions, velocities = (np.array(values) for values in zip(*motion, strict=True))
        rows.passive = PassiveScene(
            ego.position - positions,
            ego.velocity,
            velocities,
            np.array([pair.partner_accel for pair in constants.of_pairs.parameters]),
            np.array(self._contacts(ego, partners)),
            constants.authority.every_direction,
            constants.dt,
            self.options.contact_speed,
        )

    def project(
        self,
        proposed_action: FloatArray,
        u: list[float],
        rows: EgoRows,
        wanted: list[float],
        constants: StepConstants,
        previous_action: FloatArray | None,
    ) -> tuple[FloatArray, FilterInfo]:
        """Return the action that meets the rows, and the record of the step.

        Raises:
            ConcertoSafetyInfeasible: No action meets every row and the options say "raise".
            InputError: The previous action is malformed, and the rate limit is on.
            TypeError: It is not an array.
        """
        keys, box = constants.pairs.keys, constants.box
        narrow, count = box, len(keys)
        if previous_action is not None and self.options.rate_limit != "off":
            previous = require_previous(previous_action, len(u))
            narrow = rate_box(previous, constants.bounds.action_rate, box)
        chosen: Sequence[Offer] = ()
        if rows.offers:
            self.directions.forget()
            chosen, rows.a, rows.level = choose(
                rows.offers, clipped(u, *narrow), constants.authority
            )
        status, slack, uncertified = "optimal", None, rows.uncovered
        started = perf_counter()
        used, b = wanted, rows.level
        if any(wanted):
            used, b = granted(wanted, rows.a, b, narrow, self._as_given)
        x, solved = nearest_in_closed_form(u, rows.a, b, *narrow)
        if x is None or not solved or rows.passive is not None:
            solution = self._solve(u, rows, wanted, narrow, constants)
            x, used, status = solution.x, solution.lambda_, solution.status.value
            slack = np.array(solution.missed(rows))
            uncertified = uncertified or not solution.proved
        elapsed_ms = (perf_counter() - started) * 1e3
        unchanged = x is u or x == u
        if chosen and constants.of_pairs.covered:
            self.directions.take(constants.pairs.partners, chosen, rows, x)
        if any(used) and max(used) > 0.0:
            uncertified = True
        info: FilterInfo = {
            "lambda": {key: used[j] for j, key in enumerate(keys)},
            "constraint_violation": rows.violation(self.options.undoing_rate)
            if rows.violated
            else np.zeros(count),
            "prediction_gap_loss": None,
            "fallback_fired": False,
            "qp_solve_ms": elapsed_ms,
            "slack": np.zeros(count) if slack is None else slack,
            "margin": np.array(rows.margin),
            "status": "inactive" if unchanged and status == "optimal" else status,
            "intervention": 0.0 if unchanged else math.dist(x, u),
            "uncertified": uncertified or (rows.outside and rows.passive is None),
            "rate_active": narrow is not box and not inside(u, narrow),
            "rate_exceeded": narrow is not box and not inside(x, narrow),
        }
        return (np.array(proposed_action, dtype=np.float64) if unchanged else np.array(x)), info

    def _solve(
        self,
        u: list[float],
        rows: EgoRows,
        wanted: list[float],
        narrow: Box,
        constants: StepConstants,
    ) -> Solution:
        """Solve in the narrow box; where that fails, in the whole one if the rate may give way.

        Raises:
            ConcertoSafetyInfeasible: No action meets every row and the options say "raise".
        """
        solution = project(u, rows, wanted, narrow, self._solver, as_given=self._as_given)
        if solution.status is not SolveStatus.OPTIMAL:
            solution = self._least_unsafe(solution, u, rows, wanted, narrow, constants)
        if rows.passive is not None:
            solution = _passively(solution, rows, rows.passive)
        return solution

    def barrier_values(
        self, agents: Mapping[str, AgentSnapshot], bounds: Bounds, *, ego_uid: str, dt: float
    ) -> LambdaDict:
        """Return h of every ego pair, m/s, with the geometry and constants of the rows."""
        agents = require_call(np.zeros(0), {"agent_states": agents}, ego_uid, {}, dt)
        require_kind("bounds", bounds, Bounds)
        require_member(ego_uid, self._models, "control_models")
        pairs = self.pairs_of(ego_uid, agents)
        ego, partners = self._states(agents, pairs)
        parameters = self.constants_of(ego, partners, pairs, bounds, dt).of_pairs.parameters
        return {
            key: self._barrier(ego, partner, pair)
            for key, partner, pair in zip(pairs.keys, partners, parameters, strict=True)
        }

    def score(
        self,
        ego: AgentSnapshot,
        partners: Sequence[AgentSnapshot],
        due: Mapping[str, tuple[AgentSnapshot, AgentSnapshot]],
        rows: EgoRows,
        constants: StepConstants,
    ) -> LambdaDict:
        """Return h(forecast) - h(now) of every pair whose forecast fell due, m/s.

        The ego enters both sides as it is now: its own action is no error of the forecast.
        """
        pairs = constants.pairs
        if not constants.of_pairs.lasting:
            then = [
                due[uid][0] if uid in due else now
                for uid, now in zip(pairs.partners, partners, strict=True)
            ]
            constants = self.constants_of(ego, then, pairs, constants.bounds, constants.dt)
        parameters = constants.of_pairs.parameters
        scores: LambdaDict = {}
        for j, uid in enumerate(pairs.partners):
            if uid in due:
                forecast, actual = due[uid]
                h = (
                    rows.h[j]
                    if actual is partners[j]
                    else self._barrier(ego, actual, parameters[j])
                )
                scores[pairs.keys[j]] = self._barrier(ego, forecast, parameters[j]) - h
        return scores

    def score_kept_velocity(
        self,
        ego: AgentSnapshot,
        before: Sequence[AgentSnapshot],
        barriers: list[float],
        constants: StepConstants,
    ) -> LambdaDict:
        """Return `score` of partners in a plane that were forecast to keep their velocity."""
        p, v, dt = ego.position_numbers, ego.velocity_numbers, constants.dt
        radius = ego.radius + self.options.margin_m
        scores: LambdaDict = {}
        for j, (_, key, pair, _) in enumerate(constants.rows):
            last = before[j]
            (x, y), speed = last.position_numbers, last.velocity_numbers
            ahead = x + speed[0] * dt, y + speed[1] * dt
            h = planar_barrier(p, v, ahead, speed, radius + last.radius, pair)
            scores[key] = h - barriers[j]
        return scores

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

    def _barrier(self, ego: AgentSnapshot, partner: AgentSnapshot, pair: PairParameters) -> float:
        """Return h of one pair, m/s, as the rows have it."""
        return pair_barrier(ego, partner, pair, self.options.margin_m)

    def _contacts(self, ego: AgentSnapshot, partners: Sequence[AgentSnapshot]) -> list[float]:
        """Return the contact distances, margin included, m."""
        return [ego.radius + self.options.margin_m + partner.radius for partner in partners]

    def _turned(self, pair: PairParameters) -> float:
        """Return a_p dt^2, m, which six contact distances must reach; 0 where none need to."""
        bounded = pair.plant == "zoh" and not self.options.measures
        return pair.unheld_accel * pair.dt * pair.dt if bounded else 0.0

    def _least_unsafe(
        self,
        solution: Solution,
        u: list[float],
        rows: EgoRows,
        wanted: list[float],
        narrow: Box,
        constants: StepConstants,
    ) -> Solution:
        """Return what to do where no action of the narrow box meets every row.

        Raises:
            ConcertoSafetyInfeasible: None of the whole box does, and the options say "raise".
        """
        if narrow is not constants.box and self.options.rate_limit == "soft":
            solution = project(
                u, rows, wanted, constants.box, self._solver, as_given=self._as_given
            )
            if solution.status is SolveStatus.OPTIMAL:
                return solution
        if self.options.raises:
            raise ConcertoSafetyInfeasible(
                f"filter: no action in the box meets every row ({solution.status.value}); "
                "use the braking fallback for this step."
            )
        authority, lone = constants.authority, len(rows.h) == 1
        radially = lone and constants.options.brakes_radially and authority.jacobian is None
        if not radially or rows.uncovered or rows.outside:
            return solution
        radial = [-authority.every_direction * a_k for a_k in rows.a[0]]
        return replace(solution, x=radial, proved=True)


def _known_lambda(lambda_: LambdaDict, keys: Sequence[tuple[str, str]]) -> list[float] | None:
    """Return lambda per row, m/s^2; None unless it is sound and of exactly these pairs."""
    if len(lambda_) != len(keys):
        return None
    wanted: list[float] = []
    for key in keys:
        value = lambda_.get(key)
        if type(value) is not float or not -MAX_MAGNITUDE <= value <= MAX_MAGNITUDE:
            return None
        wanted.append(value)
    return wanted


def planar_rows(
    agents: Mapping[str, AgentSnapshot],
    ahead: Mapping[str, AgentSnapshot] | None,
    constants: StepConstants,
    margin_m: float,
) -> EgoRows | None:
    """Return `build_ego_rows` of sampled rows; see `EgoOnlyCBFQP.planar_constraints`.

    Raises:
        ConfigurationError: The control step is too long for the radii.
    """
    ego = agents.get(constants.pairs.ego_uid)
    if type(ego) is not AgentSnapshot or ego.age_s != 0.0 or len(agents) != len(constants.rows) + 1:
        return None
    p_ego, v_ego, radius = ego.position_numbers, ego.velocity_numbers, ego.radius + margin_m
    if len(p_ego) != 2:
        return None
    a: list[list[float]] = []
    levels: list[float] = []
    barriers: list[float] = []
    margins: list[float] = []
    closings: list[float] = []
    outside = violated = False
    for uid, _, pair, turned in constants.rows:
        partner = agents.get(uid)
        if type(partner) is not AgentSnapshot or partner.age_s != 0.0:
            return None
        p, v = partner.position_numbers, partner.velocity_numbers
        if ahead is not None:
            then = ahead.get(uid)
            if type(then) is not AgentSnapshot or then.velocity_numbers != v:
                return None
        if len(p) != 2:
            return None
        contact = radius + partner.radius
        if 6.0 * contact < turned:
            raise step_too_long(uid, pair, contact)
        n_x, n_y, margin, closing, level, h = planar_row_level(p_ego, v_ego, p, v, contact, pair)
        if h < 0.0 or margin < 0.0:
            violated = True
            if h < -CERTIFICATE_TOLERANCE or margin < -OVERLAP_TOLERANCE:
                outside = True
        a.append([-n_x, -n_y])
        levels.append(level - pair.partner_accel)
        barriers.append(h)
        margins.append(margin)
        closings.append(closing)
    uncovered = not constants.of_pairs.covered
    return EgoRows(a, levels, barriers, margins, closings, uncovered, outside, violated)


def _passively(solution: Solution, rows: EgoRows, scene: PassiveScene) -> Solution:
    """Return ``solution`` where it keeps passive safety, else what does."""
    action, kept = passive_action(np, scene, np.array(solution.x))
    x, status = action.tolist(), solution.status
    if x != solution.x:
        missed = max(residual(row, b_j, x) for row, b_j in zip(rows.a, solution.b, strict=True))
        status = SolveStatus.OPTIMAL if missed <= PASSIVE_MET else SolveStatus.INFEASIBLE
    return replace(solution, x=x, status=status, proved=bool(kept))
