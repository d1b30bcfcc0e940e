"""Several processes that draw from one full store, and loaders that bring batches from workers."""

import itertools
import multiprocessing
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median

import torch
from torch.utils.data import DataLoader, IterableDataset

from cadenza.stream import OnlineDataEngine, OnlineDataset
from perf.stream_protocols import CACHED, SCAN, LockedScan, TorchrlDataset, torchrl
from perf.stream_stores import (
    CHUNK_SIZE,
    CHUNKS,
    filled_engine,
    ours,
    trajectories,
)
from perf.timing import Row, measure_rate

SLOTS = 1024
#: Processes that draw at once, and workers of a loader.
COUNTS = (1, 2, 4)
WORKERS = (0, 1, 2, 4)
#: Rounds, and the length of one stretch in each, s.
ROUNDS, STRETCH_S = 3, 0.5
#: Batches that a loader gives before its time is taken.
FIRST_BATCHES = 20
UNIT = "chunks/s"


def rows() -> list[Row]:
    """Return chunks per second of several processes and of loaders."""
    episodes = trajectories(SLOTS)
    engine, scan = filled_engine(episodes), LockedScan(episodes)
    in_process = _rate(torchrl(episodes))
    table = process_rows(engine, scan, in_process)
    return [*table, *loader_rows(engine, TorchrlDataset(episodes))]


def process_rows(engine: OnlineDataEngine, scan: LockedScan, in_process: float) -> list[Row]:
    """Compare several consumers of one store with TorchRL in one process, and with a scan."""
    totals: dict[tuple[str, int], list[float]] = {}
    each: dict[int, list[float]] = {count: [] for count in COUNTS}
    with running_consumers(engine, scan) as pipes:
        for _ in range(ROUNDS):
            for count, name in itertools.product(COUNTS, ("cadenza", SCAN)):
                walls, undisturbed = stretch(pipes[:count], name)
                totals.setdefault((name, count), []).append(sum(walls))
                if name == "cadenza":
                    each[count].append(sum(undisturbed) / count)
    alone = median(each[1])
    table = []
    for count in COUNTS:
        title = f"{count} consumer process{'es' * (count > 1)}"
        mine, theirs = median(totals["cadenza", count]), median(totals[SCAN, count])
        peers = ((in_process, f"{CACHED}, in one process"), (theirs, f"{SCAN}, as many processes"))
        table += [
            Row(f"{title}, in total", mine, peer, unit=UNIT, better="higher", peer_name=name)
            for peer, name in peers
        ]
        table.append(
            Row(
                f"{title}, each while it has a core",
                median(each[count]),
                alone if count > 1 else None,
                unit=UNIT,
                better="higher",
                peer_name="one process" if count > 1 else "",
            )
        )
    return table


def stretch(pipes: list[Connection], name: str) -> tuple[list[float], list[float]]:
    """Let consumers draw at once; return their chunks/s, and the same without waits for a core."""
    for pipe in pipes:
        pipe.send(name)
    walls, undisturbed = zip(*(pipe.recv() for pipe in pipes), strict=True)
    return list(walls), list(undisturbed)


@contextmanager
def running_consumers(engine: OnlineDataEngine, scan: LockedScan) -> Generator[list[Connection]]:
    """Give pipes to as many consumers as are needed at most; they end with the block."""
    context = multiprocessing.get_context("fork")  # gives the scan's arrays to all without a copy
    pipes, processes = [], []
    try:
        for _ in range(max(COUNTS)):
            here, there = context.Pipe()
            process = context.Process(target=consume, args=(engine, scan, there), daemon=True)
            process.start()
            there.close()
            pipes.append(here)
            processes.append(process)
        for name in ("cadenza", SCAN):
            stretch(pipes, name)
        yield pipes
    finally:
        for pipe in pipes:
            pipe.send(None)
        for process in processes:
            process.join(10.0)
            if process.is_alive():
                process.kill()
                process.join()


def consume(engine: OnlineDataEngine, scan: LockedScan, pipe: Connection) -> None:
    """Draw for one stretch per message, as it names; tell chunks per second; end with None."""
    torch.set_num_threads(1)
    draws = {"cadenza": ours(engine), SCAN: scan.sample}
    while (name := pipe.recv()) is not None:
        draw = draws[name]
        waited, began, chunks = core_wait_s(), time.perf_counter(), 0
        while (passed := time.perf_counter() - began) < STRETCH_S:
            draw()
            chunks += CHUNKS
        pipe.send((chunks / passed, chunks / (passed - (core_wait_s() - waited))))


def core_wait_s(pid: int | str | None = "self") -> float:
    """Return how long a process was ready to run and had no core, s."""
    words = Path(f"/proc/{pid}/schedstat").read_text(encoding="utf-8").split()
    return int(words[1]) / 1e9


def loader_rows(engine: OnlineDataEngine, memory: TorchrlDataset) -> list[Row]:
    """Compare loaders over a stream with the same loaders over TorchRL's memory."""
    stream = OnlineDataset(engine, CHUNK_SIZE, CHUNKS)
    return [
        Row(
            f"loader with {workers} worker{'s' * (workers != 1)}",
            loader_rate(stream, workers),
            loader_rate(memory, workers),
            unit=UNIT,
            better="higher",
            peer_name=f"{CACHED}, in the same loader",
        )
        for workers in WORKERS
    ]


def loader_rate(dataset: IterableDataset, workers: int) -> float:
    """Return the chunks per second that a loader gives."""
    loader = DataLoader(
        dataset,
        batch_size=None,
        num_workers=workers,
        collate_fn=OnlineDataset.passthrough_collate_fn,
        multiprocessing_context="fork" if workers else None,
    )
    batches = iter(loader)
    for _ in range(FIRST_BATCHES):
        next(batches)
    return _rate(lambda: next(batches))


def _rate(draw: Callable[[], object]) -> float:
    """Return chunks per second, the median over rounds."""
    return median(
        measure_rate(draw, work_per_call=CHUNKS, seconds=STRETCH_S) for _ in range(ROUNDS)
    )
