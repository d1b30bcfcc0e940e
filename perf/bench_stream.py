"""Online stream: drawing chunks, beside TorchRL's memory and two older protocols.

Data:      observations qpos, qvel, qf (14,), actions (14,), rewards, float32, two flags and the
           number of the segment; episodes of 300 steps. "camera" adds an image (96, 96, 3) uint8,
           "lengths 75 to 300" makes episodes shorter. Every store is full.
Task:      `OnlineDataEngine.sample_batch`, the whole call: from stored episodes to a batch of n
           chunks of c steps, tensors (n, c, ...) of all these keys. "new batch", the camera and "c
           in 16 to 64", another size for every call, make a batch each time, as TorchRL always
           does; the others fill one that is kept. "beside the bare copy" is the same call beside
           the reader inside it, which copies and looks for torn chunks: processor time.
Peers:     TorchRL `TensorDictReplayBuffer` over `LazyTensorStorage` with `SliceSampler`, with and
           without ``cache_values``; two protocols written here from their description, see
           `stream_protocols`.
Items:     single chunks that `torch.utils.data.DataLoader` stacks to batches, in its own process,
           beside the same loader over a map-style dataset that cuts them out of tensors.
Processes: 1, 2 and 4 that draw from one store at once, and loaders with as many workers, beside
           TorchRL's memory in one process and in the same loader. "while it has a core" leaves out
           the time in which a process was ready to run and had none (``/proc/PID/schedstat``).
Producer:  steps per second of a process that writes episodes step by step at full speed, alone
           and beside a process that draws at full speed, in turn, while it has a core: what the
           store costs it, waiting for locks included, and not how busy the machine is.
Live:      one consumer at full speed beside a producer that is idle, writes 1000 steps per second,
           or as many as it can: quantiles of a draw, chunks drawn anew, torn ones (every step holds
           the version of its slot), age of what is drawn, memory. A producer stalls when it neither
           runs nor waits for a core.
Protocol:  one thread per process. Each round times every store in turn, so all share the machine's
           moods; a figure is the median over rounds of the rounds' medians.

Usage:  python -m perf.bench_stream
"""

import time
from collections.abc import Callable, Mapping
from statistics import median

import torch
from torch.utils.data import DataLoader, Dataset, RandomSampler

from cadenza.stream import OnlineDataEngine, OnlineDataset
from perf import stream_consumers
from perf.stream_live import live_rows, producer_row
from perf.stream_protocols import (
    CACHED,
    RING,
    SCAN,
    UNCACHED,
    LockedScan,
    WindowRing,
    torchrl,
    torchrl_of_sizes,
)
from perf.stream_stores import (
    CAMERA_FIELDS,
    CHUNK_SIZE,
    CHUNKS,
    STEPS,
    Episodes,
    filled_engine,
    ours,
    ours_of_sizes,
    reader_of,
    trajectories,
)
from perf.timing import Row, measure, print_table

SLOTS = (16, 1024, 4096)
ROUNDS, CALLS, WARMUP = 5, 40, 5
#: Promised speed relative to the peers.
CACHED_RATIO, SCAN_RATIO = 3.0, 20.0
#: Promised processor time of the whole call relative to that of the copy inside it, and the rounds
#: of that comparison.
BARE_RATIO, BARE_ROUNDS = 1.2, 25
#: Further sizes (n, c), drawn from `MANY` episodes, and the range of sizes that change.
SIZES, MANY, SIZE_RANGE = ((1, 16), (256, 64)), 1024, (16, 64)
#: Episodes with images, and the shortest of those that differ in length.
CAMERA_SLOTS, SHORTEST = 16, STEPS // 4
#: Calls that are timed in a round of drawing images, 57 MB each.
CAMERA_CALLS = 5

#: What single items are compared with.
PLAIN = "a plain map-style dataset"

Calls = Mapping[str, Callable[[], object]]


def rows() -> list[Row]:
    """Return all measurements of the stream."""
    torch.set_num_threads(1)
    table = [row for slots in SLOTS for row in drawing_rows(slots)]
    table += [*size_rows(), *length_rows(), camera_row(), item_row()]
    return [*table, *stream_consumers.rows(), producer_row(), *live_rows()]


def drawing_rows(slots: int) -> list[Row]:
    """Compare drawing from stores of ``slots`` episodes."""
    data = trajectories(slots)
    engine = filled_engine(data)
    calls = {
        "cadenza": ours(engine),
        CACHED: torchrl(data),
        UNCACHED: torchrl(data, cached=False),
        RING: WindowRing(data).sample,
        SCAN: LockedScan(data).sample,
    }
    name = f"draw {CHUNKS} x {CHUNK_SIZE} of {slots:,} x {STEPS}"
    table = compared(name, calls, promised(slots))
    if slots != MANY:
        return table
    made = {"cadenza": ours_of_sizes(engine, CHUNKS, (CHUNK_SIZE,)), CACHED: calls[CACHED]}
    table += compared(f"{name}, new batch", made, promised(slots))
    return [*table, *bare_rows(name, engine)]


