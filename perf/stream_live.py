"""A producer and a consumer beside each other: what each costs the other, and what is torn.

Every step of an episode holds the version that its slot had while it was written, so a chunk with
two numbers is torn, and one with another number than its draw reports is foreign.
"""

import multiprocessing
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Event
from pathlib import Path
from statistics import median

import numpy as np
import torch

from cadenza.stream.batches import allocate_chunks, chunk_fields
from cadenza.stream.layout import StoreLayout
from cadenza.stream.slot_reader import SlotReader
from cadenza.stream.slot_writer import EpisodeWriter
from cadenza.stream.slots import SlotStore, StreamWords
from perf.stream_stores import CHUNK_SIZE, CHUNKS, FIELDS, STATE_NAMES, STEPS, WIDTH
from perf.timing import Row

#: Share of its speed that a producer keeps beside a consumer, as promised.
KEPT_SPEED = 0.9
#: Episodes in the producer's store; stretches of its measurement with and without consumer, their
#: length, and the longest wait for its start.
PRODUCER_SLOTS, STRETCHES, STRETCH_S, PATIENCE_S = 64, 5, 0.8, 60.0
#: Steps per second that the producer is held to; None for none.
PACES = {"an idle producer": 0.0, "1,000 steps/s": 1000.0, "a producer at full speed": None}
#: Length of the search in each case, s, and draws before it.
SEARCH_S, WARMUP = 3.0, 50
_FLOATS = (*STATE_NAMES, "actions")
_MB = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a consumer saw.

    Attributes:
        p50_us: Quantiles of the duration of a draw, with the next two.
        p95_us: See there.
        p99_us: See there.
        chunks: Chunks drawn and looked at.
        torn: Chunks with two numbers, or another one than their draw reports.
        redraws: Chunks that were drawn anew.
        age_s: Mean time since the episodes of the chunks were published.
        rss_bytes: Largest resident memory of the process, pages of the store included.
    """

    p50_us: float
    p95_us: float
    p99_us: float
    chunks: int
    torn: int
    redraws: int
    age_s: float
    rss_bytes: int


@dataclass(frozen=True, slots=True)
class Work:
    """Steps and time of a producer over a stretch, s."""

    steps: int
    wall_s: float
    running_s: float
    core_wait_s: float

    @property
    def undisturbed_rate(self) -> float:
        """Steps per second without the time it waited for a core."""
        return self.steps / (self.wall_s - self.core_wait_s)

    @property
    def stalled(self) -> float:
        """Share of the time in which it neither ran nor waited for a core."""
        return max(1.0 - (self.running_s + self.core_wait_s) / self.wall_s, 0.0)


def producer_row() -> Row:
    """Compare a producer's speed alone with its speed beside a consumer at full speed."""
    store = full_store()
    context = multiprocessing.get_context("forkserver")
    may_draw = context.Event()
    producer = context.Process(target=produce, args=(store, None), daemon=True)
    consumer = context.Process(target=consume, args=(store, may_draw), daemon=True)
    speeds: dict[bool, list[float]] = {False: [], True: []}
    with running(store, producer, consumer, may_draw=may_draw):
        wait_for_episodes(store, 2 * PRODUCER_SLOTS)
        may_draw.set()
        wait_for_draws(store)
        for number in range(2 * STRETCHES):
            watched = number % 2 == 1
            may_draw.set() if watched else may_draw.clear()
            time.sleep(0.1)
            speeds[watched].append(work_of(store, producer.pid, STRETCH_S).undisturbed_rate)
    alone, beside = median(speeds[False]), median(speeds[True])
    return Row(
        "producer beside a consumer at full speed",
        beside,
        alone,
        unit="steps/s",
        aim=KEPT_SPEED,
        better="higher",
        peer_name="the producer alone",
    )


