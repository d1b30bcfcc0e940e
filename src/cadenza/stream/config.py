"""Settings of the online data engine.

Every instance owns its dictionaries. `OnlineDataEngine` checks the ranges with `check_settings`, so
a configuration may be filled in step by step; `OnlineDataEngineCfg.validate` lists what is still
`dataclasses.MISSING`.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal, Self, cast, get_args

import torch

from cadenza.core.errors import ConfigurationError, ConfigurationTypeError
from cadenza.stream.config_tree import deep_copied, missing_paths, plain, with_value_at
from cadenza.stream.slots import Reuse

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
        max_episode_steps: Steps that an episode may have, T; ``gym_config["max_episode_steps"]``
            comes first.
        state_dim: Width of joint states and actions when ``gym_config`` describes a robot.
        buffer_device: Where drawn batches lie. The buffer itself is in the host's shared memory.
        gym_config: The environment: ``id`` (Gymnasium's) or ``factory`` (``"module:function"``,
            called with ``num_envs`` and ``kwargs``), ``num_envs`` (1), ``kwargs``,
            ``max_episode_steps``, ``spaces``; ``robot``, ``sensor``, ``env.observations`` describe
            a robot's buffer, see `environment`.
        action_config: Further keyword arguments of the environment.
        refill_threshold: With ``mode="on_demand"`` a fill is asked for after this many chunks drawn
            per slot; and when readers of whole episodes have read as many as the buffer has.
        max_generation_attempts: Episodes per environment that may be dropped in a row before their
            producer gives up.
        initialization_timeout: Longest first fill, s.
        producers: Processes that simulate.
        policy: ``{"factory": "module:function", "kwargs": {...}}``; None asks the environment for
            ``create_demo_segments`` or ``create_demo_action_list``, see `DemonstrationPolicy`.
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
        draw_timeout: Longest wait of a draw for fresh data, s.
        min_fresh_fraction: Share of the episodes nothing was drawn from that a draw waits for.
        high_water: Unread episodes at which producers pause.
        reuse: Which episode a new one replaces.
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
        """Return a new configuration with other values.

        Args:
            kwargs: Values by field, or by path: ``replace(**{"gym_config.num_envs": 4})``.

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
        """Return all values in dictionaries, lists and plain values, see `config_tree.plain`.

        Raises:
            ConfigurationError: A value contains itself.
        """
        return {entry.name: plain(getattr(self, entry.name), entry.name) for entry in fields(self)}

    def validate(self, prefix: str = "") -> list[str]:
        """Return the paths of missing values.

        Args:
            prefix: Path of this configuration inside another one, which then reports.

        Raises:
            ConfigurationTypeError: ``prefix`` is empty and values are missing.
        """
        paths = missing_paths(self, prefix)
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
        """Steps that an episode may have, T."""
        return int(self.gym_config.get("max_episode_steps", self.max_episode_steps))


#: Smallest value of each number.
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
_POSITIVE: Final = (
    "initialization_timeout",
    "stop_timeout",
    "hang_timeout",
    "healthy_after",
    "max_replay_ratio",
    "draw_timeout",
)
_NOT_NEGATIVE: Final = ("restart_backoff",)
_FRACTIONS: Final = ("max_failure_rate", "min_fresh_fraction")
_GYM_KEYS: Final = frozenset(
    {
        *("id", "factory", "num_envs", "max_episode_steps", "kwargs", "spaces"),
        *("headless", "device", "renderer", "gpu_id", *ROBOT_KEYS),
    }
)


def check_settings(cfg: OnlineDataEngineCfg) -> None:
    """Refuse settings that cannot work.

    Raises:
        ConfigurationError: Out of range, unknown, or in conflict with another one.
        ConfigurationTypeError: A value is missing.
    """
    cfg.validate()
    for name, least in _LEAST.items():
        value = getattr(cfg, name)
        if value is None and name == "high_water":
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise _refused(name, f"an integer >= {least}", value)
    for names, low, high in (
        (_POSITIVE, math.nextafter(0.0, 1.0), math.inf),
        (_NOT_NEGATIVE, 0.0, math.inf),
        (_FRACTIONS, 0.0, 1.0),
    ):
        _check_numbers(cfg, names, low, high)
    for name, kind in (("mode", Mode), ("reuse", Reuse)):
        if getattr(cfg, name) not in get_args(kind):
            raise _refused(name, f"one of {get_args(kind)}", getattr(cfg, name))
    if cfg.mode == "fixed_ratio" and cfg.max_replay_ratio is None:
        raise _refused("max_replay_ratio", 'a number with mode="fixed_ratio"', None)
    _check_device(cfg)
    _check_environment(cfg)
    _check_flow(cfg)
    _check_json(cfg)


def _check_numbers(
    cfg: OnlineDataEngineCfg, names: tuple[str, ...], low: float, high: float
) -> None:
    optional = ("max_replay_ratio", "min_fresh_fraction")
    for name in names:
        value: object = getattr(cfg, name)
        if value is None and name in optional:
            continue
        number = math.nan if isinstance(value, bool) else value
        if not isinstance(number, int | float) or not low <= number <= high or math.isinf(number):
            bounds = "> 0" if low and high > 1 else f">= {low:g}"
            expected = f"a finite number {bounds}" if high > 1 else "a number in [0, 1]"
            raise _refused(name, expected, value)


def _check_device(cfg: OnlineDataEngineCfg) -> None:
    try:
        device = torch.device(cfg.buffer_device)
    except (RuntimeError, TypeError) as error:
        raise _refused("buffer_device", "the name of a device", cfg.buffer_device) from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise _refused("buffer_device", "a device that this machine has ('cpu')", cfg.buffer_device)


def _check_environment(cfg: OnlineDataEngineCfg) -> None:
    gym = cast("Any", cfg.gym_config)
    _check_mapping("gym_config", gym)
    _check_mapping("action_config", cfg.action_config)
    for key in ("kwargs", "spaces", "env"):
        _check_mapping(f"gym_config[{key!r}]", gym.get(key, {}))
    unknown = sorted(set(cfg.gym_config) - _GYM_KEYS)
    if unknown:
        raise _refused("gym_config", f"keys among {sorted(_GYM_KEYS)}", unknown)
    if ("id" in gym) == ("factory" in gym):
        raise _refused(
            "gym_config", "either 'id' or 'factory'", sorted(set(cfg.gym_config)) or "no keys"
        )
    for name in ("num_envs", "max_episode_steps"):
        value = cfg.gym_config.get(name, 1)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise _refused(f"gym_config[{name!r}]", "an integer >= 1", value)
    if cfg.num_envs > cfg.buffer_size:
        raise _refused(
            "buffer_size", f"at least num_envs = {cfg.num_envs} episodes", cfg.buffer_size
        )
    sensors = gym.get("sensor", [])
    if not isinstance(sensors, list | tuple) or not all(
        isinstance(entry, Mapping) for entry in cast("list[Any]", sensors)
    ):
        raise _refused("gym_config['sensor']", "a list of mappings", cast("object", sensors))
    if cfg.policy is None:
        return
    _check_mapping("policy", cfg.policy)
    if not {"factory"} <= set(cfg.policy) <= {"factory", "kwargs"}:
        raise _refused("policy", "the keys 'factory' and, if needed, 'kwargs'", sorted(cfg.policy))
    _check_mapping("policy['kwargs']", cfg.policy.get("kwargs", {}))


def _check_flow(cfg: OnlineDataEngineCfg) -> None:
    """Refuse producers and draws that would wait for each other for ever."""
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
