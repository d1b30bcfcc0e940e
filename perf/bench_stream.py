"""Online stream: drawing chunks, beside TorchRL's memory and two older protocols.

Data:      observations qpos, qvel, qf (14,), actions (14,), rewards, float32, two flags and the
           number of the segment; episodes of 300 steps. Every store is full.
Task:      from stored episodes to 32 chunks of 64 steps, tensors (32, 64, ...) of all these keys.
Peers:     TorchRL `TensorDictReplayBuffer` over `LazyTensorStorage` with `SliceSampler`, with and
           without ``cache_values``; a ring with one locked window whose readers take rows and
           offsets without asking how long an episode is ("window ring"); the same with a mask of
           valid steps, scanned for windows under a lock that is held until the copy is done
           ("locked scan"). Both are written here from their description.
Producer:  steps per second of a process that writes episodes step by step at full speed, alone
           and beside a process that draws at full speed, in turn. Time in which it was ready to
           run and had no core (``/proc/PID/schedstat``) is left out, so that the figure says what
           the store costs it, waiting for locks included, and not how busy the machine is.
Protocol:  one thread per process. Each round times every store in turn, so all share the machine's
           moods; a figure is the median over rounds of the rounds' medians.

Usage:  python -m perf.bench_stream
"""

import multiprocessing
import time
from collections.abc import Callable, Mapping
from multiprocessing.synchronize import Event
from pathlib import Path
from statistics import median

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor
from torchrl.data import LazyTensorStorage, SliceSampler, TensorDictReplayBuffer

from cadenza.stream.chunk_keys import allocate_chunks, chunk_fields, torch_dtype
from cadenza.stream.layout import BOOKKEEPING, Field, StoreLayout
from cadenza.stream.slot_reader import SlotReader
from cadenza.stream.slot_writer import EpisodeWriter
from cadenza.stream.slots import SlotStore, StreamWords
from perf.timing import Row, measure, print_table

WIDTH, STEPS = 14, 300
CHUNKS, CHUNK_SIZE = 32, 64
SLOTS = (16, 1024, 4096)
ROUNDS, CALLS, WARMUP = 5, 40, 5
#: Promised speed relative to the peers, and share of its speed that a producer keeps.
CACHED_RATIO, SCAN_RATIO, KEPT_SPEED = 3.0, 20.0, 0.9
#: Episodes in the producer's store; stretches of its measurement with and without consumer, their
#: length, and the longest wait for its start.
PRODUCER_SLOTS, STRETCHES, STRETCH_S, PATIENCE_S = 64, 5, 0.8, 60.0
CACHED, UNCACHED = "TorchRL, cached", "TorchRL, uncached"
RING, SCAN = "window ring", "locked scan"

_NAMES = ("obs.robot.qpos", "obs.robot.qvel", "obs.robot.qf")
FIELDS = (
    *(Field(name=name, shape=(WIDTH,), dtype="float32", kind="state") for name in _NAMES),
    Field(name="actions", shape=(WIDTH,), dtype="float32"),
    *BOOKKEEPING,
)


def rows() -> list[Row]:
    """Return all measurements of the stream."""
    torch.set_num_threads(1)
    table = [row for slots in SLOTS for row in drawing_rows(slots)]
    return [*table, producer_row()]


def drawing_rows(slots: int) -> list[Row]:
    """Compare drawing from stores of ``slots`` episodes."""
    data = trajectories(slots)
    calls: dict[str, Callable[[], object]] = {
        "cadenza": ours(data, slots),
        CACHED: torchrl(data, slots, cached=True),
        UNCACHED: torchrl(data, slots, cached=False),
        RING: WindowRing(data).sample,
        SCAN: LockedScan(data).sample,
    }
    rounds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            rounds[name].append(measure(call, CALLS, warmup=WARMUP).p50)
    times = {name: median(values) for name, values in rounds.items()}
    shares = promised_shares(slots)
    name = f"draw {CHUNKS} x {CHUNK_SIZE} of {slots:,} x {STEPS}"
    mine = times.pop("cadenza")
    return [
        Row(
            f"{name}, {peer}",
            mine,
            time_us,
            budget=shares[peer] * time_us if peer in shares else None,
            peer_name=peer,
        )
        for peer, time_us in times.items()
    ]


