"""What the safety drivers read from an env or a batch of them, looked up through the wrappers.

Needed:    ``build_agent_snapshots()``, ``build_control_models()``, ``build_bounds()``,
           ``control_timestep`` and ``plant``.
Optional:  ``build_contact_forces()``: force per partner id or per pair of ids, N. Without it no
           contact is measured, and ``Bounds.force_limit`` has nothing to compare with.
           ``build_obstacles()``: shapes that stand around, see `Room`.
Batches:   ``build_agent_batch()`` and ``num_envs`` in place of the first; the others of the batch,
           or of its environments, which must agree.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias, TypedDict, Unpack, cast

from cadenza.core.checks import require_kinds
from cadenza.core.errors import ConfigurationError, InputError, refuse
from cadenza.safety.backup.batched import BatchedObstacles
from cadenza.safety.cbf import Plant
from cadenza.safety.contracts import (
    AgentControlModel,
    Bounds,
    EmergencyController,
    LambdaDict,
    canonical_pair_key,
)
from cadenza.safety.geometry import Obstacles, Shape
from cadenza.safety.maps import describe_map
from cadenza.safety.runtime.options import SafetyOptions
from cadenza.safety.runtime.runtime import SafetyRuntime
from cadenza.safety.snapshot import AgentBatch, AgentSnapshot

#: What to pass `cadenza.guard` where an environment lacks a hook.
_REMEDIES: Final = {
    "build_agent_snapshots": "snapshots=, a function of (env, observation, info) that returns an "
    "AgentSnapshot by id (docs/how-to/guard-any-env.md begins with one)",
    "build_agent_batch": "agents=, a function of (env, observation, info) that returns an "
    "AgentBatch (docs/how-to/guard-any-env.md, many environments)",
    "build_control_models": "control_models=, how the action moves each agent, by id; or robot= "
    "for a robot that takes velocities",
    "build_bounds": "bounds=Bounds(...), the limits of the action",
    "build_robot_models": "robot=, the model of the guarded robot",
    "control_timestep": "control_timestep=, the time one step takes in s",
    "plant": "plant=, 'zoh' if a step holds the acceleration exactly",
    "ego_uid": "ego_uid=, the id of the guarded agent",
}
#: Returns a hook of an environment, or of a batch; None where nobody has it.
Find: TypeAlias = Callable[[object, str], Any | None]
#: Shapes, or a function that returns those of each step; None for those that are offered.
Given: TypeAlias = Iterable[Shape] | Obstacles | Callable[..., Any] | None
#: What is seen of every agent by id, or what is wrong with it.
SceneOrError: TypeAlias = Mapping[str, AgentSnapshot] | InputError
#: Measured force, N, per partner id (against the ego) or per pair of ids.
ContactForces: TypeAlias = Mapping[str | tuple[str, str], float]


class TaskKeywords(TypedDict, total=False):
    """What a filter must know about robots that take accelerations; None is looked up.

    Attributes:
        control_models: Model of every agent by id.
        bounds: Envelope; its ``action_linf_component`` is in the control model's unit.
        control_timestep: Time one ``step`` takes, s.
        plant: How the environment integrates one step.
    """

    control_models: Mapping[str, AgentControlModel] | None
    bounds: Bounds | None
    control_timestep: float | None
    plant: Plant | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """The same, known, and what stands around."""

    control_models: Mapping[str, AgentControlModel]
    bounds: Bounds
    control_timestep: float
    plant: Plant
    room: "Room" = field(default_factory=lambda: Room())

    @staticmethod
    def known(
        env: object, find: Find, obstacles: Given = None, **given: Unpack[TaskKeywords]
    ) -> dict[str, Any]:
        """Return the entries of a task: what is not given is looked up in ``env``; see `Room`.

        Raises:
            ConfigurationError: Something is neither given nor offered.
        """
        found: dict[str, Any] = {**given}
        for name in TaskKeywords.__annotations__:
            if found.get(name) is None:
                built = name in ("control_models", "bounds")
                offered = hook(env, f"build_{name}" if built else name, find)
                found[name] = offered() if built else offered
        return found | {"room": Room(env, find, obstacles)}

    def partners_of(self, ego_uid: str) -> tuple[str, ...]:
        """Return the ids of all others, in string order."""
        return tuple(sorted(uid for uid in self.control_models if uid != ego_uid))

    def runtime(
        self,
        ego_uid: str,
        options: SafetyOptions,
        controllers: Mapping[str, EmergencyController] | None,
    ) -> SafetyRuntime:
        """Return what guards the ego of one environment, beside what stands here.

        Raises:
            ConfigurationError: See `SafetyRuntime`.
        """
        return SafetyRuntime(
            ego_uid=ego_uid,
            control_models=self.control_models,
            bounds=self.bounds,
            control_timestep=self.control_timestep,
            plant=self.plant,
            options=self.room.beside(options),
            emergency_controllers=controllers,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvHooks(Task):
    """What the driver reads from an env; ``contact_forces`` is None if none are measured."""

    snapshots: Callable[[], dict[str, AgentSnapshot]]
    contact_forces: Callable[[], ContactForces] | None

    @classmethod
    def of(cls, env: object) -> "EnvHooks":
        """Read the hooks of ``env`` through its wrappers.

        Raises:
            ConfigurationError: A hook is missing, or a wrapper would change the filtered action.
        """
        require_untouched_actions(env)
        return cls(
            snapshots=hook(env, "build_agent_snapshots"),
            contact_forces=optional_hook(env, "build_contact_forces"),
            **cls.known(env, optional_hook),
        )

    def forces_on(self, ego_uid: str) -> LambdaDict | None:
        """Return the measured contact forces by pair, N; None if none are measured.

        Raises:
            InputError: A force of the ego against itself.
        """
        if self.contact_forces is None:
            return None
        return {
            canonical_pair_key(ego_uid, key) if isinstance(key, str) else key: force
            for key, force in self.contact_forces().items()
        }


def optional_hook(env: object, name: str) -> Any | None:
    """Return an attribute of the env, looked up through its wrappers; None if nobody has it."""
    look_up = cast("Callable[[str], Any] | None", getattr(env, "get_wrapper_attr", None))
    try:
        return getattr(env, name) if look_up is None else look_up(name)
    except AttributeError:
        return None


def hook(env: object, name: str, find: Find = optional_hook) -> Any:
    """Return what ``find`` finds.

    Raises:
        ConfigurationError: It is nothing.
    """
    found = find(env, name)
    if found is None:
        remedy = f", or pass cadenza.guard {_REMEDIES[name]}" if name in _REMEDIES else ""
        raise ConfigurationError(
            f"guard: expected an environment with {name}, got {type(unwrapped(env)).__name__} "
            f"without it; let it offer that{remedy}."
        )
    return found


#: The hook that tells what stands around.
_ROOM: Final = "build_obstacles"
#: Hooks whose answer one filter takes for all environments of a batch.
_ALIKE: Final = ("build_robot_models", "build_partner_bound", _ROOM, "control_timestep")


class Room:
    """What stands around: what the caller names, else ``build_obstacles()`` of the environment.

    Attributes:
        shapes: What stands still, the same in every episode.
        scan: Returns the shapes of each step; None where all stand still.
    """

    def __init__(
        self,
        env: object = None,
        find: Find | None = None,
        given: Given = None,
    ) -> None:
        """Take what is given; without that, ask ``env``.

        Args:
            env: An environment, or a batch.
            find: Returns a hook of it, None where nobody has it.
            given: Shapes, () for none; or a function that returns those of each step.

        Raises:
            ConfigurationError: Something else than shapes is given or offered.
        """
        self.scan: Callable[..., Any] | None = given if callable(given) else None
        self._build: Callable[[], Iterable[Shape] | Obstacles] | None = None
        if given is None and find is not None:
            self._build = find(env, _ROOM)
        self._given = () if given is None or callable(given) else given
        self.shapes: Obstacles = self._ask()

    def _ask(self) -> Obstacles:
        if self._build is None:
            return _shapes("guard", self._given)
        return _shapes(f"guard: {_ROOM}", self._build())

    def seen(self, *sources: Any) -> Any:
        """Return the shapes of a step; None where all stand still.

        Raises:
            InputError: The function returns nothing, which is no empty room.
        """
        if self.scan is None:
            return None
        shapes = self.scan(*sources)
        if shapes is None:
            do = "the function obstacles= has to return a list, [] where the scan hit nothing"
            refuse(InputError, "obstacles", expected="a sequence of shapes", got=None, do=do)
        return shapes

    def beside(self, options: SafetyOptions) -> SafetyOptions:
        """Return options with what stands still here besides their own obstacles."""
        require_kinds("guard", options=(options, SafetyOptions))
        return replace(options, obstacles=(*options.obstacles, *self.shapes.shapes))

    def require_same(self) -> None:
        """Ask the environment again; called in every episode.

        Raises:
            ConfigurationError: The answer is another one: the filter would know the wrong walls.
        """
        if self._build is not None and describe_map(self._ask()) != describe_map(self.shapes):
            raise ConfigurationError(
                "guard: build_obstacles: expected the same obstacles in every episode, got others; "
                "pass cadenza.guard obstacles= as a function of (env, observation, info) instead, "
                "which is asked in every step."
            )


def _shapes(owner: str, obstacles: Iterable[Shape] | Obstacles) -> Obstacles:
    try:
        return Obstacles(()).joined(obstacles)
    except InputError as error:
        raise ConfigurationError(f"{owner}: {error}") from error


def _require_alike(name: str, answers: Sequence[Any]) -> None:
    """Refuse environments of a batch that answer a hook about the robot or its room differently.

    Raises:
        ConfigurationError: They do; one filter decides for all of them.
    """
    if name not in _ALIKE:
        return
    told = [describe_map(_shapes("guard", x)) for x in answers] if name == _ROOM else answers
    if any(one != told[0] for one in told):
        remedy = (
            "pass cadenza.guard obstacles= as a function of (env, observation, info) that returns "
            "one Obstacles for each environment, or guard each before it goes into the batch"
            if name == _ROOM
            else "guard each environment before it goes into the batch"
        )
        raise ConfigurationError(
            f"guard: {name}: expected the same answer of every environment, got others; {remedy}."
        )


def require_untouched_actions(env: object) -> None:
    """Raise if a wrapper rewrites actions: the plant would not execute the filter's.

    Args:
        env: The environment, or the batch.

    Raises:
        ConfigurationError: One does.
    """
    from gymnasium import ActionWrapper
    from gymnasium.vector import VectorActionWrapper

    for layer in _layers(env):
        kind = type(layer)
        if issubclass(kind, ActionWrapper | VectorActionWrapper):
            raise ConfigurationError(
                f"guard: expected the filtered action to reach the plant unchanged, got an "
                f"environment wrapped in {kind.__name__}, which changes actions after the filter; "
                "change the action before it is filtered, in the policy."
            )


def _layers(env: object) -> Iterator[object]:
    """Yield the wrappers around an env, outermost first, and the env."""
    layer: object | None = env
    while layer is not None:
        yield layer
        layer = getattr(layer, "env", None)


def unwrapped(env: object) -> object:
    """Return the env below all wrappers."""
    return getattr(env, "unwrapped", env)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchEnvHooks(Task):
    """What the driver reads from a batch."""

    #: Returns the motion of every agent of every environment at the current state
    agents: Callable[[], AgentBatch]
    num_envs: int  # Environments B
    #: Returns the scene of each environment, or what is wrong with it; None where only all are told
    each: Callable[[], Sequence[SceneOrError]] | None = None
    #: Returns what stands around in this step besides; None without
    obstacles: Callable[[], BatchedObstacles] | None = None

    @classmethod
    def of(cls, env: object) -> "BatchEnvHooks":
        """Read the hooks of ``env`` through its wrappers, none of which may change actions.

        Raises:
            ConfigurationError: A hook is missing, or a wrapper changes actions.
        """
        require_untouched_actions(env)
        return cls(
            agents=hook(env, "build_agent_batch", own_batch_hook),
            num_envs=int(hook(env, "num_envs", own_batch_hook)),
            **cls.known(env, batch_hook),
        )

    def scenes(self) -> Sequence[SceneOrError]:
        """Return the scene of each environment, or what is wrong with it."""
        if self.each is not None:
            return self.each()
        try:
            return scenes_of(self.agents())
        except InputError as error:
            return [error] * self.num_envs


def scenes_of(agents: AgentBatch) -> Sequence[SceneOrError]:
    """Return the scene of each environment of a batch."""
    return [agents.snapshots(row) for row in range(len(agents.positions))]


def own_batch_hook(env: object, name: str) -> Any | None:
    """Return an attribute of the batch, looked up through its wrappers, which do not forward."""
    return next((getattr(layer, name) for layer in _layers(env) if hasattr(layer, name)), None)


def batch_hook(env: object, name: str) -> Any | None:
    """Return a hook of the batch, or of its environments; None where nobody has it.

    Raises:
        ConfigurationError: One filter decides for all environments, and they differ, or not all of
            them have the hook.
    """
    found = own_batch_hook(env, name)
    if found is not None:
        return found
    having = _having(env, name)
    if not any(having):
        return None
    if not all(having):
        nothing = "; one with nothing around returns ()" if name == _ROOM else ""
        raise ConfigurationError(
            f"guard: expected {name} of every environment of a batch or of none, got it of "
            f"{sum(having)} of {len(having)}{nothing}."
        )
    call: Callable[[str], Sequence[Any]] = cast("Any", unwrapped(env)).call

    def ask() -> Any:
        """Return what all say; they call their own hook, which may live in another process."""
        answers = call(name)
        _require_alike(name, answers)
        return answers[0]

    return ask if name.startswith("build_") else ask()


def all_have(env: object, name: str) -> bool:
    """Return whether a batch reaches environments that all have a hook."""
    having = _having(env, name)
    return bool(having) and all(having)


def _having(env: object, name: str) -> Sequence[bool]:
    """Return which environments of a batch have a hook; () where the batch does not reach them.

    They are asked first, since a process that holds an environment ends with an error.
    """
    ask: Callable[..., Sequence[bool]] | None = getattr(unwrapped(env), "call", None)
    return () if ask is None else ask("has_wrapper_attr", name)
