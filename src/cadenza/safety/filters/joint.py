"""Filters that decide every agent's action: the oracle, and the one that shares control.

Cost:   min |u - u_proposed|^2 over the actions of all agents, in their boxes.
Rows:   one per pair, `joint_rows`, solved by `projection`.
Units:  actions in each agent's own unit, everything else SI.
Limits: with three agents and more the rows can conflict; the step is then flagged. Shared control
        is never certified while a partner's box is smaller than its actuators allow.
"""

import math
import time
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from cadenza.core.arrays import FloatArray
from cadenza.core.checks import is_real
from cadenza.core.errors import ConfigurationError
from cadenza.safety.bounds import Bounds
from cadenza.safety.errors import ConcertoSafetyInfeasible
from cadenza.safety.filters.arguments import (
    MAX_DT,
    MIN_DT,
    require_kind,
    require_models,
)
from cadenza.safety.filters.ego_options import Barrier, Compat, EgoOnlyOptions, OnInfeasible
from cadenza.safety.filters.joint_arguments import JointCall, require_joint_call, require_share
from cadenza.safety.filters.joint_rows import (
    JointAgent,
    JointRows,
    JointRule,
    build_joint_rows,
)
from cadenza.safety.filters.mode import SafetyMode
from cadenza.safety.filters.row_solution import Solution, solve_rows
from cadenza.safety.protocols import AgentControlModel
from cadenza.safety.rows.authority import measure_authority
from cadenza.safety.rows.barrier import (
    CERTIFICATE_TOLERANCE,
    DEFAULT_CBF_GAMMA,
    OVERLAP_TOLERANCE,
    Plant,
    barrier_violation,
)
from cadenza.safety.rows.wae import CbfPower
from cadenza.safety.solvers import QPSolver, SolveStatus, as_solver
from cadenza.safety.state import FilterInfo, SafetyState


@dataclass(frozen=True, slots=True)
class _Box:
    """Bounds of all variables; ``full`` if no agent's box is smaller than its actuators allow."""

    lower: list[float]
    upper: list[float]
    full: bool


