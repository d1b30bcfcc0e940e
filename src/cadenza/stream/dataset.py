"""The stream as a PyTorch dataset that never ends.

Item mode (``batch_size=None``) yields chunks, shape [c], of which it draws many at once; batch mode
yields batches, shape [n, c].
Randomness: every iterator has generators of its own, derived from (seed, worker, epoch), or without
a seed from (number of the dataset, worker, epoch). The epoch counts the iterators that were made
for a worker; the count lies in shared memory, because loaders start new workers with a fresh copy
of the dataset each time.
"""

import multiprocessing
import multiprocessing.synchronize
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from cadenza.core.checks import (
    checked_names,
    checked_optional_integer,
    is_whole,
    require_callable,
    require_instance,
)
from cadenza.core.errors import (
    ConfigurationError,
    ConfigurationTypeError,
    DataPendingError,
    InputError,
    StaleDataError,
)
from cadenza.core.seeding import Substream
from cadenza.stream.batches import chunk_fields, single_chunks, stacked, tensordict_class
from cadenza.stream.chunk_samplers import STREAM_NAME, ChunkSizeSampler
from cadenza.stream.chunk_source import ChunkSource
from cadenza.stream.draw_options import DrawOptions, SamplingMode, Short, Weighting
from cadenza.stream.layout import bytes_of
from cadenza.stream.recording_files import IteratorPlace
from cadenza.stream.shared_file import Tally

if TYPE_CHECKING:
    from tensordict import TensorDict

    Transform = Callable[[TensorDict], TensorDict]


def loader_ends() -> bool:
    """Return whether the loader of this worker has asked its workers to end.

    It does so by an event that is an argument of the worker's process; there is no public way to
    it. Where none is found, the worker waits on.
    """
    arguments = vars(multiprocessing.current_process()).get("_args", ())
    return any(a.is_set() for a in arguments if isinstance(a, multiprocessing.synchronize.Event))


#: Purpose of the streams that choose episodes and offsets.
CHUNK_STREAM_NAME: Final = "stream.dataset"
#: Longest wait of a loader worker for fresh data before it checks whether to stop, s.
WAIT_PIECE_S: Final = 0.25
#: Most chunks, and most bytes of them, that item mode draws at once. It begins with one and
#: doubles, so that whoever takes a few draws hardly more.
BULK_CHUNKS: Final = 64
BULK_BYTES: Final = 2**24


