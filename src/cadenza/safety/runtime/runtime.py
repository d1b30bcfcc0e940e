"""Everything between a policy's action and the plant, in one object and without an env.

A step (`SafetyRuntime._step`), stage by stage:
    check         the observation, before anything changes, and not again after that;
    notice        another partner, a broken declaration, a rise of packet ages, new packets;
    barrier       of every pair, and the constraints it sets on the action (`EgoOnlyCBFQP`);
    learn         forecasts that fell due are scored against the barriers, and lambda moves;
    project       the nominal action onto the constraints;
    brake         in place of the action, if no action meets every constraint and contact is
                  imminent, or if a contact force exceeds its limit. It comes after the filter,
                  because its triggers also fire inside the safe set, where the row is proved to be
                  enough; and while contact is not imminent the least-violation action, which weighs
                  every partner, is the better retreat;
    keep clear    of obstacles: what was chosen is executed if the ego can stop after it, else the
                  next best (`cadenza.safety.runtime.obstacles`);
    remember      what is executed, and what the next step compares with.

Steady: a step that differs from the last one in numbers alone has one flat check and flat rows,
        without what cannot have changed. From `learn` on every step is the same
        (`SafetyRuntime._act`).
Memory: `cadenza.safety.runtime.memory` holds everything that is remembered, and
        `SafetyRuntime.state_dict` saves it.
Trust:  the rows of a step trust forecast accelerations, as far as `SafetyOptions.prediction_error`
        says, only while every forecast claims an error within that bound.
Units:  m/s for barriers and scores, m/s^2 for slack and errors of forecasts.
"""

from collections.abc import Iterable, Mapping, Sized
from dataclasses import dataclass
from typing import Any, Final, cast

import numpy as np

from cadenza.core.arrays import FloatArray
from cadenza.core.checks import shown
from cadenza.core.errors import ConfigurationError, InputError
from cadenza.safety.authority import StepConstants, check_authority
from cadenza.safety.braking import Pair, PairDanger, emergency_controllers_of
from cadenza.safety.cbf import Plant
from cadenza.safety.cbf_qp import ExpCBFQP
from cadenza.safety.contracts import (
    AgentControlModel,
    Bounds,
    EmergencyController,
    FilterInfo,
    LambdaDict,
)
from cadenza.safety.errors import ConcertoSafetyInfeasible
from cadenza.safety.filters.arguments import checked_timestep, require_action, require_snapshots
from cadenza.safety.filters.ego_only import EgoOnlyCBFQP
from cadenza.safety.filters.ego_rows import EgoRows
from cadenza.safety.filters.projection import Box, inside, rate_box
from cadenza.safety.geometry import Obstacles, Shape
from cadenza.safety.maps import describe_map, obstacles_of
from cadenza.safety.runtime.memory import (
    DueForecast,
    RuntimeMemory,
    stop_action,
)
from cadenza.safety.runtime.observation import (
    UsualMotion,
    ordinary_agents,
    read_scene,
    require_agents,
    require_array,
    require_forces,
    require_partner_id,
    require_reach,
    tell,
)
from cadenza.safety.runtime.obstacles import ObstacleGuard
from cadenza.safety.runtime.options import RuntimeSetup, SafetyOptions
from cadenza.safety.runtime.predictors import Prediction
from cadenza.safety.runtime.safety_step import (
    RuntimeTelemetry,
    SafetyStep,
    as_blind_step,
    blank_info,
    distance,
    is_infeasible,
)
from cadenza.safety.snapshot import AgentSnapshot
from cadenza.safety.solvers import make_solver

#: The obstacles of a step that names none.
_NOTHING: Final[tuple[Shape, ...]] = ()


