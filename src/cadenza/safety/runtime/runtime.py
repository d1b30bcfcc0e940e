"""Everything between a policy's action and the plant, in one object and without an env.

Order of a step:
    1. the observation is checked before anything changes, and not again after that;
    2. a changed partner id brings that partner's adaptation back, or starts it over;
    3. packet ages are taken in; a sudden rise starts the warm-up again; what everyone did since the
       last packets is compared with what was declared;
    4. partners are forecast, and the rows built;
    5. forecasts that fell due are scored against the rows' barrier values and move lambda;
    6. the filter projects the nominal action onto the rows;
    7. braking replaces the action if no action meets every row and contact is imminent, or if a
       contact force exceeds its limit. It comes after the filter, because its triggers also fire
       inside the safe set, where the row is proved to be enough; and while contact is not imminent
       the least-violation action, which weighs every partner, is the better retreat.

Trust:  two filters share one set of rows: one trusts forecast accelerations as far as
        `SafetyOptions.prediction_error` says, the other never; each step takes the first only while
        every forecast claims an error within that bound.
Units:  m/s for barriers and scores, m/s^2 for slack and errors of forecasts.
"""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from cadenza.core.arrays import FloatArray
from cadenza.core.errors import ConfigurationError, InputError
from cadenza.safety.authority import StepConstants, check_authority, require_runnable
from cadenza.safety.bounds import Bounds
from cadenza.safety.braking import Pair
from cadenza.safety.cbf import Plant
from cadenza.safety.cbf_qp import ExpCBFQP
from cadenza.safety.errors import ConcertoSafetyInfeasible
from cadenza.safety.filters.arguments import checked_timestep, require_action, require_snapshots
from cadenza.safety.filters.ego_only import EgoOnlyCBFQP
from cadenza.safety.filters.ego_rows import EgoRows
from cadenza.safety.pairs import LambdaDict, canonical_pair_key
from cadenza.safety.protocols import AgentControlModel, EmergencyController
from cadenza.safety.runtime.adaptation import SlackAdaptation
from cadenza.safety.runtime.brake_layer import BrakeLayer, emergency_controllers_of
from cadenza.safety.runtime.memory import (
    ExecutedAction,
    LastKnownState,
    Stateful,
    load,
    save,
    stop_action,
)
from cadenza.safety.runtime.motion import (
    MotionWatch,
    UsualMotion,
    broken_words,
    ordinary_agents,
    tell,
)
from cadenza.safety.runtime.observation import (
    PacketAges,
    read_scene,
    require_agents,
    require_array,
    require_forces,
    require_partner_id,
    require_reach,
)
from cadenza.safety.runtime.options import SafetyOptions
from cadenza.safety.runtime.predictors import (
    DueForecast,
    PartnerForecaster,
    Prediction,
    make_predictor,
)
from cadenza.safety.runtime.safety_step import (
    RuntimeTelemetry,
    SafetyStep,
    as_blind_step,
    blank_info,
    distance,
    is_infeasible,
)
from cadenza.safety.snapshot import MAX_MAGNITUDE, AgentSnapshot
from cadenza.safety.solvers import make_solver
from cadenza.safety.state import FilterInfo


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
    checks: list[tuple[str, str, object, Any]] = [
        ("ego_uid", "an agent id", ego_uid, str),
        ("control_models", "a mapping of models by agent id", control_models, Mapping),
        ("bounds", "Bounds", bounds, Bounds),
        ("options", "SafetyOptions or None", options, SafetyOptions | None),
        (
            "emergency_controllers",
            "a mapping by agent id or None",
            emergency_controllers,
            (Mapping, type(None)),
        ),
    ]
    for name, parts, expected, kind in (
        ("control_models", control_models, "an AgentControlModel", AgentControlModel),
        (
            "emergency_controllers",
            emergency_controllers,
            "an EmergencyController",
            EmergencyController,
        ),
    ):
        if isinstance(parts, Mapping):
            named = cast("Mapping[Any, Any]", parts).items()
            checks += [(f"{name}[{uid!r}]", expected, part, kind) for uid, part in named]
    for name, expected, value, kind in checks:
        if not isinstance(value, kind):
            raise ConfigurationError(
                f"SafetyRuntime.{name}: expected {expected}, got {type(value).__name__}."
            )


