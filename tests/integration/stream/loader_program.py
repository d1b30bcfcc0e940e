"""Loaders over a live engine, one way to start workers after the other; a program of its own.

It runs with every warning an error, and prints one JSON line per loader: how it was made, digests
of what each worker gave in each epoch, the shortest time that dropping it took, and how much
slower than alone a process ran meanwhile: others may keep the machine busy.
"""

import hashlib
import itertools
import json
import math
import sys
import time
from typing import Any

from torch.utils.data import DataLoader

from cadenza.stream import OnlineDataEngine, OnlineDataset
from tests.stream_engines import small_cfg

BATCHES = 4
EPOCHS = 2
#: Number of workers, and how they are started.
LOADERS = ((0, None), (1, "fork"), (2, "fork"), (1, "spawn"))


def digests(batches: list[Any], streams: int) -> list[str]:
    """Return one digest per worker; workers give their batches in turn."""
    return [
        hashlib.sha256(
            b"".join(batch["obs"].contiguous().numpy().tobytes() for batch in batches[at::streams])
        ).hexdigest()
        for at in range(streams)
    ]


def report(engine: OnlineDataEngine, workers: int, start: str | None) -> dict[str, Any]:
    """Return what a loader gave, and how long it took to end."""
    loader = DataLoader(
        OnlineDataset(engine, 5, 8, seed=1),
        batch_size=None,
        num_workers=workers,
        multiprocessing_context=start,
        collate_fn=OnlineDataset.passthrough_collate_fn,
    )
    streams, seen, shortest = max(workers, 1), list[str](), math.inf
    for _ in range(EPOCHS):
        iterator = iter(loader)
        seen += digests(list(itertools.islice(iterator, BATCHES * streams)), streams)
        began = time.monotonic()
        del iterator
        shortest = min(shortest, time.monotonic() - began)
    facts = {"end_s": shortest, "slowdown": slowdown()}
    return {"workers": workers, "start": start, "seen": seen, **facts}


def slowdown() -> float:
    """Return the time that a fifth of a second of work takes, relative to it; at least 1."""
    began, worked = time.monotonic(), time.process_time()
    while time.process_time() - worked < 0.2:
        pass
    return max((time.monotonic() - began) / 0.2, 1.0)


if __name__ == "__main__":
    lengths = {"lengths": [25, 33, 40]}
    cfg = small_cfg(2, lengths, buffer_size=12, max_episode_steps=40, refill_threshold=10**6)
    with OnlineDataEngine(cfg) as live:
        for count, how in LOADERS:
            sys.stdout.write(json.dumps(report(live, count, how)) + "\n")
