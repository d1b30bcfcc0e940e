"""The filter for unknown partners: it decides the ego's action and trusts only bounds.

Every partner contributes one row (`cadenza.safety.ego_rows`) built for the worst acceleration its
control model declares; `cadenza.safety.projection` solves them together.

Units:  actions in the ego's action unit, everything else SI.
Limits: the certificate needs a constant ego authority in every direction (true for a double
        integrator) and one partner; with several partners the rows can conflict, and the step is
        then flagged.
"""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import numpy as np

from cadenza.core.arrays import FloatArray
from cadenza.core.errors import ConfigurationError
from cadenza.safety.arguments import (
    require_action,
    require_call,
    require_lambda,
    require_member,
    require_snapshot,
)
from cadenza.safety.authority import EgoAuthority, measure_authority, pair_parameters
from cadenza.safety.barrier import DEFAULT_CBF_GAMMA, PairParameters, Plant
from cadenza.safety.bounds import MAX_BOUND, MIN_BOUND, Bounds
from cadenza.safety.ego_rows import EgoRows, build_ego_rows, feasible_lambda
from cadenza.safety.errors import ConcertoSafetyInfeasible
from cadenza.safety.pairs import LambdaDict, canonical_pair_key
from cadenza.safety.projection import RowSet, project
from cadenza.safety.protocols import AgentControlModel
from cadenza.safety.snapshot import AgentSnapshot
from cadenza.safety.solvers import DaqpSolver, QPSolver, SolveStatus
from cadenza.safety.state import FilterInfo, SafetyState

#: What to do when no action meets every row.
OnInfeasible: TypeAlias = Literal["least_violation", "raise"]

#: How far outside the safe set rounding may put a state, m/s. Actions rounded to float32 move the
#: closing speed by about 1e-8 m/s per step; a safety margin of a millimetre covers this many times.
CERTIFICATE_TOLERANCE: Final = 1e-6


@dataclass(frozen=True, slots=True)
class _EgoPairs:
    """The ego's pairs among a set of agents, in the string order of the partners."""

    ego_uid: str
    uids: tuple[str, ...]
    partners: list[str]
    keys: list[tuple[str, str]]
    key_set: frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True, eq=False)
class _Constants:
    """What the rows need that does not change while agents, bounds and step stay the same."""

    pairs: _EgoPairs
    bounds: Bounds
    dt: float
    authority: EgoAuthority
    parameters: list[PairParameters]


@dataclass(slots=True)
class _Solution:
    """One solved step."""

    x: list[float]
    status: SolveStatus
    lambda_: list[float]
    b: list[float]
    elapsed_ms: float