def _ego_filters(
    options: SafetyOptions, models: Mapping[str, AgentControlModel], plant: Plant
) -> tuple[EgoOnlyCBFQP, EgoOnlyCBFQP]:
    """Return the filter, and the one for partners whose forecast cannot be trusted."""
    settings, solver = options.filter_options(), make_solver(options.solver)

    def made() -> EgoOnlyCBFQP:
        return ExpCBFQP.ego_only(control_models=models, solver=solver, plant=plant, **settings)

    trusting = made()
    if options.prediction_error is None:
        return trusting, trusting
    settings["prediction_error"] = None
    return trusting, made()


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
        self._options = SafetyOptions() if options is None else options
        self._ego_uid = ego_uid
        self._models = dict(control_models)
        self._bounds = bounds
        self._saturation = self._options.saturation_threshold * bounds.cartesian_accel_capacity
        self._dt = control_timestep
        self._dim = self._models[ego_uid].position_dim
        self._action_dim = self._models[ego_uid].action_dim
        self._filter, self._cautious = _ego_filters(self._options, self._models, plant)
        #: The published filter takes every declaration at its word.
        self._authority_known = self._options.compat == "upstream"
        self._adaptation = SlackAdaptation(
            ego_uid=ego_uid,
            uids=tuple(self._models),
            capacity=bounds.cartesian_accel_capacity,
            options=self._options,
        )
        self._forecaster = PartnerForecaster(
            make_predictor(self._options.predictor_kind),
            dt=control_timestep,
            horizon_steps=self._options.horizon_steps,
            ego_uid=ego_uid,
            partners={u: m.position_dim for u, m in self._models.items() if u != ego_uid},
        )
        self._ages = PacketAges(
            ego_uid=ego_uid,
            control_models=self._models,
            bounds=bounds,
            dt=control_timestep,
            options=self._options,
        )
        self._look_ahead_s = control_timestep * (self._options.horizon_steps + 1)
        self._executed = ExecutedAction(self._models[ego_uid].action_dim)
        self._last = LastKnownState(
            ego_uid=ego_uid,
            model=self._models[ego_uid],
            dt=control_timestep,
            uids=self._models,
        )
        self._brakes = BrakeLayer(
            ego_uid=ego_uid,
            control_models=self._models,
            controllers=controllers,
            bounds=bounds,
            dt=control_timestep,
            options=self._options,
        )
        self._telemetry = RuntimeTelemetry()
        self._watch = MotionWatch(
            ego_uid=ego_uid,
            control_models=self._models,
            bounds=bounds,
            dt=control_timestep,
            options=self._options,
        )
        self._breached: tuple[str, ...] = ()
        self._reason = ""
        #: Agents of whose broken declarations the log has told; runtimes may share it.
        self.told: set[str] = set()
        #: Limits of position and speed inside which forecasts stay in the range of numbers.
        self._near = 0.25 * MAX_MAGNITUDE
        self._slow = self._near / max(1.0, self._look_ahead_s)
        #: Constants of the rows and everyone's motion in the last step, if it left all that
        #: `_ordinary_step` asks for; else None.
        self._usual: tuple[StepConstants, UsualMotion] | None = None
        self._motion: UsualMotion | None = None
        self._check_authority(None)
        partners = [model for uid, model in self._models.items() if uid != ego_uid]
        require_runnable(
            self._models[ego_uid], partners, bounds, self._filter.options, dt=control_timestep
        )
        self.begin_episode()

    @property
    def options(self) -> SafetyOptions:
        """The configuration."""
        return self._options

    @property
    def bounds(self) -> Bounds:
        """Envelope of the task."""
        return self._bounds

    @property
    def lambda_(self) -> LambdaDict:
        """Slack per ego pair, m/s^2; a copy."""
        return dict(self._adaptation.state.lambda_)

    @property
    def lambda_bound(self) -> float:
        """Largest magnitude lambda may take, m/s^2."""
        return self._adaptation.bound

    @property
    def telemetry(self) -> RuntimeTelemetry:
        """Counters of the run and the episode, and brakes counted by reason."""
        return self._telemetry

    def begin_run(self, seed: int) -> None:
        """Forget everything: slack, partners, forecasts; ``seed`` is handed to the filter."""
        self._filter.reset(seed=seed)
        self._cautious.reset(seed=seed)
        self._adaptation.start_over()
        self._telemetry.begin_run()
        self.begin_episode()

    def begin_episode(self) -> None:
        """Forget the last state, which a reset disconnects from the next; keep the adaptation."""
        self._forecaster.forget()
        self._ages.forget()
        self._begin_motion()
        self._last.forget()
        self._executed.value = None
        self._usual = None
        self._brakes.forget()
        self._telemetry.begin_episode()

    def step(
        self,
        nominal_action: FloatArray,
        snapshots: Mapping[str, AgentSnapshot],
        *,
        partner_id: str | None = None,
        contact_forces: Mapping[Pair, float] | None = None,
    ) -> SafetyStep:
        """Return the action to execute in the state that ``snapshots`` describe.

        Args:
            nominal_action: The policy's action, shape (A,), any real dtype.
            snapshots: Every agent's last packet by id.
            partner_id: Identity of the partner; None if unknown, which never counts as a change.
            contact_forces: Measured force per pair, N.

        Raises:
            InputError: The observation or the action is malformed or not finite, and
                ``on_bad_input="raise"``; nothing has changed then.
            TypeError: The action is not an array.
        """
        return self._step(nominal_action, snapshots, partner_id, {}, contact_forces)

    def step_from_obs(
        self,
        nominal_action: FloatArray,
        obs: Mapping[str, Any],
        *,
        contact_forces: Mapping[Pair, float] | None = None,
    ) -> SafetyStep:
        """Return the action to execute, reading scene, partner and packet ages from ``obs``.

        Args:
            nominal_action: The policy's action, shape (A,), any real dtype.
            obs: See `cadenza.safety.runtime.observation` for the keys.
            contact_forces: Measured force per pair, N.

        Raises:
            InputError: As `step`.
            TypeError: The action is not an array.
        """
        tick_s = self._options.comm_tick_s
        try:
            scene = read_scene(obs, tick_s=self._dt if tick_s is None else tick_s)
        except InputError as error:
            return self.step_blind(nominal_action, error)
        return self._step(
            nominal_action, scene.agents, scene.partner_id, scene.ages_s, contact_forces
        )

    def barrier_values(self, snapshots: Mapping[str, AgentSnapshot]) -> LambdaDict:
        """Return h of every ego pair, m/s, in the state that ``snapshots`` describe."""
        return self._filter.barrier_values(
            snapshots, self._bounds, ego_uid=self._ego_uid, dt=self._dt
        )

    def note_executed(self, action: FloatArray) -> None:
        """Say that another action than the last step's is executed; the rate limit starts there.

        Raises:
            InputError: It is malformed or not finite; nothing has changed then.
        """
        self._executed.note(action)
        self._filter.directions.forget()
        if self._watch.own is not None:
            self._watch.note(self._watch.own[0], action)

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
        if self._options.on_bad_input == "raise":
            raise error
        self._usual = None
        agents = self._last.agents
        model = self._models[self._ego_uid]
        if agents is None:
            action = np.zeros(model.action_dim)
            step = SafetyStep(action, blank_info(self.lambda_), self.lambda_, {})
        else:
            nominal = stop_action(model, agents[self._ego_uid], self._bounds)
            still = {uid: Prediction(a) for uid, a in agents.items() if uid != self._ego_uid}
            step = self._decide(nominal, nominal.tolist(), agents, still, {}, None)
        step = as_blind_step(step, nominal_action, str(error))
        self._filter.directions.forget()
        self._watch.own = None
        self._last.carry_on(step.action)
        self._forecaster.pass_step()
        self._finish(step)
        return step

    def _step(
        self,
        nominal_action: object,
        snapshots: Mapping[str, Any],
        partner_id: object,
        ages_s: Mapping[str, float],
        contact_forces: object,
    ) -> SafetyStep:
        """Check, adapt, decide."""
        if contact_forces is None and not ages_s:
            step = self._ordinary_step(nominal_action, snapshots, partner_id)
            if step is not None:
                return step
        self._usual = None
        try:
            agents = require_agents(snapshots, self._models, dim=self._dim)
            agents, conflict = self._ages.applied(agents, ages_s)
            require_reach(agents, self._look_ahead_s)
            if self._options.on_bad_input == "brake":
                self._last.see(agents)
            nominal = (
                nominal_action
                if type(nominal_action) is np.ndarray
                else require_array(nominal_action)
            )
            u = require_action(nominal, self._action_dim)
            forces = None
            if contact_forces is not None:
                forces = require_forces(contact_forces, self._models)
            partner_id = require_partner_id(partner_id)
        except InputError as error:
            return self.step_blind(nominal_action, error)
        if not self._authority_known:
            self._check_authority(agents[self._ego_uid])
        if partner_id is not None:
            self._notice(partner_id)
        self._look(agents, doubtful=conflict)
        if self._ages.jumped(agents):
            self._telemetry.count("age_jumps")
            self._adaptation.warm_up()
        try:
            due = self._forecaster.observe(agents)
        except InputError as error:
            return self._without_forecasts(nominal_action, error)
        try:
            ahead = self._forecaster.forecast()
        except InputError as error:  # a predictor left the range of accepted numbers
            if due:
                ego, partners, constants = self._constants(self._filter, agents)
                rows = self._filter.rows(ego, partners, partners, constants)
                self._learn(due, ego, partners, rows, constants)
            return self._without_forecasts(nominal_action, error)
        step = self._decide(nominal, u, agents, ahead, due, forces, conflict=conflict)
        self._watch.note(agents[self._ego_uid], step.action)
        self._breached = ()
        if self._last.agents is not None:
            self._last.carry_on(step.action)
        self._finish(step)
        self._look_for_usual(agents)
        return step

    def _ordinary_step(
        self, nominal: Any, snapshots: Mapping[str, AgentSnapshot], partner_id: object
    ) -> SafetyStep | None:
        """Return the decision where nothing but numbers changed since the last step; else None.

        All packets are current, and every partner was forecast to keep its velocity. The answer and
        everything remembered are those of the long way, to the bit; where this returns None,
        nothing has changed.
        """
        usual = self._usual
        if usual is None or (type(nominal), type(snapshots)) != (np.ndarray, dict):
            return None
        (constants, motion), adaptation = usual, self._adaptation
        pairs, own = constants.pairs, self._watch.own
        if own is None or not (
            partner_id is None or (type(partner_id) is str and partner_id == adaptation.partner_id)
        ):
            return None
        agents = ordinary_agents(snapshots, motion, own[2])
        if agents is None:
            return None
        before, ego, partners = motion.before[1:], agents[0], agents[1:]
        scores: LambdaDict = {}

        def adapt(barriers: list[float]) -> list[float]:
            """Take the packets in, and move lambda."""
            scores.update(self._filter.score_kept_velocity(ego, before, barriers, constants))
            adaptation.update(scores)
            self._forecaster.pass_current(pairs.partners, partners)
            motion.before, self._usual = agents, usual
            lambda_ = adaptation.state.lambda_
            return [lambda_[key] for key in pairs.keys]

        answer = self._filter.ordinary_step(nominal, snapshots, constants, None, adapt)
        if answer is None:
            return None
        step = self._reported(*answer, nominal, snapshots, scores, None)
        self._watch.own = ego, step.action, step.action.tolist()
        self._finish(step)
        return step

    def _look_for_usual(self, agents: Mapping[str, AgentSnapshot]) -> None:
        """Note whether the next step may be an ordinary one."""
        constants = self._filter.lasting
        if (
            constants is not None
            and self._cautious is self._filter
            and self._options.on_bad_input == "raise"
            and self._authority_known
            and self._last.agents is None
            and not self._adaptation.awaits_start
            and self._ages.all_current()
            and constants.pairs.uids == tuple(agents)
            and self._forecaster.kept_velocity(constants.pairs.partners)
        ):
            motion = self._motion
            if motion is None or motion.uids[1:] != constants.pairs.partners:
                uids = constants.pairs.partners
                limits, uids = self._watch.limits(uids), [self._ego_uid, *uids]
                motion = UsualMotion(uids, (), limits, self._near, self._slow, self._dt)
            motion.before = [agents[uid] for uid in motion.uids]
            self._motion, self._usual = motion, (constants, motion)

    def _begin_motion(self) -> None:
        """Believe all declarations, and remember no directions."""
        self._watch.forget()
        self._filter.directions.forget()
        self._expect_what_was_seen()

    def _look(self, agents: Mapping[str, AgentSnapshot], *, doubtful: bool) -> None:
        """Compare how everyone moved with what was declared."""
        packets = self._forecaster
        found = self._watch.look(agents, packets.now_s(), packets.last_of, doubtful=doubtful)
        if found:
            self._breached = tuple(found)
            if self._ego_uid in found:
                self._telemetry.count("ego_breaches")
            if any(uid != self._ego_uid for uid in found):
                self._telemetry.count("partner_breaches")
            tell(found, self._ego_uid, self.told)
            self._expect_what_was_seen()

    def _expect_what_was_seen(self) -> None:
        """Build the rows on what was seen of those whose declarations are disproved."""
        expected = self._watch.expected()
        self._filter.expect(expected)
        self._cautious.expect(expected)
        self._reason = broken_words(self._watch.broken, self._ego_uid)

    def _without_forecasts(self, nominal_action: object, error: InputError) -> SafetyStep:
        """Drop all forecasts and answer a step that has none."""
        self._forecaster.forget()
        return self.step_blind(nominal_action, error)

    def _notice(self, partner_id: str | None) -> None:
        """Change the adaptation when another partner took the seat."""
        remembered = self._adaptation.notice(partner_id)
        if remembered is None:
            return
        self._telemetry.count("swaps")
        if remembered:
            self._telemetry.count("warm_starts")
        self._forecaster.forget()
        self._ages.forget()
        self._begin_motion()

    def _decide(
        self,
        nominal: FloatArray,
        u: list[float],
        agents: dict[str, AgentSnapshot],
        ahead: Mapping[str, Prediction],
        due: Mapping[str, DueForecast],
        forces: Mapping[Pair, float] | None,
        *,
        conflict: bool = False,
    ) -> SafetyStep:
        """Filter the action, brake if need be, and report."""
        chosen = self._filter if self._cautious is self._filter else self._chosen(ahead)
        ego, partners, constants = self._constants(chosen, agents)
        uids = constants.pairs.partners
        predicted = {uid: prediction.snapshot for uid, prediction in ahead.items()}
        forecasts = require_snapshots("partner_predicted_states", predicted, uids, self._dim)
        rows = chosen.rows(ego, partners, forecasts, constants)
        scores = self._learn(due, ego, partners, rows, constants) if due else None
        starts = self._adaptation.awaits_start
        if starts:
            self._adaptation.ask(self._error_bounds(ahead))
        previous, lambda_ = self._executed.value, self._adaptation.state.lambda_
        wanted = [lambda_[key] for key in constants.pairs.keys]
        try:
            action, info = chosen.decide(nominal, u, rows, wanted, constants, previous)
        except ConcertoSafetyInfeasible:  # the published filter; nobody may execute the nominal
            action = stop_action(self._models[self._ego_uid], ego, self._bounds)
            info = blank_info(lambda_)
            info["intervention"] = distance(action, nominal)
        if starts:
            self._adaptation.settle(info["lambda"])
        if conflict:
            info["uncertified"] = True
        return self._reported(action, info, nominal, agents, scores, forces)

    def _reported(
        self,
        action: FloatArray,
        info: FilterInfo,
        nominal: FloatArray,
        agents: Mapping[str, AgentSnapshot],
        scores: LambdaDict | None,
        forces: Mapping[Pair, float] | None,
    ) -> SafetyStep:
        """Return the step of a filtered action; if need be, brake instead."""
        lambda_ = self._adaptation.state.lambda_
        if scores is not None:
            info["prediction_gap_loss"] = {
                key: score if score > 0.0 else 0.0 for key, score in scores.items()
            }
        unsafe = info["uncertified"] and is_infeasible(info)  # a proved action stands
        if not (unsafe or forces):
            if self._brakes.pairs or self._brakes.problem is not None:
                self._brakes.forget()
            said = (None, None, self._breached, self._reason)
            return SafetyStep(action, info, dict(lambda_), {}, *said)
        decision = self._brakes.decide(
            action, agents, forces, infeasible=unsafe, previous_action=self._executed.value
        )
        if decision is not None and decision.override is not None:
            action = decision.override[self._ego_uid]
            info["intervention"] = distance(action, nominal)
            info["fallback_fired"] = True
            self._filter.directions.forget()
        dangers = decision.dangers if decision is not None and decision.fired else {}
        said = (self._brakes.problem, self._breached, self._reason)
        return SafetyStep(action, info, dict(lambda_), dangers, None, *said)

    def _constants(
        self, chosen: EgoOnlyCBFQP, agents: Mapping[str, AgentSnapshot]
    ) -> tuple[AgentSnapshot, list[AgentSnapshot], StepConstants]:
        """Return the ego, its partners in the order of the pairs, and the constants of the rows."""
        pairs = chosen.pairs_of(self._ego_uid, agents)
        ego, partners = agents[self._ego_uid], [agents[uid] for uid in pairs.partners]
        return ego, partners, chosen.constants_of(ego, partners, pairs, self._bounds, self._dt)

    def _learn(
        self,
        due: Mapping[str, DueForecast],
        ego: AgentSnapshot,
        partners: Sequence[AgentSnapshot],
        rows: EgoRows,
        constants: StepConstants,
    ) -> LambdaDict:
        """Score the forecasts that fell due, move lambda, and return the scores."""
        scores = self._filter.score(ego, partners, due, rows, constants)
        self._adaptation.update(scores)
        return scores

    def _check_authority(self, ego: AgentSnapshot | None) -> None:
        """Refuse an ego that declares what its box cannot do; once, as soon as it can be told.

        Args:
            ego: Its state; None before any is known.

        Raises:
            ConfigurationError: It declares a larger acceleration than its box produces.
        """
        if not self._authority_known:
            model = self._models[self._ego_uid]
            known = check_authority(model, self._bounds, snapshot=ego)
            self._authority_known = known is not None

    def _error_bounds(self, ahead: Mapping[str, Prediction]) -> LambdaDict:
        """Return how far each partner's acceleration may be from its forecast, m/s^2."""
        bounds: LambdaDict = {}
        for uid, prediction in ahead.items():
            claim = prediction.error_accel
            if claim is None:
                claim = self._models[uid].max_cartesian_accel(self._bounds)
            bounds[canonical_pair_key(self._ego_uid, uid)] = claim
        return bounds

    def _chosen(self, ahead: Mapping[str, Prediction]) -> EgoOnlyCBFQP:
        """Return the filter that trusts forecasts only while each keeps to the declared error."""
        error = cast("float", self._options.prediction_error)
        claims = [prediction.error_accel for prediction in ahead.values()]
        kept = all(claim is not None and claim <= error for claim in claims)
        return self._filter if kept else self._cautious

    def _finish(self, step: SafetyStep) -> None:
        self._executed.value = step.action
        self._telemetry.observe(step)
        for value in step.lambda_.values():
            if abs(value) >= self._saturation:
                self._telemetry.count("saturated")
                break

    def _parts(self) -> dict[str, Stateful]:
        """Return everything with a memory, by name in the record."""
        return {
            "adaptation": self._adaptation,
            "forecaster": self._forecaster,
            "ages": self._ages,
            "last": self._last,
            "previous_action": self._executed,
            "brakes": self._brakes,
            "telemetry": self._telemetry,
            "motion": self._watch,
            "directions": self._filter.directions,
        }

    def state_dict(self) -> dict[str, Any]:
        """Return everything a resumed run needs, JSON-able; floats survive exactly."""
        return save(self._parts())

    def load_state_dict(self, payload: Mapping[str, Any]) -> None:
        """Continue exactly where `state_dict` was taken.

        Raises:
            InputError: Unknown version or malformed content; the runtime is then unchanged.
        """
        load(self._parts(), payload)
        self._usual = None
        self._expect_what_was_seen()
