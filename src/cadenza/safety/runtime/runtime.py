"""Everything between a policy's action and the plant, in one object and without an env.

Order of a step:
    1. the observation is checked before anything changes;
    2. a changed partner id brings that partner's adaptation back, or starts it over;
    3. packet ages are taken in; a sudden rise starts the warm-up again;
    4. forecasts that fell due are scored and move lambda;
    5. the filter projects the nominal action onto the rows;
    6. braking replaces the action if no action meets every row and contact is imminent, or if a
       contact force exceeds its limit.
Braking comes after the filter on purpose. Its triggers also fire inside the safe set, where the
row is proved to be enough; firing there would throw the ego back whenever it passes a partner
slowly at a small distance. And while contact is not imminent the least-violation action is the
better retreat: it weighs every partner, a push away only those it flees from.
"""

from collections.abc import Mapping
from typing import Any, cast

import numpy as np

from cadenza.core.arrays import FloatArray
from cadenza.core.checks import is_real, shown
from cadenza.core.errors import ConfigurationError, InputError
from cadenza.safety.bounds import Bounds
from cadenza.safety.braking import Pair
from cadenza.safety.filters.arguments import MAX_DT, MIN_DT
from cadenza.safety.pairs import LambdaDict
from cadenza.safety.protocols import AgentControlModel, EmergencyController
from cadenza.safety.rows.barrier import Plant
from cadenza.safety.runtime.adaptation import SlackAdaptation
from cadenza.safety.runtime.brake_layer import BrakeLayer, emergency_controllers_of
from cadenza.safety.runtime.fallback import LastKnownState, stop_action
from cadenza.safety.runtime.forecasting import DueForecast, PartnerForecaster
from cadenza.safety.runtime.observation import (
    read_scene,
    require_agents,
    require_call,
    require_reach,
)
from cadenza.safety.runtime.options import SafetyOptions
from cadenza.safety.runtime.packets import PacketAges
from cadenza.safety.runtime.predictors import Prediction, make_predictor
from cadenza.safety.runtime.safety_step import (
    SafetyStep,
    as_blind_step,
    as_step,
    blank_info,
    distance,
    is_infeasible,
)
from cadenza.safety.runtime.saved_state import ExecutedAction, Stateful, load, save
from cadenza.safety.runtime.step_filter import StepFilter
from cadenza.safety.runtime.telemetry import RuntimeTelemetry
from cadenza.safety.snapshot import AgentSnapshot


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
    if not isinstance(ego_uid, str):
        _refuse("ego_uid", "an agent id", ego_uid)
    if not isinstance(control_models, Mapping):
        _refuse("control_models", "a mapping of models by agent id", control_models)
    for uid, model in cast("Mapping[Any, Any]", control_models).items():
        if not isinstance(model, AgentControlModel):
            _refuse(f"control_models[{uid!r}]", "an AgentControlModel", model)
    if not isinstance(bounds, Bounds):
        _refuse("bounds", "Bounds", bounds)
    if not (options is None or isinstance(options, SafetyOptions)):
        _refuse("options", "SafetyOptions or None", options)
    if not (emergency_controllers is None or isinstance(emergency_controllers, Mapping)):
        _refuse("emergency_controllers", "a mapping by agent id or None", emergency_controllers)


def require_timestep(value: object) -> float:
    """Return a control step, s.

    Raises:
        ConfigurationError: No number, or out of the range the rows are meant for.
    """
    if is_real(value) and MIN_DT <= value <= MAX_DT:
        return float(value)
    raise ConfigurationError(
        f"SafetyRuntime.control_timestep: expected {MIN_DT:g} to {MAX_DT:g} s, got {shown(value)}."
    )


