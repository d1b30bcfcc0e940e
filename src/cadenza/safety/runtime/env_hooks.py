"""What the safety drivers read from an env or a batch of them, looked up through the wrappers.

Needed:    ``build_agent_snapshots()``, ``build_control_models()``, ``build_bounds()``,
           ``control_timestep`` and ``plant``.
Optional:  ``build_contact_forces()``: force per partner id or per pair of ids, N. Without it no
           contact is measured, and ``Bounds.force_limit`` has nothing to compare with.
Batches:   ``build_agent_batch()`` and ``num_envs`` in place of the first and the last.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, cast

from cadenza.core.errors import ConfigurationError
from cadenza.safety.cbf import Plant
from cadenza.safety.contracts import AgentControlModel, Bounds, LambdaDict, canonical_pair_key
from cadenza.safety.geometry import Obstacles, Shape
from cadenza.safety.maps import describe_map
from cadenza.safety.snapshot import AgentBatch, AgentSnapshot

#: What to do where an environment lacks a hook.
REMEDY: Final = (
    "let the environment offer it, or pass cadenza.guard what it lacks: ego_uid=, snapshots= "
    "(agents= for a batch), control_models=, bounds=, control_timestep=, plant=; or, for a robot "
    "that takes velocities, robot=, partner=, obstacles="
)
#: Returns a hook of an environment, or of a batch; None where nobody has it.
Find: TypeAlias = Callable[[object, str], Any | None]
#: Measured force, N, per partner id (against the ego) or per pair of ids.
ContactForces: TypeAlias = Mapping[str | tuple[str, str], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvHooks:
    """What the driver reads from an env; ``contact_forces`` is None if none are measured."""

    snapshots: Callable[[], dict[str, AgentSnapshot]]
    control_models: Mapping[str, AgentControlModel]
    bounds: Bounds
    control_timestep: float
    plant: Plant
    contact_forces: Callable[[], ContactForces] | None = None

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
            control_timestep=hook(env, "control_timestep"),
            plant=hook(env, "plant"),
            contact_forces=optional_hook(env, "build_contact_forces"),
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


def hook(env: object, name: str) -> Any:
    """Return an attribute of the env, looked up through its wrappers.

    Raises:
        ConfigurationError: No env of the stack has it.
    """
    try:
        return _look_up(env, name)
    except AttributeError as error:
        raise ConfigurationError(
            f"SafetyDriver: expected an env with {name}, got {type(unwrapped(env)).__name__} "
            f"without it; {REMEDY}."
        ) from error


def needed_hook(env: object, name: str, find: Find, *, remedy: str = REMEDY) -> Any:
    """Return what ``find`` finds; ``remedy`` says what to do where that is nothing.

    Raises:
        ConfigurationError: It is nothing.
    """
    found = find(env, name)
    if found is None:
        raise ConfigurationError(
            f"guard: expected an environment with {name}, got {type(unwrapped(env)).__name__} "
            f"without it; {remedy}."
        )
    return found


def optional_hook(env: object, name: str) -> Any | None:
    """Return an attribute of the env, looked up through its wrappers; None if nobody has it."""
    try:
        return _look_up(env, name)
    except AttributeError:
        return None


#: The hook that tells what stands around.
_ROOM: Final = "build_obstacles"
#: Hooks whose answer one filter takes for all environments of a batch.
_ALIKE: Final = ("build_robot_models", "build_partner_bound", _ROOM, "control_timestep")


class Room:
    """What an environment says stands around: ``build_obstacles()``, the same in every episode.

    Attributes:
        shapes: Its answer; nothing without the hook.
    """

    def __init__(self, env: object, find: Find | None) -> None:
        """Ask ``env``; ``find`` returns a hook of it, None where nobody has it or is asked.

        Raises:
            InputError: The answer holds something else than shapes.
        """
        self._build: Callable[[], Iterable[Shape] | Obstacles] | None = find and find(env, _ROOM)
        self.shapes: Obstacles = self._ask()

    def _ask(self) -> Obstacles:
        return Obstacles(() if self._build is None else _shapes(self._build()))

    def require_same(self) -> None:
        """Ask again.

        Raises:
            ConfigurationError: The answer is another one: the filter would know the wrong walls.
        """
        if self._build is not None and describe_map(self._ask()) != describe_map(self.shapes):
            raise ConfigurationError(
                "guard: build_obstacles: expected the same obstacles in every episode, got others; "
                "pass cadenza.guard obstacles= as a function of (env, observation, info) instead, "
                "which is asked in every step."
            )


def _shapes(obstacles: Iterable[Shape] | Obstacles) -> Sequence[Shape]:
    return obstacles.shapes if isinstance(obstacles, Obstacles) else list(obstacles)


def require_alike(name: str, answers: Sequence[Any]) -> None:
    """Refuse environments of a batch that answer a hook about the robot or its room differently.

    Raises:
        ConfigurationError: They do; one filter decides for all of them.
    """
    if name not in _ALIKE:
        return
    told = [describe_map(Obstacles(_shapes(x))) for x in answers] if name == _ROOM else answers
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


def _look_up(env: object, name: str) -> Any:
    look_up = cast("Callable[[str], Any] | None", getattr(env, "get_wrapper_attr", None))
    return getattr(env, name) if look_up is None else look_up(name)


def require_untouched_actions(env: object) -> None:
    """Raise if a wrapper of ``env`` rewrites actions: the plant would not execute the filter's."""
    from gymnasium import ActionWrapper

    _require_untouched("SafetyDriver", env, "an env", ActionWrapper)


def _require_untouched(owner: str, env: object, what: str, rewriting: type) -> None:
    for layer in _layers(env):
        kind = type(layer)
        if issubclass(kind, rewriting):
            raise ConfigurationError(
                f"{owner}: expected the filtered action to reach the plant unchanged, got {what} "
                f"wrapped in {kind.__name__}, which changes actions after the filter; change the "
                "action before it is filtered, in the policy."
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
    """Return an attribute of the batch, looked up through its wrappers, which do not forward.

    Raises:
        ConfigurationError: Nothing of the stack has it.
    """
    found = optional_batch_hook(env, name)
    if found is None:
        raise ConfigurationError(
            f"BatchedSafetyDriver: expected a batch with {name}, got {type(env).__name__} without "
            f"it; {REMEDY}."
        )
    return found


def optional_batch_hook(env: object, name: str) -> Any | None:
    """Return an attribute of the batch, looked up in the same way; None if nobody has it."""
    for layer in _layers(env):
        if hasattr(layer, name):
            return getattr(layer, name)
    return None


def require_untouched_batch_actions(env: object) -> None:
    """Raise if a wrapper of ``env`` rewrites actions: the plant would not execute the filter's."""
    from gymnasium.vector import VectorActionWrapper

    _require_untouched("BatchedSafetyDriver", env, "a batch", VectorActionWrapper)
