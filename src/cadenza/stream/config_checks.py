"""What settings of the online data engine must be, so that it does not fail later for them."""

import json
import math
import sys
from collections.abc import Mapping
from numbers import Real
from typing import Any, Final, cast, get_args

from cadenza.core.errors import ConfigurationError
from cadenza.stream.argument_checks import (
    checked_device,
    checked_path,
    is_integer,
    require_instance,
)
from cadenza.stream.back_pressure import FlowRules
from cadenza.stream.config import ROBOT_KEYS, Mode, OnlineDataEngineCfg, plain
from cadenza.stream.import_paths import import_path
from cadenza.stream.slots import Reuse

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
        ConfigurationTypeError: A value is missing, or ``cfg`` is no configuration.
    """
    advice = "write OnlineDataEngineCfg(**settings)"
    require_instance("OnlineDataEngine.cfg", cfg, OnlineDataEngineCfg, advice)
    cfg.validate()
    cfg = cfg.copy()  # which makes NumPy's numbers plain
    for name, least in _LEAST.items():
        value = getattr(cfg, name)
        if value is None and name == "high_water":
            continue
        if not is_integer(value) or value < least:
            raise _refused(name, f"an integer >= {least}", value)
    for names, low, high in (
        (_POSITIVE, math.nextafter(0.0, 1.0), sys.float_info.max),
        (_NOT_NEGATIVE, 0.0, sys.float_info.max),
        (_FRACTIONS, 0.0, 1.0),
    ):
        _check_numbers(cfg, names, low, high)
    for name, kind in (("mode", Mode), ("reuse", Reuse)):
        value = getattr(cfg, name)
        if not isinstance(value, str) or value not in get_args(kind):
            raise _refused(name, f"one of {get_args(kind)}", value)
    if cfg.mode == "fixed_ratio" and cfg.max_replay_ratio is None:
        raise _refused("max_replay_ratio", 'a number with mode="fixed_ratio"', None)
    _check_device(cfg)
    _check_paths(cfg)
    _check_environment(cfg)
    _check_policy(cfg)
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
        if not isinstance(number, Real) or not low <= cast("float", number) <= high:
            bounds = "> 0" if low and high > 1 else f">= {low:g}"
            expected = f"a finite number {bounds}" if high > 1 else "a number in [0, 1]"
            raise _refused(name, expected, value)


def _check_device(cfg: OnlineDataEngineCfg) -> None:
    checked_device("OnlineDataEngineCfg.buffer_device", cfg.buffer_device)


def _check_paths(cfg: OnlineDataEngineCfg) -> None:
    for name in ("log_path", "status_path"):
        if getattr(cfg, name) is not None:
            checked_path(f"OnlineDataEngineCfg.{name}", getattr(cfg, name))


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
    if "factory" in gym:
        import_path(gym["factory"], "OnlineDataEngineCfg.gym_config['factory']")
    elif not isinstance(gym["id"], str) or not gym["id"]:
        raise _refused("gym_config['id']", "the name of a registered environment", gym["id"])
    for name in ("num_envs", "max_episode_steps"):
        value = cfg.gym_config.get(name, 1)
        if not is_integer(value) or value < 1:
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
            if not is_integer(size) or size < 1:
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
        is_integer(size) and size >= 1 for size in cast("list[object]", shape)
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
