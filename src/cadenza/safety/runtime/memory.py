"""What a runtime remembers from one step to the next: all of it, in one place.

`RuntimeMemory` holds the parts, says what each event makes them forget, and saves them:
    adaptation       slack per pair, partner by partner; the conformal rule moves it
    forecaster       packets of every partner, and forecasts that wait for their score
    ages             how old packets usually are (`cadenza.safety.runtime.observation`)
    last             the agents as last seen, while observations are unusable
    previous_action  what was executed; the rate limit starts there
    brakes           pairs that braked one step ago (`cadenza.safety.braking`)
    telemetry        counters
    motion           declarations that were disproved (`cadenza.safety.runtime.observation`)
    directions       along which pairs are known to be safe (`cadenza.safety.filters.ego_rows`)

Last seen: the ego moves by the actions it executes, p + v dt + a dt^2 / 2, the model's bias
           included; partners keep their last packet, which grows older by dt per step, so the rows
           widen with it.
Stop:      `cadenza.safety.emergency.braking_accel`, mapped to an action and scaled as a whole into
           its box, so that its direction stays.
Loading:   every part reads its record into a copy of itself; only when all succeeded do the parts
           take over what was read. ``load_state_dict`` therefore assigns whole attributes.
"""

import copy
import itertools
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias, cast

import numpy as np

from cadenza.core.arrays import FloatArray
from cadenza.core.errors import InputError
from cadenza.safety.authority import EgoPairs
from cadenza.safety.braking import BrakeLayer
from cadenza.safety.conformal import (
    ConformalRule,
    RuleSettings,
    make_rule,
    require_rate,
    reset_on_partner_swap,
)
from cadenza.safety.contracts import (
    AgentControlModel,
    Bounds,
    EmergencyController,
    LambdaDict,
    SafetyState,
    StateDependentControlModel,
    canonical_pair_key,
)
from cadenza.safety.emergency import braking_accel, scale_into_box
from cadenza.safety.filters.arguments import require_action, require_snapshot
from cadenza.safety.filters.ego_rows import DirectionMemory
from cadenza.safety.runtime.observation import Breach, MotionWatch, PacketAges, require_array
from cadenza.safety.runtime.options import RuntimeSetup
from cadenza.safety.runtime.predictors import (
    HISTORY_LENGTH,
    SAME_TIME_S,
    ConstantVelocityPredictor,
    Observation,
    Prediction,
    make_predictor,
    snapshot_from_dict,
    snapshot_to_dict,
)
from cadenza.safety.runtime.safety_step import RuntimeTelemetry, SafetyStep
from cadenza.safety.snapshot import MAX_MAGNITUDE, AgentSnapshot


def stop_action(model: AgentControlModel, ego: AgentSnapshot, bounds: Bounds) -> FloatArray:
    """Return the action that slows the ego down along its velocity, shape (action_dim,)."""
    accel = braking_accel(ego, bounds.cartesian_accel_capacity)
    accel = accel - _bias(model, ego)
    action = np.array(model.cartesian_accel_to_action(ego, accel), dtype=np.float64)
    return scale_into_box(action, bounds.action_linf_component)


def _bias(model: AgentControlModel, ego: AgentSnapshot) -> FloatArray:
    """Return the ego's acceleration under a zero action, shape (d,), m/s^2."""
    if isinstance(model, StateDependentControlModel):
        return model.bias_accel(ego)
    return np.zeros_like(ego.velocity)


