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
from tests.stream_engines import eventually, nothing_left, small_cfg

STEPS = 40


@pytest.fixture(scope="module")
def engine() -> Generator[OnlineDataEngine]:
    """A full buffer of episodes of 25 to 40 steps that nobody fills again."""
    worlds = {"lengths": [25, 33, 40]}
    settings = {"buffer_size": 12, "max_episode_steps": STEPS, "refill_threshold": 10**6}
    with OnlineDataEngine(small_cfg(2, worlds, **settings)) as started:
        yield started


@pytest.fixture(scope="module")
def busy_engine() -> Generator[OnlineDataEngine]:
    """An engine whose producer goes on writing all the time."""
    settings = {"buffer_size": 6, "max_episode_steps": STEPS, "mode": "continuous"}
    worlds = {"lengths": [25, 33, 40], "pause_s": 0.0002}
    with OnlineDataEngine(small_cfg(2, worlds, **settings)) as started:
        yield started


def take(iterable, count: int) -> list[TensorDict]:
    return list(itertools.islice(iterable, count))


def content(batches: list[TensorDict]) -> bytes:
    """Return which episode steps the batches hold."""
    return b"".join(batch["obs"].contiguous().numpy().tobytes() for batch in batches)


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


@pytest.mark.parametrize(("workers", "item_batch"), [(0, 8), (2, None)])
def test_no_two_streams_of_a_loader_are_equal(
    engine: OnlineDataEngine, workers: int, item_batch: int | None
) -> None:
    dataset = OnlineDataset(engine, 5, None if item_batch else 8, seed=1)
    streams = max(workers, 1)
    seen = []
    for _ in range(3):
        batches = take(loader(dataset, workers, item_batch), 6 * streams)
        # Workers give their batches in turn.
        seen += [content(batches[worker::streams]) for worker in range(streams)]
    # 48 chunks out of at least 6 x 21 windows: equal by chance once in 126^48.
    assert len(set(seen)) == 3 * streams


@pytest.mark.parametrize("workers", [0, 2])
def test_equal_seeds_give_equal_batches_from_an_unchanged_buffer(
    engine: OnlineDataEngine, workers: int
) -> None:
    def run(seed: int) -> list[bytes]:
        dataset = OnlineDataset(engine, UniformChunkSampler(3, 20), 4, seed=seed)
        epochs = [take(loader(dataset, workers), 6) for _ in range(2)]
        return [content(batches) for batches in epochs]

    first = run(7)
    assert run(7) == first
    assert not set(run(8)) & set(first)


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

    with nothing_left():
        drawn = record()
        again = replay(len(drawn))
    for first, second in zip(drawn, again, strict=True):
        assert set(flat_tensors(first)) == set(flat_tensors(second))
        assert (first == second).all()


def test_loader_ends_while_back_pressure_holds_its_workers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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
