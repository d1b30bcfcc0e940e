"""What datasets, rings of batches and recordings need from a stream: chunks on request.

`OnlineDataEngine` offers it live, `RecordedStream` from a folder.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import torch

from cadenza.stream.draw_options import SamplingMode, Short, Weighting

if TYPE_CHECKING:
    from tensordict import TensorDict


class ChunkSource(Protocol):
    """Gives batches of chunks; processes may share it."""

    @property
    def max_episode_steps(self) -> int:
        """Steps of the longest episode it can hold, T."""
        ...

    @property
    def draw_timeout(self) -> float:
        """Longest wait of a draw for fresh data, s."""
        ...

    def sample_batch(
        self,
        batch_size: int,
        chunk_size: int,
        *,
        sampling_mode: SamplingMode = "episode",
        weighting: Weighting = "episode",
        short: Short = "exclude",
        stratified: bool = False,
        select: Sequence[str] | None = None,
        out: "TensorDict | None" = None,
        generator: torch.Generator | None = None,
        timeout: float | None = None,
    ) -> "TensorDict":
        """Draw chunks.

        Args:
            batch_size: Chunks, n.
            chunk_size: Steps of each, c.
            sampling_mode: See `DrawOptions`, like the three that follow.
            weighting: See there.
            short: See there.
            stratified: See there.
            select: Keys to return; None returns all.
            out: Batch to write into and return, shape [n, c]; None makes a new one.
            generator: Source of the draws; None takes the source's own.
            timeout: Longest wait for fresh data, s; None takes ``draw_timeout``.

        Returns:
            Batch of shape [n, c].

        Raises:
            StaleDataError: Fresh data did not come in time.
        """
        ...