class LastKnownState:
    """The agents as last seen; a state that is loaded must name exactly those of the setup."""

    def __init__(self, setup: RuntimeSetup) -> None:
        self._ego_uid, self._model, self._dt = setup.ego_uid, setup.ego, setup.dt
        self._uids = setup.models.keys()
        #: Every agent's estimated state; None before the first sound observation.
        self.agents: dict[str, AgentSnapshot] | None = None

    def forget(self) -> None:
        """Know nothing."""
        self.agents = None

    def see(self, agents: Mapping[str, AgentSnapshot]) -> None:
        """Take over a sound observation."""
        self.agents = dict(agents)

    def carry_on(self, action: FloatArray) -> None:
        """Move on by one control step in which the ego executes ``action``.

        A state that leaves the range of accepted numbers is forgotten.
        """
        if self.agents is None:
            return
        try:
            self.agents = {
                uid: self._moved(uid, agent, action) for uid, agent in self.agents.items()
            }
        except InputError:
            self.agents = None

    def _moved(self, uid: str, agent: AgentSnapshot, action: FloatArray) -> AgentSnapshot:
        dt = self._dt
        if uid != self._ego_uid:
            return replace(agent, age_s=agent.age_s + dt)
        accel = self._model.action_to_cartesian_accel(agent, action) + _bias(self._model, agent)
        position = agent.position + agent.velocity * dt + 0.5 * dt * dt * accel
        return replace(agent, position=position, velocity=agent.velocity + dt * accel)

    def state_dict(self) -> dict[str, Any] | None:
        """Return the agents as JSON-able values."""
        if self.agents is None:
            return None
        return {uid: snapshot_to_dict(agent) for uid, agent in self.agents.items()}

    def load_state_dict(self, payload: Mapping[str, Any] | None) -> None:
        """Continue from `state_dict`.

        Raises:
            InputError: Of other agents or dimensions; nothing is changed then.
        """
        agents = None
        if payload is not None:
            agents = {uid: snapshot_from_dict(fields) for uid, fields in payload.items()}
            if agents.keys() != self._uids:
                raise InputError(
                    f"last state: expected {sorted(self._uids)}, got {sorted(agents)}."
                )
            dim = self._model.position_dim
            if any(len(agent.position_numbers) != dim for agent in agents.values()):
                raise InputError(f"last state: expected {dim} dimensions of every agent.")
        self.agents = agents


#: Version of `SlackAdaptation.state_dict`; a reader refuses any other.
ADAPTATION_STATE_VERSION: Final = 1


@dataclass(slots=True)
class _Seat:
    """Everything adapted to one partner."""

    state: SafetyState
    rule: ConformalRule
    awaits_start: bool


