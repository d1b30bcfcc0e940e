"""Who waits for whom, from counts set by hand."""

import time
from typing import Any

import pytest

from cadenza.core.errors import InputError, NotReadyError, StaleDataError
from cadenza.stream.back_pressure import (
    WAITING_NS,
    fills_asked,
    may_publish,
    request_fill,
    request_fill_if_due,
    request_fill_if_passed,
    request_fill_unless_running,
    stale_reason,
    unread_episodes,
    wait_until_fresh,
)
from cadenza.stream.config import FlowRules
from cadenza.stream.counters import ConsumerRow
from cadenza.stream.layout import BOOKKEEPING, StoreLayout
from cadenza.stream.slot_reader import SlotReader
from cadenza.stream.slots import LARGEST, SlotStore, StreamWords, saturating_sum
from tests.stream_episodes import new_store, write_episode


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let time stand still, whatever the machine does; its only entry is now, ns."""
    now = [time.monotonic_ns()]
    monkeypatch.setattr(time, "monotonic_ns", lambda: now[0])
    return now


@pytest.fixture
def store() -> SlotStore:
    return SlotStore.create(StoreLayout(slots=5, steps=9, producers=1, fields=BOOKKEEPING))


def rules(**changes: Any) -> FlowRules:
    """Return the rules of a buffer of four episodes that is filled on demand."""
    settings: dict[str, Any] = {
        "buffer_size": 4,
        "mode": "on_demand",
        "refill_threshold": 2,
        "max_replay_ratio": None,
        "min_fresh_fraction": None,
        "high_water": None,
    }
    return FlowRules(**(settings | changes))


def fill(store: SlotStore, episodes: int, frames: int = 10) -> None:
    """Set the counts of ``episodes`` published episodes with ``frames`` steps together."""
    store.producers["episodes"][0] = episodes
    store.producers["frames"][0] = frames
    store.length[: min(episodes, 5)] = 3


def may_go_on(store: SlotStore, flow: FlowRules) -> bool:
    """Return whether a producer that nobody publishes beside may publish."""
    return may_publish(store, flow, store.published())


def wait(store: SlotStore, flow: FlowRules, chunks: int, **changes: Any) -> None:
    """Wait as a draw of ``chunks`` does, for at most 90 s."""

    def nothing(*_: int) -> None:
        pass

    calls: dict[str, Any] = {"timeout": 90.0, "check": nothing, "note": nothing, "look": nothing}
    wait_until_fresh(store, flow, chunks, **(calls | changes))


def test_first_fill_counts_episodes_that_others_publish(store) -> None:
    fill(store, 2)
    assert may_publish(store, rules(), 2 + 1)
    assert not may_publish(store, rules(), 2 + 2)
    assert may_publish(store, rules(mode="continuous"), 2 + 2)


def test_only_one_fill_waits_behind_the_running_one(store) -> None:
    fill(store, 4)
    assert request_fill(store, rules())
    assert request_fill(store, rules())
    assert not request_fill(store, rules())
    assert fills_asked(store).to_fill == 12
    assert fills_asked(store).requests == 2
    fill(store, 8)  # the first is done, the second runs, a third may wait
    assert request_fill(store, rules())


def test_fill_is_due_at_the_threshold_and_not_before(store) -> None:
    fill(store, 4)
    store.consumers["chunks"][0] = 3
    store.consumers["chunks"][7] = 4
    assert not request_fill_if_due(store, rules())  # 7 < 2 * 4
    store.consumers["chunks"][7] = 5
    assert not request_fill_if_due(store, rules(mode="continuous"))
    assert request_fill_if_due(store, rules())
    assert fills_asked(store).drawn_at == 8
    assert not request_fill_if_due(store, rules())


@pytest.mark.parametrize("mode", ["on_demand", "fixed_ratio"])
def test_fill_is_due_when_the_last_one_was_read_whole(store, mode) -> None:
    fill(store, 4)
    store.consumers["passed"][0] = 2
    store.consumers["passed"][5] = 1
    assert not request_fill_if_passed(store, rules())  # 3 < 4
    store.consumers["passed"][5] = 2
    assert not request_fill_if_passed(store, rules(mode="continuous"))
    assert request_fill_if_passed(store, rules(mode=mode, max_replay_ratio=2.0))
    assert fills_asked(store).passed_at == 4
    assert not request_fill_if_passed(store, rules())
    store.consumers["passed"][0] = 6
    store.consumers["chunks"][0] = 8
    assert request_fill_if_due(store, rules())  # asked for by draws: reads count anew
    assert not request_fill_if_passed(store, rules())


@pytest.mark.parametrize(
    "request_if_wanted", [request_fill_if_due, request_fill_if_passed, request_fill_unless_running]
)
def test_fill_that_two_ask_for_at_once_is_asked_for_once(
    store, monkeypatch, request_if_wanted
) -> None:
    fill(store, 4)
    store.consumers["chunks"][0] = 8
    store.consumers["passed"][0] = 4
    others = [1]

    def fence() -> None:
        while others:  # asks between the other's looks at what was asked for
            assert request_if_wanted(store, rules(), others.pop())

    monkeypatch.setattr("cadenza.stream.back_pressure.full_fence", fence)
    request_if_wanted(store, rules(), 2)
    assert not request_if_wanted(store, rules(), 3)
    assert fills_asked(store)[:2] == (8, 1)


def test_request_that_was_stopped_in_the_middle_changes_nothing_when_it_goes_on(
    store, monkeypatch
) -> None:
    fill(store, 4)
    store.consumers["chunks"][0] = 8
    fences = ["the look", "the write"]

    def fence() -> None:
        if fences and fences.pop(0) == "the write":  # others ask, and get two fills, meanwhile
            for row in (2, 3):
                assert request_fill(store, rules(), row)
            fill(store, 8)

    monkeypatch.setattr("cadenza.stream.back_pressure.full_fence", fence)
    request_fill_if_due(store, rules(), 1)
    assert fills_asked(store)[:2] == (12, 2)


def test_counts_beyond_32_and_64_bits_do_not_turn_negative(store) -> None:
    fill(store, 4)
    store.consumers["chunks"][:2] = LARGEST
    assert store.drawn_chunks() == LARGEST
    assert saturating_sum(LARGEST, 4) == LARGEST
    assert request_fill_if_due(store, rules())
    assert fills_asked(store).drawn_at == LARGEST
    store.consumers["to_fill"][3] = LARGEST - 1
    store.producers["episodes"][0] = LARGEST - 2
    assert request_fill(store, rules())
    assert fills_asked(store).to_fill == LARGEST


def test_producers_pause_at_high_water_after_the_first_fill(store) -> None:
    continuous = rules(mode="continuous", high_water=2)
    fill(store, 3)
    assert unread_episodes(store) == 3
    assert may_go_on(store, continuous)
    assert not may_publish(store, continuous, 3 + 1)  # another publishes the last of the fill
    fill(store, 4)
    assert not may_go_on(store, continuous)
    store.draws[:3] = 1
    assert unread_episodes(store) == 1
    assert may_go_on(store, continuous)
    assert not may_publish(store, continuous, 4 + 1)  # the last place is the other's


def test_fixed_ratio_writes_one_step_per_chunk_and_ratio(store) -> None:
    fixed = rules(mode="fixed_ratio", max_replay_ratio=2.0)
    fill(store, 4, frames=12)
    store.words[StreamWords.FRAMES_AT_READY] = 12
    assert not may_go_on(store, fixed)
    store.consumers["chunks"][0] = 6  # asks for 3 steps more
    assert may_go_on(store, fixed)
    fill(store, 5, frames=15)
    assert not may_go_on(store, fixed)


def test_replay_ratio_bounds_the_draw(store) -> None:
    fill(store, 4, frames=10)
    store.consumers["chunks"][0] = 3
    ratio = rules(max_replay_ratio=0.5)
    assert stale_reason(store, ratio, 2) is None  # 3 + 2 = 0.5 * 10
    told = "at most 0.5 chunks per written step, got 3 + 3 chunks for 10 steps"
    assert stale_reason(store, ratio, 3) == told


def test_wait_asks_for_one_fill_and_ends_at_its_limit(store) -> None:
    fill(store, 4)
    store.draws[:] = 1
    fresh = rules(min_fresh_fraction=0.5)
    waited: list[int] = []
    begin = time.monotonic_ns()
    with pytest.raises(StaleDataError, match=r"a share of 0\.5 .*after \d+\.\d s; add producers"):
        wait(store, fresh, 1, timeout=0.05, note=lambda ns, _: waited.append(ns))
    assert 0.05e9 <= sum(waited) <= time.monotonic_ns() - begin
    assert fills_asked(store).requests == 1


def test_wait_ends_when_data_comes_or_waiting_is_in_vain(store) -> None:
    fill(store, 4)
    store.draws[:] = 1
    fresh = rules(mode="continuous", min_fresh_fraction=0.5)

    def arrives() -> None:
        store.draws[:2] = 0

    waited: list[int] = []

    def note(duration_ns: int, _: int) -> None:
        waited.append(duration_ns)

    wait(store, fresh, 1, check=arrives, note=note)
    assert len(waited) == 2  # a first sign of it, then one look
    wait(store, fresh, 1, check=arrives, note=note)  # may be drawn at once
    assert len(waited) == 2
    assert fills_asked(store).requests == 0
    store.draws[:] = 1

    def fails() -> None:
        raise NotReadyError("stopped")

    with pytest.raises(NotReadyError, match="stopped"):
        wait(store, fresh, 1, check=fails)


def test_episodes_without_a_chunk_for_any_draw_hold_no_producer_back() -> None:
    store = new_store(slots=5, steps=9)
    for length in (2, 3, 8, 9):
        write_episode(store, length)
    high = rules(mode="continuous", high_water=2)
    reader = SlotReader(store)
    assert (unread_episodes(store), may_go_on(store, high)) == (4, False)
    reader.look(5)
    assert (unread_episodes(store), may_go_on(store, high)) == (2, False)
    store.draws[2] = 1
    assert (unread_episodes(store), may_go_on(store, high)) == (1, True)
    reader.look(3)  # another draw has a use for one of them, in whatever order they look
    SlotReader(store).look(5)
    assert unread_episodes(store) == 2
    slot = write_episode(store, 2)  # nobody has looked at the next episode
    assert (slot, unread_episodes(store)) == (4, 3)


def test_fresh_share_is_of_episodes_that_the_draw_can_use() -> None:
    store = new_store(slots=4, steps=9)
    for length in (9, 9, 2, 2):
        write_episode(store, length)
    fresh = rules(min_fresh_fraction=0.75)
    store.draws[0] = 1
    assert stale_reason(store, fresh, 1) is None  # 3 of 4, as long as nobody has looked
    with pytest.raises(StaleDataError, match=r"a share of 0\.75 .*got 1 of 2"):
        wait(store, fresh, 1, timeout=0.0, look=lambda: SlotReader(store).look(5))


def test_waiting_draw_lets_producers_go_on(store, clock) -> None:
    fill(store, 4)
    store.words[StreamWords.FRAMES_AT_READY] = 10
    fixed = rules(mode="fixed_ratio", max_replay_ratio=0.5)
    high = rules(mode="continuous", high_water=2, max_replay_ratio=0.5)
    assert not may_go_on(store, fixed)
    assert not may_go_on(store, high)
    row = ConsumerRow(store)
    with pytest.raises(StaleDataError, match="got 0 \\+ 6 chunks for 10 steps"):
        wait(store, fixed, 6, timeout=0.0, note=row.note_blocked)
    assert may_go_on(store, fixed)
    assert may_go_on(store, high)
    assert not may_go_on(store, rules(high_water=2))  # on demand it asks for a fill
    clock[0] += WAITING_NS - 1
    assert may_go_on(store, fixed)
    clock[0] += 1  # it did not come back
    assert not may_go_on(store, fixed)
    assert not may_go_on(store, high)


@pytest.mark.parametrize(
    "settings", [{"mode": "fixed_ratio"}, {"mode": "continuous", "high_water": 2}]
)
def test_draw_that_wants_steps_lets_no_more_be_written_than_it_wants(
    store, clock, settings
) -> None:
    fill(store, 4, frames=10)
    store.words[StreamWords.FRAMES_AT_READY] = 10
    flow = rules(max_replay_ratio=0.5, **settings)
    with pytest.raises(StaleDataError, match="got 0 \\+ 6 chunks for 10 steps"):
        wait(store, flow, 6, timeout=0.0, note=ConsumerRow(store).note_blocked)
    fill(store, 4, frames=11)
    assert may_go_on(store, flow)
    fill(store, 4, frames=12)  # 6 = 0.5 * 12
    assert not may_go_on(store, flow)


@pytest.mark.parametrize("flow", [{"mode": "fixed_ratio"}, {"mode": "continuous", "high_water": 1}])
def test_draw_that_gave_up_lets_one_fill_be_written(store, clock, flow) -> None:
    fill(store, 4)
    store.words[StreamWords.FRAMES_AT_READY] = 10
    store.draws[:2] = 1
    fresh = rules(min_fresh_fraction=0.9, max_replay_ratio=2.0, **flow)
    row = ConsumerRow(store)
    with pytest.raises(StaleDataError, match=r"a share of 0\.9 .*got 2 of 4"):
        wait(store, fresh, 1, timeout=0.0, note=row.note_blocked)
    fill(store, 99)
    assert may_go_on(store, fresh)  # nobody knows when a draw that waits is content
    fill(store, 4)
    row.note_given_up(4)
    fill(store, 7)
    assert may_go_on(store, fresh)
    fill(store, 8)
    assert not may_go_on(store, fresh)


@pytest.mark.parametrize(
    "settings", [{"mode": "fixed_ratio"}, {"mode": "continuous", "high_water": 2}]
)
def test_draw_beyond_what_the_buffer_can_hold_is_refused(store, settings) -> None:
    fill(store, 4, frames=1000)
    ratio = rules(max_replay_ratio=0.5, **settings)
    wait(store, ratio, 18)  # 0.5 * 4 * 9
    told = r"batch_size <= 18, because max_replay_ratio = 0\.5 .* 4 episodes of 9 .*got 19"
    with pytest.raises(InputError, match=told):
        wait(store, ratio, 19)
    wait(store, rules(max_replay_ratio=0.5, mode="continuous"), 19)  # producers never stop
