"""What each parameter takes of what somebody may give it; the rest it refuses in words."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cadenza.core.errors import CadenzaError
from cadenza.learn.memory.column import Column
from cadenza.learn.memory.table import ArrayMemoryTable
from cadenza.stream import GMMChunkSampler, OnlineDataEngineCfg, OnlineDataset, UniformChunkSampler
from cadenza.stream.batch_ring import BatchRing
from cadenza.stream.bridges.episodes import EpisodeReader
from cadenza.stream.bridges.lerobot import LeRobotWriter
from cadenza.stream.bridges.lerobot_features import Feature
from cadenza.stream.bridges.memory import StreamToMemory
from cadenza.stream.config import check_settings
from cadenza.stream.draw_options import DrawOptions
from cadenza.stream.recorded_draws import RecordedStream
from tests.fakes import FakeChunkSource
from tests.stream_episodes import new_store

#: What somebody may give by mistake; `TAKEN` names it by its text.
ODD: list[Any] = [
    *(None, True, -1, 0, 2.5, math.nan, math.inf, 10**30, "x", "", b"x", [], [None], {}, (), int),
    *({"a": 1}, np.float32(3), np.zeros(2), torch.zeros(2), object(), print),
]
HUGE, PRINT, CLASS = str(10**30), repr(print), repr(int)
TIMES = [2.5, HUGE, repr(np.float32(3))]


def settings(**changed: Any) -> None:
    check_settings(OnlineDataEngineCfg(**{"gym_config": {"id": "CartPole-v1"}, **changed}))


def feeder(**changed: Any) -> None:
    table = ArrayMemoryTable(columns=[Column("actions", (1,), np.float32)], maxlen=9)
    StreamToMemory(**{"reader": EpisodeReader(new_store()), "table": table, **changed})


#: What constructors need.
NEEDED: dict[Callable[..., Any], dict[str, Any]] = {
    OnlineDataset: {"engine": FakeChunkSource(), "chunk_size": 4, "batch_size": 2},
    UniformChunkSampler: {"low": 1, "high": 4},
    GMMChunkSampler: {"means": [4.0], "stds": [1.0]},
    BatchRing: {"draw": print},
    RecordedStream: {"folder": "no such folder"},
    EpisodeReader: {"store": new_store()},
    Feature: {"key": "x", "source": "obs", "shape": (1,), "dtype": "float32"},
}
#: Parameters of a constructor, and what each of them takes of `ODD`.
TAKEN: list[tuple[Callable[..., Any], str, list[Any]]] = [
    (settings, "buffer_size max_episode_steps state_dim producers refill_threshold", [HUGE]),
    (settings, "max_generation_attempts", [HUGE]),
    (settings, "seed max_restarts", [0, HUGE]),
    (settings, "initialization_timeout stop_timeout hang_timeout healthy_after", TIMES),
    (settings, "draw_timeout", TIMES),
    (settings, "restart_backoff", [0, *TIMES]),
    (settings, "max_replay_ratio", [None, *TIMES]),
    (settings, "max_failure_rate", [0]),
    (settings, "min_fresh_fraction", [None, 0]),
    (settings, "high_water policy", [None]),
    (settings, "gym_config buffer_device mode reuse", []),
    (settings, "action_config", [{}, {"a": 1}]),
    (settings, "log_path status_path", [None, "'x'"]),
    (feeder, "reader table", []),
    (feeder, "columns", [None, {}]),
    (feeder, "accept check", [None, PRINT, CLASS]),
    (feeder, "warmup_steps", [0, HUGE]),
    (feeder, "warmup_timeout_s", [2.5, repr(np.float32(3))]),
    (feeder, "cycle", [HUGE]),
    (feeder, "episodes_per_cycle", [None, HUGE]),
    (OnlineDataset, "engine chunk_size sampling_mode weighting short", []),
    (OnlineDataset, "batch_size", [None, HUGE]),
    (OnlineDataset, "transform", [None, PRINT, CLASS]),
    (OnlineDataset, "select resample_every", [None]),
    (OnlineDataset, "stratified", [True]),
    (OnlineDataset, "seed", [None, 0, HUGE]),
    (UniformChunkSampler, "low", []),
    (UniformChunkSampler, "high", [HUGE]),
    (UniformChunkSampler, "generator", [None]),
    (UniformChunkSampler, "seed", [None, 0, HUGE]),
    (GMMChunkSampler, "means stds truncate", []),
    (GMMChunkSampler, "weights generator", [None]),
    (GMMChunkSampler, "low high", [None, HUGE]),
    (GMMChunkSampler, "seed", [None, 0, HUGE]),
    (BatchRing, "draw", [PRINT, CLASS]),
    (BatchRing, "depth device", []),
    (RecordedStream, "folder allow_unfinished device", []),
    (DrawOptions, "sampling_mode weighting short", []),
    (DrawOptions, "stratified", [True]),
    (EpisodeReader, "store", []),
    (EpisodeReader, "select", [None]),
    (Feature, "key", ["'x'"]),
    (Feature, "source", ["'x'", "''"]),
    (Feature, "shape dtype", []),
    (Feature, "names", [None]),
]


def refusal(make: Callable[..., Any], given: dict[str, Any]) -> str | None:
    """Return how ``make`` refuses what it is given; None if it takes it."""
    try:
        make(**given)
    except CadenzaError as error:
        return str(error)
    return None


@pytest.mark.parametrize(("make", "names", "taken"), TAKEN)
def test_parameters_take_what_they_can_use_and_refuse_the_rest_in_words(
    make: Callable[..., Any], names: str, taken: list[Any]
) -> None:
    for name in names.split():
        for value in ODD:
            if name == "depth" and value is ODD[7]:
                continue  # as many buffers are made
            told = refusal(make, {**NEEDED.get(make, {}), name: value})
            assert (told is None) is (repr(value) in map(str, taken)), (name, value, told)
            assert told is None or ("expected" in told and "got" in told)


def test_odd_arguments_of_a_writer_leave_no_folder(tmp_path: Path) -> None:
    features = [Feature(key="x", source="obs", shape=(1,), dtype="float32")]

    def write(**given: Any) -> None:
        LeRobotWriter(**given).close()

    taken = {"features": [], "fps": [HUGE], "robot_type": ["None", "'x'", "''"]}
    for name, words in (taken | {"chunks_size": [HUGE]}).items():
        for number, value in enumerate(ODD):
            root = tmp_path / f"{name}{number}"
            told = refusal(write, {"root": root, "features": features, "fps": 9, name: value})
            assert (told is None) is (repr(value) in words), (name, value)
            assert told is None or f"LeRobotWriter.{name}: expected" in told
            assert not root.exists()
