"""Draws chunks from a running engine, for one process of it.

Steps:  wait until the data is fresh enough, draw, count, and ask for a fill when one is due.
Axes:   n = chunks, c = steps of a chunk.
"""

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch

from cadenza.core.errors import InputError
from cadenza.core.seeding import derive_substream
from cadenza.stream.argument_checks import generator_fault, is_integer
from cadenza.stream.back_pressure import FlowRules, request_fill_if_due, wait_until_fresh
from cadenza.stream.batches import chunk_targets, moved_batch
from cadenza.stream.chunk_batch import nested_batch
from cadenza.stream.chunk_source import DrawRequest
from cadenza.stream.config import OnlineDataEngineCfg
from cadenza.stream.counters import ConsumerRow
from cadenza.stream.recorded_draws import ChunkReader, RecordingReader
from cadenza.stream.serving import ServingCheck
from cadenza.stream.slot_reader import SlotReader
from cadenza.stream.slots import SlotStore

if TYPE_CHECKING:
    from tensordict import TensorDict


class LiveDraws:
    """What one process draws; every process that was given the engine makes its own."""

    def __init__(self, store: SlotStore, cfg: OnlineDataEngineCfg) -> None:
        """Draw from ``store``.

        Args:
            store: Where episodes are.
            cfg: Checked settings.
        """
        self._store = store
        self._rules = FlowRules.of(cfg)
        self._seed = cfg.seed
        self._timeout = cfg.draw_timeout
        self._device = torch.device(cfg.buffer_device)
        self._serving = ServingCheck(store)
        self._reader: ChunkReader = SlotReader(store)
        self._consumer = ConsumerRow(store)
        self._generators: dict[tuple[int, int], torch.Generator] = {}

    def draw(self, request: DrawRequest) -> "TensorDict":
        """Draw chunks, see `ChunkSource.sample_batch`."""
        options, timeout = request.options, request.timeout
        size = _checked_size(request.size, self._store.layout.steps)
        _check_source(request.generator, timeout)
        self._serving.require()
        wait_until_fresh(
            self._store,
            self._rules,
            size[0],
            timeout=self._timeout if timeout is None else timeout,
            check=self._serving.require,
            note=self._consumer.note_blocked,
        )
        landing = request.out if self._device.type == "cpu" else None
        targets = chunk_targets(self._store.layout, size, options, request.select, landing)
        drawn = self._reader.draw(
            *size, targets, request.generator or self._own_generator(), options
        )
        self._consumer.note(drawn, size[1])
        request_fill_if_due(self._store, self._rules)
        if landing is not None:
            return landing
        return moved_batch(nested_batch(targets, size), self._device, request.out)

    @contextmanager
    def recording(self, folder: str | Path) -> Generator[None]:
        """Write down every draw in the block, see `OnlineDataEngine.recording`."""
        before = self._reader
        recorder = self._reader = RecordingReader(before, self._store, folder)
        try:
            yield
        finally:
            self._reader = before
            recorder.close()

    def _own_generator(self) -> torch.Generator:
        """Return the generator of this process and loader worker."""
        worker = torch.utils.data.get_worker_info()
        number = 0 if worker is None else worker.id + 1
        key = (os.getpid(), number)
        if key not in self._generators:
            stream = derive_substream("stream.engine.draws", root_seed=self._seed)
            # Processes are told apart by their row of counters, which no two of them share.
            seed = stream.child(self._consumer.row).child(number).integer_seed()
            self._generators = {key: torch.Generator().manual_seed(seed)}
        return self._generators[key]


def _check_source(generator: object, timeout: object) -> None:
    fault = None if generator is None else generator_fault(generator)
    if fault is not None:
        raise InputError(f"sample_batch: generator: {fault}.")
    is_number = isinstance(timeout, int | float) and not isinstance(timeout, bool)
    if timeout is not None and not (is_number and cast("float", timeout) >= 0.0):
        raise InputError(
            f"sample_batch: expected timeout to be a number of seconds >= 0, got {timeout!r}."
        )


def _checked_size(size: tuple[int, int], longest: int) -> tuple[int, int]:
    """Return (n, c) as plain integers; callers may not be typed."""
    for name, value in zip(("batch_size", "chunk_size"), size, strict=True):
        if not is_integer(value) or value < 1:
            raise InputError(f"sample_batch: expected {name} to be an int >= 1, got {value!r}.")
    n, c = int(size[0]), int(size[1])
    if c > longest:
        raise InputError(
            f"sample_batch: expected chunk_size <= max_episode_steps = {longest}, got {c}."
        )
    return n, c
