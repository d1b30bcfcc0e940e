"""The safety filter's place in the loop: between the ego's action and the environment.

The learner keeps its nominal action and treats the filter as part of the environment; what was
changed is measured, and can be charged to the learner's reward.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, TypeAlias, Union, cast

import numpy as np
from numpy.typing import NDArray

from cadenza.aht.config import EgoAHTConfig
from cadenza.aht.safety_telemetry import SafetyAggregator
from cadenza.aht.types import playing_ids_of
from cadenza.core.arrays import FloatArray
from cadenza.core.errors import ConfigurationError
from cadenza.core.types import PartnerLike
from cadenza.safety.bounds import Bounds
from cadenza.safety.braking import maybe_brake
from cadenza.safety.conformal.rules import (
    constant_velocity_predict,
    reset_on_partner_swap,
    update_lambda_from_predictor,
)
from cadenza.safety.protocols import EgoOnlySafetyFilter, EmergencyController
from cadenza.safety.runtime.predictors import snapshot_from_dict, snapshot_to_dict
from cadenza.safety.runtime.safety_step import SafetyStep, blank_info, distance
from cadenza.safety.snapshot import AgentSnapshot
from cadenza.safety.state import LambdaDict, SafetyState

if TYPE_CHECKING:
    from cadenza.safety.batched.driver import BatchedSafetyDriver
    from cadenza.safety.runtime.driver import SafetyDriver

#: The filter of one environment, or of a batch.
AnyDriver: TypeAlias = Union["SafetyDriver", "BatchedSafetyDriver", "FilterDriver"]


@dataclass(kw_only=True, eq=False)
class FilterDriver:
    """Guards the ego of one environment by a filter and parts that the caller of `train` owns.

    Every step scores the last forecast, which moves the state in place, filters the nominal action
    against partners that keep their velocity for a step, and brakes where `maybe_brake` says so.

    Attributes:
        gamma: Turns a forecast error in m/s into slack in m/s^2, 1/s.
        before: The agents one step ago; None at the start of an episode.
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
        for field in fields(stored):
            setattr(self.safety_state, field.name, getattr(stored, field.name))
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
    """Filters the actions of one environment or of a batch, and keeps the telemetry of a run."""

    def __init__(self, driver: AnyDriver, config: EgoAHTConfig, partner: PartnerLike) -> None:
        """Guard what ``driver`` was built from; a swap of partners resets its adaptive margin."""
        self._driver = driver
        self._batch = None
        if config.env.num_envs > 1:
            self._batch = cast("BatchedSafetyDriver", driver)
            n_pairs = len(self._batch.partner_uids)
        else:
            self._scalar = cast("SafetyDriver", driver)
            n_pairs = len(self._scalar.lambda_)
        self._partner = partner
        self._penalty = config.safety.intervention_penalty
        self._predictor_kind = config.safety.predictor_kind
        self._action_bound = driver.bounds.action_linf_component
        self._aggregator = SafetyAggregator(
            n_pairs=n_pairs,
            cartesian_accel_capacity=driver.cartesian_accel_capacity,
            saturation_threshold=config.safety.saturation_threshold,
            lambda_clamp_bound=driver.lambda_bound,
        )

    def filter(self, nominal: NDArray[Any]) -> tuple[NDArray[Any], FloatArray]:
        """Return the action to execute and what to subtract from the learner's reward.

        Actions are (A,), or (N, A) for a batch, bit for bit the nominal ones where nothing had to
        change; the penalty is >= 0, () or (N,). What the action's own bounds cut off is no
        intervention: the environment would cut it off as well.
        """
        if self._batch is not None:
            return self._filter_batch(self._batch, nominal)
        ids = playing_ids_of(self._partner, 1)
        who = ids[0] if isinstance(ids, list) else ids
        step = self._scalar.step(nominal.astype(np.float64), partner_id=who)
        executed = step.action.astype(nominal.dtype)
        intervention = 0.0
        if step.intervention > 0.0:
            reachable = np.clip(nominal, -self._action_bound, self._action_bound)
            intervention = math.dist(executed.tolist(), reachable.tolist())
        self._aggregator.observe(
            step.lambda_,
            fallback_fired=step.info["fallback_fired"],
            qp_infeasible=step.infeasible,
            braking_fired=step.braked,
            uncertified=step.uncertified,
            loss=step.loss,
            intervention=intervention,
        )
        return executed, np.array(self._penalty * intervention)

    def _filter_batch(
        self, driver: "BatchedSafetyDriver", nominal: NDArray[Any]
    ) -> tuple[NDArray[Any], FloatArray]:
        ids = playing_ids_of(self._partner, len(nominal))
        step = driver.step(nominal, partner_ids=ids)
        executed = step.action.astype(nominal.dtype)
        reachable = np.clip(nominal, -self._action_bound, self._action_bound)
        change = executed.astype(np.float64) - reachable
        size = np.sqrt((change * change).sum(axis=1))
        intervention = np.where(step.intervention > 0.0, size, 0.0)
        self._aggregator.observe_batch(
            step.lambda_,
            braking_fired=step.braked,
            qp_infeasible=step.infeasible,
            uncertified=step.uncertified,
            loss=step.loss,
            scored=step.scored,
            intervention=intervention,
        )
        return executed, self._penalty * intervention

    def begin_run(self, seed: int) -> None:
        """Start the run's adaptation."""
        self._driver.begin_run(seed)

    def begin_episode(self) -> None:
        """Forget the last scene; the adaptation goes on."""
        self._driver.begin_episode()

    def begin_rows(self, rows: list[int]) -> None:
        """Forget the last scene of the environments ``rows`` of a batch."""
        if self._batch is not None:
            self._batch.begin_rows(rows)

    def window_figures(self) -> dict[str, float]:
        """Return the figures since the last call and start anew."""
        return self._aggregator.flush_window_stats()

    def final_record(self) -> dict[str, Any]:
        """Return the closing record of the run."""
        return self._aggregator.finalise(safety_enabled=True, predictor_kind=self._predictor_kind)

    def state_dict(self) -> dict[str, Any]:
        """Return filter and telemetry state as plain values."""
        return {"driver": self._driver.state_dict(), "aggregator": self._aggregator.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict`."""
        self._driver.load_state_dict(state["driver"])
        self._aggregator.load_state_dict(state["aggregator"])


def require_matching_safety(config: EgoAHTConfig, env: object, driver: AnyDriver | None) -> None:
    """Raise unless configuration, environment and driver agree.

    Raises:
        ConfigurationError: Enabled without a driver; a driver although disabled; the driver of one
            environment for a batch, or the reverse; or a driver that watches another environment.
    """
    if config.safety.enabled and driver is None:
        raise ConfigurationError(
            "train: safety.enabled is true but no safety driver was passed (safety-stack kwargs "
            "were not passed); build one with SafetyDriver.from_env, or set safety.enabled=false."
        )
    if not config.safety.enabled and driver is not None:
        raise ConfigurationError(
            "train: safety.enabled is false but a safety driver was passed (safety-stack kwargs "
            "were passed); leave it out, or set safety.enabled=true."
        )
    guarded = 1 if driver is None else getattr(driver, "num_envs", 1)
    if driver is not None and guarded != config.env.num_envs:
        raise ConfigurationError(
            f"train: expected a safety driver of env.num_envs = {config.env.num_envs} "
            f"environments, got a {type(driver).__name__} of {guarded}; build it with "
            "BatchedSafetyDriver.from_env for a batch, with SafetyDriver.from_env for one."
        )
    if driver is not None and not driver.drives(env):
        raise ConfigurationError(
            "train: expected the safety driver to watch the environment that is stepped, got a "
            "driver of another one, which would see a scene that never moves; build it with "
            "SafetyDriver.from_env from the very environment passed to train."
        )