class EgoOnlyCBFQP:
    """Ego-only filter over sampled-data rows.

    Args:
        control_models: Model of every agent by id. A partner's ``max_cartesian_accel`` is the
            bound the certificate trusts.
        solver: Solves several active rows; None means DAQP.
        cbf_gamma: Rate at which overlap is undone, 1/s.
        plant: How the plant integrates one control step; "zoh" covers both kinds.
        margin_m: Distance kept in addition to the radii, m.
        prediction_error: Bound on the error of the predicted partner acceleration, m/s^2. None
            trusts no prediction: each row takes the partner's bound, or the forecast push where
            that is larger.
        on_infeasible: "least_violation" returns the least unsafe action, flagged; "raise" raises
            `ConcertoSafetyInfeasible`.

    Raises:
        ConfigurationError: No control models, a model filed under another id, or an option out
            of range.
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
    ) -> None:
        _check_models(control_models)
        _check_range("cbf_gamma", cbf_gamma, MIN_BOUND)
        _check_range("margin_m", margin_m, 0.0)
        if prediction_error is not None:
            _check_range("prediction_error", prediction_error, 0.0)
        _check_choice("plant", plant, ("zoh", "semi_implicit"))
        _check_choice("on_infeasible", on_infeasible, ("least_violation", "raise"))
        self._models = dict(control_models)
        self._solver = DaqpSolver() if solver is None else solver
        self._gamma = cbf_gamma
        self._plant: Plant = plant
        self._margin_m = margin_m
        self._prediction_error = prediction_error
        self._raise = on_infeasible == "raise"
        self._constants: _Constants | None = None

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
    ) -> tuple[FloatArray, FilterInfo]:
        """Return the action closest to the proposed one that keeps the ego in the safe set.

        Args:
            proposed_action: Nominal action, shape (action_dim,).
            obs: ``obs["agent_states"]`` holds every agent's snapshot by id; nothing else is read.
            state: Slack per ego pair; read, never changed.
            bounds: Box of the action and shared capacity.
            ego_uid: The agent whose action this is.
            partner_predicted_states: Every partner's snapshot one ``dt`` ahead.
            dt: Control step, s.

        Returns:
            A fresh float64 action, shape (action_dim,), with the proposed bits when no row and no
            bound is active; and the record of the step.

        Raises:
            InputError: An argument is missing, malformed or not finite.
            TypeError: The action is not an array.
            UnknownNameError: An agent has no control model or no prediction.
            ConfigurationError: The ego has no authority left against a partner.
            ConcertoSafetyInfeasible: No action meets every row and ``on_infeasible="raise"``.
        """
        agents = require_call(proposed_action, obs, ego_uid, partner_predicted_states, dt)
        require_member(ego_uid, self._models, "control_models")
        pairs = self._pairs_of(ego_uid, agents)
        require_lambda(state.lambda_, pairs.key_set)
        u = require_action(proposed_action, self._models[ego_uid].action_dim)
        rows = self._rows(agents, partner_predicted_states, pairs, bounds, dt)
        solution = self._solve(u, rows, [state.lambda_[key] for key in pairs.keys], bounds)
        if self._raise and solution.status is not SolveStatus.OPTIMAL:
            raise ConcertoSafetyInfeasible(
                f"filter: no action in the box meets every row ({solution.status.value}); "
                "use the braking fallback for this step."
            )
        changed = solution.x != u
        action = np.array(solution.x if changed else proposed_action, dtype=np.float64)
        return action, _report(u, rows, solution, pairs.keys, changed=changed)

    def barrier_values(
        self, agents: Mapping[str, AgentSnapshot], bounds: Bounds, *, ego_uid: str, dt: float
    ) -> LambdaDict:
        """Return h of every ego pair, m/s, with the geometry and constants of the rows."""
        pairs = self._pairs_of(ego_uid, agents)
        rows = self._rows(agents, agents, pairs, bounds, dt)
        return dict(zip(pairs.keys, rows.h, strict=True))

    def _pairs_of(self, ego_uid: str, agents: Mapping[str, AgentSnapshot]) -> _EgoPairs:
        """Return the ego's pairs; the last answer is kept, agents rarely change."""
        uids = tuple(agents)
        last = self._constants
        if last is not None and last.pairs.uids == uids and last.pairs.ego_uid == ego_uid:
            return last.pairs
        partners = sorted(uid for uid in uids if uid != ego_uid)
        keys = [canonical_pair_key(ego_uid, uid) for uid in partners]
        return _EgoPairs(ego_uid, uids, partners, keys, frozenset(keys))

    def _rows(
        self,
        agents: Mapping[str, AgentSnapshot],
        predicted: Mapping[str, AgentSnapshot],
        pairs: _EgoPairs,
        bounds: Bounds,
        dt: float,
    ) -> EgoRows:
        """Return the rows of this step at lambda = 0."""
        dim = self._models[pairs.ego_uid].position_dim
        ego = require_snapshot(f"agent_states[{pairs.ego_uid!r}]", agents[pairs.ego_uid], dim)
        now: list[AgentSnapshot] = []
        ahead: list[AgentSnapshot] = []
        for uid in pairs.partners:
            require_member(uid, self._models, "control_models")
            require_member(uid, predicted, "partner_predicted_states")
            now.append(require_snapshot("agent_states", agents[uid], dim))
            ahead.append(require_snapshot("partner_predicted_states", predicted[uid], dim))
        constants = self._constants_of(ego, pairs, bounds, dt)
        return build_ego_rows(
            ego,
            now,
            ahead,
            constants.parameters,
            constants.authority,
            margin_m=self._margin_m,
            prediction_error=self._prediction_error,
        )

    def _constants_of(
        self, ego: AgentSnapshot, pairs: _EgoPairs, bounds: Bounds, dt: float
    ) -> _Constants:
        """Return the constants of the rows; kept while nothing they depend on changes."""
        last = self._constants
        if (
            last is not None
            and last.pairs is pairs
            and last.bounds == bounds
            and last.dt == dt
            and last.authority.jacobian is None  # a Jacobian depends on the state
        ):
            return last
        authority = measure_authority(self._models[pairs.ego_uid], ego, bounds)
        parameters = [
            pair_parameters(
                authority, self._models[uid], bounds, dt=dt, gamma=self._gamma, plant=self._plant
            )
            for uid in pairs.partners
        ]
        self._constants = _Constants(pairs, bounds, dt, authority, parameters)
        return self._constants

    def _solve(
        self, u: list[float], rows: EgoRows, wanted: list[float], bounds: Bounds
    ) -> _Solution:
        """Solve with lambda as tight as each row allows, then without it if the rows conflict."""
        c = bounds.action_linf_component
        used, b = wanted, rows.level
        if any(wanted):
            used = [
                feasible_lambda(value, row, level, c)
                for value, row, level in zip(wanted, rows.a, rows.level, strict=True)
            ]
            b = [level + value for level, value in zip(rows.level, used, strict=True)]
        lower, upper = [-c] * len(u), [c] * len(u)
        started = time.perf_counter()
        x, status = project(
            u, RowSet(rows.a, b, rows.h, rows.time_left), lower, upper, self._solver
        )
        if status is not SolveStatus.OPTIMAL and any(value < 0.0 for value in used):
            used = [max(0.0, value) for value in used]
            b = [level + value for level, value in zip(rows.level, used, strict=True)]
            x, status = project(
                u, RowSet(rows.a, b, rows.h, rows.time_left), lower, upper, self._solver
            )
        return _Solution(x, status, used, b, (time.perf_counter() - started) * 1e3)


