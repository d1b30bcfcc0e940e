"""What the batched safety driver reads from a batch of environments, through its wrappers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cadenza.core.errors import ConfigurationError
from cadenza.safety.bounds import Bounds
from cadenza.safety.cbf import Plant
from cadenza.safety.protocols import AgentControlModel
from cadenza.safety.runtime.env_hooks import REMEDY
from cadenza.safety.snapshot import AgentBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchEnvHooks:
    """What the driver reads from a batch.

    Attributes:
        agents: Returns the motion of every agent of every environment at the current state.
        control_models: Model of every agent.
        bounds: Envelope of the task.
        control_timestep: Time one ``step`` takes, s.
        plant: How the environments integrate one step.
        num_envs: Environments B.
    """

    agents: Callable[[], AgentBatch]
    control_models: Mapping[str, AgentControlModel]
    bounds: Bounds
    control_timestep: float
    plant: Plant
    num_envs: int

    @classmethod
    def of(cls, env: object) -> "BatchEnvHooks":
        """Read the hooks of ``env`` through its wrappers.

        Raises:
            ConfigurationError: A hook is missing, or a wrapper would change the filtered action.
        """
        require_untouched_batch_actions(env)
        return cls(
            agents=batch_hook(env, "build_agent_batch"),
            control_models=batch_hook(env, "build_control_models")(),
            bounds=batch_hook(env, "build_bounds")(),
            control_timestep=float(batch_hook(env, "control_timestep")),
            plant=batch_hook(env, "plant"),
            num_envs=int(batch_hook(env, "num_envs")),
        )


def batch_hook(env: object, name: str) -> Any:
    """Return an attribute of the batch, looked up through its wrappers, which do not forward.

    Raises:
        ConfigurationError: No layer has it.
    """
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
