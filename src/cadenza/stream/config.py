"""Settings of the online data engine.

Every instance owns its dictionaries. `OnlineDataEngine` checks the ranges with
`check_settings`, so a configuration may be filled in step by step;
`OnlineDataEngineCfg.validate` lists what is still `dataclasses.MISSING`.

Path syntax:  ``gym_config.kwargs.sizes[0]``: attribute names and keys after dots, indices in
              brackets.
"""

import copy
import importlib
import inspect
import json
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from enum import Enum
from numbers import Real
from typing import Any, Final, Literal, Self, cast, get_args

import numpy as np
from torch import Tensor

from cadenza.core.checks import checked_path, is_whole, require_instance
from cadenza.core.device import checked_device
from cadenza.core.errors import ConfigurationError, ConfigurationTypeError
from cadenza.stream.slots import Reuse

_STEP: Final = re.compile(r"\[(\d+)\]|\.?([^.\[\]]+)")


def plain(value: object, path: str = "", above: tuple[int, ...] = ()) -> Any:
    """Return ``value`` in dictionaries, lists, tuples and plain values.

    Callables become ``module:qualname`` (lambdas their source text), enumerations their value,
    NumPy's numbers plain ones; tensors and anything else without fields pass through.

    Raises:
        ConfigurationError: A value contains itself.
    """
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, np.number | np.bool_):
        return cast("Any", value).item()
    if value is None or isinstance(value, str | int | float | bytes | Tensor):
        return value
    if callable(value):
        return _import_string(value)
    if id(value) in above:
        raise ConfigurationError(
            f"to_dict: expected a tree, got a value that contains itself at {path!r}; break the "
            "cycle."
        )
    above = (*above, id(value))
    if isinstance(value, list | tuple):
        items = cast("Sequence[object]", value)
        done = [plain(item, f"{path}[{i}]", above) for i, item in enumerate(items)]
        return done if isinstance(value, list) else tuple(done)
    entries = _entries(value)
    if entries is None:
        return value
    return {
        key: plain(item, _joined(path, key), above)
        for key, item in entries
        if not str(key).startswith("__")
    }


def _missing(value: object, path: str, above: tuple[int, ...] = ()) -> Iterator[str]:
    """Yield the paths of all values that are `dataclasses.MISSING`, in order of appearance."""
    if value is MISSING:
        yield path
        return
    if isinstance(value, str | bytes | Tensor | Enum) or callable(value) or id(value) in above:
        return
    above = (*above, id(value))
    if isinstance(value, list | tuple):
        for index, item in enumerate(cast("Sequence[object]", value)):
            yield from _missing(item, f"{path}[{index}]", above)
        return
    for key, item in _entries(value) or ():
        yield from _missing(item, _joined(path, key), above)


def with_value_at(tree: object, path: str, value: object) -> None:
    """Set the value at ``path`` below the mutable ``tree``; the last key of a mapping may be new.

    Raises:
        ConfigurationTypeError: No such place.
    """
    steps = [int(index) if index else name for index, name in _STEP.findall(path)]
    place: Any = tree
    for step in steps[:-1]:
        place = _step_into(place, step, path)
    last = steps[-1]
    if isinstance(place, dict):
        place[last] = value
    elif isinstance(place, list) and isinstance(last, int):
        if last >= len(cast("list[object]", place)):
            raise _no_place(path, last)
        place[last] = value
    elif isinstance(place, OnlineDataEngineCfg) and last in vars(place):
        setattr(cast("object", place), str(last), value)
    else:
        raise _no_place(path, last)


def _step_into(place: Any, step: str | int, path: str) -> Any:
    try:
        if isinstance(place, Mapping | list | tuple):
            return cast("Any", place)[step]
        return getattr(place, str(step))
    except (LookupError, AttributeError, TypeError) as error:
        raise _no_place(path, step) from error


def _no_place(path: str, step: str | int) -> ConfigurationTypeError:
    return ConfigurationTypeError(
        f"replace: expected the path of an existing value, got {path!r}, which has no {step!r}; "
        "check the names along it."
    )


def deep_copied(value: object) -> Any:
    """Return a copy that shares nothing mutable; `MISSING` and callables stay what they are.

    A number of NumPy becomes a plain one.
    """
    if isinstance(value, np.number | np.bool_):
        return cast("Any", value).item()
    if value is MISSING or callable(value):
        return value
    return copy.deepcopy(value, {id(MISSING): MISSING})


