"""Where a wrapper learns about the scene: from the caller, else from hooks of the environment."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

from cadenza.core.errors import InputError
from cadenza.safety.bounds import Bounds
from cadenza.safety.cbf import Plant
from cadenza.safety.geometry import Obstacles, Shape
from cadenza.safety.pairs import LambdaDict
from cadenza.safety.protocols import AgentControlModel
from cadenza.safety.runtime.env_hooks import hook
from cadenza.safety.snapshot import AgentSnapshot

#: Returns every agent's snapshot from environment, last observation and last info.
SnapshotSource: TypeAlias = Callable[[Any, Any, dict[str, Any]], dict[str, AgentSnapshot]]
#: Returns the partner's identity, or None if unknown, from the same.
PartnerSource: TypeAlias = Callable[[Any, Any, dict[str, Any]], str | None]
#: Returns measured contact forces per pair, N, from the same.
ForceSource: TypeAlias = Callable[[Any, Any, dict[str, Any]], LambdaDict]
#: Returns the shapes of one step, of a scan for example, from the same.
ObstacleSource: TypeAlias = Callable[[Any, Any, dict[str, Any]], Sequence[Shape] | Obstacles]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What a wrapper must know about the task, once."""

    ego_uid: str
    control_models: Mapping[str, AgentControlModel]
    bounds: Bounds
    control_timestep: float
    plant: Plant

    @classmethod
    def of(
        cls,
        env: object,
        look_up: Callable[[object, str], Any] = hook,
        *,
        ego_uid: str | None,
        control_models: Mapping[str, AgentControlModel] | None,
        bounds: Bounds | None,
        control_timestep: float | None,
        plant: Plant | None,
    ) -> "Task":
        """Return the task of ``env``; what is None is looked up in the environment.

        Raises:
            ConfigurationError: Something is neither given nor offered by the environment.
        """
        return cls(
            ego_uid=look_up(env, "ego_uid") if ego_uid is None else ego_uid,
            control_models=look_up(env, "build_control_models")()
            if control_models is None
            else control_models,
            bounds=look_up(env, "build_bounds")() if bounds is None else bounds,
            control_timestep=look_up(env, "control_timestep")
            if control_timestep is None
            else control_timestep,
            plant=look_up(env, "plant") if plant is None else plant,
        )


def checked_scene(snapshots: object) -> dict[str, AgentSnapshot]:
    """Return what the source of snapshots gave, if it is a scene at all.

    Raises:
        InputError: It is no mapping.
    """
    if not isinstance(snapshots, Mapping):
        raise InputError(
            "SafetyFilterWrapper: snapshots: expected every agent's snapshot by id, got "
            f"{snapshots!r}."
        )
    return dict(cast("Mapping[str, AgentSnapshot]", snapshots))
