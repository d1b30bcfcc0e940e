"""Threads of one process share an engine: whole chunks, whole counts, whole recordings."""

import sys
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from tensordict import TensorDict

from cadenza.stream import OnlineDataEngine
from cadenza.stream.batch_ring import BatchRing
from cadenza.stream.recorded_draws import RecordedStream
from tests.stream_engines import small_cfg

THREADS, DRAWS = 3, 60
CFG = small_cfg(mode="continuous", num_envs=4, worlds={"lengths": [5, 3, 8, 4]})


@pytest.fixture(autouse=True)
def _switching_often() -> Generator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def in_threads(work: Callable[[], None]) -> None:
    """Run ``work`` in several threads at once; raise what one of them did."""
    with ThreadPoolExecutor(THREADS) as pool:
        for future in [pool.submit(work) for _ in range(THREADS)]:
            future.result()


def require_windows(batch: TensorDict) -> None:
    """Fail unless every chunk is a window of one episode."""
    episode, step = batch["obs"].unbind(-1)
    assert (episode == episode[:, :1]).all()
    torch.testing.assert_close(step - step[:, :1], torch.arange(3.0).expand(step.shape))
    torch.testing.assert_close(batch["rewards"], step + 1)
    assert not batch["terminated"][:, :-1].any()


def test_threads_draw_whole_chunks_and_every_one_counts() -> None:
    seen: list[bytes] = []

    def draw() -> None:
        for _ in range(DRAWS):
            batch = engine.sample_batch(16, 3)
            require_windows(batch)
            seen.append(batch["obs"].numpy().tobytes())

    with OnlineDataEngine(CFG) as engine:
        in_threads(draw)
        assert engine.status()["chunks"] == THREADS * DRAWS * 16
    assert len(set(seen)) == len(seen)


def test_threads_share_a_ring() -> None:
    def draw() -> None:
        for _ in range(DRAWS):
            with ring.lease(90.0) as batch:
                require_windows(batch)

    with OnlineDataEngine(CFG) as engine:
        ring = BatchRing(lambda out: engine.sample_batch(16, 3, out=out), depth=THREADS)
        in_threads(draw)


def test_draws_of_threads_are_recorded_one_after_the_other(tmp_path: Path) -> None:
    seen: list[bytes] = []

    def draw() -> None:
        for _ in range(10):
            seen.append(engine.sample_batch(4, 3)["obs"].numpy().tobytes())

    with OnlineDataEngine(CFG) as engine, engine.recording(tmp_path / "draws"):
        in_threads(draw)
    stream = RecordedStream(tmp_path / "draws")
    again = [stream.sample_batch(4, 3)["obs"].numpy().tobytes() for _ in range(len(stream))]
    assert sorted(again) == sorted(seen)