class SlackAdaptation:
    """The conformal layer of one ego.

    Raises:
        InputError: The rule does not take these settings.
    """

    def __init__(self, setup: RuntimeSetup) -> None:
        self._ego_uid, self._models, self._bounds = setup.ego_uid, setup.models, setup.bounds
        self._options = options = setup.options
        #: Largest magnitude of lambda, m/s^2.
        self.bound: float = options.clamp_floor_ratio * setup.bounds.cartesian_accel_capacity
        self._settings = RuleSettings(
            gamma=options.cbf_gamma,
            lambda_bound=self.bound,
            lambda_max=options.lambda_max,
            eta_decay=options.eta_decay,
            step_grid=options.dtaci_steps,
        )
        self._target = (
            options.target_loss if options.conformal_rule == "huriot_sibai" else options.miss_rate
        )
        self.start_over()

    @property
    def state(self) -> SafetyState:
        """The slack as the filter reads it."""
        return self._seat.state

    @property
    def awaits_start(self) -> bool:
        """Whether the slack is still to be computed from the error of the first forecast."""
        return self._seat.awaits_start

    def start_over(self) -> None:
        """Forget all partners."""
        #: Who is in the seat; None if unknown.
        self.partner_id: str | None = None
        self._kept: dict[str, _Seat] = {}
        self._seat = self._fresh_seat()

    def notice(self, partner_id: str | None) -> bool | None:
        """Take note of who is in the seat.

        Returns:
            None if nobody new came, else whether the partner was remembered. An unknown partner
            (None) is no change, and the first one known is none either.
        """
        if partner_id is None or partner_id == self.partner_id:
            return None
        left, self.partner_id = self.partner_id, partner_id
        if left is None:
            return None
        kept = self._kept.pop(partner_id, None)
        self._kept[left] = self._seat
        while len(self._kept) > self._options.partner_memory:
            del self._kept[next(iter(self._kept))]  # who left longest ago goes first
        self._seat = self._fresh_seat() if kept is None else kept
        return kept is not None

    def warm_up(self) -> None:
        """Start the stricter phase again, with steps of full size."""
        self.state.warmup_steps_remaining = self._options.n_warmup_steps
        self._seat.rule.restart()

    def update(self, scores: LambdaDict) -> None:
        """Move the slack of the scored pairs; see `ConformalRule.update`."""
        self._seat.rule.update(self.state, scores)

    def ask(self, ahead: Mapping[str, Prediction]) -> None:
        """Start the slack at minus the error of each partner's forecast, m/s^2, within its bound.

        A forecast that makes no claim may be off by all that the partner can do.
        """
        wanted: LambdaDict = {}
        for uid, prediction in ahead.items():
            error = prediction.error_accel
            if error is None:
                error = self._models[uid].max_cartesian_accel(self._bounds)
            wanted[canonical_pair_key(self._ego_uid, uid)] = -min(error, self.bound)
        self.state.lambda_ = wanted

    def settle(self, granted: LambdaDict) -> None:
        """Let the rule go on from the slack that entered the rows."""
        self.state.lambda_ = dict(granted)
        self._seat.rule.begin(granted)
        self._seat.awaits_start = False

    def _fresh_seat(self) -> _Seat:
        options = self._options
        state = SafetyState({}, epsilon=self._target, eta=options.eta)
        reset_on_partner_swap(
            state,
            uids=self._models,
            lambda_safe=max(options.lambda_safe, -self.bound),
            n_warmup_steps=options.n_warmup_steps,
            ego_uid=self._ego_uid,
        )
        rule = make_rule(options.conformal_rule, self._settings)
        rule.begin(state.lambda_)
        return _Seat(state, rule, options.lambda_start == "error_bound")

    def state_dict(self) -> dict[str, Any]:
        """Return slack, rule, partner and the partners remembered, JSON-able."""
        return {
            "version": ADAPTATION_STATE_VERSION,
            "partner_id": self.partner_id,
            "seat": _seat_to_dict(self._seat),
            "kept": [
                {"partner_id": uid, "seat": _seat_to_dict(seat)} for uid, seat in self._kept.items()
            ],
        }

    def load_state_dict(self, payload: Mapping[str, Any]) -> None:
        """Continue from `state_dict`.

        Raises:
            InputError: Of another version, malformed or of other agents; nothing is changed then.
        """
        if payload.get("version") != ADAPTATION_STATE_VERSION:
            raise InputError(
                f"adaptation state: expected version {ADAPTATION_STATE_VERSION}, "
                f"got {payload.get('version')!r}."
            )
        partner_id = payload["partner_id"]
        if not (partner_id is None or isinstance(partner_id, str)):
            raise InputError(f"adaptation state: expected a partner id, got {partner_id!r}.")
        seat = self._read_seat(payload["seat"])
        kept = {
            str(entry["partner_id"]): self._read_seat(entry["seat"])
            for entry in cast("list[Mapping[str, Any]]", payload["kept"])
        }
        self.partner_id, self._seat, self._kept = partner_id, seat, kept

    def _read_seat(self, payload: Mapping[str, Any]) -> _Seat:
        seat = self._fresh_seat()
        state = SafetyState.from_dict(payload["state"])
        if state.lambda_.keys() != seat.state.lambda_.keys():
            raise InputError(
                f"adaptation state: expected the pairs {sorted(seat.state.lambda_)}, "
                f"got {sorted(state.lambda_)}."
            )
        self._require_usable(state)
        seat.rule.load_dict(payload["rule"])
        if not isinstance(payload["awaits_start"], bool):
            raise InputError(
                f"adaptation state: awaits_start: expected a truth value, got "
                f"{payload['awaits_start']!r}."
            )
        return _Seat(state, seat.rule, payload["awaits_start"])

    def _require_usable(self, state: SafetyState) -> None:
        """Raise InputError unless the rule accepts the target and the rows the slack."""
        if self._options.conformal_rule != "huriot_sibai":
            require_rate("adaptation state", state.epsilon)
        for key, value in state.lambda_.items():
            if not abs(value) <= MAX_MAGNITUDE:
                raise InputError(f"adaptation state: slack of {key} is out of range: {value}.")


def _seat_to_dict(seat: _Seat) -> dict[str, Any]:
    return {
        "state": seat.state.to_dict(),
        "rule": seat.rule.to_dict(),
        "awaits_start": seat.awaits_start,
    }


#: Steps that a forecast waits for the packet it is about; later packets are not scored.
_LATEST_STEPS: Final = 100


#: A forecast that fell due, and what came instead, both as of the same time and without age.
DueForecast: TypeAlias = tuple[AgentSnapshot, AgentSnapshot]


#: Partners, and the current packet of each.
Packets: TypeAlias = tuple[Sequence[str], Sequence[AgentSnapshot]]