def require_parts(
    ego_uid: object,
    control_models: object,
    bounds: object,
    options: object,
    emergency_controllers: object,
) -> None:
    """Raise unless every part of a runtime is of its kind.

    Raises:
        ConfigurationError: One is not.
    """

    def require(name: str, value: object, kind: Any, expected: str) -> None:
        if not isinstance(value, kind):
            raise ConfigurationError(
                f"SafetyRuntime.{name}: expected {expected}, got {type(value).__name__}."
            )

    def require_each(name: str, values: object, kind: type, expected: str) -> None:
        for uid, value in cast("Mapping[Any, object]", values).items():
            require(f"{name}[{uid!r}]", value, kind, expected)

    require("ego_uid", ego_uid, str, "an agent id")
    require("control_models", control_models, Mapping, "a mapping of models by agent id")
    require("bounds", bounds, Bounds, "Bounds")
    require("options", options, SafetyOptions | None, "SafetyOptions or None")
    require_each("control_models", control_models, AgentControlModel, "an AgentControlModel")
    if emergency_controllers is not None:
        name = "emergency_controllers"
        require(name, emergency_controllers, Mapping, "a mapping by agent id or None")
        require_each(name, emergency_controllers, EmergencyController, "an EmergencyController")


@dataclass(slots=True)
class Scene:
    """A checked observation, and the action that the policy would take there."""

    nominal: FloatArray  # As it came, shape (A,)
    u: list[float]  # Its numbers
    agents: Mapping[str, AgentSnapshot]
    forces: Mapping[Pair, float] | None = None  # Contact forces by canonical pair, N
    obstacles: Obstacles | None = None  # What stands around; None where nothing may
    conflict: bool = False  # Sources of a packet's age contradict each other


