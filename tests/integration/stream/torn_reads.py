"""Looks for torn chunks: writers fill rows with their version at full speed, a reader checks.

A row holds one number everywhere, the version its slot had while it was written. A chunk with two
numbers is torn; one with another number than its draw reports is foreign. Without validation the
same reader finds torn chunks, so the search has eyes.

Usage:  python -m tests.integration.stream.torn_reads --chunks 10000000 --writers 2
"""

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from cadenza.core.errors import NotReadyError
from cadenza.stream.chunk_keys import allocate_chunks, chunk_fields
from cadenza.stream.layout import Field, StoreLayout
from cadenza.stream.slot_reader import SlotReader
from cadenza.stream.slots import IntArray, SlotStore, StreamWords

SLOTS, STEPS, CHUNKS, CHUNK_SIZE = 64, 300, 32, 64
#: Two fields, so that a chunk could also be put together from two episodes.
FIELDS = (
    Field(name="state", shape=(8,), dtype="int64", kind="state"),
    Field(name="step", shape=(8,), dtype="int64"),
)
#: Seconds within which writers must have started or ended.
PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a search saw.

    Attributes:
        chunks: Chunks looked at.
        torn: Chunks with two numbers.
        foreign: Chunks with another number than their draw reports.
        redraws: Chunks drawn anew.
        episodes: Episodes written meanwhile.
        seconds: Duration.
    """

    chunks: int
    torn: int
    foreign: int
    redraws: int
    episodes: int
    seconds: float


def search(chunks: int, writers: int, *, validate: bool = True, until_torn: bool = False) -> Found:
    """Draw ``chunks`` chunks beside ``writers`` writers and check each.

    Args:
        chunks: How many; at most, with ``until_torn``.
        writers: Processes that write.
        validate: Whether the reader compares versions.
        until_torn: Stop at the first torn chunk.
    """
    layout = StoreLayout(slots=SLOTS + writers, steps=STEPS, producers=writers, fields=FIELDS)
    store = SlotStore.create(layout)
    with running_writers(store, writers):
        reader = SlotReader(store, validate=validate)
        out = allocate_chunks(chunk_fields(layout), CHUNKS, CHUNK_SIZE)
        generator = torch.Generator().manual_seed(0)
        before, began = int(store.words[StreamWords.PUBLISHED]), time.monotonic()
        seen = torn = foreign = redraws = 0
        while seen < chunks and not (until_torn and torn):
            drawn = reader.draw(CHUNKS, CHUNK_SIZE, out, generator)
            newly_torn, newly_foreign = faults(out, drawn.versions - 1)
            torn, foreign = torn + newly_torn, foreign + newly_foreign
            redraws += drawn.redraws
            seen += CHUNKS
        found = Found(
            chunks=seen,
            torn=torn,
            foreign=foreign,
            redraws=redraws,
            episodes=int(store.words[StreamWords.PUBLISHED]) - before,
            seconds=time.monotonic() - began,
        )
    store.close()
    return found


def faults(out: dict[str, torch.Tensor], numbers: IntArray) -> tuple[int, int]:
    """Return how many chunks are torn, and how many have other numbers than ``numbers``, (n,)."""
    values = [tensor.view(CHUNKS, -1) for tensor in out.values()]
    expected = torch.as_tensor(numbers)[:, None]
    foreign = torch.stack([(value != expected).any(1) for value in values]).any(0)
    first = values[0][:, :1]
    torn = sum((value[foreign] != first[foreign]).any(1) for value in values)
    return int(torch.as_tensor(torn).count_nonzero()), int(foreign.sum())


@contextmanager
def running_writers(store: SlotStore, writers: int) -> Generator[None]:
    """Let ``writers`` processes write into ``store`` until the end of the block."""
    context = multiprocessing.get_context("fork")  # starts at once; writers use nothing but numpy
    processes = [
        context.Process(target=write_at_full_speed, args=(store, number), daemon=True)
        for number in range(writers)
    ]
    try:
        for process in processes:
            process.start()
        wait_until_full(store)
        yield
    finally:
        store.words[StreamWords.CLOSING] = 1
        for process in processes:
            process.join(PATIENCE_S)
            if process.is_alive():
                process.kill()
                process.join()


def wait_until_full(store: SlotStore) -> None:
    """Return when every writer has written more than all slots once."""
    deadline = time.monotonic() + PATIENCE_S
    while int(store.producers["episodes"].min()) < SLOTS:
        if time.monotonic() > deadline:
            raise NotReadyError(f"expected writers within {PATIENCE_S} s, got none.")
        time.sleep(0.01)


def write_at_full_speed(store: SlotStore, producer: int) -> None:
    """Fill slot after slot with its version until the store closes or the parent is gone."""
    parent = os.getppid()
    while not store.words[StreamWords.CLOSING] and os.getppid() == parent:
        slot = store.take_slot(producer)
        version = int(store.version[slot])
        for field in FIELDS:
            store.entries(field.name, slot)[:] = version
        store.publish(slot, STEPS, success=1, policy_version=0)
        store.producers["episodes"][producer] += 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chunks", type=int, default=10_000_000)
    parser.add_argument("--writers", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = search(options.chunks, options.writers)
    without = search(options.chunks // 50, options.writers, validate=False)
    sys.stdout.write(f"{found}\nwithout validation: {without}\n")


if __name__ == "__main__":
    main()