class _JointCBFQP:
    """What both joint filters share: everything but the box.

    Args:
        control_models: Model of every agent by id.
        solver: Solves several active rows; None means DAQP.
        cbf_gamma: Rate at which overlap is undone, 1/s; with "wae" the gain of the class-K
            function.
        dt: Control step, s, that the sampled row is exact for.
        plant: How the plant integrates one control step; "zoh" covers both kinds.
        margin_m: Distance kept in addition to the radii, m.
        on_infeasible: "least_violation" returns the least unsafe actions, flagged; "raise" raises
            `ConcertoSafetyInfeasible`.
        barrier: "sampled" is the proved row; "wae" the classical one in continuous time, every step
            of which is ``uncertified``. None takes the first with ``dt``, the second without.
        compat: "upstream", with "wae" only: agents are credited with what they declare, lambda
            enters as it is, infeasible raises.
        cbf_power: Exponent of h in the classical row, 1 or 3.
        bounds_by_uid: Boxes of agents that differ from the ``bounds`` of a call.

    Raises:
        ConfigurationError: No control models, a model filed under another id, an option out of
            range or without effect beside another, or no ``dt`` for the sampled row.
    """

    def __init__(
        self,
        *,
        control_models: Mapping[str, AgentControlModel],
        solver: QPSolver | None = None,
        cbf_gamma: float = DEFAULT_CBF_GAMMA,
        dt: float | None = None,
        plant: Plant = "zoh",
        margin_m: float = 0.0,
        on_infeasible: OnInfeasible = "least_violation",
        barrier: Barrier | None = None,
        compat: Compat | None = None,
        cbf_power: CbfPower = 1,
        bounds_by_uid: Mapping[str, Bounds] | None = None,
    ) -> None:
        require_models(control_models)
        if barrier is None:
            barrier = "wae" if dt is None else "sampled"
        options = EgoOnlyOptions(
            cbf_gamma=cbf_gamma,
            plant=plant,
            margin_m=margin_m,
            on_infeasible=on_infeasible,
            barrier=barrier,
            compat=compat,
            cbf_power=cbf_power,
        )
        self._models = dict(control_models)
        self._own_bounds = _checked_own_bounds(bounds_by_uid, control_models.keys())
        self._solver = as_solver(solver)
        self._options = options
        self._rule = JointRule(
            level=options.level_function(),
            gamma=cbf_gamma,
            plant=plant,
            margin_m=margin_m,
            dt=_checked_dt(dt, barrier),
            declared_alpha=options.upstream,
        )

    def reset(self, *, seed: int | None = None) -> None:
        """Start an episode. There is nothing to forget: no draws, and every solve starts cold."""
        del seed

    def _filter(
        self,
        proposed_action: Mapping[str, FloatArray],
        call: JointCall,
        agents: list[JointAgent],
        state: SafetyState,
        box: _Box,
    ) -> tuple[dict[str, FloatArray], FilterInfo]:
        """Return the actions and the record of one checked call."""
        rows = build_joint_rows(agents, self._rule)
        u = [number for action in call.actions for number in action]
        wanted = [state.lambda_[key] for key in call.keys]
        started = time.perf_counter()
        solution = solve_rows(
            u,
            rows,
            wanted,
            (box.lower, box.upper),
            self._solver,
            as_given=self._options.upstream,
        )
        elapsed_ms = (time.perf_counter() - started) * 1e3
        if self._options.raises and solution.status is not SolveStatus.OPTIMAL:
            raise ConcertoSafetyInfeasible(
                f"filter: no actions in the boxes meet every row ({solution.status.value}); "
                "use the braking fallback for this step."
            )
        filtered = {
            agent.uid: np.array(solution.x[agent.start : agent.start + agent.width])
            for agent in agents
        }
        # An agent whose action did not change keeps its bits, the sign of a zero included.
        safe: dict[str, FloatArray] = {
            uid: proposed.astype(np.float64)
            if np.array_equal(filtered[uid], proposed)
            else filtered[uid]
            for uid, proposed in proposed_action.items()
        }
        info = _report(u, rows, solution, call.keys, elapsed_ms, gamma=self._options.undoing_rate)
        info["uncertified"] |= (
            self._options.barrier != "sampled"
            or not box.full
            or not all(agent.authority.certified for agent in agents)
            or any(agent.snapshot.age_s > 0.0 for agent in agents)
        )
        return safe, info

    def _agents(self, call: JointCall, bounds: Bounds) -> list[JointAgent]:
        """Return the agents of a call, each with its authority now."""
        agents: list[JointAgent] = []
        start = 0
        for uid, snapshot in zip(call.uids, call.snapshots, strict=True):
            model = self._models[uid]
            authority = measure_authority(model, snapshot, self._bounds_of(uid, bounds))
            agents.append(JointAgent(uid, snapshot, authority, start, model.action_dim))
            start += model.action_dim
        return agents

    def _bounds_of(self, uid: str, bounds: Bounds) -> Bounds:
        return self._own_bounds.get(uid, bounds)

    def _box(
        self,
        call: JointCall,
        bounds: Bounds,
        *,
        ego_uid: str | None = None,
        share: float = math.inf,
    ) -> _Box:
        """Return the boxes of all agents; everyone but the ego stays near its proposed action.

        The centre of the nearness is clipped to the actuator box first, so the box is never empty.
        """
        lower: list[float] = []
        upper: list[float] = []
        full = True
        for uid, action in zip(call.uids, call.actions, strict=True):
            c = self._bounds_of(uid, bounds).action_linf_component
            if uid == ego_uid:
                lower += [-c] * len(action)
                upper += [c] * len(action)
                continue
            for number in action:
                centre = min(max(number, -c), c)
                lower.append(max(-c, centre - share))
                upper.append(min(c, centre + share))
                full = full and lower[-1] == -c and upper[-1] == c
        return _Box(lower, upper, full)


class CentralizedCBFQP(_JointCBFQP):
    """Decides every agent's action; the oracle that partners would have to obey.

    Construction: see `ExpCBFQP.centralized`.
    """

    @property
    def mode(self) -> SafetyMode:
        """Whose actions may change."""
        return SafetyMode.CENTRALIZED

    def filter(
        self,
        proposed_action: dict[str, FloatArray],
        obs: Mapping[str, Any],
        state: SafetyState,
        bounds: Bounds,
        *,
        ego_uid: str | None = None,
        partner_action_bound: float | None = None,
    ) -> tuple[dict[str, FloatArray], FilterInfo]:
        """Return the actions closest to the proposed ones that keep every pair apart.

        Args:
            proposed_action: Action by agent id, each of shape (action_dim,).
            obs: ``obs["agent_states"]`` holds the snapshots by id; agents that propose no action
                are ignored, and nothing else is read.
            state: Slack of every pair of proposing agents; read, never changed.
            bounds: Box of every action and shared capacity.
            ego_uid: Not used in this mode; there for one signature of both.
            partner_action_bound: Not used in this mode.

        Returns:
            Fresh float64 actions under the same ids, each with the proposed bits when it did not
            change; and the record of the step, one entry per pair in canonical order.

        Raises:
            InputError: An argument is malformed or not finite, or a snapshot or slack missing.
            TypeError: ``proposed_action`` is not a dict of arrays.
            UnknownNameError: An agent has no control model.
            ConfigurationError: Two agents have no authority together.
            ConcertoSafetyInfeasible: No actions meet every row and ``on_infeasible="raise"``.
        """
        del ego_uid, partner_action_bound
        require_kind("state", state, SafetyState)
        require_kind("bounds", bounds, Bounds)
        call = require_joint_call(proposed_action, obs, state.lambda_, self._models)
        box = self._box(call, bounds)
        return self._filter(proposed_action, call, self._agents(call, bounds), state, box)