class SafetyRuntime:
    """Filter, conformal layer, forecasts and braking of one ego.

    Args:
        ego_uid: The agent to guard.
        control_models: Model of every agent by id; exactly these agents are expected in every
            step.
        bounds: Envelope of the task.
        control_timestep: Time one step takes, s.
        plant: How the plant integrates one step.
        options: Configuration.
        emergency_controllers: Turns a push into an action, by agent; the ego's is needed unless
            its action is its Cartesian acceleration or its model offers a Jacobian.

    Attributes:
        options: The configuration.
        bounds: Envelope of the task.
        told: Agents of whose broken declarations the log has told; runtimes may share it.

    Raises:
        ConfigurationError: An argument is of another kind or out of range; or the ego has no
            control model, needs an emergency controller, cannot outdo a partner, or declares an
            acceleration that its action box cannot produce, where the first step raises if that
            depends on its state.
        MissingExtraError: The solver's library is not installed.
    """

    def __init__(
        self,
        *,
        ego_uid: str,
        control_models: Mapping[str, AgentControlModel],
        bounds: Bounds,
        control_timestep: float,
        plant: Plant = "zoh",
        options: SafetyOptions | None = None,
        emergency_controllers: Mapping[str, EmergencyController] | None = None,
    ) -> None:
        require_parts(ego_uid, control_models, bounds, options, emergency_controllers)
        control_timestep = checked_timestep("SafetyRuntime.control_timestep", control_timestep)
        controllers = emergency_controllers_of(ego_uid, control_models, emergency_controllers)
        options = SafetyOptions() if options is None else options
        self.options: SafetyOptions = options
        self.bounds: Bounds = bounds
        self._ego_uid, self._dt = ego_uid, control_timestep
        self._models = dict(control_models)
        self._model = self._models[ego_uid]
        self._filter: EgoOnlyCBFQP = ExpCBFQP.ego_only(
            control_models=self._models,
            solver=make_solver(options.solver),
            plant=plant,
            **options.filter_options(),
        )
        setup = RuntimeSetup(ego_uid, self._models, bounds, control_timestep, options)
        directions = self._filter.directions
        self._memory = RuntimeMemory(setup, controllers=controllers, directions=directions)
        self.told: set[str] = set()
        self._breached: tuple[str, ...] = ()
        self._look_ahead_s = control_timestep * (options.horizon_steps + 1)
        #: Everyone's motion in the last step, if the next may be steady.
        self._steady: UsualMotion | None = None
        self._obstacle_guard: ObstacleGuard | None = None
        if options.obstacles:
            self._obstacle_guard = ObstacleGuard(self._model, bounds, control_timestep, options)
        #: What stood around in the last step; None while nobody named any obstacle.
        self._around: Obstacles | None = None
        #: Whether the ego can do what it declares; its first state may have to tell.
        self._authority_known = (
            options.compat is not None or check_authority(self._model, bounds) is not None
        )
        self._filter.require_runnable(ego_uid, bounds, control_timestep)
        self.begin_episode()

    @property
    def lambda_(self) -> LambdaDict:
        """Slack per ego pair, m/s^2; a copy."""
        return dict(self._memory.adaptation.state.lambda_)

    @property
    def lambda_bound(self) -> float:
        """Largest magnitude lambda may take, m/s^2."""
        return self._memory.adaptation.bound

    @property
    def telemetry(self) -> RuntimeTelemetry:
        """Counters of the run and the episode, and brakes counted by reason."""
        return self._memory.telemetry

    def begin_run(self, seed: int) -> None:
        """Forget everything: slack, partners, forecasts; ``seed`` is handed to the filter."""
        self._filter.reset(seed=seed)
        self._memory.begin_run()
        self.begin_episode()

    def begin_episode(self) -> None:
        """Forget the last state, which a reset disconnects from the next; keep the adaptation."""
        self._memory.begin_episode()
        self._steady, self._around = None, self._lasting()
        self._filter.expect(self._memory.motion.expected())

    def step(
        self,
        nominal_action: FloatArray,
        snapshots: Mapping[str, AgentSnapshot],
        *,
        partner_id: str | None = None,
        contact_forces: Mapping[Pair, float] | None = None,
        obstacles: Iterable[Shape] | Obstacles = _NOTHING,
    ) -> SafetyStep:
        """Return the action to execute in the state that ``snapshots`` describe.

        Args:
            nominal_action: The policy's action, shape (A,), any real dtype.
            snapshots: Every agent's last packet by id.
            partner_id: Identity of the partner; None if unknown, which never counts as a change.
            contact_forces: Measured force per pair, N.
            obstacles: What stands around besides `SafetyOptions.obstacles`, a scan for example.

        Raises:
            InputError: The observation or the action is malformed or not finite, and
                ``on_bad_input="raise"``; nothing has changed then.
            TypeError: The action is not an array.
            ConfigurationError: Obstacles are given to an ego that cannot be kept clear of any.
        """
        return self._step(nominal_action, snapshots, partner_id, {}, contact_forces, obstacles)

    def step_from_obs(
        self,
        nominal_action: FloatArray,
        obs: Mapping[str, Any],
        *,
        contact_forces: Mapping[Pair, float] | None = None,
        obstacles: Iterable[Shape] | Obstacles = _NOTHING,
    ) -> SafetyStep:
        """Return the action to execute, reading scene, partner and packet ages from ``obs``.

        Args:
            nominal_action: The policy's action, shape (A,), any real dtype.
            obs: See `cadenza.safety.runtime.observation` for the keys.
            contact_forces: Measured force per pair, N.
            obstacles: As `step`.

        Raises:
            InputError: As `step`.
            TypeError: The action is not an array.
            ConfigurationError: As `step`.
        """
        tick_s = self.options.comm_tick_s
        try:
            scene = read_scene(obs, tick_s=self._dt if tick_s is None else tick_s)
        except InputError as error:
            return self.step_blind(nominal_action, error)
        return self._step(nominal_action, *scene, contact_forces, obstacles)

    def step_blind(self, nominal_action: object, error: InputError) -> SafetyStep:
        """Return a braking action for a step whose observation is unusable.

        The ego slows down along its velocity, guarded by the rows of the last known state, which
        is carried on; before the first sound observation the action is zero.

        Args:
            nominal_action: The policy's action, which may be anything; it is not executed.
            error: What was wrong.

        Raises:
            InputError: ``error`` itself, if ``on_bad_input="raise"``.
        """
        if self.options.on_bad_input == "raise":
            raise error
        self._steady = None
        memory, agents = self._memory, self._memory.last.agents
        if agents is None:
            action, info = np.zeros(self._model.action_dim), blank_info(self.lambda_)
            if self._around is not None:
                info["static_margin"], info["backup"] = np.zeros(0), "brake"
            step = SafetyStep(action, info, self.lambda_, {})
        else:
            nominal = stop_action(self._model, agents[self._ego_uid], self.bounds)
            still = {uid: Prediction(a) for uid, a in agents.items() if uid != self._ego_uid}
            scene = Scene(nominal, nominal.tolist(), agents, obstacles=self._around)
            step = self._decide(scene, still, {})
        step = as_blind_step(step, nominal_action, str(error))
        if self._around is not None:
            step.info["static_uncertified"] = True
        memory.directions.forget()
        memory.forecaster.pass_step()
        memory.executed(step)
        return step

    def note_executed(self, action: FloatArray) -> None:
        """Say that another action than the last step's is executed; the rate limit starts there.

        Raises:
            InputError: It is malformed or not finite; nothing has changed then.
        """
        memory = self._memory
        memory.previous_action.note(action)
        memory.directions.forget()
        if memory.motion.own is not None:
            memory.motion.note(memory.motion.own[0], action)

    def barrier_values(self, snapshots: Mapping[str, AgentSnapshot]) -> LambdaDict:
        """Return h of every ego pair, m/s, in the state that ``snapshots`` describe."""
        return self._filter.barrier_values(
            snapshots, self.bounds, ego_uid=self._ego_uid, dt=self._dt
        )

    def state_dict(self) -> dict[str, Any]:
        """Return everything a resumed run needs, JSON-able; floats survive exactly."""
        state = self._memory.state_dict()
        if self._around is not None and self._around is not self._lasting():
            state["around"] = describe_map(self._around)
        return state

    def load_state_dict(self, payload: Mapping[str, Any]) -> None:
        """Continue exactly where `state_dict` was taken.

        Raises:
            InputError: Unknown version or malformed content; the runtime is then unchanged.
        """
        around = self._read_around(payload)
        self._memory.load_state_dict(payload)
        self._steady, self._around = None, around
        self._filter.expect(self._memory.motion.expected())

    # The stages of a step

    def _step(
        self,
        nominal_action: object,
        snapshots: Mapping[str, Any],
        partner_id: object,
        ages_s: Mapping[str, float],
        contact_forces: object,
        obstacles: Iterable[Shape] | Obstacles,
    ) -> SafetyStep:
        """Check, notice, decide, remember."""
        around = self._around
        if obstacles is not _NOTHING or around is not None:
            try:
                around = self._seen_around(obstacles)
            except InputError as error:
                return self.step_blind(nominal_action, error)
        if contact_forces is None and not ages_s:
            step = self._steady_step(nominal_action, snapshots, partner_id, around)
            if step is not None:
                self._around = around
                return step
        self._steady, memory = None, self._memory
        if self.options.on_bad_input == "brake":
            self._around = around
        try:
            scene = self._checked(nominal_action, snapshots, ages_s, contact_forces)
            partner_id = require_partner_id(partner_id)
        except InputError as error:
            return self.step_blind(nominal_action, error)
        self._around = scene.obstacles = around
        ego = scene.agents[self._ego_uid]
        if not self._authority_known:
            check_authority(self._model, self.bounds, snapshot=ego)
            self._authority_known = True
        self._notice(partner_id, scene)
        due: dict[str, DueForecast] = {}
        try:
            due = memory.forecaster.observe(scene.agents)
            ahead = memory.forecaster.forecast()
        except InputError as error:  # a predictor left the range of accepted numbers
            if due:
                self._learn(due, scene.agents)
            memory.forecaster.forget()
            return self.step_blind(nominal_action, error)
        step = self._decide(scene, ahead, due)
        self._breached = ()
        memory.executed(step, ego)
        self._look_for_steady(scene.agents)
        return step

    def _checked(
        self,
        nominal_action: object,
        snapshots: Mapping[str, Any],
        ages_s: Mapping[str, float],
        contact_forces: object,
    ) -> Scene:
        """Return what the step reads, checked once; the last known state takes sound agents over.

        Raises:
            InputError: Something is malformed, not finite or out of range.
        """
        memory, model = self._memory, self._model
        agents = require_agents(snapshots, self._models, dim=model.position_dim)
        agents, conflict = memory.ages.applied(agents, ages_s)
        require_reach(agents, self._look_ahead_s)
        if self.options.on_bad_input == "brake":
            memory.last.see(agents)
        nominal = require_array(nominal_action)
        u = require_action(nominal, model.action_dim)
        forces = None
        if contact_forces is not None:
            forces = require_forces(contact_forces, self._models)
        return Scene(nominal, u, agents, forces, conflict=conflict)

    def _notice(self, partner_id: str | None, scene: Scene) -> None:
        """Take in another partner, broken declarations and packets that grew old."""
        memory = self._memory
        count = memory.telemetry.count
        remembered = memory.adaptation.notice(partner_id)
        if remembered is not None:
            count("swaps")
            if remembered:
                count("warm_starts")
            memory.begin_partner()
        found = memory.look(scene.agents, doubtful=scene.conflict)
        if found:
            self._breached = tuple(found)
            if self._ego_uid in found:
                count("ego_breaches")
            if any(uid != self._ego_uid for uid in found):
                count("partner_breaches")
            tell(found, self._ego_uid, self.told)
        if found or remembered is not None:
            self._filter.expect(memory.motion.expected())
        if memory.ages.jumped(scene.agents):
            count("age_jumps")
            memory.adaptation.warm_up()

    def _decide(
        self, scene: Scene, ahead: Mapping[str, Prediction], due: Mapping[str, DueForecast]
    ) -> SafetyStep:
        """Barrier, constraints, and what `_act` does with them."""
        error = self.options.prediction_error
        trusts = error is None or all(
            prediction.error_accel is not None and prediction.error_accel <= error
            for prediction in ahead.values()
        )
        ego, partners, constants = self._constants(scene.agents, trusts=trusts)
        uids = constants.pairs.partners
        predicted = {uid: prediction.snapshot for uid, prediction in ahead.items()}
        forecasts = require_snapshots(
            "partner_predicted_states", predicted, uids, self._model.position_dim
        )
        rows = self._filter.constraints(
            ego, partners, forecasts, constants, beside_obstacles=bool(scene.obstacles)
        )
        scores = self._filter.score(ego, partners, due, rows, constants) if due else None
        return self._act(scene, ego, rows, constants, scores, ahead)

    def _steady_step(
        self,
        nominal: Any,
        snapshots: Mapping[str, AgentSnapshot],
        partner_id: object,
        around: Obstacles | None,
    ) -> SafetyStep | None:
        """Return the decision where nothing but numbers changed since the last step; else None.

        All packets are current, and every partner was forecast to keep its velocity. The answer and
        everything remembered are those of the long way, to the bit; where this returns None,
        nothing has changed.
        """
        if self._steady is None or (type(nominal), type(snapshots)) != (np.ndarray, dict):
            return None
        usual, memory, constants = self._steady, self._memory, self._filter.planar
        known, own = memory.adaptation.partner_id, memory.motion.own
        same = partner_id is None or (type(partner_id) is str and partner_id == known)
        if constants is None or own is None or not same:
            return None
        agents = ordinary_agents(snapshots, usual, own[2])
        if agents is None:
            return None
        rows = self._filter.planar_constraints(snapshots, beside_obstacles=bool(around))
        if rows is None:
            return None
        ego, partners, u = agents[0], agents[1:], require_action(nominal, 2)
        scores = self._filter.score_kept_velocity(ego, usual.before[1:], rows.h, constants)
        memory.forecaster.pass_current(constants.pairs.partners, partners)
        usual.before = agents
        scene = Scene(nominal, u, snapshots, obstacles=around)
        step = self._act(scene, ego, rows, constants, scores, {})
        memory.executed(step, ego)
        return step

    def _act(
        self,
        scene: Scene,
        ego: AgentSnapshot,
        rows: EgoRows,
        constants: StepConstants,
        scores: LambdaDict | None,
        ahead: Mapping[str, Prediction],
    ) -> SafetyStep:
        """Learn, project, brake, keep clear of obstacles: every step of every kind ends here.

        Args:
            scene: What is known.
            ego: The ego in it.
            rows: What keeps its partners away, before lambda.
            constants: Their constants.
            scores: Of the forecasts that fell due, m/s; None if none did.
            ahead: The forecasts, from whose errors lambda may start.
        """
        adaptation = self._memory.adaptation
        if scores is not None:
            adaptation.update(scores)
        starts = adaptation.awaits_start
        if starts:
            adaptation.ask(ahead)
        action, info = self._project(scene, ego, rows, constants)
        if starts:
            adaptation.settle(info["lambda"])
        if scene.conflict:
            info["uncertified"] = True
        if scores is not None:
            info["prediction_gap_loss"] = {
                key: score if score > 0.0 else 0.0 for key, score in scores.items()
            }
        lambda_ = dict(adaptation.state.lambda_)
        projected, narrow = action, self._within_rate(constants)
        action, dangers, problem = self._brake(action, info, scene, rows.passive is not None)
        if self._obstacle_guard is not None and scene.obstacles is not None:
            action = self._beside_obstacles(self._obstacle_guard, action, info, scene, rows, narrow)
        if narrow is not None and action is not projected:
            info["rate_exceeded"] = not inside(action.tolist(), narrow)
        reason = self._memory.motion.reason
        return SafetyStep(action, info, lambda_, dangers, None, problem, self._breached, reason)

    def _project(
        self, scene: Scene, ego: AgentSnapshot, rows: EgoRows, constants: StepConstants
    ) -> tuple[FloatArray, FilterInfo]:
        """Return the filter's action, shape (A,), and its record."""
        lambda_, previous = self._memory.adaptation.state.lambda_, self._memory.previous_action
        wanted = [lambda_[key] for key in constants.pairs.keys]
        nominal = scene.nominal
        try:
            return self._filter.project(nominal, scene.u, rows, wanted, constants, previous.value)
        except ConcertoSafetyInfeasible:  # the published filter; nobody may execute the nominal
            action, info = stop_action(self._model, ego, self.bounds), blank_info(lambda_)
            info["intervention"] = distance(action, nominal)
            return action, info

    def _brake(
        self, action: FloatArray, info: FilterInfo, scene: Scene, stops: bool
    ) -> tuple[FloatArray, dict[Pair, PairDanger], str | None]:
        """Return the action, braking where that is called for, why, and what went wrong with it.

        What stops to be passive is not pushed away from anybody: it would be touched while moving.
        """
        memory = self._memory
        brakes = memory.brakes
        unsafe = info["uncertified"] and is_infeasible(info)  # a proved action stands
        unsafe = unsafe and not stops
        if not (unsafe or scene.forces):
            if brakes.pairs or brakes.problem is not None:
                brakes.forget()
            return action, {}, None
        decision = brakes.decide(
            action,
            scene.agents,
            scene.forces,
            infeasible=unsafe,
            previous_action=memory.previous_action.value,
        )
        if decision is None:
            return action, {}, brakes.problem
        if decision.override is not None:
            action = decision.override[self._ego_uid]
            info["intervention"] = distance(action, scene.nominal)
            info["fallback_fired"] = True
            memory.directions.forget()
        return action, decision.dangers if decision.fired else {}, brakes.problem

    def _beside_obstacles(
        self,
        guard: ObstacleGuard,
        action: FloatArray,
        info: FilterInfo,
        scene: Scene,
        rows: EgoRows,
        narrow: Box | None,
    ) -> FloatArray:
        """Return the action after which the ego can stop before every obstacle."""
        ego, around = scene.agents[self._ego_uid], scene.obstacles or guard.lasting
        kept = guard.keep_clear(action, info, scene.u, ego, rows, around, narrow)
        if kept is not action:
            self._memory.directions.forget()
        if ego.age_s > 0.0 or self._ego_uid in self._memory.motion.broken:
            info["static_uncertified"] = True
        return kept

    # What the stages ask

    def _within_rate(self, constants: StepConstants) -> Box | None:
        """Return the box that a soft rate limit leaves of the actions; None without one."""
        previous = self._memory.previous_action.value
        if self.options.rate_limit != "soft" or previous is None:
            return None
        return rate_box(previous.tolist(), self.bounds.action_rate, constants.box)

    def _seen_around(self, obstacles: Iterable[Shape] | Obstacles) -> Obstacles | None:
        """Return what stands around in this step; None while nobody named any obstacle.

        Raises:
            InputError: One is no shape, or of another dimension than the ego's.
            ConfigurationError: The ego cannot be kept clear of any.
        """
        if self._obstacle_guard is None and isinstance(obstacles, Sized) and not len(obstacles):
            return None
        return self._guard().around(obstacles)

    def _guard(self) -> ObstacleGuard:
        """Return what keeps the ego clear of obstacles, made when the first one is named.

        Raises:
            ConfigurationError: Nothing can.
        """
        if self._obstacle_guard is None:
            self._obstacle_guard = ObstacleGuard(self._model, self.bounds, self._dt, self.options)
        return self._obstacle_guard

    def _lasting(self) -> Obstacles | None:
        """Return what stands around before a step names any obstacle."""
        guard = self._obstacle_guard
        return guard.lasting if guard is not None and self.options.obstacles else None

    def _read_around(self, payload: object) -> Obstacles | None:
        """Return what stood around where a state was taken.

        Raises:
            InputError: The record is no list of shapes, or of another dimension than the ego's.
        """
        if not isinstance(payload, Mapping) or "around" not in payload:
            return self._lasting()
        entries: Any = cast("Mapping[str, Any]", payload)["around"]
        try:
            found = obstacles_of(entries, dim=self._model.position_dim)
        except InputError:
            raise
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"SafetyRuntime state: around: expected a list of shapes, got {shown(entries)}."
            ) from error
        self._guard()
        return found

    def _constants(
        self, agents: Mapping[str, AgentSnapshot], *, trusts: bool = True
    ) -> tuple[AgentSnapshot, list[AgentSnapshot], StepConstants]:
        """Return the ego, its partners in the order of the pairs, and the constants of the rows."""
        pairs, bounds, dt = self._filter.pairs_of(self._ego_uid, agents), self.bounds, self._dt
        ego, partners = pairs.states(agents)
        constants = self._filter.constants_of(ego, partners, pairs, bounds, dt, trusts=trusts)
        return ego, partners, constants

    def _learn(self, due: Mapping[str, DueForecast], agents: Mapping[str, AgentSnapshot]) -> None:
        """Score the forecasts that fell due in a step without forecasts, and move lambda."""
        ego, partners, constants = self._constants(agents)
        rows = self._filter.constraints(ego, partners, partners, constants)
        self._memory.adaptation.update(self._filter.score(ego, partners, due, rows, constants))

    def _look_for_steady(self, agents: Mapping[str, AgentSnapshot]) -> None:
        """Note whether the next step may be a steady one."""
        constants, memory = self._filter.planar, self._memory
        if constants is not None and memory.is_steady(constants.pairs, agents):
            usual = memory.motion.usual(constants.pairs.partners, self._look_ahead_s)
            usual.before = [agents[uid] for uid in usual.uids]
            self._steady = usual