def promised_shares(slots: int) -> Mapping[str, float]:
    """Return the share of each peer's time that we promise to need at most."""
    return {
        16: {RING: 1.0},
        1024: {CACHED: 1.0 / CACHED_RATIO},
        4096: {SCAN: 1.0 / SCAN_RATIO, CACHED: 1.0},
    }[slots]


def trajectories(slots: int) -> dict[str, Tensor]:
    """Return the same episodes for every store, each field (slots, STEPS, ...)."""
    generator = torch.Generator().manual_seed(0)
    data = {}
    for field in FIELDS:
        shape = (slots, STEPS, *field.shape)
        data[field.name] = torch.rand(shape, generator=generator).to(torch_dtype(field.dtype))
    return data


def ours(data: Mapping[str, Tensor], slots: int) -> Callable[[], object]:
    """Return a draw from our store into kept buffers."""
    layout = StoreLayout(slots=slots, steps=STEPS, producers=1, fields=FIELDS)
    store = SlotStore.create(layout)
    for number in range(slots):
        slot = store.take_slot(0)
        for name, values in data.items():
            store.entries(name, slot)[:STEPS] = values[number].numpy()
        store.publish(slot, STEPS, success=1, policy_version=0)
    reader = SlotReader(store)
    out = allocate_chunks(chunk_fields(layout), CHUNKS, CHUNK_SIZE)
    generator = torch.Generator().manual_seed(1)
    return lambda: reader.draw(CHUNKS, CHUNK_SIZE, out, generator)


def torchrl(data: Mapping[str, Tensor], slots: int, *, cached: bool) -> Callable[[], object]:
    """Return a draw of slices from TorchRL's memory, as (CHUNKS, CHUNK_SIZE)."""
    count = slots * STEPS
    flat = {name: values.reshape(count, *values.shape[2:]) for name, values in data.items()}
    flat["episode"] = torch.arange(slots).repeat_interleave(STEPS)
    memory = TensorDictReplayBuffer(
        storage=LazyTensorStorage(count),
        sampler=SliceSampler(slice_len=CHUNK_SIZE, traj_key="episode", cache_values=cached),
        batch_size=CHUNKS * CHUNK_SIZE,
    )
    memory.extend(TensorDict(flat, [count]))
    return lambda: memory.sample().view(CHUNKS, CHUNK_SIZE)


class WindowRing:
    """Rows outside one window, any offset that fits the ring; nothing is checked afterwards."""

    def __init__(self, data: Mapping[str, Tensor]) -> None:
        self.data = TensorDict(dict(data), [len(data["rewards"]), STEPS])
        context = multiprocessing.get_context("forkserver")
        self.window = context.Array("i", [0, 4])

    def sample(self) -> TensorDict:
        """Return chunks as a copy, shape (CHUNKS, CHUNK_SIZE)."""
        begin, end = self.window[0], self.window[1]
        free = torch.ones(len(self.data), dtype=torch.bool)
        free[begin:end] = False
        candidates = free.nonzero().squeeze(1)
        rows = candidates[torch.randint(len(candidates), (CHUNKS,))]
        offsets = torch.randint(STEPS - CHUNK_SIZE + 1, (CHUNKS,))
        return self.data[rows[:, None], offsets[:, None] + torch.arange(CHUNK_SIZE)]


