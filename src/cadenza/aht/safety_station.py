"""The safety filter's place in the loop: between the ego's action and the environment.

The learner keeps its nominal action and treats the filter as part of the environment; what was
changed is measured, and can be charged to the learner's reward.
"""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias, Union, cast

import numpy as np
from numpy.typing import NDArray

from cadenza.aht.config import EgoAHTConfig
from cadenza.aht.safety_telemetry import SafetyAggregator
from cadenza.core.arrays import FloatArray
from cadenza.core.errors import ConfigurationError

if TYPE_CHECKING:
    from cadenza.safety.batched.driver import BatchedSafetyDriver
    from cadenza.safety.runtime.driver import SafetyDriver

#: The filter of one environment, or of a batch.
AnyDriver: TypeAlias = Union["SafetyDriver", "BatchedSafetyDriver"]


class SafetyStation:
    """Filters the actions of one environment or of a batch, and keeps the telemetry of a run."""

    def __init__(self, driver: AnyDriver, config: EgoAHTConfig, partner_id: str | None) -> None:
        """Guard what ``driver`` was built from; a swap of partners resets its adaptive margin."""
        self._driver = driver
        self._batch = None
        if config.env.num_envs > 1:
            self._batch = cast("BatchedSafetyDriver", driver)
            n_pairs = len(self._batch.partner_uids)
        else:
            self._scalar = cast("SafetyDriver", driver)
            n_pairs = len(self._scalar.lambda_)
        self._partner_id = partner_id
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
        step = self._scalar.step(nominal.astype(np.float64), partner_id=self._partner_id)
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
        step = driver.step(nominal, partner_ids=self._partner_id)
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