def live_rows() -> list[Row]:
    """Return what a consumer at full speed sees beside producers of several speeds."""
    table: list[Row] = []
    for title, pace in PACES.items():
        seen, work = search(pace)
        table += latency_rows(f"beside {title}", seen)
        if pace == 0.0:
            continue
        table.append(
            Row(
                f"beside {title}: chunks drawn anew",
                1e6 * seen.redraws / seen.chunks,
                unit="per million",
            )
        )
        table.append(
            Row(f"beside {title}: chunks looked at", seen.chunks, unit="chunks", better="higher")
        )
        table.append(Row(f"beside {title}: torn chunks", seen.torn, unit="chunks"))
        if pace is None:
            table += full_speed_rows(f"beside {title}", seen, work)
    return table


def latency_rows(title: str, seen: Seen) -> list[Row]:
    """Return the quantiles of the duration of a draw."""
    quantiles = {"p50": seen.p50_us, "p95": seen.p95_us, "p99": seen.p99_us}
    return [Row(f"{title}: draw, {name}", value) for name, value in quantiles.items()]


def full_speed_rows(title: str, seen: Seen, work: Work) -> list[Row]:
    """Return what is told of a producer at full speed only, and the memory."""
    layout = store_layout()
    payload = layout.slots * sum(
        layout.entries_per_slot(f) * int(np.prod(f.shape)) * np.dtype(f.dtype).itemsize
        for f in FIELDS
    )
    return [
        Row(f"{title}: written", work.steps / work.wall_s, unit="steps/s", better="higher"),
        Row(f"{title}: time it stalled", 100.0 * work.stalled, unit="%"),
        Row(f"{title}: mean age of drawn episodes", 1e3 * seen.age_s, unit="ms"),
        Row("peak memory of the consumer", seen.rss_bytes / _MB, unit="MB"),
        Row(
            f"shared memory of {layout.slots} x {STEPS}",
            layout.nbytes / _MB,
            payload / _MB,
            unit="MB",
            peer_name="the episodes alone",
        ),
    ]


def search(pace: float | None) -> tuple[Seen, Work]:
    """Draw beside a producer of ``pace`` steps per second and look at every chunk."""
    store = full_store()
    context = multiprocessing.get_context("forkserver")
    here, there = context.Pipe()
    producer = context.Process(target=produce, args=(store, pace), daemon=True)
    consumer = context.Process(target=look, args=(store, there), daemon=True)
    with running(store, producer, consumer):
        there.close()
        if pace != 0.0:
            wait_for_episodes(store, PRODUCER_SLOTS + 2)
        here.recv()
        here.send("look")
        work = work_of(store, producer.pid, SEARCH_S)
        return here.recv(), work


def store_layout() -> StoreLayout:
    """Return the layout of the store that is written while it is read."""
    return StoreLayout(slots=PRODUCER_SLOTS + 1, steps=STEPS, producers=1, fields=FIELDS)


def full_store() -> SlotStore:
    """Return such a store with an episode in all slots but one."""
    store = SlotStore.create(store_layout())
    for _ in range(PRODUCER_SLOTS):
        write_episode(store, None)
    store.producers["dropped"][0] = 0
    return store


def produce(store: SlotStore, pace: float | None) -> None:
    """Write episodes step by step until the store closes.

    Args:
        store: Where to.
        pace: Steps per second; 0 for none at all, None for full speed.
    """
    while not store.words[StreamWords.CLOSING]:
        if pace == 0.0:
            time.sleep(0.05)
        else:
            write_episode(store, pace)


def write_episode(store: SlotStore, pace: float | None) -> None:
    """Write one episode that holds the version of its slot everywhere."""
    writer = EpisodeWriter(store, store.take_slot(0))
    numbers = np.full(WIDTH, store.version[writer.slot], dtype=np.float32)
    state = dict.fromkeys(STATE_NAMES, numbers)
    step = {"actions": numbers, "rewards": 1.0, "terminated": False, "truncated": False}
    writer.start(state)
    began = time.monotonic()
    for number in range(STEPS):
        if pace is not None:
            if store.words[StreamWords.CLOSING]:
                break
            time.sleep(max(began + number / pace - time.monotonic(), 0.0))
        writer.add(step, state)
        store.producers["dropped"][0] += 1  # nobody else counts there: steps, as they are written
    if writer.length == STEPS:
        writer.publish()