def _entries(value: object) -> list[tuple[Any, object]] | None:
    """Return names and values inside ``value``, None if it has none."""
    if isinstance(value, Mapping):
        return list(cast("Mapping[Any, object]", value).items())
    if is_dataclass(value):
        return [(field.name, getattr(value, field.name)) for field in fields(value)]
    inside = getattr(value, "__dict__", None)
    return None if inside is None else list(cast("dict[str, object]", inside).items())


def _joined(path: str, key: object) -> str:
    return f"{path}.{key}" if path else str(key)


def _import_string(value: Any) -> str:
    name = str(getattr(value, "__qualname__", type(value).__qualname__))
    if "<lambda>" in name:
        try:
            return inspect.getsource(value).strip()
        except OSError:  # typed at a prompt: there is no file
            return f"{value.__module__}:{name}"
    return f"{value.__module__}:{name}"


Mode = Literal["on_demand", "continuous", "fixed_ratio"]

#: Keys of ``gym_config`` that describe a robot's buffer instead of the environment's spaces.
ROBOT_KEYS: Final = ("robot", "sensor", "env")


def _empty() -> dict[str, Any]:
    return {}


@dataclass(eq=False)
class OnlineDataEngineCfg:
    """Settings of `OnlineDataEngine`; fields up to ``refill_threshold`` are EmbodiChain's.

    Attributes:
        buffer_size: Episodes that can be drawn from, B.
        max_episode_steps: Steps that a slot holds, T; a longer episode takes several, see
            `producer`. ``gym_config["max_episode_steps"]`` comes first.
        state_dim: Width of joint states and actions when ``gym_config`` describes a robot.
        buffer_device: Where drawn batches lie. The buffer itself is in the host's shared memory.
        gym_config: The environment: ``id`` (Gymnasium's) or ``factory`` (``"module:function"``,
            called with ``num_envs`` and ``kwargs``), ``num_envs`` (1), ``kwargs``,
            ``max_episode_steps``; ``robot``, ``sensor``, ``env.observations`` describe
            a robot's buffer, see `environment`.
        action_config: Further keyword arguments of the environment.
        refill_threshold: With ``mode="on_demand"`` a fill is asked for after this many chunks drawn
            per slot; and when readers of whole episodes have read as many as the buffer has.
        max_generation_attempts: Episodes per environment that may be dropped in a row before their
            producer gives up.
        initialization_timeout: Longest first fill, s.
        producers: Processes that simulate.
        policy: ``{"factory": "module:function", "kwargs": {...}}``; None asks the environment for
            ``create_demo_segments`` or ``create_demo_action_list``, see `DemonstrationPolicy`, and
            draws random actions where it has neither.
        mode: ``on_demand`` fills when asked, ``continuous`` always, ``fixed_ratio`` as many steps
            as ``max_replay_ratio`` needs.
        seed: Root of all random streams.
        stop_timeout: Time that producers have to finish their step at `OnlineDataEngine.stop`, s.
        hang_timeout: Longest time between two signs of life of a producer, s.
        max_restarts: New starts of one producer after faults, counted anew after a healthy run.
        restart_backoff: Pause before the first new start, s; doubles each time, at most 64-fold.
        healthy_after: Time that a producer must run without a fault until its earlier ones are
            forgiven, s.
        max_failure_rate: Share of dropped episodes beyond which the engine fails.
        max_replay_ratio: Chunks that may be drawn per written step; None: any number.
        draw_timeout: Longest wait of a draw for fresh data, and for episodes that it can use, s.
        min_fresh_fraction: Share of the episodes nothing was drawn from that a draw waits for.
        high_water: Unread episodes at which producers pause unless a draw waits; ones that draws
            pass over do not count, see `SlotStore.passed_over`.
        reuse: Which episode a new one replaces; ``"most_drawn"`` changes which episodes the buffer
            holds, see `SlotStore.take_slot`.
        log_path: JSONL file for events.
        status_path: JSON file rewritten each second, for ``cadenza stream top``.
    """

    buffer_size: int = 16
    max_episode_steps: int = 300
    state_dim: int = 14
    buffer_device: str = "cpu"
    gym_config: dict[str, Any] = field(default_factory=_empty)
    action_config: dict[str, Any] = field(default_factory=_empty)
    refill_threshold: int = 50
    max_generation_attempts: int = 3
    initialization_timeout: float = 300.0
    producers: int = field(default=1, kw_only=True)
    policy: dict[str, Any] | None = field(default=None, kw_only=True)
    mode: Mode = field(default="on_demand", kw_only=True)
    seed: int = field(default=0, kw_only=True)
    stop_timeout: float = field(default=5.0, kw_only=True)
    hang_timeout: float = field(default=60.0, kw_only=True)
    max_restarts: int = field(default=5, kw_only=True)
    restart_backoff: float = field(default=0.5, kw_only=True)
    healthy_after: float = field(default=600.0, kw_only=True)
    max_failure_rate: float = field(default=0.5, kw_only=True)
    max_replay_ratio: float | None = field(default=None, kw_only=True)
    draw_timeout: float = field(default=30.0, kw_only=True)
    min_fresh_fraction: float | None = field(default=None, kw_only=True)
    high_water: int | None = field(default=None, kw_only=True)
    reuse: Reuse = field(default="oldest", kw_only=True)
    log_path: str | None = field(default=None, kw_only=True)
    status_path: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        """Own all mutable values."""
        for entry in fields(self):
            setattr(self, entry.name, deep_copied(getattr(self, entry.name)))

    def replace(self, **kwargs: Any) -> Self:
        """Return a new configuration with other values by field or path, ``gym_config.num_envs``.

        Raises:
            ConfigurationTypeError: No such field or place.
        """
        names = [entry.name for entry in fields(self)]
        made = type(self)(**{name: getattr(self, name) for name in names})
        for path, value in kwargs.items():
            head = path.replace("[", ".").partition(".")[0]
            if head not in names:
                raise ConfigurationTypeError(
                    f"OnlineDataEngineCfg.replace: expected one of the fields {names}, got "
                    f"{head!r}."
                )
            with_value_at(made, path, deep_copied(value))
        return made

    def copy(self, **kwargs: Any) -> Self:
        """Do the same as `replace`."""
        return self.replace(**kwargs)

    def to_dict(self) -> dict[str, Any]:
        """Return all values in dictionaries, lists and plain values, see `plain`.

        Raises:
            ConfigurationError: A value contains itself.
        """
        return {entry.name: plain(getattr(self, entry.name), entry.name) for entry in fields(self)}

    def validate(self, prefix: str = "") -> list[str]:
        """Return the paths of missing values; another configuration with a ``prefix`` reports.

        Raises:
            ConfigurationTypeError: ``prefix`` is empty and values are missing.
        """
        paths = list(_missing(self, prefix))
        if paths and not prefix:
            lines = "\n".join(f"  {path}" for path in paths)
            raise ConfigurationTypeError(
                f"{type(self).__name__}: expected a value for every field, these are MISSING:\n"
                f"{lines}"
            )
        return paths

    @property
    def num_envs(self) -> int:
        """Environments of each producer, E."""
        return int(self.gym_config.get("num_envs", 1))

    @property
    def steps(self) -> int:
        """Steps that a slot holds, T."""
        return int(self.gym_config.get("max_episode_steps", self.max_episode_steps))


