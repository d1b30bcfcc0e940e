"""Task contracts: what every number of an observation and of an action means.

An environment carries its contract as the attribute ``task_contract`` (one of several robots: a
mapping by robot), or has one registered for its Gymnasium id. What is trained in it keeps the
contract, in an agent's file and in a policy file; beside another contract it is refused, field by
field. Where either side has none, nothing is checked.

Names:   those of the contracts of CONCERTO 0.9, so that its declarations move over by keyword.
Physical: an observed v stands for scale · v in its unit; an action a for the number as far into
         [physical_low, physical_high] as a is into [low, high].
Robots:  another robot of the same task has bounds and a pose of its own; what its numbers mean,
         and on which scale, is compared all the same.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Any, Final, cast

from cadenza.core.checks import whole_number
from cadenza.core.errors import CheckpointError, InputError, UnknownNameError, did_you_mean

#: What is not compared: where the task is found and how long it lasts.
_ASIDE: Final = ("env_id", "robot_uid", "max_episode_steps", "notes")
#: What is not compared between two robots.
_OWN: Final = ("low", "high", "physical_low", "physical_high")
_OWN_POSE: Final = ("reset_joint_config", "base_position_in_world")
_QUATERNIONS: Final = ("wxyz", "xyzw")


@dataclass(frozen=True, slots=True)
class ObsField:
    """Numbers of an observation that belong together.

    Attributes:
        name: What they are called, once per contract.
        dim: How many they are.
        unit: E.g. ``"m"``, ``"rad/s"``; empty for none.
        frame: In which they are measured, e.g. ``"world"``.
        low: Smallest value.
        high: Largest value.
        scale: What a value of 1 is, in ``unit``.
    """

    name: str
    dim: int = 1
    unit: str = ""
    frame: str = ""
    low: float = -math.inf
    high: float = math.inf
    scale: float = 1.0

    def __post_init__(self) -> None:
        _check_field(self, ("low", "high", "scale"))
        if not 0.0 < self.scale < math.inf:
            raise InputError(f"{self.name}: expected a finite scale > 0, got {self.scale}.")

    def to_physical(self, value: Any) -> Any:
        """Return what ``value``, a number or an array, is in ``unit``."""
        return self.scale * value


@dataclass(frozen=True, slots=True)
class ActionField:
    """Numbers of an action that belong together; attributes as of `ObsField`.

    Attributes:
        physical_low: What ``low`` is, in ``unit``; without both physical bounds, itself.
        physical_high: What ``high`` is.
    """

    name: str
    dim: int = 1
    low: float = -math.inf
    high: float = math.inf
    physical_low: float | None = None
    physical_high: float | None = None
    unit: str = ""
    frame: str = ""

    def __post_init__(self) -> None:
        _check_field(self, ("low", "high"))
        ends = (self.physical_low, self.physical_high)
        if ends != (None, None) and (
            None in ends or not all(map(math.isfinite, (self.low, self.high, *filter(None, ends))))
        ):
            raise InputError(
                f"{self.name}: expected two physical bounds beside finite low and high, got {ends} "
                f"beside {self.low} and {self.high}."
            )

    @property
    def scale(self) -> float:
        """What a step of 1 is, in ``unit``."""
        if self.physical_low is None or self.physical_high is None or self.high == self.low:
            return 1.0
        return (self.physical_high - self.physical_low) / (self.high - self.low)

    @property
    def offset(self) -> float:
        """What 0 is, in ``unit``."""
        return 0.0 if self.physical_low is None else self.physical_low - self.scale * self.low

    def to_physical(self, value: Any) -> Any:
        """Return what ``value``, a number or an array, is in ``unit``."""
        return self.offset + self.scale * value


AnyField = ObsField | ActionField


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskContract:
    """What one version of a task shows one robot and takes from it.

    Attributes:
        task_id: Name of the task.
        version: Grows whenever a number changes its meaning, >= 1.
        obs_spec: Fields of an observation, in its order; a choice is one number.
        action_spec: Fields of an action, in its order.
        control_hz: Decisions per second; None where steps have no duration.
        env_id: Gymnasium id of environments that follow it without saying so.
        robot_uid: Which robot it is about.
        obs_mode: What kind of observation it is.
        control_mode: What kind of action.
        max_episode_steps: Usual length of an episode.
        quaternion_order: ``"wxyz"`` or ``"xyzw"``.
        reset_joint_config: Joints after a reset, rad.
        base_position_in_world: Of the robot, m.
        delta_pose_frame: In which changes of a pose are told.
        notes: Anything else.

    Raises:
        InputError: A value is out of range, or two fields have one name.
    """

    task_id: str
    version: int = 1
    obs_spec: tuple[ObsField, ...]
    action_spec: tuple[ActionField, ...]
    control_hz: float | None = None
    env_id: str = ""
    robot_uid: str = ""
    obs_mode: str = "state"
    control_mode: str = ""
    max_episode_steps: int | None = None
    quaternion_order: str = "wxyz"
    reset_joint_config: tuple[float, ...] = ()
    base_position_in_world: tuple[float, float, float] = (0.0, 0.0, 0.0)
    delta_pose_frame: str = ""
    notes: str = ""

    def __post_init__(self) -> None:
        whole_number("TaskContract.version", self.version, least=1)
        for spec in (self.obs_spec, self.action_spec):
            names = [each.name for each in spec]
            if not names or len(set(names)) < len(names):
                raise InputError(f"{self.title}: expected fields of different names, got {names}.")
        hz = self.control_hz
        if not self.task_id or (hz is not None and not 0.0 < hz < math.inf):
            raise InputError(
                f"{self.title}: expected a task_id and control_hz > 0 or None, got "
                f"{self.task_id!r} and {hz}."
            )
        if self.quaternion_order not in _QUATERNIONS:
            raise InputError(
                f"{self.title}: expected a quaternion_order of {', '.join(_QUATERNIONS)}, got "
                f"{self.quaternion_order!r}."
            )

    @property
    def title(self) -> str:
        """Task and version, e.g. ``crossing@v1``."""
        return f"{self.task_id}@v{self.version}"

    @property
    def obs_dim(self) -> int:
        """Numbers of an observation."""
        return sum(each.dim for each in self.obs_spec)

    @property
    def action_dim(self) -> int:
        """Numbers of an action."""
        return sum(each.dim for each in self.action_spec)

    def obs_slices(self) -> dict[str, slice]:
        """Return where the fields of an observation are, by name."""
        return _slices(self.obs_spec)

    def action_slices(self) -> dict[str, slice]:
        """Return where the fields of an action are, by name."""
        return _slices(self.action_spec)

    def facts(self) -> dict[str, Any]:
        """Return what differs from the defaults as JSON values; `from_facts` reads it."""
        return _facts(self)

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> "TaskContract":
        """Return the contract that `facts` described, or raise `InputError`."""
        try:
            told: dict[str, Any] = {
                name: tuple(cast("list[Any]", value)) if isinstance(value, list) else value
                for name, value in facts.items()
            }
            told["obs_spec"] = tuple(ObsField(**each) for each in told["obs_spec"])
            told["action_spec"] = tuple(ActionField(**each) for each in told["action_spec"])
            return cls(**told)
        except (AttributeError, KeyError, TypeError) as error:
            raise InputError(
                f"task contract: expected the facts of one, got others: {error}; upgrade the "
                "package if a newer release wrote them."
            ) from error

    def differences(self, other: "TaskContract") -> list[str]:
        """Return what ``other`` has instead, a phrase per field; empty if numbers mean the same."""
        same = self.robot_uid == other.robot_uid or "" in (self.robot_uid, other.robot_uid)
        aside = (*_ASIDE, "obs_spec", "action_spec", *(() if same else _OWN_POSE))
        found = [f"{name}: expected {a}, got {b}" for name, a, b in _differing(self, other, aside)]
        specs: list[tuple[str, Sequence[AnyField], Sequence[AnyField]]] = [
            ("observation", self.obs_spec, other.obs_spec),
            ("action", self.action_spec, other.action_spec),
        ]
        for kind, mine, theirs in specs:
            names = [[each.name for each in spec] for spec in (mine, theirs)]
            if names[0] != names[1]:
                found.append(f"{kind}: expected {', '.join(names[0])}, got {', '.join(names[1])}")
            named = {each.name: each for each in theirs}
            found += [
                f"{kind} {one.name}: expected {name} {a}, got {b}"
                for one in mine
                if one.name in named
                for name, a, b in _differing(one, named[one.name], () if same else _OWN)
            ]
        return found

    def require_match(self, source: str, other: "TaskContract | None") -> None:
        """Refuse what stands in ``source``, made for ``other``, beside this contract.

        Raises:
            CheckpointError: A number means something else there.
        """
        if other is not None and (differing := self.differences(other)):
            raise CheckpointError(
                f"{source}: expected the task contract {self.title}, got {other.title} with other "
                f"fields: {'; '.join(differing)}; take a policy that was trained for it, or "
                "convert its numbers in a wrapper of the environment."
            )


def _check_field(told: Any, numbers: Sequence[str]) -> None:
    """Raise unless ``told`` is a field of sense; what a file spells as text become numbers."""
    if not told.name:
        raise InputError("task contract: expected a name of each field, got an empty one.")
    whole_number(f"{told.name}.dim", told.dim, least=1)
    for number in numbers:
        object.__setattr__(told, number, float(getattr(told, number)))
    if not told.low <= told.high:
        raise InputError(f"{told.name}: expected low <= high, got {told.low} and {told.high}.")


def _slices(spec: Sequence[AnyField]) -> dict[str, slice]:
    ends = [0]
    for each in spec:
        ends.append(ends[-1] + each.dim)
    pairs = zip(spec, ends[:-1], ends[1:], strict=True)
    return {each.name: slice(begin, end) for each, begin, end in pairs}


def _facts(told: Any) -> Any:
    """Return JSON values; infinities are texts."""
    if isinstance(told, tuple):
        return [_facts(each) for each in cast("tuple[Any, ...]", told)]
    if isinstance(told, float) and math.isinf(told):
        return str(told)
    if not isinstance(told, ObsField | ActionField | TaskContract):
        return told
    values = {each.name: (getattr(told, each.name), each.default) for each in fields(told)}
    return {n: _facts(v) for n, (v, usual) in values.items() if usual is MISSING or v != usual}


def _differing(mine: Any, theirs: Any, aside: Sequence[str]) -> Iterator[tuple[str, Any, Any]]:
    """Yield where two records differ, and both values; where bounds may, the scale may not."""
    names = [each.name for each in fields(mine) if each.name not in aside]
    if aside == _OWN and isinstance(mine, ActionField):
        names += ["scale", "offset"]
    for name in names:
        wanted, found = getattr(mine, name), getattr(theirs, name)
        if wanted != found:
            yield name, wanted or "none", found or "none"


_REGISTERED: Final[dict[str, dict[int, TaskContract]]] = {}


def register(contract: TaskContract) -> TaskContract:
    """Make ``contract`` known under its task and version; return it.

    Raises:
        InputError: Another one has that version.
    """
    known = _REGISTERED.setdefault(contract.task_id, {})
    if known.setdefault(contract.version, contract) != contract:
        raise InputError(
            f"contracts.register: expected a new version of {contract.task_id!r}, got "
            f"{contract.version}, which is another contract: "
            f"{'; '.join(known[contract.version].differences(contract)) or 'other notes'}."
        )
    return contract


def get(task_id: str, version: int | None = None) -> TaskContract:
    """Return a registered contract, without ``version`` the latest one.

    Raises:
        UnknownNameError: There is none.
    """
    known = _REGISTERED.get(task_id, {})
    if not known or (version is not None and version not in known):
        had = f"the versions {', '.join(map(str, known))}" if known else "no such task"
        raise UnknownNameError(
            f"task contract {task_id!r}, version {version or 'latest'}: expected one of "
            f"{', '.join(list_contracts())}; got {had}{did_you_mean(task_id, _REGISTERED)}."
        )
    return known[max(known) if version is None else version]


def versions(task_id: str) -> tuple[int, ...]:
    """Return the registered versions of a task, oldest first; none of an unknown one."""
    return tuple(sorted(_REGISTERED.get(task_id, ())))


def list_contracts() -> list[str]:
    """Return the registered tasks."""
    return sorted(_REGISTERED)


def registered_for(env_id: str) -> TaskContract | None:
    """Return the latest contract of the environments with this Gymnasium id, if there is one."""
    latest = (get(task_id) for task_id in list_contracts())
    return next((each for each in latest if env_id and each.env_id == env_id), None)


def contract_at(env: Any, uid: str | None = None) -> TaskContract | None:
    """Return what ``env`` itself carries as ``task_contract``, of robot ``uid`` if it has several.

    Raises:
        InputError: It is something else.
    """
    told = getattr(env, "task_contract", None)
    if isinstance(told, Mapping):
        told = cast("Mapping[str, Any]", told).get(uid or "")
    if told is None or isinstance(told, TaskContract):
        return told
    raise InputError(
        f"{type(env).__name__}.task_contract: expected a TaskContract, or a mapping from robots to "
        f"such, got {told!r}."
    )
