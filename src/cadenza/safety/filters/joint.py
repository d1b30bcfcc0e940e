"""Filters that decide every agent's action: the oracle, and the one that shares control.

Cost:        min |u - u_proposed|^2 over the actions u = (u_1, ..., u_N) of all agents, in string
             order of their ids, each in its own slot and box.
Action map:  a_k = J_k u_k + beta_k.
Row (i, j):  -n^T J_i u_i + n^T J_j u_j <= level + n @ beta_i - n @ beta_j + lambda,
             n from the centre of j to that of i; level from `cadenza.safety.cbf`.
alpha:       alpha_i + alpha_j, what both agents brake with; each alpha_k is what the box of k
             reaches in its weakest direction, at most its declared capacity.
Proof:       that of docs/safety.md, which reads the relative motion only (sampled barrier,
             lambda <= 0). Both accelerations are decided, so c = w - n @ (a_i - a_j) dt exactly,
             and the row says c + tau <= c_max without a term for the partner. Both push straight
             apart in step 4, which the product of their boxes contains.
Limits:      three agents and more: the rows of several pairs can conflict, and the step is flagged.
             Shared control: a box around a partner's proposed action need not contain its push.
Units:       actions in each agent's own unit, everything else SI.
"""

import itertools
import math
import time
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, cast

import numpy as np

from cadenza.core.arrays import FloatArray
from cadenza.core.checks import is_real, shown
from cadenza.core.errors import ConfigurationError, InputError
from cadenza.safety.authority import EgoAuthority, measure_authority
from cadenza.safety.cbf import (
    CERTIFICATE_TOLERANCE,
    DEFAULT_CBF_GAMMA,
    OVERLAP_TOLERANCE,
    PairParameters,
    Plant,
    geometry_of,
    row_level,
)
from cadenza.safety.contracts import (
    MAX_BOUND,
    MIN_BOUND,
    AgentControlModel,
    Bounds,
    FilterInfo,
    SafetyMode,
    SafetyState,
    make_pair_keys,
)
from cadenza.safety.errors import ConcertoSafetyInfeasible
from cadenza.safety.filter_options import (
    Barrier,
    CbfPower,
    Compat,
    EgoOnlyOptions,
    OnInfeasible,
)
from cadenza.safety.filters.arguments import (
    agent_states,
    checked_timestep,
    require_action,
    require_kind,
    require_lambda,
    require_member,
    require_models,
    require_snapshot,
)
from cadenza.safety.filters.compat import LevelFunction, wae_level
from cadenza.safety.filters.projection import Box, PairRows, Solution, project
from cadenza.safety.snapshot import AgentSnapshot
from cadenza.safety.solvers import QPSolver, SolveStatus, as_solver


def _action_of(uid: str, action: object, size: int) -> list[float]:
    name = f"proposed_action[{uid!r}]"
    if not isinstance(action, np.ndarray):
        raise TypeError(f"filter: {name} must be an array, got {type(action).__name__}.")
    return require_action(cast("np.ndarray[Any, Any]", action), size, name)


@dataclass(frozen=True, slots=True, eq=False)
class JointAgent:
    """One agent of a step.

    Attributes:
        uid: Its id.
        snapshot: Its motion.
        action: Its proposed action, plain numbers.
        authority: What its action does to its ball.
        start: Index of its first variable.
    """

    uid: str
    snapshot: AgentSnapshot
    action: list[float]
    authority: EgoAuthority
    start: int

    @property
    def slot(self) -> slice:
        """Its variables."""
        return slice(self.start, self.start + len(self.action))


def joint_parameters(
    first: JointAgent, second: JointAgent, options: EgoOnlyOptions, dt: float
) -> PairParameters:
    """Return the constants of the row of two agents that both obey.

    With ``compat`` agents are credited with what they declare, whatever their box reaches.

    Raises:
        ConfigurationError: Neither agent has any authority, so nothing keeps them apart.
    """
    if options.upstream:
        alpha = first.authority.capacity + second.authority.capacity
    else:
        alpha = first.authority.every_direction + second.authority.every_direction
    if not alpha >= MIN_BOUND:
        raise ConfigurationError(
            f"joint filter: expected {first.uid!r} or {second.uid!r} to have authority in every "
            f"direction, got {alpha:.4g} m/s^2 together; declare what they can really do."
        )
    return PairParameters(
        alpha=alpha,
        partner_accel=0.0,  # nobody in the pair is a disturbance
        relative_accel=first.authority.reach + second.authority.reach,
        dt=dt,
        gamma=options.cbf_gamma,
        plant=options.plant,
    )


