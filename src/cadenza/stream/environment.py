"""The simulated worlds of a producer: a Gymnasium vector environment, and the arrays it fills.

Names:  an observation of one array is ``obs``; those of a `Dict`, nested or not, are
        ``obs.<key>.<key>``. A robot's buffer has the names and shapes below instead, and the
        environment's observations must have them:

        ``obs.robot.{qpos,qvel,qf}``                      (state_dim,)  float32
        ``obs.sensor.<uid>.color``                        (H, W, 4)     uint8
        ``obs.sensor.<uid>.mask``, with ``enable_mask``   (H, W)        int32
        ``obs.sensor.<uid>.depth``, with ``enable_depth`` (H, W)        float32
        the same with ``_right`` for a ``StereoCamera``
        ``obs.<name>`` of an added observation            its shape     float32
        ``actions``                                       (state_dim,)  float32
Axes:   E = environments.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final, cast

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from numpy.typing import NDArray

from cadenza.core import environments
from cadenza.core.errors import ConfigurationError
from cadenza.stream.config import ROBOT_KEYS, OnlineDataEngineCfg, load_callable
from cadenza.stream.layout import BOOKKEEPING, Field, StoreLayout

Arrays = dict[str, NDArray[Any]]
BoolArray = NDArray[np.bool_]

#: Spaces whose samples are one array.
_ARRAYS: Final = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
#: What to do about observations and actions of other spaces.
_OBSERVATION_FLATTENING: Final = (
    "wrap every environment in gymnasium.wrappers.FlattenObservation, which makes it one Box, or "
    "give it a Dict"
)
_ACTION_FLATTENING: Final = (
    "wrap every environment in gymnasium.wrappers.TransformAction with gymnasium.spaces.unflatten "
    "and flatten_space, which make it one Box"
)
#: Settings of a simulator that go to the environment as they are.
_SIMULATOR_KEYS: Final = ("headless", "device", "renderer", "gpu_id")
#: Names under which environments report success.
_SUCCESS_KEYS: Final = ("success", "is_success")
_CAMERA_SIZE: Final = {"height": 480, "width": 640}


def make_worlds(
    gym_config: Mapping[str, Any], action_config: Mapping[str, Any], steps: int
) -> VectorEnv[Any, Any, Any]:
    """Return the vector environment that ``gym_config`` describes, see `OnlineDataEngineCfg`.

    Environments made by their id are truncated after ``steps`` steps, T.

    Raises:
        ConfigurationError: The factory cannot be imported or does not return a vector environment.
    """
    count = int(gym_config.get("num_envs", 1))
    simulator = {key: gym_config[key] for key in _SIMULATOR_KEYS if key in gym_config}
    options: dict[str, Any] = {**simulator, **gym_config.get("kwargs", {}), **action_config}
    if "factory" in gym_config:
        factory = load_callable(gym_config["factory"], "gym_config['factory']")
        made: Any = factory(num_envs=count, **options)
    else:
        spec = _registered(gym_config["id"])
        if spec.vector_entry_point is None or spec.max_episode_steps is not None:
            options = {"max_episode_steps": steps, **options}
        made = gymnasium.make_vec(gym_config["id"], num_envs=count, **options)
    size = getattr(cast("object", made), "num_envs", None)
    if not isinstance(made, VectorEnv) or size != count:
        raise ConfigurationError(
            f"gym_config: expected a gymnasium VectorEnv of {count} environments, got "
            f"{type(cast('object', made)).__name__} of {size}."
        )
    return cast("VectorEnv[Any, Any, Any]", made)


def _registered(name: str) -> EnvSpec:
    """Return what Gymnasium knows of an environment."""
    module, _, registered = name.rpartition(":")
    try:
        if module:
            import_module(module)
        return gymnasium.spec(registered)
    except (gymnasium.error.Error, ImportError) as error:
        raise ConfigurationError(
            f"gym_config['id']: expected the name of a registered environment, got {name!r} "
            f"({error}); write 'module:name' where a module registers it."
        ) from error


def store_layout(cfg: OnlineDataEngineCfg) -> StoreLayout:
    """Return the arrays that the environment of ``cfg`` needs.

    They follow from a robot's keys in ``gym_config``, or else from the spaces of an environment
    that is made for this and closed.

    There is a slot per episode of the buffer and one more per environment, so that the whole buffer
    stays readable while every environment writes.
    """
    gym = cfg.gym_config
    if any(key in gym for key in ROBOT_KEYS):
        own = robot_fields(cfg)
    else:
        if cfg.policy is not None:  # before a producer dies of it
            load_callable(cfg.policy["factory"], "policy['factory']")
        worlds = make_worlds(gym, cfg.action_config, cfg.steps)
        try:
            own = space_fields(worlds)
        finally:
            worlds.close()
    return StoreLayout(
        slots=cfg.buffer_size + cfg.producers * cfg.num_envs,
        steps=cfg.steps,
        producers=cfg.producers,
        fields=(*own, *BOOKKEEPING),
    )


def space_fields(worlds: VectorEnv[Any, Any, Any]) -> tuple[Field, ...]:
    """Return the arrays of an environment's observations and actions.

    Raises:
        ConfigurationError: A space without arrays of fixed size.
    """
    found = cast("Any", worlds)  # gymnasium leaves the element type of spaces open
    observed = tuple(_observed("obs", found.single_observation_space))
    return (*observed, _field("actions", found.single_action_space, "step"))


def _observed(name: str, space: Any) -> Iterator[Field]:
    if not isinstance(space, spaces.Dict):
        yield _field(name, space, "state")
        return
    for key, inner in cast("dict[str, Any]", cast("Any", space).spaces).items():
        if "." in key:
            raise ConfigurationError(
                f"observation {name}.{key}: expected a key without dots, which nest; rename it."
            )
        yield from _observed(f"{name}.{key}", inner)


def _field(name: str, space: Any, kind: Any) -> Field:
    if not isinstance(space, _ARRAYS):
        raise ConfigurationError(
            f"{name}: expected a space of one array (Box, Discrete, MultiDiscrete, MultiBinary), "
            f"got {space}; {_ACTION_FLATTENING if name == 'actions' else _OBSERVATION_FLATTENING}."
        )
    found = cast("Any", space)
    shape = cast("tuple[int, ...]", found.shape)
    return Field(name=name, shape=shape, dtype=np.dtype(found.dtype).name, kind=kind)


def robot_fields(cfg: OnlineDataEngineCfg) -> tuple[Field, ...]:
    """Return the arrays of a robot with cameras.

    Raises:
        ConfigurationError: Sensors or observations are none.
    """
    width = (cfg.state_dim,)
    found = [
        Field(name=f"obs.robot.{name}", shape=width, dtype="float32", kind="state")
        for name in ("qpos", "qvel", "qf")
    ]
    try:
        for sensor in cfg.gym_config.get("sensor", ()):
            found += _camera_fields(sensor)
        functors = cfg.gym_config.get("env", {}).get("observations", {})
        for key, functor in functors.items():
            shape = functor.get("extra", {}).get("shape")
            if functor.get("mode") != "add" or shape is None:
                continue
            name = f"obs.{str(functor.get('name', key)).replace('/', '.')}"
            found.append(Field(name=name, shape=tuple(shape), dtype="float32", kind="state"))
    except (AttributeError, TypeError, ValueError) as error:
        raise ConfigurationError(
            "gym_config: expected 'sensor' to be a list of mappings and ['env']['observations'] "
            f"mappings by name, got {error}; correct the robot's description."
        ) from error
    return (*found, Field(name="actions", shape=width, dtype="float32"))


def _camera_fields(sensor: Mapping[str, Any]) -> list[Field]:
    height, width = (int(sensor.get(key, size)) for key, size in _CAMERA_SIZE.items())
    images: list[tuple[str, tuple[int, ...], str]] = [("color", (height, width, 4), "uint8")]
    if sensor.get("enable_mask", False):
        images.append(("mask", (height, width), "int32"))
    if sensor.get("enable_depth", False):
        images.append(("depth", (height, width), "float32"))
    eyes = ("", "_right") if sensor.get("sensor_type") == "StereoCamera" else ("",)
    place = f"obs.sensor.{sensor.get('uid', 'camera')}"
    return [
        Field(name=f"{place}.{name}{eye}", shape=shape, dtype=dtype, kind="state")
        for eye in eyes
        for name, shape, dtype in images
    ]


@dataclass(frozen=True, slots=True, eq=False)
class WorldStep:
    """What one step of all environments gave, (E,) or by field.

    ``states`` are those that the step led to, final ones where an episode ended; ``played`` made a
    step (in next-step mode a reset takes its place); ``begun`` stand at the beginning of an episode
    now, and see ``first``.
    """

    states: Arrays
    rewards: NDArray[Any]
    terminated: BoolArray
    truncated: BoolArray
    played: BoolArray
    begun: BoolArray
    first: Arrays
    infos: dict[str, Any]

    def success(self, row: int) -> bool | None:
        """Return whether the episode of environment ``row`` succeeded, None if it does not say.

        Gymnasium gives all environments an entry as soon as one of them says something; the mask
        ``_<key>`` tells who did.
        """
        for infos in (self.infos.get("final_info"), self.infos):
            for key in _SUCCESS_KEYS:
                if not isinstance(infos, Mapping) or key not in infos:
                    continue
                told = cast("Mapping[str, Any]", infos)
                if f"_{key}" not in told or np.reshape(told[f"_{key}"], -1)[row]:
                    return bool(
                        environments.truths(f"infos[{key!r}]", np.reshape(told[key], -1)[row])
                    )
        return None


class Worlds:
    """A vector environment in any autoreset mode, as steps that keep episodes apart.

    Attributes:
        env: The environment.
        observation: What it shows now, as it returned it.
    """

    def __init__(self, env: VectorEnv[Any, Any, Any]) -> None:
        """Wrap ``env``.

        Raises:
            InputError: It does not say when it resets itself.
        """
        self.env = env
        self.observation: Any = None
        self._mode = environments.autoreset_mode(env)
        self._due = np.zeros(env.num_envs, np.bool_)
        self._each: list[_Held] = []
        if isinstance(env.unwrapped, SyncVectorEnv):  # which makes a truth value of any word
            self._each = [_Held(environments.CheckedEnv(one)) for one in env.unwrapped.envs]
            env.unwrapped.envs = list(self._each)

    @property
    def can_hold(self) -> bool:
        """Whether single environments can be held while the others are stepped."""
        return bool(self._each)

    def reset(self, seed: int | None) -> Arrays:
        """Begin an episode in every environment and return the observations by field."""
        self.observation, _ = environments.values_of(self.env, "reset", self.env.reset(seed=seed))
        self._due[:] = False
        return named_arrays(self.observation)

    def step(self, actions: Any, held: Sequence[int] = ()) -> WorldStep:
        """Step every environment with ``actions``, (E, *action shape), but for those to hold."""
        for row, one in enumerate(self._each):
            one.is_held = row in held
        answer = self.env.step(actions)
        observation, rewards, terminated, truncated, infos = environments.step_rows(
            self.env, answer, self._due.shape
        )
        done = terminated | truncated
        states = named_arrays(observation)
        first, begun, played = states, done, ~self._due
        played[list(held)] = False
        if self._mode is AutoresetMode.SAME_STEP:
            states = self._with_final(states, done, infos)
        elif self._mode is AutoresetMode.NEXT_STEP:
            begun, self._due = self._due, done
        elif done.any():
            states = {name: array.copy() for name, array in states.items()}
            observation, _ = self.env.reset(options={"reset_mask": done})
            first = named_arrays(observation)
        self.observation = observation
        return WorldStep(states, rewards, terminated, truncated, played, begun, first, infos)

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    def _with_final(self, states: Arrays, done: BoolArray, infos: Mapping[str, Any]) -> Arrays:
        """Return ``states`` with the observations that ended episodes."""
        if not done.any():
            return states
        final = environments.finals_of(self.env, infos)
        rows = np.flatnonzero(done)
        changed = {name: array.copy() for name, array in states.items()}
        if isinstance(final, np.ndarray) and cast("NDArray[Any]", final).dtype == object:
            for row in rows:
                for name, array in named_arrays(final[row]).items():
                    changed[name][row] = array
            return changed
        for name, array in named_arrays(final).items():
            changed[name][rows] = array[rows]
        return changed


class _Held(gymnasium.Wrapper[Any, Any, Any, Any]):
    """One environment that stands still while it is held."""

    is_held: bool = False
    _seen: Any = None

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        """Reset it."""
        self._seen, infos = self.env.reset(**options)
        return self._seen, infos

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step it, unless it is held at its beginning."""
        if self.is_held:
            return self._seen, 0.0, False, False, {}
        return self.env.step(action)


def named_arrays(observation: Any, name: str = "obs") -> Arrays:
    """Return the arrays of an observation by field name."""
    if not isinstance(observation, Mapping):
        return {name: np.asarray(observation)}
    found: Arrays = {}
    for key, inner in cast("Mapping[str, Any]", observation).items():
        found |= named_arrays(inner, f"{name}.{key}")
    return found