class PartnerForecaster:
    """Keeps the packets of every partner and the forecasts that are still open.

    A forecast made in step k for step k + horizon is compared with the packet measured then,
    whenever that arrives; one measured between two steps with the forecast for the nearer step,
    moved along its velocity. An older packet says nothing new. A packet of age A that comes in step
    k was measured at k dt - A.

    A state that is loaded may name no other partners than those of the setup.
    """

    def __init__(self, setup: RuntimeSetup) -> None:
        self._predictor = make_predictor(setup.options.predictor_kind)
        self._ego_uid, self._partners = setup.ego_uid, setup.partners
        self._dt, self._horizon = setup.dt, setup.options.horizon_steps
        self.forget()

    def forget(self) -> None:
        """Drop packets and forecasts; the next step is the first."""
        self._step = 0
        self._history: dict[str, list[Observation]] = {}
        self._open: dict[str, dict[int, AgentSnapshot]] = {}
        #: Packets of the last steps that `pass_current` left to be written down.
        self._pending: deque[Packets] = deque(maxlen=HISTORY_LENGTH)

    def pass_step(self) -> None:
        """Let a step go by without packets."""
        self._catch_up()
        self._step += 1

    def kept_velocity(self, uids: Iterable[str]) -> bool:
        """Return whether the last step forecast these partners as `pass_current` would have."""
        if self._horizon != 1 or type(self._predictor) is not ConstantVelocityPredictor:
            return False
        self._catch_up()
        last = (self._step - 1) * self._dt
        return self._history.keys() == set(uids) and all(
            history[-1].time_s == last and self._open[uid].keys() == {self._step}
            for uid, history in self._history.items()
        )

    def pass_current(self, uids: Sequence[str], packets: Sequence[AgentSnapshot]) -> None:
        """Do what `observe` and `forecast` do with current packets of all partners.

        It is for a step before which `kept_velocity` held, and writes packets down once somebody
        asks for them; the caller scores the forecasts itself.
        """
        self._pending.append((uids, packets))
        self._step += 1

    def _catch_up(self) -> None:
        """Write down what `pass_current` left."""
        step = self._step - len(self._pending)
        for uids, packets in self._pending:
            for uid, packet in zip(uids, packets, strict=True):
                history = self._history[uid]
                history.append(Observation(step * self._dt, packet))
                del history[:-HISTORY_LENGTH]
                self._open[uid] = {step + 1: packet.moved_on(self._dt)}
            step += 1
        self._pending.clear()

    def now_s(self) -> float:
        """Return the time of this step on the clock of the packets, s."""
        self._catch_up()
        return self._step * self._dt

    def last_of(self, uid: str) -> Observation | None:
        """Return a partner's last packet, once `now_s` was asked for; None before the first."""
        history = self._history.get(uid)
        return history[-1] if history else None

    def observe(self, agents: Mapping[str, AgentSnapshot]) -> dict[str, DueForecast]:
        """Take in the packets of this step and return the forecasts they decide, by partner.

        Raises:
            InputError: A forecast that fell due is no snapshot, or of another dimension.
        """
        self._catch_up()
        now = self._step * self._dt
        due: dict[str, DueForecast] = {}
        for uid, packet in agents.items():
            if uid == self._ego_uid:
                continue
            history = self._history.get(uid)
            if history is None:
                history = self._history[uid] = []
                self._open[uid] = {}
            age = packet.age_s
            measured = now - age
            if history and measured <= history[-1].time_s + SAME_TIME_S:
                continue
            current = packet if age == 0.0 else packet.aged(0.0)
            history.append(Observation(measured, current))
            if len(history) > HISTORY_LENGTH:
                del history[0]
            step = self._step if age == 0.0 else round(measured / self._dt)
            forecasts = self._open[uid]
            expected = forecasts.pop(step, None)
            if expected is not None:
                shift = measured - step * self._dt
                if abs(shift) > SAME_TIME_S:
                    expected = expected.moved_on(shift)
                dim = len(packet.position_numbers)
                due[uid] = (require_snapshot("agent_states", expected, dim), current)
            if forecasts:
                for old in [k for k in forecasts if k <= step or k < self._step - _LATEST_STEPS]:
                    del forecasts[old]
        return due

    def forecast(self) -> dict[str, Prediction]:
        """Return every observed partner one step ahead, note what is to be scored, and move on.

        Raises:
            InputError: The predictor returns something that is no snapshot of the partner.
        """
        now, dt, predict = self._step * self._dt, self._dt, self._predictor.predict
        due = self._step + self._horizon
        ahead: dict[str, Prediction] = {}
        for uid, history in self._history.items():
            age = now - history[-1].time_s
            prediction = predict(history, dt, age)
            scored = prediction if self._horizon == 1 else predict(history, self._horizon * dt, age)
            self._open[uid][due] = scored.snapshot
            if prediction.acceleration is not None:
                prediction = self._for_rows(prediction, history[-1].snapshot, age)
            ahead[uid] = prediction
        self._step += 1
        return ahead

    def _for_rows(self, prediction: Prediction, packet: AgentSnapshot, age: float) -> Prediction:
        """Return the forecast with the velocity from which a row reads its acceleration.

        A row takes the change of velocity from the packet to the forecast over the time between.
        """
        velocity = packet.velocity + prediction.acceleration_since(packet, 0.0) * (age + self._dt)
        ahead = prediction.snapshot
        return Prediction(
            AgentSnapshot(ahead.position, velocity, ahead.radius), prediction.error_accel
        )

    def state_dict(self) -> dict[str, Any]:
        """Return packets and open forecasts as JSON-able values."""
        self._catch_up()
        return {
            "step": self._step,
            "history": {
                uid: [{"time_s": o.time_s, **snapshot_to_dict(o.snapshot)} for o in history]
                for uid, history in self._history.items()
            },
            "open": {
                uid: [{"step": step, **snapshot_to_dict(s)} for step, s in forecasts.items()]
                for uid, forecasts in self._open.items()
            },
        }

    def _require_usable(
        self,
        uid: str,
        packets: Sequence[Observation],
        forecasts: Iterable[AgentSnapshot],
        now: float,
    ) -> None:
        """Raise InputError unless the packets are of a partner, in order and of the past."""
        times = [packet.time_s for packet in packets]
        shapes = {s.position.shape for s in [*(p.snapshot for p in packets), *forecasts]}
        ordered = all(earlier < later for earlier, later in itertools.pairwise(times))
        past = bool(times) and times[0] >= -MAX_MAGNITUDE and times[-1] <= now + SAME_TIME_S
        known = uid in self._partners and self._partners[uid].position_dim in {s[0] for s in shapes}
        if not (ordered and past and known and len(shapes) == 1 and len(times) <= HISTORY_LENGTH):
            raise InputError(f"forecasts: expected packets of {uid!r} in order, got {times}.")

    def load_state_dict(self, payload: Mapping[str, Any]) -> None:
        """Continue from `state_dict`.

        Raises:
            InputError: The record contradicts itself or the partners; nothing is changed then.
        """
        step = int(payload["step"])
        history = {
            uid: [_observation(entry) for entry in entries]
            for uid, entries in cast("dict[str, Any]", payload["history"]).items()
        }
        waiting = {
            uid: {int(entry["step"]): snapshot_from_dict(entry) for entry in entries}
            for uid, entries in cast("dict[str, Any]", payload["open"]).items()
        }
        now = step * self._dt
        if not 0.0 <= now <= MAX_MAGNITUDE or history.keys() != waiting.keys():
            raise InputError("forecasts: expected a complete record, got one that contradicts.")
        for uid, packets in history.items():
            self._require_usable(uid, packets, waiting[uid].values(), now)
        self._step, self._history, self._open = step, history, waiting
        self._pending = deque(maxlen=HISTORY_LENGTH)


