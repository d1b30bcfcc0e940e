"""Settings of the engine: copies, paths, plain dictionaries, what is refused."""

import json
from dataclasses import MISSING
from enum import Enum
from typing import Any

import numpy as np
import pytest

from cadenza.core.errors import ConfigurationError, ConfigurationTypeError
from cadenza.stream import OnlineDataEngine, OnlineDataEngineCfg
from cadenza.stream.config import check_settings, plain


class Renderer(Enum):
    HYBRID = "hybrid"


def valid(**settings: Any) -> OnlineDataEngineCfg:
    return OnlineDataEngineCfg(gym_config={"id": "CartPole-v1", "num_envs": 2}, **settings)


def test_instances_share_no_mutable_value() -> None:
    given = {"kwargs": {"sizes": [1]}}
    cfg = OnlineDataEngineCfg(gym_config=given)
    copied = cfg.copy()
    given["kwargs"]["sizes"].append(2)
    copied.gym_config["kwargs"]["sizes"].append(3)
    assert cfg.gym_config == {"kwargs": {"sizes": [1]}}
    assert OnlineDataEngineCfg().gym_config is not OnlineDataEngineCfg().gym_config


def test_replace_takes_fields_and_paths() -> None:
    cfg = OnlineDataEngineCfg(gym_config={"kwargs": {"sizes": [1, 2]}})
    other = cfg.replace(**{"buffer_size": 8, "gym_config.kwargs.sizes[1]": 5, "gym_config.id": "A"})
    assert other.buffer_size == 8
    assert other.gym_config == {"kwargs": {"sizes": [1, 5]}, "id": "A"}
    assert cfg.gym_config == {"kwargs": {"sizes": [1, 2]}}


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("bufer_size", "expected one of the fields .*got 'bufer_size'"),
        ("gym_config.kwargs.sizes[2]", "got 'gym_config.kwargs.sizes\\[2\\]', which has no 2"),
        ("gym_config.nothing.deep", "which has no 'nothing'"),
        ("buffer_size.deep", "which has no 'deep'"),
        ("seed.deep.deeper", "which has no 'deep'"),
    ],
)
def test_replace_refuses_places_that_are_not_there(path, told) -> None:
    cfg = OnlineDataEngineCfg(gym_config={"kwargs": {"sizes": [1, 2]}})
    with pytest.raises(TypeError, match=told):
        cfg.replace(**{path: 1})


def test_to_dict_is_plain_all_the_way_down() -> None:
    cfg = OnlineDataEngineCfg(
        gym_config={"renderer": Renderer.HYBRID, "kwargs": {"make": plain, "pair": (1, [2.0])}}
    )
    plain_cfg = cfg.to_dict()
    assert plain_cfg["gym_config"] == {
        "renderer": "hybrid",
        "kwargs": {"make": "cadenza.stream.config:plain", "pair": (1, [2.0])},
    }
    assert plain_cfg["buffer_size"] == 16
    assert OnlineDataEngineCfg(**plain_cfg).to_dict() == plain_cfg


def test_cycles_end_with_an_error_and_not_without_end() -> None:
    cfg = OnlineDataEngineCfg()
    cfg.gym_config["self"] = cfg.gym_config
    assert cfg.validate() == []
    with pytest.raises(ConfigurationError, match=r"contains itself at 'gym_config\.self'"):
        cfg.to_dict()
    assert cfg.copy().gym_config["self"]["self"] is not cfg.gym_config


def test_missing_values_are_listed_with_their_paths() -> None:
    cfg = OnlineDataEngineCfg(gym_config={"kwargs": {"sizes": [1, MISSING]}})
    cfg.buffer_size = MISSING  # pyright: ignore[reportAttributeAccessIssue]
    told = ["engine.buffer_size", "engine.gym_config.kwargs.sizes[1]"]
    assert cfg.validate("engine") == told
    with pytest.raises(TypeError, match=r"(?s)OnlineDataEngineCfg.*  buffer_size\n  gym_config"):
        cfg.validate()


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"buffer_size": 1}, "buffer_size: expected at least num_envs = 2 episodes, got 1"),
        ({"draw_timeout": 10**400}, "draw_timeout: expected a finite number > 0, got 1000"),
        ({"log_path": "a\0b"}, "log_path: expected the path of a file or folder"),
        ({"mode": "sometimes"}, "mode: expected one of .*got 'sometimes'"),
        ({"mode": "fixed_ratio"}, "max_replay_ratio: expected a number with mode"),
        ({"high_water": 17}, "high_water: expected <= buffer_size = 16, got 17"),
        ({"policy": {"kwargs": {}}}, "policy: expected the keys 'factory'"),
        ({"action_config": {"f": object()}}, "action_config: expected values that JSON"),
        ({"action_config": {3: 1}}, r"action_config: expected keys that are strings, got \[3\]"),
        ({"policy": {"factory": "a.b"}}, r"policy\['factory'\]: expected 'package.module:functi"),
        ({"policy": {"factory": "a:b", "kwargs": 3}}, r"policy\['kwargs'\]: expected a mapping"),
        (
            {"high_water": 7, "min_fresh_fraction": 0.5},
            "high_water: expected at least min_fresh_fraction .* = 8 unread episodes.*got 7",
        ),
    ],
)
def test_settings_that_cannot_work_are_refused(settings, told) -> None:
    with pytest.raises(ValueError, match=told):
        check_settings(valid(**settings))


