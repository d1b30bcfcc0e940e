"""Stand-ins for the protocols of the package, one per protocol."""

import time
from dataclasses import asdict
from typing import Any

import torch
from tensordict import TensorDict

from cadenza.core.errors import StaleDataError
from cadenza.stream.chunk_source import ChunkSource, DrawRequest
from cadenza.stream.layout import Field, StoreLayout


class FakeChunkSource(ChunkSource):
    """A source whose chunks tell where they come from.

    Chunk i is ``start_i, start_i + 1, ...`` under "step", with a random ``start_i``; "obs" holds
    each step three times.

    Attributes:
        max_episode_steps: Longest chunk.
        draw_timeout: Longest wait, s.
        wait_s: How long fresh data takes to come.
        calls: Arguments of every call.
    """

    max_episode_steps = 50
    draw_timeout = 30.0

    def __init__(self, max_episode_steps: int = 50) -> None:
        self.max_episode_steps = max_episode_steps
        self.wait_s = 0.0
        self.calls: list[dict[str, Any]] = []

    @property
    def layout(self) -> StoreLayout:
        """The keys that chunks have, as the store of an engine tells them."""
        fields = (
            Field(name="step", shape=(), dtype="int64"),
            Field(name="obs", shape=(3,), dtype="float64"),
        )
        return StoreLayout(slots=1, steps=self.max_episode_steps, producers=1, fields=fields)

    def _draw(self, request: DrawRequest) -> TensorDict:
        (batch_size, chunk_size), select, out = request.size, request.select, request.out
        sizes = {"batch_size": batch_size, "chunk_size": chunk_size}
        self.calls.append({**sizes, "select": select, **asdict(request.options)})
        longest = self.draw_timeout if request.timeout is None else request.timeout
        time.sleep(min(self.wait_s, longest))
        if self.wait_s > longest:
            raise StaleDataError(f"expected fresh data within {longest:g} s")
        start = torch.randint(0, 2**40, (batch_size, 1), generator=request.generator)
        step = start + torch.arange(chunk_size)
        values = {"step": step, "obs": step[..., None].expand(-1, -1, 3).to(torch.float64)}
        kept = {name: value for name, value in values.items() if select is None or name in select}
        made = TensorDict(kept, [batch_size, chunk_size])
        return made if out is None else out.update_(made)