def _observation(entry: Mapping[str, Any]) -> Observation:
    return Observation(float(entry["time_s"]), snapshot_from_dict(entry))


class ExecutedAction:
    """The action executed in the last step, from which the rate limit starts."""

    def __init__(self, size: int) -> None:
        self._size = size
        self.value: FloatArray | None = None

    def note(self, action: object) -> None:
        """Take in an action that was executed, shape (size,).

        Raises:
            InputError: Malformed; what was known stays.
        """
        array = require_array(action, "executed action")
        require_action(array, self._size, "executed action")
        self.value = np.array(array, dtype=np.float64)

    def state_dict(self) -> list[float] | None:
        """Return the action's numbers."""
        return None if self.value is None else self.value.tolist()

    def load_state_dict(self, payload: Any) -> None:
        """Continue from `state_dict`.

        Raises:
            InputError: Malformed.
        """
        if payload is None:
            self.value = None
        else:
            self.note(np.array(payload, dtype=np.float64))


#: Version of `SafetyRuntime.state_dict`; a reader refuses any other.
RUNTIME_STATE_VERSION: Final = 2

#: What errors call a part whose name alone would not say it.
_WORDS: Final = {
    "adaptation": "adaptation state",
    "forecaster": "forecasts",
    "ages": "packet ages",
    "last": "last state",
    "previous_action": "previous action",
    "brakes": "braking pairs",
}
#: Parts that older records lack; they start as at the beginning of an episode.
_LATER: Final = frozenset({"motion", "directions"})
#: What reading a malformed record may raise.
_MALFORMED: Final = (
    KeyError,
    IndexError,
    TypeError,
    AttributeError,
    ValueError,
    ArithmeticError,
)