def import_path(path: object, place: str) -> tuple[str, str]:
    """Return module and name in ``"package.module:name"``; nothing is imported.

    Raises:
        ConfigurationError: ``path``, which stands at ``place``, is not such a path.
    """
    module, colon, name = path.partition(":") if isinstance(path, str) else ("", "", "")
    if not (module and colon and name):
        raise ConfigurationError(f"{place}: expected 'package.module:function', got {path!r}.")
    return module, name


def load_callable(path: object, place: str) -> Callable[..., Any]:
    """Return the function or class that ``path``, which stands at ``place``, names.

    Raises:
        ConfigurationError: Not such a path, or nothing callable there.
    """
    module, name = import_path(path, place)
    try:
        found: object = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(
            f"{place}: expected {path!r} to be importable, got: {error}; put its "
            "folder on sys.path."
        ) from error
    if not callable(found):
        raise ConfigurationError(
            f"{place}: expected something to call at {path!r}, got {type(found).__name__}."
        )
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowRules:
    """The settings that decide who waits, see `OnlineDataEngineCfg`."""

    buffer_size: int
    mode: Mode
    refill_threshold: int
    max_replay_ratio: float | None
    min_fresh_fraction: float | None
    high_water: int | None

    @classmethod
    def of(cls, cfg: OnlineDataEngineCfg) -> Self:
        """Return the rules of a configuration."""
        return cls(**{entry.name: getattr(cfg, entry.name) for entry in fields(cls)})

    def most_chunks(self, steps: int) -> float | None:
        """Return the chunks that a buffer full of unread episodes of ``steps`` steps allows.

        A larger draw needs steps that are gone before it can see them. Where producers write no
        more than is wanted that is a mistake; elsewhere, None, it only takes its time.
        """
        if self.max_replay_ratio is None:
            return None
        if self.mode != "fixed_ratio" and self.high_water is None:
            return None
        return self.max_replay_ratio * self.buffer_size * steps


