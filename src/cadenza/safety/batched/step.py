"""What a batch of environments supplies to the batched driver, and the record of one step."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cadenza.core.arrays import FloatArray
from cadenza.core.errors import ConfigurationError
from cadenza.safety.bounds import Bounds
from cadenza.safety.cbf import Plant
from cadenza.safety.protocols import AgentControlModel
from cadenza.safety.record import Decision
from cadenza.safety.runtime.env_hooks import REMEDY
from cadenza.safety.snapshot import AgentBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchEnvHooks:
    """What the driver reads from a batch."""

    #: Returns the motion of every agent of every environment at the current state
    agents: Callable[[], AgentBatch]
    control_models: Mapping[str, AgentControlModel]  # Model of every agent
    bounds: Bounds  # Envelope of the task
    control_timestep: float  # Time one ``step`` takes, s
    plant: Plant  # How the environments integrate one step
    num_envs: int  # Environments B

    @classmethod
    def of(cls, env: object) -> "BatchEnvHooks":
        """Read the hooks of ``env`` through its wrappers, none of which may change actions."""
        require_untouched_batch_actions(env)
        return cls(
            agents=batch_hook(env, "build_agent_batch"),
            control_models=batch_hook(env, "build_control_models")(),
            bounds=batch_hook(env, "build_bounds")(),
            control_timestep=batch_hook(env, "control_timestep"),
            plant=batch_hook(env, "plant"),
            num_envs=int(batch_hook(env, "num_envs")),
        )


def batch_hook(env: object, name: str) -> Any:
    """Return an attribute of the batch, looked up through its wrappers, which do not forward."""
    layer: object | None = env
    while layer is not None:
        if hasattr(layer, name):
            return getattr(layer, name)
        layer = getattr(layer, "env", None)
    raise ConfigurationError(
        f"BatchedSafetyDriver: expected a batch with {name}, got {type(env).__name__} without it; "
        f"{REMEDY}."
    )


def require_untouched_batch_actions(env: object) -> None:
    """Raise if a wrapper of ``env`` rewrites actions: the plant would not execute the filter's."""
    from gymnasium.vector import VectorActionWrapper

    layer: object | None = env
    while layer is not None:
        kind = type(layer)
        if issubclass(kind, VectorActionWrapper):
            raise ConfigurationError(
                "BatchedSafetyDriver: expected the filtered actions to reach the plant as they "
                f"are, got a batch wrapped in {kind.__name__}, which changes actions after the "
                "filter; change them before they are filtered, in the policy."
            )
        layer = getattr(layer, "env", None)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)  # eq=False: array == is ambiguous
class SafetyBatchStep:
    """What the driver decided for one control step of every environment."""

    #: Actions to execute, shape (B, A), float64; the nominal bits where nothing was active
    action: FloatArray
    #: Forecast error per pair, max(0, score), shape (B, N), m/s; 0 where nothing was scored
    loss: FloatArray
    scored: NDArray[np.bool_]  # Whether the environment had a forecast to score, shape (B,)
    braked: NDArray[np.bool_]  # The emergency controller's action is executed, shape (B,)
    infeasible: NDArray[np.bool_]  # No action met every row, shape (B,)
    uncertified: NDArray[np.bool_]  # The invariance certificate does not cover the step, shape (B,)
    #: Whose motion since the last step disproved what was declared: ego, then partners, (B, 1 + N)
    breached: NDArray[np.bool_]
    intervention: FloatArray  # Euclidean distance between executed and nominal action, shape (B,)
    lambda_: FloatArray  # Slack per pair after this step's update, shape (B, N), m/s^2
    used_lambda: FloatArray  # Slack per pair that entered the rows, shape (B, N), m/s^2
    #: max(0, -h) before the action, on overlap at least cbf_gamma times the overlap, shape (B, N),
    #: m/s
    constraint_violation: FloatArray
    margin: FloatArray  # Free distances less the safety margin, shape (B, N), m
    slack: FloatArray  # By how much the filter's action misses each row, shape (B, N), m/s^2
    #: Reasons of each environment's braking, by environment; only those braked
    brake_reasons: Mapping[int, tuple[str, ...]]
    #: What was wrong with each environment's observation, by environment; only those whose was
    bad_input: Mapping[int, str] = field(default_factory=dict[int, str])
    #: Which declared accelerations were disproved in each episode; only of those where one was
    reason: Mapping[int, str] = field(default_factory=dict[int, str])

    @property
    def decision(self) -> Decision:
        """What a `StepRecord` of lanes counts."""
        lambdas = self.lambda_
        return Decision(
            braked=self.braked,
            infeasible=self.infeasible,
            uncertified=self.uncertified,
            violation=self.constraint_violation.max(axis=1, initial=0.0),
            margin=self.margin.min(axis=1, initial=0.0),
            slack=self.slack.max(axis=1, initial=0.0),
            lambda_mean=sum(lambdas.T, np.zeros(len(lambdas))) / lambdas.shape[1],
            partner_breached=self.breached[:, 1:].any(axis=1),
            ego_breached=self.breached[:, 0],
            reasons=self.brake_reasons,
        )