def _refuse(name: str, expected: str, value: object) -> None:
    raise ConfigurationError(
        f"SafetyRuntime.{name}: expected {expected}, got {type(value).__name__}."
    )


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
            control model, needs an emergency controller, or declares an acceleration that its
            action box cannot produce, where the first step raises if that depends on its state.
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
        control_timestep = require_timestep(control_timestep)
        controllers = emergency_controllers_of(ego_uid, control_models, emergency_controllers)
        self._options = SafetyOptions() if options is None else options
        self._ego_uid = ego_uid
        self._models = dict(control_models)
        self._bounds = bounds
        self._saturation = self._options.saturation_threshold * bounds.cartesian_accel_capacity
        self._dt = control_timestep
        self._filter = StepFilter(
            ego_uid=ego_uid,
            control_models=self._models,
            bounds=bounds,
            dt=control_timestep,
            plant=plant,
            options=self._options,
        )
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
        self._filter.check_authority(None)
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
        """Counters of the run and the episode, and the reasons for braking."""
        return self._telemetry

    def begin_run(self, seed: int) -> None:
        """Forget everything: slack, partners, forecasts; ``seed`` is handed to the filter."""
        self._filter.reset(seed)
        self._adaptation.start_over()
        self._telemetry.begin_run()
        self.begin_episode()

    def begin_episode(self) -> None:
        """Forget the last state, which a reset disconnects from the next; keep the adaptation."""
        self._forecaster.forget()
        self._ages.forget()
        self._last.forget()
        self._executed.value = None
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
        return self._filter.barrier_values(snapshots)

    def note_executed(self, action: FloatArray) -> None:
        """Say that another action than the last step's is executed; the rate limit starts there.

        Args:
            action: What the plant executes, shape (A,).

        Raises:
            InputError: It is malformed or not finite; nothing has changed then.
        """
        self._executed.note(action)

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
        agents = self._last.agents
        model = self._models[self._ego_uid]
        if agents is None:
            action = np.zeros(model.action_dim)
            step = as_step(action, blank_info(self.lambda_), self.lambda_)
        else:
            nominal = stop_action(model, agents[self._ego_uid], self._bounds)
            still = {uid: Prediction(a) for uid, a in agents.items() if uid != self._ego_uid}
            step = self._decide(nominal, agents, still, None, None)
        step = as_blind_step(step, nominal_action, str(error))
        self._last.carry_on(step.action)
        self._forecaster.pass_step()
        self._finish(step)
        return step

    def _step(
        self,
        nominal_action: object,
        snapshots: object,
        partner_id: object,
        ages_s: Mapping[str, float],
        contact_forces: object,
    ) -> SafetyStep:
        """Check, adapt, decide."""
        model = self._models[self._ego_uid]
        try:
            agents = require_agents(snapshots, self._models, dim=model.position_dim)
            agents, conflict = self._ages.applied(agents, ages_s)
            require_reach(agents, self._look_ahead_s)
            if self._options.on_bad_input == "brake":
                self._last.see(agents)
            call = require_call(
                nominal_action, contact_forces, partner_id, self._models, self._ego_uid
            )
        except InputError as error:
            return self.step_blind(nominal_action, error)
        ego = agents[self._ego_uid]
        self._filter.check_authority(ego)
        self._notice(call.partner_id)
        if self._ages.jumped(agents):
            self._telemetry.count("age_jumps")
            self._adaptation.warm_up()
        partners = {uid: agent for uid, agent in agents.items() if uid != self._ego_uid}
        try:
            loss = self._learn(ego, self._forecaster.observe(partners))
            ahead = self._forecaster.forecast()
        except InputError as error:  # a predictor left the range of accepted numbers
            self._forecaster.forget()
            return self.step_blind(nominal_action, error)
        step = self._decide(call.nominal, agents, ahead, loss, call.forces, conflict=conflict)
        self._last.carry_on(step.action)
        self._finish(step)
        return step

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

    def _learn(self, ego: AgentSnapshot, due: Mapping[str, DueForecast]) -> LambdaDict | None:
        """Score the forecasts that fell due and move lambda; return the loss."""
        if not due:
            return None
        scores = self._filter.scores(ego, due)
        self._adaptation.update(scores)
        return {key: max(0.0, score) for key, score in scores.items()}

    def _decide(
        self,
        nominal: FloatArray,
        agents: dict[str, AgentSnapshot],
        ahead: Mapping[str, Prediction],
        loss: LambdaDict | None,
        forces: Mapping[Pair, float] | None,
        *,
        conflict: bool = False,
    ) -> SafetyStep:
        """Filter the action, brake if need be, and report."""
        starts = self._adaptation.awaits_start
        if starts:
            self._adaptation.ask(self._filter.error_bounds(ahead))
        previous = self._executed.value
        action, info = self._filter.decide(nominal, agents, ahead, self._adaptation.state, previous)
        if starts:
            self._adaptation.settle(info["lambda"])
        info["prediction_gap_loss"] = loss
        if conflict:
            info["uncertified"] = True
        decision = self._brakes.decide(
            action,
            agents,
            forces,
            infeasible=is_infeasible(info) and info["uncertified"],  # a proved action stands
            previous_action=previous,
        )
        if decision is not None and decision.override is not None:
            action = decision.override[self._ego_uid]
            info["intervention"] = distance(action, nominal)
            info["fallback_fired"] = True
        return as_step(action, info, self.lambda_, decision, self._brakes.problem)

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
