"""The safety filter around an environment, in one line."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, Required, TypedDict, Unpack, overload

import gymnasium
from gymnasium.vector import VectorEnv

from cadenza.core.checks import shown
from cadenza.core.environments import advice_on, made_by_id
from cadenza.core.errors import ConfigurationError, did_you_mean
from cadenza.safety.backup import Guarantee, RobotModel
from cadenza.safety.cbf import Plant
from cadenza.safety.contracts import AgentControlModel, Bounds, EmergencyController
from cadenza.safety.control_models import PartnerBound
from cadenza.safety.geometry import Obstacles, Shape
from cadenza.safety.runtime.options import SafetyOptions
from cadenza.safety.wrappers.action_port import (
    ActionMap,
    ForceSource,
    ObstacleSource,
    PartnerSource,
    SnapshotSource,
)
from cadenza.safety.wrappers.robot import RobotFilterWrapper
from cadenza.safety.wrappers.single import Fallback, SafetyFilterWrapper
from cadenza.safety.wrappers.vector import (
    BatchPartnerSource,
    BatchSource,
    VectorSafetyFilterWrapper,
)
from cadenza.safety.wrappers.vector_robot import BatchObstacleSource, VectorRobotFilterWrapper


class GuardKeywords(TypedDict, total=False):
    """Options of both wrappers."""

    ego_uid: str | None
    control_models: Mapping[str, AgentControlModel] | None
    bounds: Bounds | None
    control_timestep: float | None
    plant: Plant | None
    options: SafetyOptions | None
    action_to_control: ActionMap | None
    action_from_control: ActionMap | None


class SingleKeywords(GuardKeywords, total=False):
    """Keywords of `SafetyFilterWrapper`."""

    snapshots: SnapshotSource | None
    emergency_controllers: Mapping[str, EmergencyController] | None
    fallback: Fallback
    partner_id: PartnerSource | None
    contact_forces: ForceSource | None
    obstacles: Sequence[Shape] | Obstacles | ObstacleSource


class VectorKeywords(GuardKeywords, total=False):
    """Keywords of `VectorSafetyFilterWrapper`."""

    agents: BatchSource | None
    emergency_controller: EmergencyController | None
    partner_id: BatchPartnerSource | None


class RobotKeywords(TypedDict, total=False):
    """Keywords of `RobotFilterWrapper`."""

    robot: Required[RobotModel]
    partner: PartnerBound | Sequence[PartnerBound]
    obstacles: Sequence[Shape] | Obstacles | ObstacleSource
    snapshots: SnapshotSource | None
    control_timestep: float | None
    guarantee: Guarantee | None
    margin_m: float
    position_error_m: float
    velocity_error: float
    contact_speed: float
    action_to_control: ActionMap | None
    action_from_control: ActionMap | None


class VectorRobotKeywords(TypedDict, total=False):
    """Keywords of `VectorRobotFilterWrapper`."""

    robot: Required[RobotModel]
    partner: PartnerBound | Sequence[PartnerBound]
    obstacles: Sequence[Shape] | Obstacles | BatchObstacleSource
    agents: BatchSource | None
    control_timestep: float | None
    guarantee: Guarantee | None
    margin_m: float
    position_error_m: float
    velocity_error: float
    contact_speed: float
    action_to_control: ActionMap | None
    action_from_control: ActionMap | None


@overload
def guard(
    env: VectorEnv[Any, Any, Any], **task: Unpack[VectorRobotKeywords]
) -> VectorEnv[Any, Any, Any]: ...
@overload
def guard(
    env: VectorEnv[Any, Any, Any], **task: Unpack[VectorKeywords]
) -> VectorEnv[Any, Any, Any]: ...
@overload
def guard(
    env: str | gymnasium.Env[Any, Any], **task: Unpack[RobotKeywords]
) -> gymnasium.Env[Any, Any]: ...
@overload
def guard(
    env: str | gymnasium.Env[Any, Any], **task: Unpack[SingleKeywords]
) -> gymnasium.Env[Any, Any]: ...
def guard(env: str | gymnasium.Env[Any, Any] | VectorEnv[Any, Any, Any], **task: Any) -> Any:
    """Return ``env`` with the safety filter in front of the ego's action.

    A task of two arms has the operational-space filter of the whole arm inside: it is switched on
    with `guard_arm`, and ``env`` itself is returned.

    Args:
        env: Gymnasium id, environment or vector environment.
        **task: What the environment does not offer by itself: where everybody is, how actions move
            them, the bounds; see `SafetyFilterWrapper`, or `VectorSafetyFilterWrapper`. With
            ``robot=``, the model of a robot that takes velocities, its partner's bound and the
            obstacles; see `RobotFilterWrapper`, or `VectorRobotFilterWrapper`.

    Raises:
        ConfigurationError: The filter lacks something, or cannot be put there; the message names
            it.
    """
    made: Any = made_by_id(env, "guard") if isinstance(env, str) else env
    guard_arm: Any = getattr(getattr(made, "unwrapped", None), "guard_arm", None)
    if guard_arm is not None and not task:
        guard_arm()
        return made
    if not isinstance(made, gymnasium.Env | VectorEnv):
        raise ConfigurationError(
            "guard: expected the id of a Gymnasium environment, an environment or a vector "
            f"environment, got {shown(made)}{advice_on(made)}."
        )
    if _is_guarded(made):
        raise ConfigurationError(
            "guard: expected an environment without a filter, got one that is guarded already."
        )
    kind: Any = VectorSafetyFilterWrapper if isinstance(made, VectorEnv) else SafetyFilterWrapper
    if "robot" in task:
        batch = isinstance(made, VectorEnv)
        kind = VectorRobotFilterWrapper if batch else RobotFilterWrapper
        wrong, right = ("snapshots", "agents") if batch else ("agents", "snapshots")
        if wrong in task:
            what = "a vector environment" if batch else "one environment"
            raise ConfigurationError(
                f"guard: {wrong}: expected the option {right} for {what}, which returns the states "
                f"of {'all its environments' if batch else 'its agents'}."
            )
    known = inspect.signature(kind).parameters
    for name in task.keys() - known.keys():
        raise ConfigurationError(f"guard: {name}: unknown option{did_you_mean(name, known)}.")
    return kind(made, **task)


_FILTERS = (
    SafetyFilterWrapper,
    VectorSafetyFilterWrapper,
    RobotFilterWrapper,
    VectorRobotFilterWrapper,
)


def _is_guarded(env: Any) -> bool:
    """Return whether a wrapper of ``env`` is the filter's."""
    if isinstance(env, _FILTERS):
        return True
    inner: Any = getattr(env, "env", None)
    return inner is not None and _is_guarded(inner)
