"""The safety filter of a run: its place in the loop, what it did, and the gate that judges it.

The filter stands between the ego's action and the environment (`SafetyStation`). The learner keeps
its nominal action and treats the filter as part of the environment; what was changed is measured in
fixed memory, and can be charged to the learner's reward.

lambda is the per-pair slack of the barrier rows; the loss is how far the predicted barrier lay
above the one that came true (0 when the prediction was on the safe side). Per step the scalar is
the mean over pairs; extrema are taken per pair; the steady state is the newest tenth of the run.

Units:   lambda m/s^2, loss m/s, interventions and capacity m/s^2.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias, Union, cast

import numpy as np
from numpy.typing import NDArray

from cadenza.aht.config import EgoAHTConfig
from cadenza.aht.types import playing_ids_of
from cadenza.core.arrays import FloatArray
from cadenza.core.errors import ConfigurationError, InputError
from cadenza.core.types import PartnerLike
from cadenza.safety.braking import maybe_brake
from cadenza.safety.conformal import (
    constant_velocity_predict,
    reset_on_partner_swap,
    update_lambda_from_predictor,
)
from cadenza.safety.contracts import (
    Bounds,
    EgoOnlySafetyFilter,
    EmergencyController,
    LambdaDict,
    SafetyState,
)
from cadenza.safety.record import Figures, RunningMoments
from cadenza.safety.runtime.predictors import snapshot_from_dict, snapshot_to_dict
from cadenza.safety.runtime.safety_step import SafetyStep, blank_info, distance
from cadenza.safety.snapshot import AgentSnapshot

if TYPE_CHECKING:
    from cadenza.safety.batched.driver import BatchedSafetyDriver
    from cadenza.safety.batched.robot_driver import BatchedRobotDriver
    from cadenza.safety.runtime.driver import SafetyDriver
    from cadenza.safety.runtime.robot_driver import RobotDriver

#: The filter of one environment, or of a batch.
AnyDriver: TypeAlias = Union[
    "SafetyDriver", "BatchedSafetyDriver", "RobotDriver", "BatchedRobotDriver", "FilterDriver"
]
#: The tail is the newest ``1 / TAIL_DIVISOR`` of the stream.
TAIL_DIVISOR: Final = 10
#: Block sums kept; a doubling leaves half, so one block is <= 1/4096 of the history.
_MAX_BLOCKS: Final = 8192


class TailMean:
    """Mean of the newest tenth of a stream of numbers.

    The history is kept as block sums whose block length doubles when the table is full: exact up to
    `_MAX_BLOCKS` numbers; beyond, the oldest of the tail's blocks is taken in part, which weighs
    less than 0.3 % of it.
    """

    def __init__(self) -> None:
        self.block_length: int = 1
        self.block_sums: list[float] = []
        self.open_sum: float = 0.0
        self.open_count: int = 0
        self.count: int = 0

    def add(self, value: float) -> None:
        """Take in one number."""
        self.count += 1
        self.open_sum += value
        self.open_count += 1
        if self.open_count < self.block_length:
            return
        self.block_sums.append(self.open_sum)
        self.open_sum, self.open_count = 0.0, 0
        if len(self.block_sums) == _MAX_BLOCKS:
            pairs = zip(self.block_sums[0::2], self.block_sums[1::2], strict=True)
            self.block_sums = [older + newer for older, newer in pairs]
            self.block_length *= 2

    def value(self) -> float:
        """Return the mean of the newest ``max(1, floor(count / 10))`` numbers; 0 without any."""
        if self.count == 0:
            return 0.0
        wanted = max(1, self.count // TAIL_DIVISOR)
        # The open block is shorter than the tail: it holds < 1/4096 of the history, or nothing.
        total, missing = self.open_sum, wanted - self.open_count
        for block_sum in reversed(self.block_sums):
            taken = min(missing, self.block_length)
            total += block_sum * (taken / self.block_length)
            missing -= taken
            if missing == 0:
                break
        return total / wanted

    def state_dict(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        return {**vars(self), "block_sums": list(self.block_sums)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict`."""
        vars(self).update(state, block_sums=list(state["block_sums"]))


#: |mean lambda| above this says that lambda adapted at all, m/s^2.
ADAPTATION_EPSILON: Final = 1e-6
#: Variance of lambda at or below this says that it stopped adapting, (m/s^2)^2.
STUCK_EPSILON: Final = 1e-12
#: Name of the event that carries a run's closing record.
FINAL_EVENT: Final = "safety_telemetry_final"

