"""What test processes do: emit events until they are killed, or create a store all at once."""

import os
import signal

import numpy as np

from cadenza.loop.events import Event, EventJournal
from cadenza.loop.store import JobStore, changes
from cadenza.loop.store.owners import this_process


def create_store(url, run_id, barrier):
    """Open a store that is not there yet, when everybody is ready, and add a run."""
    barrier.wait(60.0)
    with JobStore(url) as store:
        store.create_run(run_id, "{}")


def work(url, log_path, seed, *, deadly_writes):
    """Go through the steps from where the state says: in each three events, one in the commit."""
    if deadly_writes:
        die_within_writes(np.random.default_rng(seed))
    store = JobStore(url)
    lease = store.leases.acquire("run", this_process(), ttl_s=3600.0)
    journal = EventJournal(store, "run", lease, log_path)
    state, version = store.load_state("run")
    while True:
        cycle = state.cycle
        with journal.step(f"{cycle}/train"):
            journal.emit(Event("run", "train", "job_started", cycle, {"number": cycle}))
            journal.emit(Event("run", "train", "job_finished", cycle, {"text": "x" * 300}))
            draft = journal.draft(Event("run", "decide", "decision", cycle))
            state = state.model_copy(update={"cycle": cycle + 1})
            rows = [changes.start_cycle(cycle)]
            version = store.commit(lease, version, state, events=[draft], rows=rows)
            journal.publish()


def die_within_writes(rng):
    """Kill this process in the middle of some write to the log, or behind it, before its fsync."""
    write = os.pwrite
    left = rng.integers(1, 15)

    def deadly(descriptor, data, place):
        nonlocal left
        left -= 1
        if left == 0:
            write(descriptor, data[: rng.integers(len(data) + 1)], place)
            os.kill(os.getpid(), signal.SIGKILL)
        return write(descriptor, data, place)

    os.pwrite = deadly
