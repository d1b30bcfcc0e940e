"""What the safety driver reads from an env, looked up through the env's wrappers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from cadenza.core.errors import ConfigurationError
from cadenza.safety.barrier import Plant
from cadenza.safety.bounds import Bounds
from cadenza.safety.protocols import AgentControlModel
from cadenza.safety.snapshot import AgentSnapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvHooks:
    """What the driver reads from an env.

    Attributes:
        snapshots: Returns every agent's snapshot at the current state.
        control_models: Model of every agent.
        bounds: Envelope of the task.
        control_timestep: Time one ``step`` of the env takes, s.
        plant: How the env integrates one step.
    """

    snapshots: Callable[[], dict[str, AgentSnapshot]]
    control_models: Mapping[str, AgentControlModel]
    bounds: Bounds
    control_timestep: float
    plant: Plant

    @classmethod
    def of(cls, env: object) -> "EnvHooks":
        """Read the hooks of ``env`` through its wrappers.

        Raises:
            ConfigurationError: A hook is missing, or a wrapper would change the filtered action.
        """
        require_untouched_actions(env)
        return cls(
            snapshots=hook(env, "build_agent_snapshots"),
            control_models=hook(env, "build_control_models")(),
            bounds=hook(env, "build_bounds")(),
            control_timestep=float(hook(env, "control_timestep")),
            plant=hook(env, "plant"),
        )


def hook(env: object, name: str) -> Any:
    """Return an attribute of the env, looked up through its wrappers.

    Raises:
        ConfigurationError: No env of the stack has it.
    """
    look_up = cast("Callable[[str], Any] | None", getattr(env, "get_wrapper_attr", None))
    try:
        return getattr(env, name) if look_up is None else look_up(name)
    except AttributeError as error:
        raise ConfigurationError(
            f"SafetyDriver: expected an env with {name}, got {type(env).__name__} without it; "
            "only tasks that offer safety hooks can be guarded."
        ) from error


def require_untouched_actions(env: object) -> None:
    """Raise if a wrapper of ``env`` rewrites actions: the plant would not execute the filter's."""
    from gymnasium import ActionWrapper

    layer: object | None = env
    while layer is not None:
        kind = type(layer)
        if issubclass(kind, ActionWrapper):
            raise ConfigurationError(
                "SafetyDriver: expected the filtered action to reach the plant as it is, got an "
                f"env wrapped in {kind.__name__}, which changes actions after the filter; change "
                "the action before it is filtered, in the policy."
            )
        layer = getattr(layer, "env", None)


def unwrapped(env: object) -> object:
    """Return the env below all wrappers."""
    return getattr(env, "unwrapped", env)