def build_joint_rows(
    agents: Sequence[JointAgent], level_of: LevelFunction, options: EgoOnlyOptions, dt: float
) -> PairRows:
    """Return the rows of all pairs of agents, in string order of their ids, outer agent first.

    ``level_of`` is the function behind every row.

    Raises:
        ConfigurationError: A pair without authority.
    """
    rows = PairRows([], [], [], [], [])
    size = sum(len(agent.action) for agent in agents)
    for first, second in itertools.combinations(agents, 2):
        one, other = first.snapshot, second.snapshot
        pair = joint_parameters(first, second, options, dt)
        normal, distance, closing, tangential = geometry_of(one, other)
        contact = one.radius + other.radius + options.margin_m
        level, h = level_of(distance, contact, closing, tangential, pair)
        row = [0.0] * size
        row[first.slot] = first.authority.row(normal)
        row[second.slot] = second.authority.row(normal, sign=1.0)
        level = level + first.authority.drift(normal) - second.authority.drift(normal)
        rows.add(row, level, h, distance - contact, closing)
    return rows


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
        wae = partial(wae_level, power=cbf_power)
        self._level: LevelFunction = row_level if barrier == "sampled" else wae
        self._dt = _checked_dt(dt, barrier)

    def reset(self, *, seed: int | None = None) -> None:
        """Start an episode. There is nothing to forget: no draws, and every solve starts cold."""
        del seed

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
            ego_uid: The agent whose whole box is available where control is shared; of no meaning,
                as the next, where every agent obeys.
            partner_action_bound: Largest change of each component of another agent's action,
                action unit, > 0.

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
        agents = self._read(proposed_action, obs, state, bounds)
        box, full = self._box(agents, bounds, *self._share(ego_uid, partner_action_bound, agents))
        rows = build_joint_rows(agents, self._level, self._options, self._dt)
        keys = make_pair_keys(agent.uid for agent in agents)
        u = [number for agent in agents for number in agent.action]
        wanted = [state.lambda_[key] for key in keys]
        started = time.perf_counter()
        solution = project(u, rows, wanted, box, self._solver, as_given=self._options.upstream)
        elapsed_ms = (time.perf_counter() - started) * 1e3
        if self._options.raises and solution.status is not SolveStatus.OPTIMAL:
            raise ConcertoSafetyInfeasible(
                f"filter: no actions in the boxes meet every row ({solution.status.value}); "
                "use the braking fallback for this step."
            )
        filtered = {agent.uid: np.array(solution.x[agent.slot]) for agent in agents}
        # An agent whose action did not change keeps its bits, the sign of a zero included.
        safe: dict[str, FloatArray] = {
            uid: proposed.astype(np.float64)
            if np.array_equal(filtered[uid], proposed)
            else filtered[uid]
            for uid, proposed in proposed_action.items()
        }
        info = _report(u, rows, solution, keys, elapsed_ms, gamma=self._options.undoing_rate)
        info["uncertified"] |= (
            self._options.barrier != "sampled"
            or not full
            or not all(agent.authority.certified for agent in agents)
            or any(agent.snapshot.age_s > 0.0 for agent in agents)
        )
        return safe, info

    def _read(
        self, proposed_action: object, obs: object, state: SafetyState, bounds: Bounds
    ) -> list[JointAgent]:
        """Return the agents of one call, in string order of their ids, after checking it.

        Raises:
            InputError: ``obs`` holds no agents, an agent no snapshot, no action is proposed, an
                action is malformed or not finite, or the slack is not that of all pairs.
            TypeError: ``proposed_action`` is not a dict, or an action not an array.
            UnknownNameError: An agent has no control model.
        """
        require_kind("state", state, SafetyState)
        require_kind("bounds", bounds, Bounds)
        states = agent_states(obs)
        if not isinstance(proposed_action, dict):
            raise TypeError(
                "filter: proposed_action must be a dict of arrays by agent id, "
                f"got {type(proposed_action).__name__}."
            )
        proposed = cast("dict[str, object]", proposed_action)
        if not proposed:
            raise InputError("filter: proposed_action: expected at least one agent, got none.")
        models = self._models
        uids = sorted(proposed)
        for uid in uids:
            require_member(uid, models, "control_models")
        dim = models[uids[0]].position_dim
        for uid in uids:
            if uid not in states:
                raise InputError(
                    f'filter: expected a snapshot of {uid!r} in obs["agent_states"], '
                    f"got {sorted(states)}."
                )
        snapshots = [require_snapshot(f"agent_states[{uid!r}]", states[uid], dim) for uid in uids]
        actions = [_action_of(uid, proposed[uid], models[uid].action_dim) for uid in uids]
        remedy = "build it for all pairs of proposed_action with make_lambda_dict"
        require_lambda(state.lambda_, make_pair_keys(uids), remedy)
        found: list[JointAgent] = []
        start = 0
        for uid, snapshot, action in zip(uids, snapshots, actions, strict=True):
            own = self._own_bounds.get(uid, bounds)
            authority = measure_authority(models[uid], snapshot, own)
            found.append(JointAgent(uid, snapshot, action, authority, start))
            start += len(action)
        return found

    def _share(
        self, ego_uid: object, partner_action_bound: object, agents: Sequence[JointAgent]
    ) -> tuple[str | None, float]:
        """Return the ego, and how much of a partner's action is shared: all of it."""
        del ego_uid, partner_action_bound, agents
        return None, math.inf

    def _box(
        self, agents: Sequence[JointAgent], bounds: Bounds, ego_uid: str | None, share: float
    ) -> tuple[Box, bool]:
        """Return the bounds of all variables, and whether they are all that the actuators allow.

        Everyone but the ego stays near its proposed action. The centre of the nearness is clipped
        to the actuator box first, so the box is never empty.
        """
        lower: list[float] = []
        upper: list[float] = []
        full = True
        for agent in agents:
            c = self._own_bounds.get(agent.uid, bounds).action_linf_component
            room = math.inf if agent.uid == ego_uid else share
            for number in agent.action:
                centre = min(max(number, -c), c)
                lower.append(max(-c, centre - room))
                upper.append(min(c, centre + room))
                full = full and lower[-1] == -c and upper[-1] == c
        return (lower, upper), full


