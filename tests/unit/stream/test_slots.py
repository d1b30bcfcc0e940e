"""Episodes through the store: written, read in chunks, replaced, never seen unfinished."""

import itertools
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from cadenza.core.errors import ConfigurationError, NotReadyError
from cadenza.stream.counters import ConsumerRow
from cadenza.stream.layout import BOOKKEEPING, Field, StoreLayout
from cadenza.stream.slot_reader import SlotReader
from cadenza.stream.slot_writer import EpisodeWriter
from cadenza.stream.slots import AGED_FILLS, PASSED_OVER_DRAWS, SlotStore
from tests.interrupts import interrupted_everywhere
from tests.stream_episodes import FIELDS, fill, new_store, seeded, targets, write_episode


def test_oldest_episode_is_replaced_first_when_the_clock_was_set_back(monkeypatch) -> None:
    store, times_ns = new_store(slots=3), itertools.count(10**18, -(10**9))
    monkeypatch.setattr(time, "time_ns", lambda: next(times_ns))
    for first in range(7):
        write_episode(store, 1, float(first))
    assert sorted(store.number) == [4, 5, 6]


def test_slot_beyond_all_is_refused() -> None:
    store = new_store(slots=1)
    EpisodeWriter(store, store.take_slot(0))
    with pytest.raises(NotReadyError, match="expected a free slot, got 1 slots"):
        EpisodeWriter(store, store.take_slot(0))


def test_slot_that_a_stopped_producer_was_taking_is_left_to_it() -> None:
    store = new_store(slots=3, producers=2)
    store.producers["claim"][1] = 1  # stopped before it looked whether somebody else wants slot 0
    assert [store.take_slot(0), store.take_slot(0)] == [1, 2]
    store.drop_leases(1)  # it was killed
    assert store.take_slot(0) == 0


def test_producers_that_want_the_same_slot_leave_the_worse_ones_alone(monkeypatch) -> None:
    monkeypatch.setattr("cadenza.stream.slots.full_fence", lambda: time.sleep(0))  # others' turn
    producers = 3
    together = threading.Barrier(producers)

    def take(producer: int) -> int:
        together.wait()
        return store.take_slot(producer)

    with ThreadPoolExecutor(producers) as pool:
        for _ in range(30):
            store = new_store(slots=2 * producers, producers=producers)
            unread = {write_episode(store, 1) for _ in range(producers)}
            taken = set(pool.map(take, range(producers)))
            assert taken == set(range(2 * producers)) - unread


def test_episode_of_a_stopped_producer_is_none_of_the_others_places() -> None:
    store = new_store(slots=4, producers=2)
    asked: list[int] = []

    def one_of_three(published: int) -> bool:
        asked.append(published)
        return published < 3

    writers = [EpisodeWriter(store, store.take_slot(0)) for _ in range(3)]
    for writer in writers:
        fill(writer, 1, 0.0)
    store.producers["publishing"][1] = 1  # stopped in the middle of it
    assert [w.publish(may_publish=one_of_three) is None for w in writers] == [False, False, True]
    assert asked == [1, 2, 3]
    store.drop_leases(1)  # it was killed
    assert writers[2].publish(may_publish=one_of_three) == 2 * 2
    assert store.published() == 3


def test_episode_is_counted_when_it_can_be_read_and_its_steps_are_counted() -> None:
    store = new_store(slots=1)
    table = store.producers

    def publish() -> None:
        table["episodes"][0] = table["frames"][0] = 0
        store.lease[0], store.version[0], store.length[0] = 1, 1, 0
        store.publish(0, 4, success=1, policy_version=0)

    counted = 0
    for _ in interrupted_everywhere(publish, SlotStore.__module__, anywhere=True):
        if store.published():
            counted += 1
            assert (store.version[0], store.length[0]) == (2, 4)
            assert store.published_frames() == 4
    assert counted > 0


def test_most_drawn_episode_is_replaced_first_when_told() -> None:
    store = new_store(slots=3)
    slots = [write_episode(store, 1, first) for first in (1.0, 2.0, 3.0)]
    store.draws[slots] = [4, 7, 7]
    assert store.take_slot(0, reuse="most_drawn") == slots[1]  # the older of the two
    store.drop(slots[1])
    store.draws[slots[1]] = 0
    assert store.take_slot(0, reuse="most_drawn") == slots[1]  # empty ones come first
    assert store.take_slot(0) == slots[0]


def test_episode_of_a_producer_that_was_held_up_is_spared_until_it_was_read() -> None:
    store = new_store(slots=4, producers=2)
    held_up, quick = (EpisodeWriter(store, store.take_slot(p)) for p in (0, 1))
    for writer in (held_up, quick):
        fill(writer, 1, 0.0)

    def while_others_publish(_: int) -> bool:
        quick.publish()
        for _ in range(2):
            fill(again := EpisodeWriter(store, store.take_slot(1)), 1, 0.0)
            again.publish()
        store.draws[store.length > 0] = 1  # what has come so far was read
        return True

    assert held_up.publish(may_publish=while_others_publish) == 0
    assert store.number[held_up.slot] == store.number[store.number >= 0].min()
    assert store.take_slot(0, spare_unread=True) == quick.slot
    assert store.take_slot(0) == held_up.slot


