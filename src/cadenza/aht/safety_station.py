"""The safety filter's place in the loop: between the ego's action and the environment.

The learner keeps its nominal action and treats the filter as part of the environment; what was
changed is measured, and can be charged to the learner's reward.
"""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from cadenza.aht.config import EgoAHTConfig
from cadenza.aht.safety_telemetry import SafetyAggregator
from cadenza.core.errors import ConfigurationError

if TYPE_CHECKING:
    from cadenza.safety.driver import SafetyDriver


class SafetyStation:
    """Filters actions and keeps the telemetry of a run.

    Args:
        driver: Built from the environment that is stepped.
        config: Checked configuration.
        partner_id: Identity of the partner, so that a swap resets the adaptive margin.
    """

    def __init__(
        self, driver: "SafetyDriver", config: EgoAHTConfig, partner_id: str | None
    ) -> None:
        self._driver = driver
        self._partner_id = partner_id
        self._penalty = config.safety.intervention_penalty
        self._predictor_kind = config.safety.predictor_kind
        self._action_bound = driver.bounds.action_linf_component
        self._aggregator = SafetyAggregator(
            n_pairs=len(driver.lambda_),
            cartesian_accel_capacity=driver.cartesian_accel_capacity,
            saturation_threshold=config.safety.saturation_threshold,
            lambda_clamp_bound=driver.lambda_bound,
        )

    def begin_run(self, seed: int) -> None:
        """Start the run's adaptation."""
        self._driver.begin_run(seed)

    def begin_episode(self) -> None:
        """Forget the last scene; the adaptation goes on."""
        self._driver.begin_episode()

    def filter(self, nominal: NDArray[Any]) -> tuple[NDArray[Any], float]:
        """Return the action to execute and what to subtract from the learner's reward.

        Args:
            nominal: The ego's action, shape (A,).

        Returns:
            Action in the type of ``nominal``, bit for bit the nominal one if nothing had to
            change; and the penalty, >= 0. What the action's own bounds cut off is not counted as an
            intervention: the environment would cut it off as well.
        """
        step = self._driver.step(nominal.astype(np.float64), partner_id=self._partner_id)
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
        return executed, self._penalty * intervention

    def window_figures(self) -> dict[str, float]:
        """Return the figures since the last call and start anew."""
        return self._aggregator.flush_window_stats()

    def final_record(self) -> dict[str, Any]:
        """Return the closing record of the run."""
        return self._aggregator.finalise(safety_enabled=True, predictor_kind=self._predictor_kind)

    def state_dict(self) -> dict[str, Any]:
        """Return filter and telemetry state as plain values."""
        return {
            "driver": self._driver.state_dict(),
            "aggregator": self._aggregator.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict`."""
        self._driver.load_state_dict(state["driver"])
        self._aggregator.load_state_dict(state["aggregator"])


def require_matching_safety(
    config: EgoAHTConfig, env: object, driver: "SafetyDriver | None"
) -> None:
    """Raise unless configuration, environment and driver agree.

    Raises:
        ConfigurationError: Safety with a batch of environments; enabled without a driver; a driver
            although disabled; or a driver that watches another environment.
    """
    if config.env.num_envs > 1 and config.safety.enabled:
        raise ConfigurationError(
            f"train: expected num_envs = 1 with safety.enabled, got num_envs = "
            f"{config.env.num_envs}: the safety filter guards one environment at a time; set "
            "env.num_envs=1 or safety.enabled=false."
        )
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
    if driver is not None and not driver.drives(env):
        raise ConfigurationError(
            "train: expected the safety driver to watch the environment that is stepped, got a "
            "driver of another one, which would see a scene that never moves; build it with "
            "SafetyDriver.from_env from the very environment passed to train."
        )