@pytest.mark.parametrize(
    ("gym", "told"),
    [
        ({}, "expected either 'id' or 'factory', got 'no keys'"),
        ({"id": "A", "factory": "b:c"}, "expected either 'id' or 'factory'"),
        ({"id": "A", "num_env": 2}, "expected keys among .*got \\['num_env'\\]"),
        ({"id": "A", "num_envs": 0}, "gym_config\\['num_envs'\\]: expected an integer >= 1"),
        ({"id": "A", "max_episode_steps": 0}, "expected an integer >= 1"),
        ({"id": "A", "kwargs": [1]}, r"gym_config\['kwargs'\]: expected a mapping, got \[1\]"),
        ({"id": "A", "sensor": 3}, r"gym_config\['sensor'\]: expected a list of mappings, got 3"),
        ({3: 4}, r"gym_config: expected keys that are strings, got \[3\]"),
        ({"id": 3}, r"gym_config\['id'\]: expected the name of a registered environment, got 3"),
        (
            {"id": "A", "sensor": [{}, {"height": "480"}]},
            r"gym_config\['sensor'\]\[1\]\['height'\]: expected an integer >= 1, got '480'",
        ),
        ({"id": "A", "env": {"observations": [1]}}, r"\['observations'\]: expected a mapping"),
        ({"id": "A", "env": {"observations": {"a": 3}}}, r"\['a'\]: expected a mapping, got 3"),
        (
            {"id": "A", "env": {"observations": {"a": {"mode": "add", "extra": 3}}}},
            r"\['a'\]\['extra'\]: expected a mapping, got 3",
        ),
        (
            {"id": "A", "env": {"observations": {"a": {"mode": "add", "extra": {"shape": 3}}}}},
            r"\['extra'\]\['shape'\]: expected a list of integers >= 1, got 3",
        ),
    ],
)
def test_environments_that_cannot_be_made_are_refused(gym, told) -> None:
    with pytest.raises(ConfigurationError, match=told):
        check_settings(OnlineDataEngineCfg(gym_config=gym))


@pytest.mark.parametrize("cfg", [None, {"buffer_size": 4}, OnlineDataEngineCfg])
def test_engine_without_settings_is_refused(cfg) -> None:
    told = r"cfg: expected OnlineDataEngineCfg, got .*; write OnlineDataEngineCfg\(\*\*settings\)"
    with pytest.raises(ConfigurationTypeError, match=told):
        OnlineDataEngine(cfg)


def test_device_that_the_machine_lacks_is_refused(monkeypatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(ConfigurationError, match=r"buffer_device: .* machine has .*got 'cuda:0'"):
        check_settings(valid(buffer_device="cuda:0"))
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    with pytest.raises(ConfigurationError, match=r"buffer_device: .* machine has .*got 'cuda:1'"):
        check_settings(valid(buffer_device="cuda:1"))
    check_settings(valid(buffer_device="cuda:0"))


@pytest.mark.parametrize("flow", [{"mode": "fixed_ratio"}, {"high_water": 4}])
def test_ratio_with_which_a_full_buffer_allows_no_chunk_is_refused(flow) -> None:
    sizes = {"buffer_size": 10, "max_episode_steps": 20}  # 200 steps
    told = r"max_replay_ratio: expected at least 0\.005, so that the buffer_size \* .* = 10 \* 20 "
    with pytest.raises(ConfigurationError, match=f"{told}.*got 0.0049"):
        check_settings(valid(max_replay_ratio=0.0049, **sizes, **flow))
    check_settings(valid(max_replay_ratio=0.005, **sizes, **flow))
    check_settings(valid(max_replay_ratio=0.0049, mode="continuous", **sizes))


def test_numbers_of_numpy_are_taken_like_plain_ones() -> None:
    gym = {"id": "A", "num_envs": np.int32(2), "kwargs": {"sizes": [np.int64(3), np.bool_(True)]}}
    cfg = OnlineDataEngineCfg(
        buffer_size=np.int64(8), seed=np.uint8(7), draw_timeout=np.float32(0.5), gym_config=gym
    )
    cfg.high_water = np.int16(4)  # type: ignore[assignment]
    cfg.min_fresh_fraction = np.float16(0.5)  # type: ignore[assignment]
    check_settings(cfg)
    own = cfg.copy()
    given = (own.buffer_size, own.seed, own.draw_timeout, own.high_water, own.min_fresh_fraction)
    assert given == (8, 7, 0.5, 4, 0.5)
    assert [type(value) for value in given] == [int, int, float, int, float]
    assert json.loads(json.dumps(own.to_dict()))["gym_config"]["kwargs"] == {"sizes": [3, True]}


def test_steps_of_the_environment_come_first() -> None:
    cfg = OnlineDataEngineCfg(gym_config={"max_episode_steps": 40, "num_envs": 3})
    assert (cfg.steps, cfg.num_envs) == (40, 3)
    assert (OnlineDataEngineCfg().steps, OnlineDataEngineCfg().num_envs) == (300, 1)


def test_missing_values_are_named_all_at_once():
    with pytest.raises(ConfigurationTypeError, match=r"these are MISSING:\n +buffer_size"):
        check_settings(valid(buffer_size=MISSING))
