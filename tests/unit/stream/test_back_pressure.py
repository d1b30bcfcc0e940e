"""Who waits for whom, from counts set by hand."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from cadenza.core.errors import NotReadyError, StaleDataError
from cadenza.stream.back_pressure import (
    FlowRules,
    drawn_chunks,
    may_begin_episode,
    request_fill,
    request_fill_if_due,
    request_fill_if_passed,
    stale_reason,
    unread_episodes,
    wait_until_fresh,
)
from cadenza.stream.engine_state import LARGEST, EngineWords, saturating_sum
from cadenza.stream.layout import BOOKKEEPING, StoreLayout
from cadenza.stream.slots import SlotStore, StreamWords


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
    store.words[StreamWords.PUBLISHED] = episodes
    store.words[StreamWords.PUBLISHED_FRAMES] = frames
    store.length[: min(episodes, 5)] = 3


def test_first_fill_counts_episodes_in_writing(store) -> None:
    fill(store, 2)
    store.lease[3] = 1
    assert may_begin_episode(store, rules())  # 2 published + 1 in writing < 4
    store.lease[4] = 1
    assert not may_begin_episode(store, rules())
    assert may_begin_episode(store, rules(mode="continuous"))


def test_fill_on_demand_goes_up_to_its_last_episode(store) -> None:
    fill(store, 4)
    assert not may_begin_episode(store, rules())
    assert request_fill(store, rules())
    assert store.words[StreamWords.TO_FILL] == 8
    fill(store, 7)
    assert may_begin_episode(store, rules())
    fill(store, 8)
    assert not may_begin_episode(store, rules())


def test_only_one_fill_waits_behind_the_running_one(store) -> None:
    fill(store, 4)
    assert request_fill(store, rules())
    assert request_fill(store, rules())
    assert not request_fill(store, rules())
    assert store.words[StreamWords.TO_FILL] == 12
    assert store.words[StreamWords.REQUESTS] == 2
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
    assert store.words[StreamWords.DRAWN_AT_REQUEST] == 8
    assert not request_fill_if_due(store, rules())


def test_fill_is_due_when_the_last_one_was_read_whole(store) -> None:
    fill(store, 4)
    store.consumers["passed"][0] = 2
    store.consumers["passed"][5] = 1
    assert not request_fill_if_passed(store, rules())  # 3 < 4
    store.consumers["passed"][5] = 2
    assert not request_fill_if_passed(store, rules(mode="continuous"))
    assert request_fill_if_passed(store, rules())
    assert store.words[EngineWords.PASSED_AT_REQUEST] == 4
    assert not request_fill_if_passed(store, rules())
    store.consumers["passed"][0] = 6
    store.consumers["chunks"][0] = 8
    assert request_fill_if_due(store, rules())  # asked for by draws: reads count anew
    assert not request_fill_if_passed(store, rules())


def test_counts_beyond_32_and_64_bits_do_not_turn_negative(store) -> None:
    fill(store, 4)
    store.consumers["chunks"][:2] = LARGEST
    assert drawn_chunks(store) == LARGEST
    assert saturating_sum(LARGEST, 4) == LARGEST
    assert request_fill_if_due(store, rules())
    assert store.words[StreamWords.DRAWN_AT_REQUEST] == LARGEST
    store.words[StreamWords.TO_FILL] = LARGEST - 1
    store.words[StreamWords.PUBLISHED] = LARGEST - 2
    assert request_fill(store, rules())
    assert store.words[StreamWords.TO_FILL] == LARGEST


def test_producers_pause_at_high_water_after_the_first_fill(store) -> None:
    continuous = rules(mode="continuous", high_water=2)
    fill(store, 3)
    assert unread_episodes(store) == 3
    assert may_begin_episode(store, continuous)
    fill(store, 4)
    assert not may_begin_episode(store, continuous)
    store.draws[:3] = 1
    assert unread_episodes(store) == 1
    assert may_begin_episode(store, continuous)


def test_fixed_ratio_writes_one_step_per_chunk_and_ratio(store) -> None:
    fixed = rules(mode="fixed_ratio", max_replay_ratio=2.0)
    fill(store, 4, frames=12)
    store.words[EngineWords.FRAMES_AT_READY] = 12
    assert not may_begin_episode(store, fixed)
    store.consumers["chunks"][0] = 6  # asks for 3 steps more
    assert may_begin_episode(store, fixed)
    fill(store, 5, frames=15)
    assert not may_begin_episode(store, fixed)


def test_replay_ratio_bounds_the_draw(store) -> None:
    fill(store, 4, frames=10)
    store.consumers["chunks"][0] = 3
    ratio = rules(max_replay_ratio=0.5)
    assert stale_reason(store, ratio, 2) is None  # 3 + 2 = 0.5 * 10
    told = "at most 0.5 chunks per written step, got 3 + 3 chunks for 10 steps"
    assert stale_reason(store, ratio, 3) == told


def test_fresh_share_bounds_the_draw(store) -> None:
    fill(store, 4)
    store.draws[0] = 1
    assert stale_reason(store, rules(min_fresh_fraction=0.75), 1) is None
    told = "a share of 0.8 of the episodes unread, got 3 of 4"
    assert stale_reason(store, rules(min_fresh_fraction=0.8), 1) == told


def test_wait_asks_for_one_fill_and_ends_at_its_limit(store) -> None:
    fill(store, 4)
    store.draws[:] = 1
    fresh = rules(min_fresh_fraction=0.5)
    waited: list[int] = []
    begin = time.monotonic_ns()
    with pytest.raises(StaleDataError, match=r"a share of 0\.5 .*after 0\.\d s; add producers"):
        wait_until_fresh(store, fresh, 1, timeout=0.05, check=lambda: None, note=waited.append)
    assert 0.05e9 <= sum(waited) <= time.monotonic_ns() - begin
    assert store.words[StreamWords.REQUESTS] == 1


def test_wait_ends_when_data_comes_or_waiting_is_in_vain(store) -> None:
    fill(store, 4)
    store.draws[:] = 1
    fresh = rules(mode="continuous", min_fresh_fraction=0.5)

    def arrives() -> None:
        store.draws[:2] = 0

    waited: list[int] = []

    def wait(check: Callable[[], None]) -> None:
        wait_until_fresh(store, fresh, 1, timeout=9.0, check=check, note=waited.append)

    wait(arrives)
    assert len(waited) == 1
    wait(arrives)  # may be drawn at once
    assert len(waited) == 1
    assert store.words[StreamWords.REQUESTS] == 0
    store.draws[:] = 1

    def fails() -> None:
        raise NotReadyError("stopped")

    with pytest.raises(NotReadyError, match="stopped"):
        wait(fails)