def _report(
    u: list[float],
    rows: EgoRows,
    solution: _Solution,
    keys: list[tuple[str, str]],
    *,
    changed: bool,
) -> FilterInfo:
    """Return the record of one step."""
    solved = solution.status is SolveStatus.OPTIMAL
    slack = np.zeros(len(keys))
    if not solved:
        row_set = RowSet(rows.a, solution.b, rows.h, rows.time_left)
        slack[:] = [max(0.0, row_set.residual(j, solution.x)) for j in range(len(keys))]
    outside = min(rows.h, default=0.0) < -CERTIFICATE_TOLERANCE
    relaxed = max(solution.lambda_, default=0.0) > 0.0
    return {
        "lambda": dict(zip(keys, solution.lambda_, strict=True)),
        "constraint_violation": np.array([0.0 if h >= 0.0 else -h for h in rows.h]),
        "prediction_gap_loss": None,
        "fallback_fired": False,
        "qp_solve_ms": solution.elapsed_ms,
        "slack": slack,
        "margin": np.array(rows.margin),
        "status": solution.status.value if changed or not solved else "inactive",
        "intervention": math.dist(solution.x, u) if changed else 0.0,
        "uncertified": not solved or outside or relaxed or rows.forecast_breaks_bound,
    }


def _check_models(control_models: Mapping[str, AgentControlModel]) -> None:
    if not control_models:
        raise ConfigurationError("filter: expected at least one control model, got none.")
    for uid, model in control_models.items():
        if model.uid != uid:
            raise ConfigurationError(
                f"filter: expected the control model of {uid!r}, got one for {model.uid!r}."
            )


def _check_range(name: str, value: float, lowest: float) -> None:
    if not lowest <= value <= MAX_BOUND:
        raise ConfigurationError(
            f"filter: {name}: expected a number in [{lowest:g}, {MAX_BOUND:g}], got {value}."
        )


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigurationError(f"filter: {name}: expected one of {choices}, got {value!r}.")