def consume(store: SlotStore, may_draw: Event) -> None:
    """Draw whenever ``may_draw`` is set, until the store closes."""
    torch.set_num_threads(1)
    reader = SlotReader(store)
    out = allocate_chunks(chunk_fields(store.layout), CHUNKS, CHUNK_SIZE)
    generator = torch.Generator().manual_seed(1)
    while not store.words[StreamWords.CLOSING]:
        may_draw.wait()
        reader.draw(CHUNKS, CHUNK_SIZE, out, generator)
        store.consumers["chunks"][0] += CHUNKS


def look(store: SlotStore, pipe: Connection) -> None:
    """Draw for one search, look at every chunk, and send what was `Seen`."""
    torch.set_num_threads(1)
    reader = SlotReader(store)
    out = allocate_chunks(chunk_fields(store.layout), CHUNKS, CHUNK_SIZE)
    generator = torch.Generator().manual_seed(1)
    for _ in range(WARMUP):
        reader.draw(CHUNKS, CHUNK_SIZE, out, generator)
    pipe.send("ready")
    pipe.recv()
    durations: list[int] = []
    ages, torn, redraws = 0.0, 0, 0
    ends = time.monotonic() + SEARCH_S
    while time.monotonic() < ends:
        began = time.perf_counter_ns()
        drawn = reader.draw(CHUNKS, CHUNK_SIZE, out, generator)
        durations.append(time.perf_counter_ns() - began)
        ages += float((time.time_ns() - drawn.written_at_ns).mean()) / 1e9
        torn += torn_chunks([out[name] for name in _FLOATS], drawn.versions)
        redraws += drawn.redraws
    p50, p95, p99 = (float(q) / 1e3 for q in np.percentile(durations, (50, 95, 99)))
    pipe.send(
        Seen(
            p50_us=p50,
            p95_us=p95,
            p99_us=p99,
            chunks=len(durations) * CHUNKS,
            torn=torn,
            redraws=redraws,
            age_s=ages / len(durations),
            rss_bytes=peak_rss_bytes(),
        )
    )


def torn_chunks(values: Sequence[torch.Tensor], versions: np.ndarray) -> int:
    """Return how many chunks do not hold the one number that they were written with."""
    expected = torch.as_tensor(versions - 1).float()[:, None]
    wrong = torch.zeros(len(versions), dtype=torch.bool)
    for value in values:
        wrong |= (value.view(len(versions), -1) != expected).any(dim=1)
    return int(wrong.sum())


def peak_rss_bytes() -> int:
    """Return the largest resident memory that this process had."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


@contextmanager
def running(
    store: SlotStore, *processes: BaseProcess, may_draw: Event | None = None
) -> Generator[None]:
    """Run ``processes`` until the end of the block, then close the store."""
    try:
        for process in processes:
            process.start()
        yield
    finally:
        store.words[StreamWords.CLOSING] = 1
        if may_draw is not None:
            may_draw.set()
        for process in processes:
            process.join(10.0)
            if process.is_alive():
                process.kill()
                process.join()


def work_of(store: SlotStore, pid: int | None, seconds: float) -> Work:
    """Return what the producer does in the next ``seconds``."""
    schedule = Path(f"/proc/{pid}/schedstat")

    def now() -> tuple[int, float, float, float]:
        running_ns, waiting_ns, _ = map(int, schedule.read_text(encoding="utf-8").split())
        steps = int(store.producers["dropped"][0])
        return steps, time.perf_counter(), running_ns / 1e9, waiting_ns / 1e9

    before = now()
    time.sleep(seconds)
    steps, *times = (after - first for after, first in zip(now(), before, strict=True))
    return Work(int(steps), *times)


def wait_for_episodes(store: SlotStore, episodes: int) -> None:
    """Return when that many episodes are written."""
    _wait(lambda: store.published() >= episodes)


def wait_for_draws(store: SlotStore) -> None:
    """Return when the consumer draws."""
    _wait(lambda: int(store.consumers["chunks"][0]) > 0)


def _wait(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not done():
        if time.monotonic() > deadline:
            raise SystemExit(f"bench_stream: expected progress within {PATIENCE_S} s, got none.")
        time.sleep(0.01)