class LockedScan:
    """Windows of valid steps, looked for in all rows at every call, with the lock held."""

    def __init__(self, data: Mapping[str, Tensor]) -> None:
        rows = len(data["rewards"])
        valid = torch.ones(rows, STEPS, dtype=torch.bool)
        self.data = TensorDict({**data, "valid": valid}, [rows, STEPS])
        context = multiprocessing.get_context("forkserver")
        self.window = context.Array("i", [0, 4])
        self.generator = torch.Generator().manual_seed(1)

    def sample(self) -> TensorDict:
        """Return chunks as a copy, shape (CHUNKS, CHUNK_SIZE)."""
        with self.window.get_lock():
            begin, end = self.window[0], self.window[1]
            windows = self.data["valid"].unfold(1, CHUNK_SIZE, 1).all(dim=-1)
            windows[begin:end] = False
            candidates = windows.any(dim=1).nonzero().squeeze(1)
            picks = torch.randint(len(candidates), (CHUNKS,), generator=self.generator)
            rows = candidates[picks]
            offsets = torch.multinomial(windows[rows].float(), 1, generator=self.generator)
            return self.data[rows[:, None], offsets + torch.arange(CHUNK_SIZE)].clone()


def producer_row() -> Row:
    """Compare a producer's speed alone with its speed beside a consumer at full speed."""
    layout = StoreLayout(slots=PRODUCER_SLOTS + 1, steps=STEPS, producers=1, fields=FIELDS)
    store = SlotStore.create(layout)
    context = multiprocessing.get_context("forkserver")
    may_draw = context.Event()
    producer = context.Process(target=produce, args=(store,), daemon=True)
    consumer = context.Process(target=consume, args=(store, may_draw), daemon=True)
    speeds: dict[bool, list[float]] = {False: [], True: []}
    for process in (producer, consumer):
        process.start()
    try:
        wait_for_episodes(store, 2 * PRODUCER_SLOTS)
        may_draw.set()
        wait_for_draws(store)
        for stretch in range(2 * STRETCHES):
            watched = stretch % 2 == 1
            may_draw.set() if watched else may_draw.clear()
            time.sleep(0.1)
            speeds[watched].append(steps_per_second(store, producer.pid))
    finally:
        store.words[StreamWords.CLOSING] = 1
        may_draw.set()
        for process in (producer, consumer):
            process.join(10.0)
            if process.is_alive():
                process.kill()
                process.join()
    alone, beside = median(speeds[False]), median(speeds[True])
    return Row(
        "producer beside a consumer at full speed",
        beside,
        alone,
        unit="steps/s",
        budget=KEPT_SPEED * alone,
        better="higher",
        peer_name="the producer alone",
    )


def produce(store: SlotStore) -> None:
    """Write episodes step by step until the store closes."""
    numbers = np.arange(WIDTH, dtype=np.float32)
    state = dict.fromkeys(_NAMES, numbers)
    step = {"actions": numbers, "rewards": 1.0, "terminated": False, "truncated": False}
    while not store.words[StreamWords.CLOSING]:
        writer = EpisodeWriter(store, 0)
        writer.start(state)
        for _ in range(STEPS):
            writer.add(step, state)
            store.producers["frames"][0] += 1
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


def steps_per_second(store: SlotStore, pid: int | None) -> float:
    """Return the producer's speed over one stretch, without the time it waited for a core."""
    waits = Path(f"/proc/{pid}/schedstat")

    def now() -> tuple[int, float]:
        waited_s = int(waits.read_text(encoding="utf-8").split()[1]) / 1e9
        return int(store.producers["frames"][0]), time.perf_counter() - waited_s

    before, began = now()
    time.sleep(STRETCH_S)
    after, ended = now()
    return (after - before) / (ended - began)


def wait_for_episodes(store: SlotStore, episodes: int) -> None:
    """Return when the producer has written ``episodes`` episodes."""
    _wait(lambda: int(store.words[StreamWords.PUBLISHED]) >= episodes)


def wait_for_draws(store: SlotStore) -> None:
    """Return when the consumer draws."""
    _wait(lambda: int(store.consumers["chunks"][0]) > 0)


def _wait(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not done():
        if time.monotonic() > deadline:
            raise SystemExit(f"bench_stream: expected progress within {PATIENCE_S} s, got none.")
        time.sleep(0.01)


if __name__ == "__main__":
    print_table((__doc__ or "").splitlines()[0], rows())
