"""What datasets, rings of batches and recordings need from a stream: chunks on request.

`OnlineDataEngine` offers it live, `RecordedStream` from a folder.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from cadenza.stream.draw_options import DEFAULT_OPTIONS, DrawOptions, SamplingMode, Short, Weighting
from cadenza.stream.layout import StoreLayout
from cadenza.stream.processes import ALONE, Rank
from cadenza.stream.recording_files import IteratorPlace

if TYPE_CHECKING:
    from tensordict import TensorDict


class DrawRequest(NamedTuple):
    """What `ChunkSource.sample_batch` was asked for; values are not checked yet."""

    size: tuple[int, int]
    options: DrawOptions
    select: Sequence[str] | None
    out: Any
    generator: torch.Generator | None
    timeout: float | None


class ChunkSource(ABC):
    """Gives batches of chunks; processes may share it."""

    #: Datasets that this process made over the stream.
    _datasets: int = 0

    @property
    @abstractmethod
    def layout(self) -> StoreLayout:
        """Sizes of its store, and the fields that chunks are cut from."""

    def rank(self) -> Rank:
        """Return the rank whose random streams draws of this process belong to."""
        return Rank.here(ALONE)

    @property
    def max_episode_steps(self) -> int:
        """Steps that an episode may have, T."""
        return self.layout.steps

    @property
    @abstractmethod
    def draw_timeout(self) -> float:
        """Longest wait of a draw for fresh data, s."""

    def bulk(self, most: int) -> int:
        """Return how many chunks, ``most`` at most, to draw at once for users of single ones."""
        return most

    def next_dataset(self) -> int:
        """Return how many datasets this process made over the stream, and count one more."""
        number = self._datasets
        self._datasets = number + 1
        return number

    def begin_iterator(self, place: IteratorPlace) -> "tuple[ChunkSource, IteratorPlace]":
        """Begin an iterator of a dataset.

        Return what it draws from, and the place that its random streams belong to: in a replay that
        of the iterator that was recorded.

        Raises:
            InputError: The iterator was recorded with another number of loader workers.
            NotReadyError: It was not recorded, or its worker started before the recording.
            IntegrityError: Its recording is missing or damaged.
            StorageError: The file system refused a recording.
        """
        return self, place

    def end_iterator(self) -> None:  # noqa: B027 -- most sources have nothing to end
        """End the iterator that draws from this; an engine that several draw from goes on."""

    def sample_batch(
        self,
        batch_size: int,
        chunk_size: int,
        sampling_mode: SamplingMode = "episode",
        *,
        weighting: Weighting = "episode",
        short: Short = "exclude",
        stratified: bool = False,
        success: bool | None = None,
        select: Sequence[str] | None = None,
        out: "TensorDict | None" = None,
        generator: torch.Generator | None = None,
        timeout: float | None = None,
    ) -> "TensorDict":
        """Draw [n, c] chunks; a recording gives its next batch and can be asked for no other.

        Args:
            batch_size: Chunks, n.
            chunk_size: Steps of each, c.
            sampling_mode: See `DrawOptions`, like the four that follow.
            weighting: See there.
            short: See there.
            stratified: See there.
            success: See there.
            select: Keys to return; None returns those stored, and ``valid``.
            out: Batch to write into and return, shape [n, c]; None makes a new one.
            generator: Source of the draws; None takes one that this process owns.
            timeout: Longest wait for data, s; None takes ``draw_timeout``.

        Raises:
            InputError: A size is out of range, or another batch was recorded.
            NotReadyError: The engine is not serving, or every recorded batch was returned.
            DataPendingError: No episode that is long enough came in time, or, while draws are
                recorded, none that stayed until it was written down.
            StaleDataError: Fresh data did not come in time.
            OnlineDataWorkerError: The engine failed.
            IntegrityError: A recorded episode is missing or damaged.
        """
        options = DEFAULT_OPTIONS
        if (
            sampling_mode is not options.sampling_mode
            or weighting is not options.weighting
            or short is not options.short
            or stratified is not options.stratified
            or success is not None
        ):
            options = DrawOptions(
                sampling_mode=sampling_mode,
                weighting=weighting,
                short=short,
                stratified=stratified,
                success=success,
            )
        size = (batch_size, chunk_size)
        return self._draw(DrawRequest(size, options, select, out, generator, timeout))

    @abstractmethod
    def _draw(self, request: DrawRequest) -> "TensorDict":
        """Do what `sample_batch` says."""
