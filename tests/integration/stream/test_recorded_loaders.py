"""A training with loader workers is recorded, and repeated to the last bit without producers."""

import itertools
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch.utils.data import DataLoader

from cadenza.core.errors import CadenzaError, NotReadyError
from cadenza.stream.batches import flat_tensors
from cadenza.stream.chunk_samplers import UniformChunkSampler
from cadenza.stream.chunk_source import ChunkSource
from cadenza.stream.dataset import OnlineDataset
from cadenza.stream.engine import OnlineDataEngine
from cadenza.stream.recorded_draws import RecordedStream
from tests.campaigns import nightly
from tests.stream_engines import small_cfg


@pytest.fixture(scope="module")
def engine() -> Generator[OnlineDataEngine]:
    """An engine whose buffer changes all the time."""
    settings = {"buffer_size": 6, "max_episode_steps": 40, "mode": "continuous"}
    worlds = {"lengths": [25, 33, 40], "pause_s": 0.0002}
    with OnlineDataEngine(small_cfg(2, worlds, **settings)) as started:
        yield started


def loader(dataset: OnlineDataset, workers: int, **more: Any) -> DataLoader:
    collate = OnlineDataset.passthrough_collate_fn
    return DataLoader(dataset, batch_size=None, num_workers=workers, collate_fn=collate, **more)


def take(iterable, count: int) -> list[TensorDict]:
    return list(itertools.islice(iterable, count))


def refusal(iterable, count: int) -> CadenzaError | None:
    """Return what ended a loader, without the loader: workers of the next would inherit it."""
    try:
        take(iterable, count)
    except CadenzaError as error:
        return error.with_traceback(None)
    return None


def content(batches: list[TensorDict]) -> list[dict[str, bytes]]:
    return [
        {key: value.contiguous().numpy().tobytes() for key, value in flat_tensors(batch).items()}
        for batch in batches
    ]


def trained(batches: Iterator[TensorDict]) -> bytes:
    """Return the weights after a step on every batch."""
    net = torch.nn.Linear(2, 1)
    torch.nn.init.zeros_(net.weight)
    torch.nn.init.zeros_(net.bias)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-5)
    for batch in batches:
        loss = (net(batch["obs"]).squeeze(-1) - batch["rewards"]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return net.weight.detach().numpy().tobytes() + net.bias.detach().numpy().tobytes()


@pytest.mark.parametrize(
    ("workers", "start"), [(2, "fork"), pytest.param(1, "spawn", marks=nightly)]
)
def test_training_of_two_epochs_is_repeated_bit_for_bit(
    engine: OnlineDataEngine, tmp_path: Path, workers: int, start: str
) -> None:
    def train(source: ChunkSource) -> tuple[list[dict[str, bytes]], bytes]:
        dataset = OnlineDataset(source, UniformChunkSampler(3, 20), 4)
        batches = loader(dataset, workers, multiprocessing_context=start)
        seen = [batch for _ in range(2) for batch in take(batches, 7)]
        return content(seen), trained(iter(seen))

    OnlineDataset(engine, 4)  # the recorded dataset is not the first of the engine
    with engine.recording(tmp_path):
        first = train(engine)
    stream = RecordedStream(tmp_path)
    assert train(stream) == first
    stream.rewind()
    assert train(stream) == first


def test_draws_of_the_process_and_of_its_loaders_are_repeated_together(
    engine: OnlineDataEngine, tmp_path: Path
) -> None:
    def run(source: ChunkSource) -> list[dict[str, bytes]]:
        sizes = UniformChunkSampler(3, 20)
        checks, trains = OnlineDataset(source, sizes, 3), OnlineDataset(source, 5, 2)
        found = take(loader(trains, 2), 3) + take(checks, 3)
        return content([*found, source.sample_batch(2, 4), *take(trains, 1)])

    take(OnlineDataset(engine, 4), 1)
    with engine.recording(tmp_path):
        first = run(engine)
    assert run(RecordedStream(tmp_path)) == first


def test_worker_from_before_the_recording_is_refused(
    engine: OnlineDataEngine, tmp_path: Path
) -> None:
    batches = iter(loader(OnlineDataset(engine, 4, 2), 1, prefetch_factor=1))
    take(batches, 1)
    with engine.recording(tmp_path):
        error = refusal(batches, 3)
    assert isinstance(error, NotReadyError)
    assert "expected loader workers that were started inside the block" in str(error)
