"""The dataset over a live engine: loaders with 0, 1 and 2 workers, sizes, modes, recordings."""

import itertools
import warnings
from collections.abc import Generator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from tensordict import TensorDict
from torch.utils.data import DataLoader

from cadenza.stream import OnlineDataEngine, OnlineDataset, UniformChunkSampler
from cadenza.stream.batches import flat_tensors
from cadenza.stream.recorded_draws import RecordedStream
from tests.stream_engines import eventually, small_cfg

STEPS = 40


@pytest.fixture(scope="module")
def busy_engine() -> Generator[OnlineDataEngine]:
    """An engine whose producer goes on writing all the time."""
    settings = {"buffer_size": 6, "max_episode_steps": STEPS, "mode": "continuous"}
    worlds = {"lengths": [25, 33, 40], "pause_s": 0.0002}
    with OnlineDataEngine(small_cfg(2, worlds, **settings)) as started:
        yield started


def take(iterable, count: int) -> list[TensorDict]:
    return list(itertools.islice(iterable, count))


def loader(dataset: OnlineDataset, workers: int, item_batch: int | None = None) -> DataLoader:
    collate = OnlineDataset.collate_fn if item_batch else OnlineDataset.passthrough_collate_fn
    return DataLoader(dataset, batch_size=item_batch, num_workers=workers, collate_fn=collate)


def assert_whole(batch: TensorDict) -> None:
    """Every chunk lies in one episode, its steps one after another."""
    episode, step = batch["obs"].unbind(-1)
    assert (episode == episode[:, :1]).all()
    assert (step.diff(dim=1) == 1).all()
    assert torch.equal(batch["rewards"], step + 1)


@pytest.mark.parametrize("workers", [0, 2])
def test_loader_streams_whole_chunks_without_warnings_and_leaves_no_worker(
    busy_engine: OnlineDataEngine, workers: int, capfd: pytest.CaptureFixture[str]
) -> None:
    children = {child.pid for child in psutil.Process().children()}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # Python 3.12 warns of every fork beside threads, whoever forks.
        warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)

        batches = iter(loader(OnlineDataset(busy_engine, 9, 16, seed=3), workers))
        for batch in itertools.islice(batches, 20):
            assert batch.batch_size == torch.Size([16, 9])
            assert_whole(batch)
        del batches
    assert {child.pid for child in psutil.Process().children()} <= children
    assert capfd.readouterr().err == ""


def test_recording_of_a_live_engine_replays_after_it_ended(tmp_path: Path) -> None:
    sampler = UniformChunkSampler(3, 30, seed=5)

    def record() -> list[TensorDict]:
        settings = {"buffer_size": 6, "max_episode_steps": STEPS, "mode": "continuous"}
        worlds = {"lengths": [25, 33, 40], "pause_s": 0.0002, "nested": True}
        with OnlineDataEngine(small_cfg(2, worlds, **settings)) as live:
            with live.recording(tmp_path):
                batches, drawn = iter(OnlineDataset(live, sampler, 8, short="pad", seed=2)), []
                # Go on until some of the recorded episodes have left the buffer.
                while len(list((tmp_path / "episodes").iterdir())) <= 12:
                    drawn += take(batches, 5)
            live.sample_batch(2, 3)  # not part of the recording
        return drawn

    def replay(count: int) -> list[TensorDict]:
        stream = RecordedStream(tmp_path)
        assert len(stream) == count > 0
        return take(OnlineDataset(stream, sampler, 8, short="pad", seed=2), count)

    drawn = record()
    again = replay(len(drawn))
    for first, second in zip(drawn, again, strict=True):
        assert set(flat_tensors(first)) == set(flat_tensors(second))
        assert (first == second).all()


def test_loader_ends_while_back_pressure_holds_its_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    # The loader kills no worker: one that went on waiting would hold this test up.
    monkeypatch.setattr("torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL", 1e5)
    # The first draw waits for as many steps as nobody will ever write.
    settings = {"mode": "continuous", "max_replay_ratio": 1e-9, "draw_timeout": 1e6}
    with OnlineDataEngine(small_cfg(2, {"lengths": [6], "pause_s": 0.05}, **settings)) as live:
        batches: Any = iter(loader(OnlineDataset(live, 3, 4), 2))
        workers = batches._workers

        def both_wait() -> bool:
            return sum(row["blocked_s"] > 0.0 for row in live.status()["consumers"]) == 2

        eventually(both_wait, "both wait")
        del batches
        assert [worker.exitcode for worker in workers] == [0, 0]