class OnlineDataset(IterableDataset["TensorDict"]):
    """Chunks of a live stream without end; it has no length."""

    def __init__(
        self,
        engine: ChunkSource,
        chunk_size: int | ChunkSizeSampler,
        batch_size: int | None = None,
        transform: "Transform | None" = None,
        sampling_mode: SamplingMode = "episode",
        *,
        weighting: Weighting = "episode",
        short: Short = "exclude",
        stratified: bool = False,
        success: bool | None = None,
        select: Sequence[str] | None = None,
        seed: int | None = None,
        resample_every: int | None = None,
    ) -> None:
        """Describe the chunks.

        Args:
            engine: The stream; must have been started when iteration begins.
            chunk_size: Steps of a chunk, or what draws them.
            batch_size: Chunks of a batch; None yields single chunks, which a loader batches.
            transform: Applied to each chunk or batch; what it returns is yielded.
            sampling_mode: See `DrawOptions`.
            weighting: See there.
            short: See there.
            stratified: See there; batch mode only.
            success: See there.
            select: Keys to return; None returns all.
            seed: Root of all draws of this dataset: equal seeds draw alike, but for the ranks of a
                distributed training, see `Rank`. None draws like no other dataset of this process,
                and in every run alike.
            resample_every: Chunks (item mode) or batches (batch mode) between two draws from a
                `ChunkSizeSampler`. None: each batch; once per iterator in item mode, where chunks
                of different sizes cannot be stacked: there, give a multiple of the loader's batch
                size.

        Raises:
            ConfigurationError: A value is out of range or does not fit the others.
            ConfigurationTypeError: A value is of another type.
            InputError: ``select`` is no list of names.
            UnknownNameError: ``select`` names a key that the stream does not have.
        """
        super().__init__()
        advice = "give an OnlineDataEngine or a RecordedStream"
        require_instance("OnlineDataset.engine", engine, ChunkSource, advice)
        self._engine = engine
        self._longest = engine.max_episode_steps
        self._options = DrawOptions(
            sampling_mode=sampling_mode,
            weighting=weighting,
            short=short,
            stratified=stratified,
            success=success,
        )
        self._chunk_size = _checked_chunk_size(chunk_size, self._longest, self._options)
        self._batch_size = checked_optional_integer("OnlineDataset.batch_size", batch_size)
        if stratified and batch_size is None:
            raise ConfigurationError(
                "OnlineDataset.stratified: expected batch mode, got batch_size=None, which draws "
                "no batches of a size of yours; give batch_size."
            )
        if transform is not None:
            require_callable("OnlineDataset.transform", transform, "a function of a TensorDict")
        self._transform = transform
        self._select = None if select is None else checked_names("OnlineDataset.select", select)
        fields = chunk_fields(engine.layout, self._select).values()
        self._step_bytes = sum(bytes_of(field.shape, field.dtype) for field in fields)
        self._seed = checked_optional_integer("OnlineDataset.seed", seed, least=0)
        every = _checked_interval(resample_every, chunk_size)
        self._every = every if batch_size is None else every or 1
        self._iterators = Tally()
        self._number = engine.next_dataset()

    def __iter__(self) -> "Iterator[TensorDict]":
        """Draw chunks or batches, for ever."""
        tensordict_class()  # from here on a loader of this process knows how to stack them
        info = get_worker_info()
        worker, workers = (0, 0) if info is None else (info.id, info.num_workers)
        epoch = self._iterators.next(worker)
        place = IteratorPlace(dataset=self._number, epoch=epoch, worker=worker, workers=workers)
        source, place = self._engine.begin_iterator(place)
        draw = self._draw if info is None else self._awaited
        try:
            generator = _generator(self._root(CHUNK_STREAM_NAME, self._seed, place), place)
            next_size = self._sizes(place)
            size, yielded, most = next_size(), 0, 1
            drawn: list[TensorDict] = []  # what comes next, last
            while True:
                if self._every is not None and yielded == self._every:
                    size, yielded = next_size(), 0
                if not drawn:
                    left = most if self._every is None else min(most, self._every - yielded)
                    n = self._batch_size or source.bulk(left)
                    batch = draw(source, (n, size), generator)
                    if batch is None:
                        return
                    drawn = [batch] if self._batch_size else single_chunks(batch)[::-1]
                    room = BULK_BYTES // (size * self._step_bytes)
                    most = max(min(2 * most, BULK_CHUNKS, room), 1)
                one = drawn.pop()
                yield one if self._transform is None else self._transform(one)
                yielded += 1
        finally:
            source.end_iterator()

    def _awaited(
        self, source: ChunkSource, size: tuple[int, int], generator: torch.Generator
    ) -> "TensorDict | None":
        """Return the same as `_draw` in a loader worker, None when its loader ends meanwhile.

        A loader gives a waiting worker five seconds before it kills it, so waits are cut in pieces.
        """
        deadline = time.monotonic() + source.draw_timeout
        while True:
            left = max(deadline - time.monotonic(), 0.0)
            try:
                return self._draw(source, size, generator, min(left, WAIT_PIECE_S))
            except (DataPendingError, StaleDataError) as error:
                if loader_ends():
                    return None
                if left <= WAIT_PIECE_S:
                    error.add_note(f"The loader worker waited {source.draw_timeout:g} s.")
                    raise

    def _draw(
        self,
        source: ChunkSource,
        size: tuple[int, int],
        generator: torch.Generator,
        timeout: float | None = None,
    ) -> "TensorDict":
        """Return a batch of ``size``, (n, c)."""
        return source.sample_batch(
            *size,
            sampling_mode=self._options.sampling_mode,
            weighting=self._options.weighting,
            short=self._options.short,
            stratified=self._options.stratified,
            success=self._options.success,
            select=self._select,
            generator=generator,
            timeout=timeout,
        )

    def _root(self, name: str, seed: int | None, place: IteratorPlace) -> Substream:
        """Return the root of all streams of a dataset for one purpose."""
        rank = self._engine.rank()
        if seed is not None:
            return rank.stream(name, seed)
        return rank.stream(f"{name}.unseeded", 0).child(place.dataset)

    def _sizes(self, place: IteratorPlace) -> Callable[[], int]:
        """Return what gives the chunk sizes of one iterator."""
        chunk_size = self._chunk_size
        if not isinstance(chunk_size, ChunkSizeSampler):
            return lambda: chunk_size
        seed = self._seed if chunk_size.seed is None else chunk_size.seed
        root = self._root(STREAM_NAME, seed, place)
        sampler = chunk_size.copy_for(_generator(root, place), self._longest)
        return lambda: self._checked_size(sampler())

    def _checked_size(self, size: int) -> int:
        """Return ``size`` if a chunk may have it; a sampler may be anybody's."""
        if not is_whole(size) or not 1 <= size <= self._longest:
            raise InputError(
                f"OnlineDataset: expected the sampler to return an integer in [1, {self._longest}],"
                f" got {size!r}; correct {type(self._chunk_size).__name__}."
            )
        return int(size)

    @staticmethod
    def collate_fn(batch: "Sequence[TensorDict]") -> "TensorDict":
        """Stack chunks, as a loader in item mode does without it too.

        Args:
            batch: n chunks of equal shape [c].

        Returns:
            Batch of shape [n, c].
        """
        return stacked(batch)

    @staticmethod
    def passthrough_collate_fn(batch: "TensorDict") -> "TensorDict":
        """Return ``batch`` itself, as a loader with ``batch_size=None`` does without it too."""
        return batch