def test_episodes_that_draws_pass_over_are_replaced_before_the_most_drawn() -> None:
    store = new_store(slots=4, steps=9)
    slots = [write_episode(store, length) for length in (9, 2, 9, 3)]
    store.draws[slots[0]] = 9
    SlotReader(store).look(5)
    assert store.take_slot(0, reuse="most_drawn") == slots[1]  # the older of the two short ones
    assert store.take_slot(0, reuse="most_drawn") == slots[3]
    assert store.take_slot(0, reuse="most_drawn") == slots[0]


def test_episode_of_four_fills_ago_is_replaced_before_the_most_drawn() -> None:
    store = new_store(slots=2)
    old, drawn = write_episode(store, 1), write_episode(store, 1)
    store.draws[[old, drawn]] = 1, 99
    store.producers["episodes"][0] = AGED_FILLS * 2
    assert store.take_slot(0, reuse="most_drawn") == drawn
    store.drop(drawn)
    write_episode(store, 1)
    store.draws[drawn] = 99
    assert store.published() - store.number[old] == AGED_FILLS * 2 + 1
    assert store.take_slot(0, reuse="most_drawn") == old


def test_note_of_windows_says_nothing_of_the_next_episode() -> None:
    store = new_store(slots=1)
    slot = np.array([write_episode(store, 2)])
    store.note_windows(slot, store.version[slot], np.array([0]))
    assert store.passed_over().tolist() == [True]
    late = store.version[slot]
    write_episode(store, 2)
    assert store.passed_over().tolist() == [False]
    store.note_windows(slot, late, np.array([0]))
    assert store.passed_over().tolist() == [False]


def test_draws_that_cannot_have_seen_an_episode_do_not_pass_it_over() -> None:
    store = new_store(slots=2, steps=5)
    write_episode(store, 5)
    first, second = ConsumerRow(store), SlotReader(store)
    many = PASSED_OVER_DRAWS * 2
    early = second.draw(many, 3, targets(store, many, 3), seeded())
    first.note_begun(many)
    late = write_episode(store, 5)
    first.note(early, 3)
    assert not store.passed_over()[late]  # nobody has looked
    first.note_begun(many)
    SlotReader(store).look(3)  # another process; the first one's next draw is under way
    first.note(early, 3)
    assert not store.passed_over()[late]
    first.note(early, 3)
    assert store.passed_over()[late]
    SlotReader(store).look(2)  # a later look does not begin anew
    assert store.passed_over()[late]


def test_replaced_episode_starts_without_draws() -> None:
    store = new_store(slots=1)
    store.draws[write_episode(store, 1)] = 5
    assert store.draws[write_episode(store, 1)] == 0


def test_slot_left_odd_by_a_dead_writer_stays_closed_while_written_again() -> None:
    store = new_store(slots=1)
    slot = write_episode(store, 2)
    store.version[slot] += 1  # died in the middle of publishing, the lease already given up
    assert store.take_slot(0) == slot
    assert store.version[slot] % 2 == 1
    with pytest.raises(NotReadyError, match="got none"):
        SlotReader(store).draw(1, 1, targets(store, 1, 1), seeded())


def test_arrays_begin_at_cache_lines_and_do_not_overlap() -> None:
    layout = new_store(slots=3, steps=7).layout
    end = 0
    for place in layout.places().values():
        assert place.offset % 64 == 0
        assert place.offset >= end
        end = place.offset + int(np.prod(place.shape)) * np.dtype(place.dtype).itemsize
    assert layout.nbytes == end


def test_layouts_that_cannot_be_are_refused() -> None:
    sizes = {"slots": 1, "steps": 1, "producers": 1}
    for name in sizes:
        with pytest.raises(ConfigurationError, match=f"StoreLayout.{name}: expected >= 1, got 0"):
            StoreLayout(**{**sizes, name: 0}, fields=FIELDS)
    with pytest.raises(ConfigurationError, match="expected distinct names"):
        StoreLayout(**sizes, fields=(*BOOKKEEPING, BOOKKEEPING[0]))
    for name in ("", "obs..state", 3):
        with pytest.raises(ConfigurationError, match=r"expected names like 'obs' or 'obs\.state'"):
            StoreLayout(**sizes, fields=(Field(name=name, shape=(), dtype="bool"),))
    for name in ("valid", "next.obs"):
        with pytest.raises(ConfigurationError, match=f"expected names other than .*'{name}'"):
            StoreLayout(**sizes, fields=(Field(name=name, shape=(), dtype="bool"),))