class RuntimeMemory:
    """Everything that the runtime of one ego remembers; its attributes are the saved parts."""

    def __init__(
        self,
        setup: RuntimeSetup,
        *,
        controllers: Mapping[str, EmergencyController] | None,
        directions: DirectionMemory,
    ) -> None:
        options, capacity = setup.options, setup.bounds.cartesian_accel_capacity
        self.adaptation: SlackAdaptation = SlackAdaptation(setup)
        self.forecaster: PartnerForecaster = PartnerForecaster(setup)
        self.ages: PacketAges = PacketAges(setup)
        self.last: LastKnownState = LastKnownState(setup)
        self.previous_action: ExecutedAction = ExecutedAction(setup.ego.action_dim)
        self.brakes: BrakeLayer = BrakeLayer(
            ego_uid=setup.ego_uid,
            control_models=setup.models,
            controllers=controllers,
            bounds=setup.bounds,
            dt=setup.dt,
            **options.brake_options(),
        )
        self.telemetry: RuntimeTelemetry = RuntimeTelemetry(options.saturation_threshold * capacity)
        self.motion: MotionWatch = MotionWatch(setup)
        self.directions = directions

    def begin_run(self) -> None:
        """Forget everything but the last episode, which `begin_episode` ends."""
        self.adaptation.start_over()
        self.telemetry.begin_run()

    def begin_episode(self) -> None:
        """Forget the last state; keep the adaptation."""
        self.begin_partner()
        self.last.forget()
        self.previous_action.value = None
        self.brakes.forget()
        self.telemetry.begin_episode()

    def begin_partner(self) -> None:
        """Forget what was seen of the partners; believe all declarations."""
        for part in (self.forecaster, self.ages, self.motion, self.directions):
            part.forget()

    def executed(self, step: SafetyStep, ego: AgentSnapshot | None = None) -> None:
        """Take in what is executed, and from where; None if nobody knows."""
        if ego is None:
            self.motion.own = None
        else:
            self.motion.note(ego, step.action)
        self.last.carry_on(step.action)
        self.previous_action.value = step.action
        self.telemetry.observe(step)

    def look(self, agents: Mapping[str, AgentSnapshot], *, doubtful: bool) -> dict[str, Breach]:
        """Return who disproved a declaration since its last packet; see `MotionWatch.look`."""
        packets = self.forecaster
        return self.motion.look(agents, packets.now_s(), packets.last_of, doubtful=doubtful)

    def is_steady(self, pairs: EgoPairs, agents: Mapping[str, AgentSnapshot]) -> bool:
        """Return whether what the next step remembers follows from its packets alone.

        That is while all packets are current and every partner is forecast to keep its velocity.
        """
        return (
            self.last.agents is None
            and not self.adaptation.awaits_start
            and self.ages.all_current()
            and pairs.uids == tuple(agents)
            and self.forecaster.kept_velocity(pairs.partners)
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the records of all parts, with the version."""
        records: dict[str, Any] = {"version": RUNTIME_STATE_VERSION}
        for name, part in vars(self).items():
            records[name] = part.state_dict()
        return records

    def load_state_dict(self, payload: object) -> None:
        """Let all parts take back their records.

        Raises:
            InputError: Unknown version or malformed content; no part has changed then.
        """
        if not isinstance(payload, Mapping):
            raise InputError(
                f"SafetyRuntime state: expected a mapping, got {type(payload).__name__}."
            )
        records, parts = cast("Mapping[str, Any]", payload), dict(vars(self))
        if records.get("version") != RUNTIME_STATE_VERSION:
            raise InputError(
                f"SafetyRuntime state: expected version {RUNTIME_STATE_VERSION}, "
                f"got {records.get('version')!r}."
            )
        missing = sorted(parts.keys() - records.keys() - _LATER)
        if missing:
            raise InputError(f"SafetyRuntime state: expected a complete record, missing {missing}.")
        loaded = {name: copy.copy(part) for name, part in parts.items()}
        for name, part in loaded.items():
            if name not in records:
                part.forget()
                continue
            try:
                part.load_state_dict(records[name])
            except InputError:
                raise
            except _MALFORMED as error:
                words = _WORDS.get(name, name)
                raise InputError(f"{words}: expected a complete record: {error!r}") from error
        for name, part in parts.items():
            vars(part).update(vars(loaded[name]))  # pyright: ignore[reportUnknownMemberType] -- any part