def bare_rows(name: str, engine: OnlineDataEngine) -> list[Row]:
    """Compare the processor time of the whole call with that of the reader inside it."""
    pairs = {
        "": (ours(engine), reader_of(engine.store, kept=True)),
        ", new batch": (
            ours_of_sizes(engine, CHUNKS, (CHUNK_SIZE,)),
            reader_of(engine.store, kept=False),
        ),
    }
    table = []
    for kind, calls in pairs.items():
        times: tuple[list[float], list[float]] = ([], [])
        for _ in range(BARE_ROUNDS):
            for call, found in zip(calls, times, strict=True):
                found.append(processor_us(call))
        mine, bare = map(median, times)
        title = f"{name}{kind}, beside the bare copy"
        table.append(Row(title, mine, bare, aim=1.0 / BARE_RATIO, peer_name="the reader inside"))
    return table


def processor_us(call: Callable[[], object]) -> float:
    """Return the processor time of one call, us."""
    began = time.thread_time_ns()
    for _ in range(CALLS):
        call()
    return (time.thread_time_ns() - began) / CALLS / 1e3


def promised(slots: int) -> Mapping[str, float]:
    """Return the least ratio to each peer that we promise."""
    return {
        16: {RING: 1.0},
        1024: {CACHED: CACHED_RATIO},
        4096: {SCAN: SCAN_RATIO, CACHED: 1.0},
    }[slots]


def size_rows() -> list[Row]:
    """Compare drawing chunks of other sizes, and of sizes that change."""
    data = trajectories(MANY)
    engine, table = filled_engine(data), list[Row]()
    for n, c in SIZES:
        calls = {"cadenza": ours(engine, n, c), CACHED: torchrl(data, n, c)}
        table += compared(f"draw {n} x {c} of {MANY:,} x {STEPS}", calls, {CACHED: 1.0})
    low, high = SIZE_RANGE
    generator = torch.Generator().manual_seed(2)
    sizes = torch.randint(low, high + 1, (CALLS,), generator=generator).tolist()
    calls = {
        "cadenza": ours_of_sizes(engine, CHUNKS, sizes),
        CACHED: torchrl_of_sizes(data, CHUNKS, sizes),
    }
    name = f"draw {CHUNKS} x c of {MANY:,} x {STEPS}, c in {low} to {high}"
    return [*table, *compared(name, calls, {CACHED: 1.0})]


def length_rows() -> list[Row]:
    """Compare drawing from episodes that differ in length."""
    data = trajectories(MANY, shortest=SHORTEST)
    calls = {"cadenza": ours(filled_engine(data)), CACHED: torchrl(data)}
    name = f"draw {CHUNKS} x {CHUNK_SIZE} of {MANY:,}, lengths {SHORTEST} to {STEPS}"
    return compared(name, calls, {CACHED: 1.0})


def camera_row() -> Row:
    """Compare drawing images."""
    data = trajectories(CAMERA_SLOTS, CAMERA_FIELDS)
    calls = {
        "cadenza": ours_of_sizes(filled_engine(data), CHUNKS, (CHUNK_SIZE,)),
        CACHED: torchrl(data),
    }
    name = f"draw {CHUNKS} x {CHUNK_SIZE} of {CAMERA_SLOTS} x {STEPS} with camera"
    return compared(name, calls, {CACHED: 1.0}, repeats=CAMERA_CALLS)[0]


class CutOut(Dataset):
    """A plain map-style dataset: item i is a random chunk of the i-th episode."""

    def __init__(self, data: Episodes) -> None:
        self.values, self.generator = data.values, torch.Generator().manual_seed(3)

    def __len__(self) -> int:
        return MANY

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        begin = int(torch.randint(STEPS - CHUNK_SIZE + 1, (), generator=self.generator))
        return {k: v[index, begin : begin + CHUNK_SIZE] for k, v in self.values.items()}


def item_row() -> Row:
    """Compare loaders that stack single chunks."""
    data = trajectories(MANY)
    items = OnlineDataset(filled_engine(data), CHUNK_SIZE, select=list(data.values))
    plain = CutOut(data)
    order = RandomSampler(plain, replacement=True, num_samples=2**30)
    mine = iter(DataLoader(items, batch_size=CHUNKS))
    peer = iter(DataLoader(plain, batch_size=CHUNKS, sampler=order))
    calls = {"cadenza": lambda: next(mine), PLAIN: lambda: next(peer)}
    name = f"load {CHUNKS} x {CHUNK_SIZE} of {MANY:,} x {STEPS}, item by item"
    return compared(name, calls, {PLAIN: 1.0})[0]


def compared(
    name: str, calls: Calls, aims: Mapping[str, float], *, repeats: int = CALLS
) -> list[Row]:
    """Time ``calls`` in turn; return ours beside each peer's.

    Args:
        name: What is done.
        calls: Ours, "cadenza", and the peers.
        aims: Least ratio to a peer that we promise.
        repeats: Timed calls of each in a round.
    """
    rounds: dict[str, list[float]] = {peer: [] for peer in calls}
    for _ in range(ROUNDS):
        for peer, call in calls.items():
            rounds[peer].append(measure(call, repeats, warmup=WARMUP).p50)
    times = {peer: median(values) for peer, values in rounds.items()}
    mine = times.pop("cadenza")
    return [
        Row(
            name,
            mine,
            time_us,
            aim=aims.get(peer),
            peer_name=peer,
        )
        for peer, time_us in times.items()
    ]


if __name__ == "__main__":
    print_table((__doc__ or "").splitlines()[0], rows())
