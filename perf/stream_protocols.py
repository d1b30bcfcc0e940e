"""What the stream is compared with: TorchRL's memory, and two older protocols.

Both protocols are written here from their description: a ring with one locked window whose readers
take rows and offsets without asking how long an episode is ("window ring"), and the same with a
mask of valid steps, scanned for windows under a lock that is held until the copy is done ("locked
scan").
"""

import itertools
import multiprocessing
from collections.abc import Callable, Iterator, Sequence

import torch
from tensordict import TensorDict
from torch.utils.data import IterableDataset
from torchrl.data import LazyTensorStorage, SliceSampler, TensorDictReplayBuffer

from perf.stream_stores import CHUNK_SIZE, CHUNKS, STEPS, Episodes

CACHED, UNCACHED = "TorchRL, cached", "TorchRL, uncached"
RING, SCAN = "window ring", "locked scan"


def torchrl_memory(
    episodes: Episodes, n: int = CHUNKS, c: int = CHUNK_SIZE, *, cached: bool = True
) -> TensorDictReplayBuffer:
    """Return TorchRL's memory with ``episodes``, which draws ``n`` slices of ``c`` steps."""
    slots = len(episodes.lengths)
    stored = torch.arange(STEPS) < episodes.lengths[:, None]
    flat = {name: values[stored] for name, values in episodes.values.items()}
    flat["episode"] = torch.arange(slots).repeat_interleave(episodes.lengths)
    count = int(episodes.lengths.sum())
    memory = TensorDictReplayBuffer(
        storage=LazyTensorStorage(count),
        sampler=SliceSampler(slice_len=c, traj_key="episode", cache_values=cached),
        batch_size=n * c,
    )
    memory.extend(TensorDict(flat, [count]))
    return memory


def torchrl(
    episodes: Episodes, n: int = CHUNKS, c: int = CHUNK_SIZE, *, cached: bool = True
) -> Callable[[], object]:
    """Return a draw of slices from TorchRL's memory, as (n, c)."""
    memory = torchrl_memory(episodes, n, c, cached=cached)
    return lambda: memory.sample().view(n, c)


def torchrl_of_sizes(episodes: Episodes, n: int, sizes: Sequence[int]) -> Callable[[], object]:
    """Return a draw of ``n`` slices of ``sizes`` in turn from TorchRL's memory, cached."""
    memory = torchrl_memory(episodes, n)
    turn = itertools.cycle(sizes)

    def draw() -> object:
        c = next(turn)
        memory.sampler.slice_len = c
        return memory.sample(n * c).view(n, c)

    return draw


class TorchrlDataset(IterableDataset[TensorDict]):
    """Batches from TorchRL's memory without end; every loader worker has the memory for itself."""

    def __init__(self, episodes: Episodes) -> None:
        self._memory = torchrl_memory(episodes)

    def __iter__(self) -> Iterator[TensorDict]:
        """Draw batches, for ever."""
        while True:
            yield self._memory.sample().view(CHUNKS, CHUNK_SIZE)


class WindowRing:
    """Rows outside one window, any offset that fits the ring; nothing is checked afterwards."""

    def __init__(self, episodes: Episodes) -> None:
        self.data = TensorDict(dict(episodes.values), [len(episodes.lengths), STEPS])
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

    def __init__(self, episodes: Episodes) -> None:
        rows = len(episodes.lengths)
        valid = torch.arange(STEPS) < episodes.lengths[:, None]
        self.data = TensorDict({**episodes.values, "valid": valid}, [rows, STEPS])
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
