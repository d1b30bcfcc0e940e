"""What several processes do to one store: they publish no episode too many, and those stopped or
killed at any moment leave a store that goes on: no lock, no torn or stuck slot.
"""

import os
import signal
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial

import numpy as np
import pytest
import torch

from cadenza.stream import slots
from cadenza.stream.back_pressure import may_publish, request_fill
from cadenza.stream.batches import allocate_chunks, chunk_fields
from cadenza.stream.config import FlowRules
from cadenza.stream.layout import Field, StoreLayout
from cadenza.stream.slot_reader import SlotReader
from cadenza.stream.slots import SlotStore
from tests.campaigns import size
from tests.stream_engines import eventually, small_cfg

FIELD = Field(name="stamp", shape=(16,), dtype="int64")
LAYOUT = StoreLayout(slots=6, steps=100, producers=3, fields=(FIELD,))
#: Processes killed one after the other, each after another few milliseconds.
KILLED = size(6, 25)


def write_one(store: SlotStore, producer: int) -> None:
    slot = store.take_slot(producer)
    store.entries("stamp", slot)[:] = store.version[slot]
    store.publish(slot, LAYOUT.steps, success=1, policy_version=0)


def child_repeating(work: Callable[[], object]) -> int:
    """Start a process that repeats ``work`` until it is killed; return its number."""
    child = os.fork()
    if not child:
        try:
            while True:
                work()
        finally:
            os._exit(1)
    return child


def killed_while(
    work: Callable[[], object], done: Callable[[], object], after_s: float = 0.0
) -> None:
    """Let a child repeat ``work``, and kill it ``after_s`` after ``done`` has changed."""
    before = done()
    child = child_repeating(work)
    try:
        eventually(lambda: done() != before, "it works", pause_s=0.001)
        time.sleep(after_s)
    finally:
        os.kill(child, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status == -signal.SIGKILL


@contextmanager
def several(work: Callable[[int], object], count: int) -> Generator[None]:
    """Let ``count`` children, each with its number, repeat ``work`` during the block."""
    children: list[int] = []
    try:
        for number in range(count):
            children.append(child_repeating(partial(work, number)))
        yield
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def published(store: SlotStore) -> int:
    return store.published()


def full_store() -> SlotStore:
    store = SlotStore.create(LAYOUT)
    for _ in range(LAYOUT.slots):
        write_one(store, 0)
    return store


def test_writers_killed_at_any_moment_leave_slots_that_can_be_written() -> None:
    store = full_store()
    reader, generator = SlotReader(store), torch.Generator().manual_seed(0)
    out = allocate_chunks(chunk_fields(LAYOUT), 16, 10)
    for number in range(KILLED):
        killed_while(lambda: write_one(store, 1), lambda: published(store), number * 0.01 / KILLED)
        drawn = reader.draw(16, 10, out, generator)
        stamps = out["stamp"].view(16, -1).numpy()
        np.testing.assert_array_equal(stamps, np.tile(drawn.versions[:, None] - 1, (1, 160)))
        store.drop_leases(1)
        assert not store.lease.any()
    for _ in range(LAYOUT.slots):
        write_one(store, 0)
    assert not (store.version & 1).any()
    assert (store.length == LAYOUT.steps).all()


def test_number_of_an_episode_that_its_killed_producer_did_not_count_is_not_used_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = SlotStore.create(LAYOUT)
    first = store.take_slot(1)

    def die_once_readers_see_the_episode() -> None:
        if not store.version[first] & 1:
            os.kill(os.getpid(), signal.SIGKILL)

    child = os.fork()
    if not child:
        monkeypatch.setattr(slots, "full_fence", die_once_readers_see_the_episode)
        try:
            store.publish(first, 5, success=1, policy_version=0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert (store.length[first], store.published()) == (5, 0)
    store.drop_leases(1)
    for producer in (1, 1, 2, 0, 1):
        write_one(store, producer)
    assert store.number.tolist() == [1, 4, 7, 8, 9, 13]


def test_producers_that_race_for_the_last_place_of_a_fill_do_not_go_beyond_it() -> None:
    store = SlotStore.create(LAYOUT)
    rules = FlowRules.of(small_cfg(buffer_size=3, refill_threshold=1))

    def write(producer: int) -> None:
        slot, may = store.take_slot(producer), partial(may_publish, store, rules)
        while store.publish(slot, 1, success=1, policy_version=0, may_publish=may) is None:
            time.sleep(0.0001 * producer)

    with several(write, 3):
        for fill in range(1, size(40, 150)):
            eventually(lambda wanted=3 * fill: published(store) >= wanted, "a fill")
            time.sleep(0.002)  # for one that comes too late
            assert published(store) == 3 * fill
            assert request_fill(store, rules)
