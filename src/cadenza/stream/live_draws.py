"""Draws chunks from a running engine, for one process of it.

Steps:  wait until the data is fresh enough, draw, count, and ask for a fill when one is due.
Worker: a loader's iterator records its draws in a folder of its own below the recording of the
        loader's process, so workers never wait for one another.
Axes:   n = chunks, c = steps of a chunk.
"""

import os
import time
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from cadenza.core.checks import whole_number
from cadenza.core.device import generator_fault
from cadenza.core.errors import DataPendingError, InputError
from cadenza.core.recordings import WORKERS_FOLDER
from cadenza.stream.back_pressure import (
    POLL_S,
    request_fill_if_due,
    request_fill_unless_running,
    wait_until_fresh,
)
from cadenza.stream.batches import Batches
from cadenza.stream.chunk_source import ChunkSource, DrawRequest
from cadenza.stream.config import FlowRules, OnlineDataEngineCfg
from cadenza.stream.counters import ConsumerRow
from cadenza.stream.layout import StoreLayout
from cadenza.stream.policy_board import PolicyBoard
from cadenza.stream.processes import Rank
from cadenza.stream.recorded_draws import RecordingReader
from cadenza.stream.recording_files import IteratorPlace, RecordingSession
from cadenza.stream.serving import ServingCheck
from cadenza.stream.slot_reader import SlotReader
from cadenza.stream.slots import SlotStore
from cadenza.stream.windows import DrawnChunks

if TYPE_CHECKING:
    from tensordict import TensorDict


class LiveDraws:
    """What one process draws; every process that was given the engine makes its own.

    Threads draw side by side, and count one after the other.
    """

    def __init__(self, store: SlotStore, cfg: OnlineDataEngineCfg, rank: Rank) -> None:
        """Draw from ``store`` as the checked settings say; ``rank`` is that of the giving process.

        The engine ends its producers as soon as nobody holds it, so nothing here may hold it.
        """
        self._store = store
        self._rules = FlowRules.of(cfg)
        self._seed, self._rank = cfg.seed, rank
        self._timeout = cfg.draw_timeout
        self._batches = Batches(store.layout, torch.device(cfg.buffer_device))
        self._serving = ServingCheck(store)
        self._slots = SlotReader(store)
        self._reader: SlotReader | RecordingReader = self._slots
        self._consumer = ConsumerRow(store)
        self._counting = store.counting
        self._generators: dict[int, torch.Generator] = {}

    def draw(self, request: DrawRequest) -> "TensorDict":
        """Draw chunks, see `ChunkSource.sample_batch`."""
        size = _checked_size(request.size, self._store.layout.steps)
        _check_source(request.generator, request.timeout)
        self._serving.require()
        targets = self._batches.targets(size, request.options, request.select, request.out)
        landed = self._batches.landing(size, targets)
        with self._counting.here():
            self._consumer.note_begun(size[0])
        try:
            drawn = self._drawn(size, landed, request)
            with self._counting.here():
                self._consumer.note(drawn, size[1])
        except BaseException:
            with self._counting.here():
                self._consumer.note_given_up(self._rules.buffer_size)
            raise
        request_fill_if_due(self._store, self._rules, self._consumer.row)
        return self._batches.batch(targets, landed, size, request.out)

    def _drawn(
        self, size: tuple[int, int], targets: Mapping[str, Tensor], request: DrawRequest
    ) -> DrawnChunks:
        """Draw once there are chunks and they are fresh enough."""
        timeout = self._timeout if request.timeout is None else request.timeout
        generator = request.generator or self._own_generator()
        began = time.monotonic()
        left = timeout
        while True:
            wait_until_fresh(
                self._store,
                self._rules,
                size[0],
                row=self._consumer.row,
                timeout=left,
                check=self._serving.require,
                note=self._note_blocked,
                look=lambda: self._slots.look(size[1], request.options),
            )
            tried = time.monotonic_ns()
            try:
                return self._reader.draw(*size, targets, generator, request.options)
            except DataPendingError as error:
                # A draw that cannot be served counts nothing, and so asks for nothing by itself.
                request_fill_unless_running(self._store, self._rules, self._consumer.row)
                # Tells producers at once that a draw waits, and counts an attempt in vain.
                self._note_blocked(time.monotonic_ns() - tried)
                left = timeout - (time.monotonic() - began)
                if left <= 0.0:
                    if request.timeout is None:
                        error.add_note(f"The draw waited {timeout:g} s for it.")
                    raise
            self._serving.require()
            before = time.monotonic_ns()
            time.sleep(POLL_S)
            self._note_blocked(time.monotonic_ns() - before)

    def publish(self, board: PolicyBoard, version: int, weights: Mapping[str, Any]) -> None:
        """Put weights on the board, and tell producers of them, in this process's place."""
        row = self._consumer.row
        board.write(version, weights, row)
        table = self._store.consumers["published"]
        table[row] = max(int(table[row]), version)  # another thread may have published a later one

    def _note_blocked(self, duration_ns: int, chunks: int = 0) -> None:
        with self._counting.here():
            self._consumer.note_blocked(duration_ns, chunks)

    @contextmanager
    def recording(self, folder: str | Path, *, durable: bool = True) -> Generator[RecordingReader]:
        """Write down every draw in the block, see `OnlineDataEngine.recording`."""
        before = self._reader
        recorder = RecordingReader(
            before, self._store, folder, durable=durable, rank=Rank.here(self._rank)
        )
        try:
            self._reader = recorder
            yield recorder
        finally:
            self._reader = before
            recorder.close()

    def _own_generator(self) -> torch.Generator:
        """Return the generator of this process and loader worker."""
        pid = os.getpid()
        generator = self._generators.get(pid)
        if generator is not None:
            return generator
        worker = torch.utils.data.get_worker_info()
        number = 0 if worker is None else worker.id + 1
        stream = Rank.here(self._rank).stream("stream.engine.draws", self._seed)
        # Processes are told apart by their row of counters, which no two of them share.
        seed = stream.child(self._consumer.row).child(number).integer_seed()
        # Threads that come first at once share what one of them has put in, and so draw no twins.
        return self._generators.setdefault(pid, torch.Generator().manual_seed(seed))