EXIT_PASSED: Final = 0
EXIT_NO_LOG: Final = 2
EXIT_NO_RECORD: Final = 3
EXIT_SATURATED: Final = 8
EXIT_STUCK: Final = 9

_MOMENTS: Final = ("scalar", "extrema", "loss", "intervention")
_COUNTS: Final = (
    *("fallback", "infeasible", "braking", "uncertified"),
    *("n_loss_positive", "n_intervened"),
)


@dataclass(slots=True)
class _Tally(Figures):
    """Figures of a stretch of steps: one rollout, or the whole run; of a batch, in one sum."""

    fallback: int = 0
    infeasible: int = 0
    braking: int = 0
    uncertified: int = 0
    n_loss_positive: int = 0
    n_intervened: int = 0
    scalar: RunningMoments = field(default_factory=RunningMoments)  # lambda, mean over pairs
    extrema: RunningMoments = field(default_factory=RunningMoments)  # lambda, every pair
    loss: RunningMoments = field(default_factory=RunningMoments)
    intervention: RunningMoments = field(default_factory=RunningMoments)

    def take(
        self, values: Sequence[list[float] | FloatArray], fired: Sequence[bool | NDArray[np.bool_]]
    ) -> None:
        """Take in what steps gave, in the order of `_MOMENTS`, and what fired, of `_COUNTS`."""
        for name, numbers in zip(_MOMENTS, values, strict=True):
            getattr(self, name).add_many(numbers)
        for name, flags in zip(_COUNTS, fired, strict=False):
            setattr(self, name, getattr(self, name) + _fired(flags))
        for name, numbers in zip(_COUNTS[-2:], values[2:], strict=True):
            more = (
                sum(x > 0.0 for x in numbers)
                if isinstance(numbers, list)
                else _fired(numbers > 0.0)
            )
            setattr(self, name, getattr(self, name) + more)

    def state_dict(self) -> dict[str, Any]:
        moments = {name: getattr(self, name).state_dict() for name in _MOMENTS}
        return {**moments, "counts": {name: getattr(self, name) for name in _COUNTS}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in _MOMENTS:
            getattr(self, name).load_state_dict(state[name])
        counts = state | state["counts"]  # in older states two of them stood outside
        for name in _COUNTS:
            setattr(self, name, int(counts[name]))

    def figures(self) -> dict[str, float]:
        """Return what a window and a run record alike."""
        loss, change = self.loss, self.intervention
        return {
            "lambda_mean": self.scalar.mean,
            "lambda_var": self.scalar.variance,
            "n_fallback_fires": self.fallback,
            "n_qp_infeasible": self.infeasible,
            "n_braking_fires": self.braking,
            "loss_mean": loss.mean,
            "loss_positive_fraction": self.n_loss_positive / max(1, loss.count),
            "n_loss": loss.count,
            "n_uncertified": self.uncertified,
            "intervention_mean": change.mean,
            "intervention_max": change.high,
            "intervention_fraction": self.n_intervened / max(1, change.count),
        }


class SafetyAggregator:
    """Collects what the filter did, step by step, about ``n_pairs`` robot pairs.

    Accelerations are in m/s^2; lambda counts as saturated at a share of the capacity, and is
    clamped to plus or minus ``lambda_clamp_bound``, if any.
    """

    def __init__(
        self,
        n_pairs: int,
        cartesian_accel_capacity: float,
        saturation_threshold: float = 0.9,
        lambda_clamp_bound: float | None = None,
    ) -> None:
        self._n_pairs = n_pairs
        self._capacity = cartesian_accel_capacity
        self._threshold = saturation_threshold
        self._clamp_bound = lambda_clamp_bound
        self._past = _Tally()  # everything before the open window
        self._window = _Tally()
        self._tail = TailMean()

    def observe(
        self,
        lambda_: Mapping[Any, float] | Sequence[float] | FloatArray,
        *,
        fallback_fired: bool | NDArray[np.bool_] = False,
        qp_infeasible: bool | NDArray[np.bool_] = False,
        braking_fired: bool | NDArray[np.bool_] = False,
        uncertified: bool | NDArray[np.bool_] = False,
        loss: Mapping[Any, float] | FloatArray | None = None,
        scored: NDArray[np.bool_] | None = None,
        intervention: float | FloatArray = 0.0,
    ) -> None:
        """Take in one step, or one of each of B environments, as B steps.

        The steady state of a batch is the newest tenth of its control steps, averaged over B.

        Args:
            lambda_: Of each pair after the step's update, m/s^2, by pair or (P,); or (B, P).
            fallback_fired: Whether the braking law acted, or (B,), as are all others.
            qp_infeasible: Whether no action met the constraints.
            braking_fired: Whether the ego braked.
            uncertified: Whether the action came without a certificate.
            loss: Of each pair, m/s; None when there was no prediction to check.
            scored: Which steps of a batch had one; None for all.
            intervention: Norm of executed minus nominal action, m/s^2.

        Raises:
            InputError: ``lambda_`` does not have one entry per pair.
        """
        pairs = lambda_.shape[-1] if isinstance(lambda_, np.ndarray) else len(lambda_)
        if pairs != self._n_pairs:
            raise InputError(
                f"SafetyAggregator.observe: expected n_pairs = {self._n_pairs} lambdas, got "
                f"{pairs}; build the aggregator from the filter's own pairs."
            )
        if isinstance(lambda_, np.ndarray) and lambda_.ndim == 2:
            scalars, losses = _means(lambda_), _means(cast("FloatArray", loss))
            losses = losses if scored is None else losses[scored]
            self._tail.add(float(scalars.mean()))
            figures = (scalars, lambda_, losses, cast("FloatArray", intervention))
        else:  # the common case, ten times as quick without arrays
            values = _listed(lambda_)
            scalar, losses = _mean(values), [] if loss is None else [_mean(_listed(loss))]
            self._tail.add(scalar)
            figures = ([scalar], values, losses, [cast("float", intervention)])
        self._window.take(figures, (fallback_fired, qp_infeasible, braking_fired, uncertified))

    def flush_window_stats(self) -> dict[str, float]:
        """Return the figures since the last flush, zeros if there was no step, and start anew."""
        window, self._window = self._window, _Tally()
        self._past.add(window)
        return {
            "n_obs": window.scalar.count,
            "lambda_max": window.extrema.high,
            "lambda_min": window.extrema.low,
            **window.figures(),
        }

    def finalise(
        self, *, safety_enabled: bool, predictor_kind: str | None = "constant_velocity"
    ) -> dict[str, Any]:
        """Return the closing record of the run; its ``event`` is the event's name.

        ``predictor_kind`` is None for a filter that forecasts nothing.
        """
        run = _Tally()
        run.add(self._past)
        run.add(self._window)
        steady_state = self._tail.value()
        steps = run.scalar.count
        return {
            "event": FINAL_EVENT,
            "safety_enabled": safety_enabled,
            "predictor_kind": predictor_kind,
            "n_filter_calls": steps,
            "cartesian_accel_capacity": self._capacity,
            "saturation_threshold": self._threshold,
            "braking_fire_rate": run.braking / max(1, steps),
            "lambda_clamp_bound": self._clamp_bound,
            "lambda_max_observed": run.extrema.high,
            "lambda_min_observed": run.extrema.low,
            "lambda_steady_state": steady_state,
            "saturated": steps > 0 and abs(steady_state) >= self._threshold * self._capacity,
            **run.figures(),
        }

    def state_dict(self) -> dict[str, Any]:
        """Return the complete state as JSON values."""
        parts = {"past": self._past, "window": self._window, "tail": self._tail}
        return {name: part.state_dict() for name, part in parts.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict`."""
        self._past.load_state_dict(state["past"])
        self._window.load_state_dict(state["window"])
        self._tail.load_state_dict(state["tail"])


def _fired(flags: bool | list[bool] | NDArray[np.bool_]) -> int:
    if isinstance(flags, np.ndarray):
        return int(np.count_nonzero(flags))
    return sum(flags) if isinstance(flags, list) else flags


def _listed(values: Mapping[Any, float] | Sequence[float] | FloatArray) -> list[float]:
    return list(values.values() if isinstance(values, Mapping) else values)


def _mean(values: list[float]) -> float:
    """Return the mean over pairs; 0 without pairs."""
    return sum(values) / max(1, len(values))


def _means(values: FloatArray) -> FloatArray:
    """Return the means over pairs, (B,); 0 without pairs."""
    return values.sum(axis=1) / max(1, values.shape[1])


@dataclass(frozen=True, slots=True)
class AuditVerdict:
    """Judgement of one run's safety record: the reason, one sentence.

    ``exit_code``: 0 passed or skipped, 2 no log, 3 no record, 8 saturated, 9 not adapting.
    """

    exit_code: int
    message: str

    @property
    def passed(self) -> bool:
        """True when nothing speaks against the run."""
        return self.exit_code == EXIT_PASSED


def evaluate_audit_gate(record: Mapping[str, Any] | None) -> AuditVerdict:
    """Judge the closing record of a run, the fields of the last `FINAL_EVENT`; None if it has none.

    A run fails gate A if lambda settled, on either side, beyond the threshold; it fails gate B if
    the filter cannot have seen the real scene (the loss was 0 at every step) or lambda moved away
    from zero and then stood still anywhere but at its clamp.
    """
    if record is None:
        told = f"no {FINAL_EVENT} event: the run had no filter or did not finish."
        return AuditVerdict(EXIT_NO_RECORD, told)
    if not record["safety_enabled"]:
        return AuditVerdict(EXIT_PASSED, "safety disabled by operator override; gate skipped.")
    limit = float(record["saturation_threshold"]) * float(record["cartesian_accel_capacity"])
    steady_state = float(record["lambda_steady_state"])
    if not abs(steady_state) < limit:  # written this way round so that NaN fails too
        told = f"gate A: expected |lambda| < {limit:g} m/s^2 in steady state, got {steady_state:g}."
        return AuditVerdict(EXIT_SATURATED, told)
    n_loss = record.get("n_loss")  # absent in upstream logs, which cannot be judged by it
    forecasts = record.get("predictor_kind", "") is not None
    if n_loss is not None and forecasts and not float(record["loss_positive_fraction"]) > 0.0:
        return AuditVerdict(
            EXIT_STUCK,
            f"gate B: the prediction loss was 0 in all {int(n_loss)} measured steps: either the "
            "partner never left its forecast, as one that stands still, or the filter does not "
            "read the environment that is stepped; check which.",
        )
    mean, variance = float(record["lambda_mean"]), float(record["lambda_var"])
    if not (abs(mean) > ADAPTATION_EPSILON and variance <= STUCK_EPSILON):
        return AuditVerdict(EXIT_PASSED, "passed.")
    bound = record.get("lambda_clamp_bound")
    if bound is not None and abs(abs(mean) - float(bound)) < ADAPTATION_EPSILON:
        told = f"passed; clamp-saturated: lambda stood at its bound {mean:g} m/s^2."
        return AuditVerdict(EXIT_PASSED, told)
    told = f"gate B: lambda adapted but stuck at {mean:g} m/s^2 (variance {variance:.1e})."
    return AuditVerdict(EXIT_STUCK, told)


def audit_run_log(path: Path) -> AuditVerdict:
    """Judge the run whose log is ``path``, by its last `FINAL_EVENT`.

    Raises:
        InputError: A line before the last is not a JSON object; the last may be cut off by a kill.
    """
    if not path.is_file():
        return AuditVerdict(EXIT_NO_LOG, f"run log not found: {path}.")
    record: Mapping[str, Any] | None = None
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    for number, line in enumerate(lines, start=1):
        if FINAL_EVENT not in line:
            continue
        try:
            event: Any = json.loads(line)
        except json.JSONDecodeError as error:
            if number == len(lines):
                break
            raise InputError(
                f"{path}:{number}: expected one JSON object per line, got {error}."
            ) from error
        if isinstance(event, dict) and event.get("event") == FINAL_EVENT:  # pyright: ignore[reportUnknownMemberType]
            record = cast("dict[str, Any]", event)
    return evaluate_audit_gate(record)


@dataclass(kw_only=True, eq=False)
class FilterDriver:
    """Guards the ego of one environment by a filter and parts that the caller of `train` owns.

    Every step scores the last forecast, which moves the state in place, filters the nominal action
    against partners that keep their velocity for a step, and brakes where `maybe_brake` says so.
    ``gamma``, 1/s, turns a forecast error in m/s into slack in m/s^2; ``before`` are the agents one
    step ago, None at the start of an episode.
    """

    env: object
    ego_uid: str
    gamma: float
    safety_filter: EgoOnlySafetyFilter
    safety_state: SafetyState
    safety_bounds: Bounds
    safety_snapshot_builder: Callable[[Any], dict[str, AgentSnapshot]]
    safety_dt: float
    safety_emergency_controllers: Mapping[str, EmergencyController] | None = None
    before: dict[str, AgentSnapshot] | None = None
    partner_id: str | None = None

    def __post_init__(self) -> None:
        self.bounds: Bounds = self.safety_bounds
        self.cartesian_accel_capacity: float = self.bounds.cartesian_accel_capacity
        #: Relative braking that a pair is credited with, and the most that lambda may be, m/s^2.
        self.lambda_bound: float = 2.0 * self.cartesian_accel_capacity

    @property
    def lambda_(self) -> LambdaDict:
        """Slack per pair, m/s^2; a copy."""
        return dict(self.safety_state.lambda_)

    def reachable(self, nominal: FloatArray) -> FloatArray:
        """Return what the action's own bounds leave of it without the filter."""
        c = self.bounds.action_linf_component
        return np.clip(nominal, -c, c)

    def drives(self, env: object) -> bool:
        """Whether stepping ``env`` moves what the driver reads."""
        return env is self.env

    def begin_run(self, seed: int) -> None:
        """Start the filter anew; the caller's state stays."""
        self.safety_filter.reset(seed=seed)

    def begin_episode(self) -> None:
        """Forget the last scene."""
        self.before = None

    def step(self, nominal_action: FloatArray, partner_id: str | None = None) -> SafetyStep:
        """Return the action to execute in the environment's current state."""
        state, ego, dt = self.safety_state, self.ego_uid, self.safety_dt
        now = self.safety_snapshot_builder(self.env)
        if partner_id is not None and self.partner_id not in (None, partner_id):
            reset_on_partner_swap(state, uids=now, ego_uid=ego)
        self.partner_id = partner_id or self.partner_id
        loss = None
        if self.before is not None:
            loss = update_lambda_from_predictor(
                state,
                now,
                self.before,
                alpha_pair=self.lambda_bound,
                gamma=self.gamma,
                dt=dt,
                in_warmup=state.warmup_steps_remaining > 0,
                lambda_bound=self.lambda_bound,
                ego_uid=ego,
            )
        self.before = now
        partners = {uid: agent for uid, agent in now.items() if uid != ego}
        action, found = self.safety_filter.filter(
            nominal_action,
            {"agent_states": now, "comm": {}, "meta": {"partner_id": partner_id}},
            state,
            self.bounds,
            ego_uid=ego,
            partner_predicted_states={
                uid: constant_velocity_predict(agent, dt) for uid, agent in partners.items()
            },
            dt=dt,
        )
        controllers, nominal = self.safety_emergency_controllers, {ego: nominal_action}
        brake = maybe_brake(nominal, now, bounds=self.bounds, emergency_controllers=controllers)
        action = action if brake.override is None else brake.override[ego]
        info = {**blank_info(self.lambda_), "status": "optimal", **found}
        info |= {"prediction_gap_loss": loss, "fallback_fired": brake.override is not None}
        info["intervention"] = distance(action, nominal_action)
        return SafetyStep(action, cast("Any", info), self.lambda_, dict(brake.dangers))

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs."""
        agents = self.before
        return {
            "state": self.safety_state.to_dict(),
            "before": agents and {uid: snapshot_to_dict(agent) for uid, agent in agents.items()},
            "partner_id": self.partner_id,
        }

    def load_state_dict(self, payload: Mapping[str, Any]) -> None:
        """Continue from `state_dict`, in the caller's own state object."""
        stored, agents = SafetyState.from_dict(payload["state"]), payload["before"]
        for each in fields(stored):
            setattr(self.safety_state, each.name, getattr(stored, each.name))
        self.before = agents and {uid: snapshot_from_dict(one) for uid, one in agents.items()}
        self.partner_id = payload["partner_id"]


def driver_of_parts(
    config: EgoAHTConfig, env: object, parts: Mapping[str, Any], driver: AnyDriver | None
) -> AnyDriver | None:
    """Return ``driver``, or a `FilterDriver` of its keywords ``parts``, if they are not None.

    Raises:
        ConfigurationError: Some of the parts are missing, or for a batch, or beside a driver.
    """
    given = {name: part for name, part in parts.items() if part is not None}
    if not given:
        return driver
    needed = [name for name in parts if name != "safety_emergency_controllers"]
    if driver is not None or config.env.num_envs != 1 or not set(needed) <= set(given):
        raise ConfigurationError(
            f"train: expected {', '.join(needed)} together, one environment and no safety=, got "
            f"{', '.join(given)}, env.num_envs = {config.env.num_envs} and safety = {driver}; pass "
            "all of them, or safety=SafetyDriver.from_env(...) alone."
        )
    gamma = config.safety.to_options().cbf_gamma
    return FilterDriver(env=env, ego_uid=config.env.agent_uids[0], gamma=gamma, **given)


class SafetyStation:
    """Filters the actions of one environment or of a batch, and keeps the telemetry of a run.

    ``driver`` is told when a run and when episodes begin; ``aggregator`` has the figures.
    """

    def __init__(self, driver: AnyDriver, config: EgoAHTConfig, partner: PartnerLike) -> None:
        """Guard what ``driver`` was built from; a swap of partners resets its adaptive margin."""
        self.driver: Any = driver
        self._partner = partner
        self._is_batch = config.env.num_envs > 1
        self._penalty = config.safety.intervention_penalty
        adapts = driver.lambda_bound is not None
        self._predictor_kind = config.safety.predictor_kind if adapts else None
        self.aggregator: SafetyAggregator = SafetyAggregator(
            n_pairs=len(self.driver.partner_uids if self._is_batch else self.driver.lambda_),
            cartesian_accel_capacity=driver.cartesian_accel_capacity,
            saturation_threshold=config.safety.saturation_threshold,
            lambda_clamp_bound=driver.lambda_bound,
        )

    def filter(self, nominal: NDArray[Any]) -> tuple[NDArray[Any], float | FloatArray]:
        """Return the action to execute and what to subtract from the learner's reward.

        Actions are (A,), or (N, A) for a batch, bit for bit the nominal ones where nothing had to
        change; the penalty is >= 0, one number or (N,). What the action's own bounds cut off is no
        intervention: the environment would cut it off as well.
        """
        reachable = self.driver.reachable(nominal)
        change: float | FloatArray = 0.0
        if self._is_batch:
            ids = playing_ids_of(self._partner, len(nominal))
            step = self.driver.step(nominal, partner_ids=ids)
            executed = step.action.astype(nominal.dtype)
            moved = executed.astype(np.float64) - reachable
            size = np.sqrt((moved * moved).sum(axis=1))
            change = np.where(step.intervention > 0.0, size, 0.0)
        else:
            ids = playing_ids_of(self._partner, 1)
            who = ids[0] if isinstance(ids, list) else ids
            step = self.driver.step(nominal.astype(np.float64), partner_id=who)
            executed = step.action.astype(nominal.dtype)
            if step.intervention > 0.0:
                change = distance(executed, reachable)
        self.aggregator.observe(
            step.lambda_,
            fallback_fired=step.braked,
            qp_infeasible=step.infeasible,
            braking_fired=step.braked,
            uncertified=step.uncertified,
            loss=step.loss,
            scored=step.scored if self._is_batch else None,
            intervention=change,
        )
        return executed, self._penalty * change

    def final_record(self) -> dict[str, Any]:
        """Return the closing record of the run."""
        return self.aggregator.finalise(safety_enabled=True, predictor_kind=self._predictor_kind)

    def state_dict(self) -> dict[str, Any]:
        """Return filter and telemetry state as plain values."""
        return {"driver": self.driver.state_dict(), "aggregator": self.aggregator.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict`."""
        self.driver.load_state_dict(state["driver"])
        self.aggregator.load_state_dict(state["aggregator"])


def require_matching_safety(config: EgoAHTConfig, env: object, driver: AnyDriver | None) -> None:
    """Raise unless configuration, environment and driver agree.

    Raises:
        ConfigurationError: Enabled without a driver; a driver although disabled; the driver of one
            environment for a batch, or the reverse; or a driver that watches another environment.
    """
    told = ""
    if config.safety.enabled != (driver is not None):
        told = (
            "safety.enabled is true but no safety driver was passed (safety-stack kwargs were not "
            "passed); build one with SafetyDriver.from_env, or set safety.enabled=false."
            if driver is None
            else "safety.enabled is false but a safety driver was passed (safety-stack kwargs were "
            "passed); leave it out, or set safety.enabled=true."
        )
    elif driver is not None and getattr(driver, "num_envs", 1) != config.env.num_envs:
        told = (
            f"expected a safety driver of env.num_envs = {config.env.num_envs} environments, got a "
            f"{type(driver).__name__} of {getattr(driver, 'num_envs', 1)}; build it with "
            "BatchedSafetyDriver.from_env for a batch, with SafetyDriver.from_env for one."
        )
    elif driver is not None and not driver.drives(env):
        told = (
            "expected the safety driver to watch the environment that is stepped, got a driver of "
            "another one, which would see a scene that never moves; build it with "
            "SafetyDriver.from_env from the very environment passed to train."
        )
    if told:
        raise ConfigurationError(f"train: {told}")
