"""Checks on what a safety runtime is built from; each raises before anything is built."""

from collections.abc import Mapping
from typing import Any, cast

from cadenza.core.checks import is_real, shown
from cadenza.core.errors import ConfigurationError
from cadenza.safety.bounds import Bounds
from cadenza.safety.filters.arguments import MAX_DT, MIN_DT
from cadenza.safety.protocols import AgentControlModel
from cadenza.safety.runtime.options import SafetyOptions


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
