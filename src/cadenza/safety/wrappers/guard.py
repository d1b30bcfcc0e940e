"""The safety filter around an environment, in one line."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Unpack, cast, overload

import gymnasium
from gymnasium.vector import VectorEnv

from cadenza.core.checks import shown
from cadenza.core.environments import advice_on, made_by_id
from cadenza.core.errors import ConfigurationError, did_you_mean
from cadenza.safety.contracts import EmergencyController
from cadenza.safety.geometry import Obstacles, Shape
from cadenza.safety.runtime.env_hooks import TaskKeywords, batch_hook, optional_hook
from cadenza.safety.runtime.options import SafetyOptions
from cadenza.safety.runtime.robot_driver import MODELS_HOOK, takes_velocities
from cadenza.safety.wrappers.action_port import (
    ActionMap,
    ForceSource,
    ObstacleSource,
    PartnerSource,
    SnapshotSource,
)
from cadenza.safety.wrappers.robot import (
    RobotFilterWrapper,
    RobotKeywords,
    VectorRobotFilterWrapper,
)
from cadenza.safety.wrappers.single import Fallback, GuardedEnv, SafetyFilterWrapper
from cadenza.safety.wrappers.vector import (
    BatchObstacleSource,
    BatchPartnerSource,
    BatchSource,
    GuardedBatch,
    VectorSafetyFilterWrapper,
)


class GuardKeywords(TaskKeywords, total=False):
    """Options of both wrappers of robots that take accelerations."""

    ego_uid: str | None
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
    obstacles: Sequence[Shape] | Obstacles | ObstacleSource | None


class VectorKeywords(GuardKeywords, total=False):
    """Keywords of `VectorSafetyFilterWrapper`."""

    agents: BatchSource | None
    emergency_controller: EmergencyController | None
    obstacles: Sequence[Shape] | Obstacles | BatchObstacleSource | None
    partner_id: BatchPartnerSource | None


class SingleRobotKeywords(RobotKeywords, total=False):
    """Keywords of `RobotFilterWrapper`."""

    obstacles: Sequence[Shape] | Obstacles | ObstacleSource | None
    snapshots: SnapshotSource | None


class VectorRobotKeywords(RobotKeywords, total=False):
    """Keywords of `VectorRobotFilterWrapper`."""

    obstacles: Sequence[Shape] | Obstacles | BatchObstacleSource | None
    agents: BatchSource | None


#: Wrapper and keywords, by whether the robots take velocities and whether there are many.
_WRAPPERS: Final[dict[tuple[bool, bool], tuple[type[Any], type[Any]]]] = {
    (False, False): (SafetyFilterWrapper, SingleKeywords),
    (False, True): (VectorSafetyFilterWrapper, VectorKeywords),
    (True, False): (RobotFilterWrapper, SingleRobotKeywords),
    (True, True): (VectorRobotFilterWrapper, VectorRobotKeywords),
}
#: The keyword of each kind of environment that the other one does not have.
_SOURCES: Final = {False: "snapshots", True: "agents"}
#: Keywords of robots that take velocities, and the fields of `SafetyOptions` that mean the same.
_FIELDS: Final = {
    "guarantee": "guarantee",
    "contact_speed": "contact_speed",
    "margin_m": "margin_m",
    "position_error_m": "position_error",
    "velocity_error": "velocity_error",
    "obstacles": "obstacles",
}


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
    env: str | gymnasium.Env[Any, Any], **task: Unpack[SingleRobotKeywords]
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
            them, the bounds; see `SafetyFilterWrapper`, or `VectorSafetyFilterWrapper`. Of a robot
            that takes velocities, which the environment or ``robot=`` says, its model, its
            partner's bound and the obstacles; see `RobotFilterWrapper`, or
            `VectorRobotFilterWrapper`.

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
    batch = isinstance(made, VectorEnv)
    find = batch_hook if batch else optional_hook
    there = cast("object", made)
    velocities = "robot" in task or takes_velocities(there, find)
    kind, keywords = _WRAPPERS[velocities, batch]
    if velocities and _SOURCES[not batch] in task:
        what = "a vector environment" if batch else "one environment"
        raise ConfigurationError(
            f"guard: {_SOURCES[not batch]}: expected the option {_SOURCES[batch]} for {what}, "
            f"which returns the states of {'all its environments' if batch else 'its agents'}."
        )
    known = keywords.__annotations__
    for name in sorted(task.keys() - known.keys()):
        if velocities and name == "options":
            problem = _as_keywords(task[name])
        elif name not in _WRAPPERS[True, batch][1].__annotations__:
            problem = f"unknown option{did_you_mean(name, known)}"
        elif "control_models" in task or find(there, "build_control_models") is not None:
            problem = _as_options(name, task)
        else:
            problem = (
                "expected a robot that takes velocities for this option, got none; "
                "pass robot=VelocityModel(...) or robot=UnicycleModel(...), or an environment "
                f"with {MODELS_HOOK}()"
            )
        raise ConfigurationError(f"guard: {name}: {problem}.")
    return kind(made, **task)


def _as_options(name: str, task: Mapping[str, Any]) -> str:
    """Return where a robot that takes accelerations has what a keyword of the others says."""
    if name == "partner":
        remedy = "pass control_models= with a model of the partner, too"
    elif task[name] == "escape":
        remedy = "leave guarantee= out, which means the same beside a lone partner"
    else:
        passive = 'guarantee="passive"'
        field = f"{_FIELDS[name]}={shown(task[name])}"
        if name == "guarantee":
            field = passive
        elif name == "contact_speed":
            field = f"{passive}, {field}"
        remedy = f"pass options=SafetyOptions({field})"
    return f"this robot's action is an acceleration (control_models); {remedy}"


def _as_keywords(options: object) -> str:
    """Return where a robot that takes velocities has what `SafetyOptions` say."""
    default = SafetyOptions()
    said = [
        key
        for key, field in _FIELDS.items()
        if getattr(options, field, None) != getattr(default, field)
    ]
    names = ", ".join(f"{key}=" for key in said or _FIELDS)
    return f"this robot takes velocities, and each of its options is a keyword; pass {names}"


def _is_guarded(env: Any) -> bool:
    """Return whether a wrapper of ``env`` is the filter's."""
    if isinstance(env, GuardedEnv | GuardedBatch):
        return True
    inner: Any = getattr(env, "env", None)
    return inner is not None and _is_guarded(inner)
