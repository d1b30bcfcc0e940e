"""Looks for torn chunks: writers fill rows with their version at full speed, readers check.

A row holds one number everywhere, the version its slot had while it was written, and -1 behind its
end. A chunk with two numbers is torn; one with another number than its draw reports is foreign, and
so is one whose run is not that of its episode. Without validation the same reader finds torn
chunks, and so do threads that share what they know of the store: the search has eyes.

"""

import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Literal

import numpy as np
import torch

from cadenza.core.errors import NotReadyError
from cadenza.stream.batches import allocate_chunks, chunk_fields
from cadenza.stream.draw_options import DEFAULT_OPTIONS, DrawOptions
from cadenza.stream.layout import Field, StoreLayout
from cadenza.stream.slot_reader import SlotReader
from cadenza.stream.slots import IntArray, SlotStore, StreamWords
from cadenza.stream.windows import DrawnChunks
from tests.stream_engines import eventually

SLOTS, STEPS, CHUNKS, CHUNK_SIZE = 64, 300, 32, 64
#: Two fields, so that a chunk could also be put together from two episodes.
FIELDS = (
    Field(name="state", shape=(8,), dtype="int64", kind="state"),
    Field(name="step", shape=(8,), dtype="int64"),
)
#: Steps of the shortest episode, and of a segment; the last one of an episode may be shorter.
SHORTEST, SEGMENT = 40, 70
#: What is behind the end of an episode.
NOTHING = -1
#: Seconds within which writers must have started, disturbed a reader, or ended.
PATIENCE_S = 800.0
#: Time after which a thread that draws beside others loses the interpreter, s: at once.
SWITCH_S = 1e-6


@dataclass(slots=True, kw_only=True)
class Found:
    """What a search saw.

    Attributes:
        chunks: Chunks looked at.
        torn: Chunks with two numbers.
        foreign: Chunks with another number, or of another run, than their draw reports.
        broken: Draws that ended in an error.
        redraws: Chunks drawn anew.
        episodes: Episodes written meanwhile.
        seconds: Duration.
    """

    chunks: int = 0
    torn: int = 0
    foreign: int = 0
    broken: int = 0
    redraws: int = 0
    episodes: int = 0
    seconds: float = 0.0

    @property
    def faults(self) -> int:
        """Torn and foreign chunks, and broken draws."""
        return self.torn + self.foreign + self.broken


def search(
    chunks: int,
    writers: int,
    *,
    validate: bool = True,
    until: Literal["torn", "faults"] | None = None,
    threads: int = 1,
    options: DrawOptions = DEFAULT_OPTIONS,
    least_redraws: int = 0,
    least_episodes: int = 0,
) -> Found:
    """Draw ``chunks`` chunks beside ``writers`` writers and check each.

    Args:
        chunks: How many, all threads together; at most, with ``until``. A few more, where
            less than the two last arguments say has happened by then: on a machine that others
            keep busy writers and readers may run in turn.
        writers: Processes that write.
        validate: Whether the reader compares versions.
        until: Stop at the first of these: ``"torn"`` chunks, or ``"faults"`` of any kind.
        threads: Threads that share the reader.
        options: How chunks are drawn.
        least_redraws: Chunks that must have been drawn anew, within `PATIENCE_S`.
        least_episodes: Episodes that must have been written, likewise.
    """
    layout = StoreLayout(slots=SLOTS + writers, steps=STEPS, producers=writers, fields=FIELDS)
    store = SlotStore.create(layout)
    reader, parts = SlotReader(store, validate=validate), [Found() for _ in range(threads)]
    with running_writers(store, writers), switching_often(threads):
        before, began = store.published(), time.monotonic()

        def is_enough() -> bool:
            if time.monotonic() > began + PATIENCE_S:
                return True
            written = store.published() - before
            return written >= least_episodes and sum(p.redraws for p in parts) >= least_redraws

        def look(number: int) -> None:
            generator = torch.Generator().manual_seed(number)
            out = allocate_chunks(chunk_fields(layout, masked=options.may_mask), CHUNKS, CHUNK_SIZE)
            part = parts[number]
            while part.chunks * threads < chunks or not is_enough():
                if until is not None and any(getattr(other, until) for other in parts):
                    break
                part.chunks += CHUNKS
                try:
                    drawn = reader.draw(CHUNKS, CHUNK_SIZE, out, generator, options)
                except (IndexError, NotReadyError):
                    part.broken += 1
                    continue
                count_faults(part, out, drawn, options)

        others = [threading.Thread(target=look, args=(n,)) for n in range(1, threads)]
        for other in others:
            other.start()
        look(0)
        for other in others:
            other.join()
        found = Found(**{f.name: sum(getattr(p, f.name) for p in parts) for f in fields(Found)})
        found.episodes = store.published() - before
        found.seconds = time.monotonic() - began
    store.close()
    return found


