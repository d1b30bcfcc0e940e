"""Whatever a constructor is given, it takes it or refuses it with an error of the package."""

import inspect
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cadenza.core.errors import CadenzaError, ConfigurationError, ConfigurationTypeError
from cadenza.learn.memory.column import Column
from cadenza.learn.memory.table import ArrayMemoryTable
from cadenza.stream import GMMChunkSampler, OnlineDataEngineCfg, OnlineDataset, UniformChunkSampler
from cadenza.stream.argument_checks import checked_path, checked_seconds
from cadenza.stream.batch_ring import BatchRing
from cadenza.stream.bridges.episodes import EpisodeReader
from cadenza.stream.bridges.lerobot import LeRobotWriter
from cadenza.stream.bridges.lerobot_features import Feature
from cadenza.stream.bridges.memory import StreamToMemory
from cadenza.stream.config_checks import check_settings
from cadenza.stream.draw_options import DrawOptions
from cadenza.stream.recorded_draws import RecordedStream
from tests.fakes import FakeChunkSource
from tests.unit.stream.stores import new_store

HUGE = 10**30
#: What somebody may give by mistake.
ODD = [
    *(None, True, -1, 0, 2.5, math.nan, math.inf, HUGE, "x", "", b"x", [], {}, (), object()),
    *([None], {"a": 1}, np.float32(3), np.zeros(2), torch.zeros(2), lambda: 1, int),
]


def settings(**changed: Any) -> None:
    check_settings(OnlineDataEngineCfg(**{"gym_config": {"id": "CartPole-v1"}, **changed}))


def feeder(**changed: Any) -> None:
    table = ArrayMemoryTable(columns=[Column(name="obs", shape=(2,), dtype=np.float32)], maxlen=9)
    StreamToMemory(**{"reader": EpisodeReader(new_store()), "table": table, **changed})


def _parameters(make: Callable[..., Any]) -> list[str]:
    """Return the parameters that users give; ``copies`` is a seam."""
    return [name for name in inspect.signature(make).parameters if name != "copies"]


#: Constructors with what they need.
MADE: list[tuple[Callable[..., Any], dict[str, Any]]] = [
    (OnlineDataset, {"engine": FakeChunkSource(), "chunk_size": 4, "batch_size": 2}),
    (UniformChunkSampler, {"low": 1, "high": 4}),
    (GMMChunkSampler, {"means": [4.0], "stds": [1.0]}),
    (BatchRing, {"draw": lambda out: out}),
    (RecordedStream, {"folder": "no such folder"}),
    (DrawOptions, {}),
    (EpisodeReader, {"store": new_store()}),
    (Feature, {"key": "x", "source": "obs", "shape": (1,), "dtype": "float32"}),
]
PARAMETERS = [
    *((settings, {}, name) for name in OnlineDataEngineCfg.__dataclass_fields__),
    *((feeder, {}, name) for name in inspect.signature(StreamToMemory).parameters),
    *((make, given, name) for make, given in MADE for name in _parameters(make)),
]


@pytest.mark.parametrize(
    ("make", "given", "name"),
    [pytest.param(*entry, id=f"{entry[0].__name__}-{entry[2]}") for entry in PARAMETERS],
)
def test_odd_arguments_are_taken_or_refused_in_words(make, given, name: str) -> None:
    refused = []
    for value in ODD:
        if name == "depth" and value is HUGE:
            continue  # as many buffers are made
        try:
            make(**{**given, name: value})
        except CadenzaError as error:
            refused.append(str(error))
    assert refused
    for message in refused:
        assert "expected" in message
        assert "got" in message


def test_odd_arguments_of_a_writer_leave_no_folder(tmp_path: Path) -> None:
    features = [Feature(key="x", source="obs", shape=(1,), dtype="float32")]
    for name in ("features", "fps", "robot_type", "chunks_size", "data_files_size_in_mb"):
        refused = 0
        for number, value in enumerate(ODD):
            root = tmp_path / f"{name}{number}"
            try:
                LeRobotWriter(**{"root": root, "features": features, "fps": 9, name: value}).close()
            except ConfigurationError:
                refused += 1
            assert not root.exists()
        assert refused > 10


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf, 1e30])
def test_times_that_nobody_can_wait_are_refused(value: float) -> None:
    with pytest.raises(ConfigurationError, match="wait: expected a finite number of seconds > 0"):
        checked_seconds("wait", value)


def test_no_time_at_all_is_taken_only_where_it_makes_sense() -> None:
    assert checked_seconds("wait", 0, zero=True) == 0.0
    with pytest.raises(ConfigurationError, match=r"wait: expected .* > 0, got 0"):
        checked_seconds("wait", 0)
    with pytest.raises(ConfigurationTypeError, match=r"wait: expected .* > 0, got '3'"):
        checked_seconds("wait", "3")


def test_path_with_a_zero_inside_is_refused() -> None:
    assert checked_path("log", Path("a/b")) == checked_path("log", "a/b") == Path("a/b")
    with pytest.raises(ConfigurationError, match="log: expected the path of a file or folder"):
        checked_path("log", "a\0b")