#: Smallest value of each whole number.
_LEAST: Final = {
    "buffer_size": 1,
    "max_episode_steps": 1,
    "state_dim": 1,
    "refill_threshold": 1,
    "max_generation_attempts": 1,
    "producers": 1,
    "seed": 0,
    "max_restarts": 0,
    "high_water": 1,
}
#: What other numbers are, by the words of messages: their bounds, both allowed.
_RANGES: Final = {
    "a finite number > 0": (math.nextafter(0.0, 1.0), sys.float_info.max),
    "a finite number >= 0": (0.0, sys.float_info.max),
    "a number in [0, 1]": (0.0, 1.0),
}
_KINDS: Final = {
    **dict.fromkeys(("initialization_timeout", "stop_timeout"), "a finite number > 0"),
    **dict.fromkeys(("hang_timeout", "healthy_after"), "a finite number > 0"),
    **dict.fromkeys(("max_replay_ratio", "draw_timeout"), "a finite number > 0"),
    "restart_backoff": "a finite number >= 0",
    **dict.fromkeys(("max_failure_rate", "min_fresh_fraction"), "a number in [0, 1]"),
}
_OPTIONAL: Final = ("high_water", "max_replay_ratio", "min_fresh_fraction")
_GYM_KEYS: Final = frozenset(
    {
        *("id", "factory", "num_envs", "max_episode_steps", "kwargs"),
        *("headless", "device", "renderer", "gpu_id", *ROBOT_KEYS),
    }
)


def check_settings(cfg: OnlineDataEngineCfg) -> None:
    """Refuse settings that cannot work.

    Raises:
        ConfigurationError: Out of range, unknown, or in conflict with another one.
        ConfigurationTypeError: A value is missing, or ``cfg`` is no configuration.
    """
    advice = "write OnlineDataEngineCfg(**settings)"
    require_instance("OnlineDataEngine.cfg", cfg, OnlineDataEngineCfg, advice)
    cfg.validate()
    cfg = cfg.copy()  # which makes NumPy's numbers plain
    given = {name: getattr(cfg, name) for name in (*_LEAST, *_KINDS)}
    for name, value in given.items():
        if value is None and name in _OPTIONAL:
            continue
        if name in _LEAST:
            if not is_whole(value) or value < _LEAST[name]:
                raise _refused(name, f"an integer >= {_LEAST[name]}", value)
            continue
        low, high = _RANGES[_KINDS[name]]
        number = math.nan if isinstance(value, bool) else value
        if not isinstance(number, Real) or not low <= cast("float", number) <= high:
            raise _refused(name, _KINDS[name], value)
    for name, kind in (("mode", Mode), ("reuse", Reuse)):
        value = getattr(cfg, name)
        if not isinstance(value, str) or value not in get_args(kind):
            raise _refused(name, f"one of {get_args(kind)}", value)
    if cfg.mode == "fixed_ratio" and cfg.max_replay_ratio is None:
        raise _refused("max_replay_ratio", 'a number with mode="fixed_ratio"', None)
    checked_device("OnlineDataEngineCfg.buffer_device", cfg.buffer_device)
    for name in ("log_path", "status_path"):
        if getattr(cfg, name) is not None:
            checked_path(f"OnlineDataEngineCfg.{name}", getattr(cfg, name))
    _check_environment(cfg)
    _check_policy(cfg)
    _check_flow(cfg)
    _check_json(cfg)


def _check_environment(cfg: OnlineDataEngineCfg) -> None:
    gym = cast("Any", cfg.gym_config)
    _check_mapping("gym_config", gym)
    _check_mapping("action_config", cfg.action_config)
    for key in ("kwargs", "env"):
        _check_mapping(f"gym_config[{key!r}]", gym.get(key, {}))
    unknown = sorted(set(cfg.gym_config) - _GYM_KEYS)
    if unknown:
        raise _refused("gym_config", f"keys among {sorted(_GYM_KEYS)}", unknown)
    if ("id" in gym) == ("factory" in gym):
        raise _refused(
            "gym_config", "either 'id' or 'factory'", sorted(set(cfg.gym_config)) or "no keys"
        )
    if "factory" in gym:
        import_path(gym["factory"], "OnlineDataEngineCfg.gym_config['factory']")
    elif not isinstance(gym["id"], str) or not gym["id"]:
        raise _refused("gym_config['id']", "the name of a registered environment", gym["id"])
    for name in ("num_envs", "max_episode_steps"):
        value = cfg.gym_config.get(name, 1)
        if not is_whole(value) or value < 1:
            raise _refused(f"gym_config[{name!r}]", "an integer >= 1", value)
    if cfg.num_envs > cfg.buffer_size:
        raise _refused(
            "buffer_size", f"at least num_envs = {cfg.num_envs} episodes", cfg.buffer_size
        )
    _check_sensors(gym.get("sensor", []))
    _check_observations(gym.get("env", {}).get("observations", {}))