class SharedControlCBFQP(_JointCBFQP):
    """Decides every agent's action, but a partner's only near the one it proposed.

    Construction: see `ExpCBFQP.shared_control`.
    """

    @property
    def mode(self) -> SafetyMode:
        """Whose actions may change."""
        return SafetyMode.SHARED_CONTROL

    def filter(
        self,
        proposed_action: dict[str, FloatArray],
        obs: Mapping[str, Any],
        state: SafetyState,
        bounds: Bounds,
        *,
        ego_uid: str | None = None,
        partner_action_bound: float | None = None,
    ) -> tuple[dict[str, FloatArray], FilterInfo]:
        """Return the actions closest to the proposed ones that keep every pair apart.

        Args:
            proposed_action: Action by agent id, each of shape (action_dim,).
            obs: See `CentralizedCBFQP.filter`.
            state: Slack of every pair of proposing agents; read, never changed.
            bounds: Box of every action and shared capacity.
            ego_uid: The agent whose whole box is available; required.
            partner_action_bound: Largest change of each component of another agent's action,
                action unit, > 0; required.

        Returns:
            See `CentralizedCBFQP.filter`.

        Raises:
            InputError: As there, or ``ego_uid`` or ``partner_action_bound`` is missing or wrong.
            TypeError: ``proposed_action`` is not a dict of arrays.
            UnknownNameError: An agent has no control model.
            ConfigurationError: Two agents have no authority together.
            ConcertoSafetyInfeasible: No actions meet every row and ``on_infeasible="raise"``.
        """
        require_kind("state", state, SafetyState)
        require_kind("bounds", bounds, Bounds)
        call = require_joint_call(proposed_action, obs, state.lambda_, self._models)
        ego, share = require_share(ego_uid, partner_action_bound, call.uids)
        box = self._box(call, bounds, ego_uid=ego, share=share)
        return self._filter(proposed_action, call, self._agents(call, bounds), state, box)


def _report(
    u: list[float],
    rows: JointRows,
    solution: Solution,
    keys: list[tuple[str, str]],
    elapsed_ms: float,
    *,
    gamma: float,
) -> FilterInfo:
    """Return the record of one step without what the box and the kind of row say about it."""
    solved, changed = solution.status is SolveStatus.OPTIMAL, solution.x != u
    outside = (
        min(rows.h, default=0.0) < -CERTIFICATE_TOLERANCE
        or min(rows.margin, default=0.0) < -OVERLAP_TOLERANCE
    )
    relaxed = max(solution.lambda_, default=0.0) > 0.0
    return {
        "lambda": dict(zip(keys, solution.lambda_, strict=True)),
        "constraint_violation": np.array(
            [barrier_violation(h, e, gamma) for h, e in zip(rows.h, rows.margin, strict=True)]
        ),
        "prediction_gap_loss": None,
        "fallback_fired": False,
        "qp_solve_ms": elapsed_ms,
        "slack": np.array(solution.missed(rows)),
        "margin": np.array(rows.margin),
        "status": solution.status.value if changed or not solved else "inactive",
        "intervention": math.dist(solution.x, u) if changed else 0.0,
        "uncertified": not solved or outside or relaxed,
        "rate_active": False,
        "rate_exceeded": False,
    }


def _checked_own_bounds(own_bounds: object, known: Set[str]) -> dict[str, Bounds]:
    """Return a copy of the boxes that agents bring along."""
    if own_bounds is None:
        return {}
    if not isinstance(own_bounds, Mapping):
        raise ConfigurationError(
            f"filter: bounds_by_uid: expected Bounds by agent id, got {type(own_bounds).__name__}."
        )
    for uid, bounds in cast("Mapping[str, object]", own_bounds).items():
        if not isinstance(bounds, Bounds):
            raise ConfigurationError(
                f"filter: bounds_by_uid[{uid!r}]: expected Bounds, got {type(bounds).__name__}."
            )
    boxes = dict(cast("Mapping[str, Bounds]", own_bounds))
    unknown = sorted(boxes.keys() - known)
    if unknown:
        raise ConfigurationError(
            f"filter: bounds_by_uid: expected agents with a control model, got {unknown}."
        )
    return boxes


def _checked_dt(dt: float | None, barrier: Barrier) -> float:
    """Return the control step the rows are built with; the classical ones ignore it."""
    if barrier != "sampled":
        if dt is not None:
            raise ConfigurationError('filter: dt belongs to barrier="sampled"; leave it out.')
        return math.nan
    if dt is None:
        raise ConfigurationError(
            "joint filter: expected dt, the control step in seconds, which the sampled row is "
            "exact for; pass dt=..., or leave barrier out for the classical row."
        )
    if not (is_real(dt) and MIN_DT <= dt <= MAX_DT):
        raise ConfigurationError(
            f"filter: dt: expected seconds in [{MIN_DT:g}, {MAX_DT:g}], got {dt!r}."
        )
    return dt