def _check_source(generator: object, timeout: object) -> None:
    fault = None if generator is None else generator_fault(generator)
    if fault is not None:
        raise InputError(f"sample_batch: generator: {fault}.")
    if timeout is None:
        return
    is_number = isinstance(timeout, int | float) and not isinstance(timeout, bool)
    if not (is_number and cast("float", timeout) >= 0.0):
        raise InputError(
            f"sample_batch: expected timeout to be a number of seconds >= 0, got {timeout!r}."
        )


def _checked_size(size: tuple[int, int], longest: int) -> tuple[int, int]:
    """Return (n, c) as plain integers; callers may not be typed."""
    n, c = size
    n = whole_number("sample_batch.batch_size", n, least=1)
    c = whole_number("sample_batch.chunk_size", c, least=1)
    if c > longest:
        raise InputError(
            f"sample_batch: expected chunk_size <= max_episode_steps = {longest}, got {c}."
        )
    return n, c


class WorkerDraws(ChunkSource):
    """Draws from the engine for one iterator."""

    def __init__(
        self,
        engine: ChunkSource,
        draws: LiveDraws,
        session: RecordingSession,
        place: IteratorPlace,
    ) -> None:
        """Begin to draw for the iterator at ``place``; nobody else has ``draws``.

        Raises:
            NotReadyError: A recording began after this worker.
            StorageError: The file system refused.
        """
        self._engine = engine
        self._draws = draws
        self._session = session
        self._recording = ExitStack()
        self._running = session.running
        if self._running:
            folder = session.folder(self._running) / WORKERS_FOLDER / place.folder
            self._recording.enter_context(draws.recording(folder, durable=False))

    @property
    def layout(self) -> StoreLayout:
        """Sizes and fields of the engine's store."""
        return self._engine.layout

    @property
    def draw_timeout(self) -> float:
        """Longest wait of a draw for fresh data, s."""
        return self._engine.draw_timeout

    def bulk(self, most: int) -> int:
        """Return how many chunks to draw at once, see `ChunkSource.bulk`."""
        return self._engine.bulk(most)

    def end_iterator(self) -> None:
        """End the iterator's recording, if it has one."""
        self._recording.close()

    def _draw(self, request: DrawRequest) -> "TensorDict":
        running = self._session.running
        if running != self._running:
            if running:  # raises: it began after the iterator
                self._session.folder(running)
            self._recording.close()
            self._running = running
        return self._draws.draw(request)