def _check_sensors(sensors: object) -> None:
    place = "gym_config['sensor']"
    if not isinstance(sensors, list | tuple) or not all(
        isinstance(entry, Mapping) for entry in cast("list[Any]", sensors)
    ):
        raise _refused(place, "a list of mappings", cast("object", sensors))
    for number, sensor in enumerate(cast("list[Mapping[str, Any]]", sensors)):
        for key in ("height", "width"):
            size = sensor.get(key, 1)
            if not is_whole(size) or size < 1:
                raise _refused(f"{place}[{number}][{key!r}]", "an integer >= 1", size)


def _check_observations(functors: object) -> None:
    place = "gym_config['env']['observations']"
    _check_mapping(place, functors)
    for key, functor in cast("Mapping[str, Any]", functors).items():
        _check_mapping(f"{place}[{key!r}]", functor)
        if functor.get("mode") != "add":
            continue
        extra = functor.get("extra", {})
        _check_mapping(f"{place}[{key!r}]['extra']", extra)
        shape = extra.get("shape")
        if shape is not None and not _is_shape(shape):
            raise _refused(f"{place}[{key!r}]['extra']['shape']", "a list of integers >= 1", shape)


def _is_shape(shape: object) -> bool:
    return isinstance(shape, list | tuple) and all(
        is_whole(size) and size >= 1 for size in cast("list[object]", shape)
    )


def _check_policy(cfg: OnlineDataEngineCfg) -> None:
    if cfg.policy is None:
        return
    _check_mapping("policy", cfg.policy)
    if not {"factory"} <= set(cfg.policy) <= {"factory", "kwargs"}:
        raise _refused("policy", "the keys 'factory' and, if needed, 'kwargs'", sorted(cfg.policy))
    import_path(cfg.policy["factory"], "OnlineDataEngineCfg.policy['factory']")
    _check_mapping("policy['kwargs']", cfg.policy.get("kwargs", {}))


def _check_flow(cfg: OnlineDataEngineCfg) -> None:
    """Refuse settings with which draws would wait for what producers must not give."""
    rules = FlowRules.of(cfg)
    most = rules.most_chunks(cfg.steps)
    if most is not None and most < 1.0:
        raise _refused(
            "max_replay_ratio",
            f"at least {1 / (cfg.buffer_size * cfg.steps):.2g}, so that the buffer_size * "
            f"max_episode_steps = {cfg.buffer_size} * {cfg.steps} steps that it can hold allow one "
            "chunk",
            cfg.max_replay_ratio,
        )
    if cfg.high_water is None:
        return
    if cfg.high_water > cfg.buffer_size:
        raise _refused("high_water", f"<= buffer_size = {cfg.buffer_size}", cfg.high_water)
    needed = (cfg.min_fresh_fraction or 0.0) * cfg.buffer_size
    if cfg.high_water < needed:
        raise _refused(
            "high_water",
            f"at least min_fresh_fraction * buffer_size = {needed:g} unread episodes, for which "
            "draws wait",
            cfg.high_water,
        )


def _check_mapping(name: str, value: object) -> None:
    if not isinstance(value, Mapping):
        raise _refused(name, "a mapping", value)
    odd = [key for key in cast("Mapping[object, Any]", value) if not isinstance(key, str)]
    if odd:
        raise _refused(name, "keys that are strings", odd)


def _check_json(cfg: OnlineDataEngineCfg) -> None:
    """Producers get the configuration as JSON."""
    for name in ("gym_config", "action_config", "policy"):
        try:
            json.dumps(plain(getattr(cfg, name), name), allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ConfigurationError(
                f"OnlineDataEngineCfg.{name}: expected values that JSON can express, because "
                f"producers get them so: {error}."
            ) from error


def _refused(name: str, expected: str, got: object) -> ConfigurationError:
    return ConfigurationError(f"OnlineDataEngineCfg.{name}: expected {expected}, got {got!r}.")
