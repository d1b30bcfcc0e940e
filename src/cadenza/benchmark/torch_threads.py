"""One torch thread for small networks: faster than several, and sums keep one order everywhere."""

from collections.abc import Generator
from contextlib import contextmanager

import torch


@contextmanager
def single_torch_thread() -> Generator[None]:
    """Keep torch to one thread inside the block, whatever the environment asks for."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