def count_faults(
    part: Found, out: dict[str, torch.Tensor], drawn: DrawnChunks, options: DrawOptions
) -> None:
    """Add what is wrong with a batch, and how often it was drawn, to ``part``."""
    numbers = drawn.versions - 1
    values = [out[field.name].view(CHUNKS, -1) for field in FIELDS]
    expected = torch.as_tensor(numbers)[:, None]
    foreign = torch.stack([(value != expected).any(1) for value in values]).any(0)
    first = values[0][:, :1]
    torn = torch.stack([(value != first).any(1) for value in values]).any(0)
    foreign |= torch.as_tensor(has_foreign_run(drawn, numbers, options))
    if options.may_mask:
        steps = drawn.offsets[:, None] + np.arange(CHUNK_SIZE)
        valid = (steps >= drawn.bounds[:, :1]) & (steps < drawn.bounds[:, 1:])
        foreign |= (out["valid"] != torch.as_tensor(valid)).any(1)
    part.torn += int(torn.sum())
    part.foreign += int(foreign.sum())
    part.redraws += drawn.redraws


def has_foreign_run(drawn: DrawnChunks, numbers: IntArray, options: DrawOptions) -> torch.Tensor:
    """Return which chunks lie in another run than their episode has, or outside it, (n,)."""
    lengths = length_of(drawn.slots, numbers)
    first, end = drawn.bounds[:, 0], drawn.bounds[:, 1]
    is_segment = options.sampling_mode == "segment"
    last = np.minimum(first + SEGMENT, lengths) if is_segment else lengths
    wrong = (end != last) | (first % SEGMENT != 0 if is_segment else first != 0)
    if not options.may_mask:
        wrong |= (drawn.offsets < first) | (drawn.offsets + CHUNK_SIZE > end)
    return torch.as_tensor(wrong)


def length_of(slots: IntArray, numbers: IntArray) -> IntArray:
    """Return the steps of the episodes with these numbers in these slots."""
    return SHORTEST + (slots * 101 + numbers * 37) % (STEPS - SHORTEST + 1)


@contextmanager
def switching_often(threads: int) -> Generator[None]:
    """Let threads take turns at every chance, if there are several."""
    before = sys.getswitchinterval()
    if threads > 1:
        sys.setswitchinterval(SWITCH_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


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
        eventually(lambda: store.producers["episodes"].min() >= SLOTS, "each fills all slots")
        yield
    finally:
        store.words[StreamWords.CLOSING] = 1
        for process in processes:
            process.join(PATIENCE_S)
            if process.is_alive():
                process.kill()
                process.join()


def write_at_full_speed(store: SlotStore, producer: int) -> None:
    """Fill slot after slot with its version until the store closes or the parent is gone."""
    parent = os.getppid()
    while not store.words[StreamWords.CLOSING] and os.getppid() == parent:
        slot = store.take_slot(producer)
        version = int(store.version[slot])
        length = int(length_of(np.array(slot), np.array(version)))
        for field in FIELDS:
            entries, end = store.entries(field.name, slot), length + (field.kind == "state")
            entries[:end] = version
            entries[end:] = NOTHING
        starts = np.arange(0, length, SEGMENT)
        store.segments[slot] = len(starts)
        store.segment_bounds[slot, : len(starts), 0] = starts
        store.segment_bounds[slot, : len(starts), 1] = np.minimum(starts + SEGMENT, length)
        store.publish(slot, length, success=1, policy_version=0)