class CentralizedCBFQP(_JointCBFQP):
    """Decides every agent's action; the oracle that partners would have to obey.

    Construction: see `ExpCBFQP.centralized`. ``mode`` says whose actions may change.
    """

    mode: Final = SafetyMode.CENTRALIZED


class SharedControlCBFQP(_JointCBFQP):
    """Decides every agent's action, but a partner's only near the one it proposed.

    Construction: see `ExpCBFQP.shared_control`. ``mode`` says whose actions may change.
    """

    mode: Final = SafetyMode.SHARED_CONTROL

    def _share(
        self, ego_uid: object, partner_action_bound: object, agents: Sequence[JointAgent]
    ) -> tuple[str | None, float]:
        """Return the ego, and the largest change of a partner's action.

        Raises:
            InputError: The ego is missing or proposes no action, or the bound is missing, not
                positive or not finite.
        """
        uids = [agent.uid for agent in agents]
        if partner_action_bound is None:
            raise InputError("filter: partner_action_bound is required, got None; pass it in > 0.")
        if not (is_real(partner_action_bound) and 0.0 < partner_action_bound <= MAX_BOUND):
            raise InputError(
                "filter: partner_action_bound: expected a finite number > 0, "
                f"got {shown(partner_action_bound)}."
            )
        if not isinstance(ego_uid, str) or ego_uid not in uids:
            raise InputError(
                f"filter: ego_uid: expected an agent of proposed_action {uids}, got {ego_uid!r}."
            )
        return ego_uid, float(partner_action_bound)


def _report(
    u: list[float],
    rows: PairRows,
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
        "constraint_violation": rows.violation(gamma),
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
    return checked_timestep("filter: dt", dt)
