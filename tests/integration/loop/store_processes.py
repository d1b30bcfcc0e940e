"""What test processes do: create a store all at once."""

from cadenza.loop.store import JobStore


def create_store(url, run_id, barrier):
    """Open a store that is not there yet, when everybody is ready, and add a run."""
    barrier.wait(60.0)
    with JobStore(url) as store:
        store.create_run(run_id, "{}")
