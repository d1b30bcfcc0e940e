"""Counts of producers and consumers: sums, rows of ended processes, ages and lags."""

import multiprocessing
import os
import time

import pytest

from cadenza.core.errors import NotReadyError
from cadenza.stream.counters import ConsumerRow, ProducerRow, read_counters
from cadenza.stream.draw_options import DrawOptions
from cadenza.stream.layout import MAX_CONSUMERS
from cadenza.stream.processes import started_at
from cadenza.stream.slot_reader import SlotReader
from cadenza.stream.slots import SlotStore
from tests.stream_episodes import new_store, seeded, targets, write_episode


def draw_and_note(store: SlotStore, row: ConsumerRow, n: int, c: int, **options: str) -> None:
    drawn = SlotReader(store).draw(
        n,
        c,
        targets(store, n, c),
        seeded(),
        DrawOptions(**options),  # type: ignore[arg-type]
    )
    row.note(drawn, c)


def test_draws_are_counted_in_chunks_and_frames() -> None:
    store = new_store()
    write_episode(store, 4)
    row = ConsumerRow(store)
    draw_and_note(store, row, 7, 3)
    draw_and_note(store, row, 2, 1)
    row.note_blocked(1_500_000_000)
    counted = read_counters(store)
    assert (counted["chunks"], counted["drawn_frames"]) == (9, 7 * 3 + 2)
    assert (counted["episodes"], counted["frames"], counted["replay_ratio"]) == (1, 4, 9 / 4)
    assert counted["blocked_s"] == 1.5
    assert [(c["pid"], c["alive"], c["chunks"]) for c in counted["consumers"]] == [
        (os.getpid(), True, 9)
    ]


def test_steps_behind_a_mask_are_no_frames() -> None:
    store = new_store()
    write_episode(store, 2)
    row = ConsumerRow(store)
    draw_and_note(store, row, 3, 5, short="pad")
    assert read_counters(store)["drawn_frames"] == 3 * 2


def test_share_of_runs_that_are_too_short_is_a_mean_over_the_chunks() -> None:
    store = new_store(slots=4)
    for length in (2, 3, 4, 5):
        write_episode(store, length)
    row = ConsumerRow(store)
    draw_and_note(store, row, 6, 1)  # none is shorter
    draw_and_note(store, row, 2, 4)  # 2 of 4 are
    draw_and_note(store, row, 4, 5)  # 3 of 4 are
    draw_and_note(store, row, 4, 5, short="pad")  # nothing is left out
    counted = read_counters(store)
    assert counted["excluded_mean"] == (2 * 0.5 + 4 * 0.75) / 16
    assert counted["consumers"][0]["excluded_mean"] == counted["excluded_mean"]
    assert read_counters(new_store())["excluded_mean"] == 0.0


def test_unread_episodes_are_those_nothing_was_drawn_from() -> None:
    store = new_store(slots=4)

    def counts() -> tuple[int, int, int]:
        counted = read_counters(store)
        return counted["readable"], counted["unread"], counted["passed_over"]

    write_episode(store, 2)
    write_episode(store, 4)
    assert counts() == (2, 2, 0)
    draw_and_note(store, ConsumerRow(store), 1, 3)  # only the second is long enough
    assert counts() == (2, 0, 1)
    write_episode(store, 4)
    assert counts() == (3, 1, 1)


def test_chunks_of_an_episode_that_was_replaced_make_no_other_one_read() -> None:
    store = new_store(slots=1)
    write_episode(store, 4)
    drawn = SlotReader(store).draw(3, 2, targets(store, 3, 2), seeded())
    write_episode(store, 4)
    ConsumerRow(store).note(drawn, 2)
    assert store.drawn_chunks() == 3
    assert store.draws.tolist() == [0]


def test_draw_waits_from_its_first_sign_until_its_chunks_are_counted(monkeypatch) -> None:
    now_ns = time.monotonic_ns()
    monkeypatch.setattr(time, "monotonic_ns", lambda: now_ns)
    store = new_store()
    write_episode(store, 2)
    row = ConsumerRow(store)
    row.note_blocked(3_000_000)
    assert [c["waits"] for c in read_counters(store)["consumers"]] == [True]
    draw_and_note(store, row, 1, 1)
    assert [c["waits"] for c in read_counters(store)["consumers"]] == [False]
    assert read_counters(store)["blocked_s"] == 0.003


def test_staleness_is_the_age_of_the_episode_and_the_lag_of_its_policy(monkeypatch) -> None:
    now_ns = time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: now_ns)
    store = new_store()
    slot = write_episode(store, 3, policy_version=4)
    store.written_at_ns[slot] = now_ns - 10_000_000_000
    store.consumers["published"][5] = 9
    draw_and_note(store, ConsumerRow(store), 5, 1)
    counted = read_counters(store)
    assert counted["staleness_mean_s"] == 10.0
    assert 10.0 / 1.42 < counted["staleness_p95_s"] < 10.0 * 1.42
    assert (counted["version_lag_mean"], counted["version_lag_p95"]) == (5.0, 5)


def test_row_of_an_ended_process_is_reused_and_goes_on() -> None:
    store = new_store()
    write_episode(store, 3)
    context = multiprocessing.get_context("fork")
    for _ in range(2):
        child = context.Process(target=draw_and_note, args=(store, ConsumerRow(store), 6, 1))
        child.start()
        child.join()
        assert child.exitcode == 0
    counted = read_counters(store)
    assert [c["chunks"] for c in counted["consumers"]] == [12]
    assert not counted["consumers"][0]["alive"]


def test_number_of_another_process_is_no_reason_to_keep_a_row() -> None:
    store = new_store()
    store.consumers["pid"][0] = os.getppid()
    store.consumers["started_at"][0] = 1  # an earlier process had this number
    assert ConsumerRow(store).row == 0
    store.consumers["pid"][0] = os.getppid()
    store.consumers["started_at"][0] = started_at(os.getppid())
    assert ConsumerRow(store).row == 1


def test_more_processes_than_rows_are_refused() -> None:
    store = new_store()
    store.consumers["pid"][:] = os.getppid()
    store.consumers["started_at"][:] = started_at(os.getppid())
    with pytest.raises(NotReadyError, match=f"expected at most {MAX_CONSUMERS} drawing processes"):
        _ = ConsumerRow(store).row


def test_producer_counts_in_its_row() -> None:
    store = new_store(producers=2)
    row = ProducerRow(store, 1)
    for length in (5, 3):
        store.publish(store.take_slot(1), length, success=1, policy_version=0)
    row.note_dropped()
    row.note_stalled(250_000_000)
    counted = read_counters(store)
    first, second = counted["producers"]
    assert (first["pid"], first["alive"], first["silent_s"]) == (0, False, 0.0)
    assert (second["pid"], second["alive"]) == (os.getpid(), True)
    assert (second["episodes"], second["frames"], second["dropped"], second["stalled_s"]) == (
        2,
        8,
        1,
        0.25,
    )
    assert (counted["dropped"], counted["stalled_s"]) == (1, 0.25)


def test_heartbeat_ends_the_silence_of_a_producer(monkeypatch) -> None:
    now_ns = [time.monotonic_ns()]
    monkeypatch.setattr(time, "monotonic_ns", lambda: now_ns[0])
    store = new_store()
    row = ProducerRow(store, 0)
    now_ns[0] += 60_000_000_000
    assert read_counters(store)["producers"][0]["silent_s"] == 60.0
    row.beat()
    assert read_counters(store)["producers"][0]["silent_s"] == 0.0