def _generator(root: Substream, place: IteratorPlace) -> torch.Generator:
    """Return the generator of one iterator."""
    words = root.child(place.worker).child(place.epoch).seed_sequence.generate_state(1, np.uint64)
    return torch.Generator().manual_seed(int(words[0]))


def _checked_chunk_size(
    chunk_size: int | ChunkSizeSampler, longest: int, options: DrawOptions
) -> int | ChunkSizeSampler:
    """Return a chunk size that the longest episode and the options allow, or what draws such."""
    if isinstance(chunk_size, ChunkSizeSampler):
        chunk_size.require_within(longest)
        return chunk_size
    if not is_whole(chunk_size):
        raise ConfigurationTypeError(
            f"OnlineDataset.chunk_size: expected an integer or a ChunkSizeSampler, got "
            f"{chunk_size!r}."
        )
    if not 1 <= chunk_size <= longest:
        raise ConfigurationError(
            f"OnlineDataset.chunk_size: expected 1 to {longest} (steps of the longest episode), "
            f"got {chunk_size}."
        )
    options.check_chunk(chunk_size)
    return int(chunk_size)


def _checked_interval(resample_every: int | None, chunk_size: int | ChunkSizeSampler) -> int | None:
    """Return ``resample_every``, which only a sampler has a use for."""
    every = checked_optional_integer("OnlineDataset.resample_every", resample_every)
    if every is not None and not isinstance(chunk_size, ChunkSizeSampler):
        raise ConfigurationError(
            f"OnlineDataset.resample_every: expected a ChunkSizeSampler with it, got the fixed "
            f"chunk size {chunk_size}; leave it out."
        )
    return every
