"""Processes that emit are killed at random; log and table stay one gapless sequence."""

import signal
import time

import numpy as np

from cadenza.loop.events import EventJournal, read_events
from tests.integration.loop.store_processes import work
from tests.integration.loop.test_event_journal import assert_log_is_table

#: Kills per database; each process gets this many seconds at most.
KILLS, LONGEST_S = 32, 0.1


def test_killed_emitters_leave_log_and_table_equal(store, store_url, tmp_path, processes):
    rng = np.random.default_rng(6)
    log_path = tmp_path / "run" / "events.jsonl"
    store.create_run("run", "{}")
    cycles, torn = [], 0
    for kill in range(KILLS):
        deadly_writes = kill % 2 == 1
        process = processes.Process(
            target=work,
            args=(store_url, log_path, int(rng.integers(2**32))),
            kwargs={"deadly_writes": deadly_writes},
        )
        before = len(store.events.after("run", 0))
        process.start()
        while process.is_alive() and len(store.events.after("run", 0)) == before:
            time.sleep(0.002)  # it imports, opens and repairs
        if deadly_writes:
            process.join(timeout=800)
        else:
            time.sleep(rng.uniform(0.0, LONGEST_S))
            process.kill()
            process.join()
        assert process.exitcode == -signal.SIGKILL
        torn += log_path.read_bytes()[-1:] != b"\n"
        cycles.append(store.load_state("run")[0].cycle)

    lease = store.leases.acquire("run", "last", ttl_s=60.0)
    EventJournal(store, "run", lease, log_path).close()
    assert_log_is_table(store, log_path)
    assert torn > 3  # kills did hit the middle of lines
    assert cycles[-1] > KILLS / 2  # and the work went on nevertheless
    lines = read_events(log_path, limit=10**6).events
    places = [(line["cycle"], line["kind"]) for line in lines]
    kinds = ("job_started", "job_finished", "decision")
    expected = [(cycle, kind) for cycle in range(cycles[-1] + 1) for kind in kinds]
    assert places == expected[: len(places)]
    assert len(places) >= 3 * cycles[-1]
