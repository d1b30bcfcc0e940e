"""Taking a run: its lease and its event log, or the name of the process that has them.

A controller that is frozen, by SIGSTOP or on a machine that hangs, loses its lease after a while
but not the lock of its log. The run is then left as it is: thawed, that controller goes on with it.
"""

from datetime import UTC, datetime
from pathlib import Path

from cadenza.loop.errors import EventLogHeldError, LeaseHeldError
from cadenza.loop.events.log_file import LogFile
from cadenza.loop.store.jobstore import JobStore
from cadenza.loop.store.owners import is_frozen, is_gone, readable, this_process
from cadenza.loop.store.rows import Lease, RunRow


def take(store: JobStore, run_id: str, log_path: Path, *, ttl_s: float) -> Lease:
    """Return the lease of a run whose log is free.

    Args:
        store: Store of the run.
        run_id: The run.
        log_path: Its event log.
        ttl_s: Seconds that the lease lasts without a renewal.

    Raises:
        LeaseHeldError: Another live controller holds the run.
        EventLogHeldError: One that shows no sign of life still holds the log; nothing was changed.
        EventLogError: The file system refused.
        UnknownRowError: There is no such run.
    """
    row, holder = store.get_run(run_id), store.leases.holder(run_id)
    owner = row["lease_owner"]
    try:
        if holder is None or is_gone(holder):
            LogFile(log_path).close()
        return store.leases.acquire(run_id, this_process(), ttl_s=ttl_s, to_work=True)
    except EventLogHeldError as error:
        if store.get_run(run_id)["lease_epoch"] != row["lease_epoch"]:
            return take(store, run_id, log_path, ttl_s=ttl_s)  # taken, with its log, meanwhile
        if owner is None or is_gone(owner):
            raise
        raise EventLogHeldError(_who_has_it(row, owner, "event log", ttl_s)) from error
    except LeaseHeldError as error:
        if owner is None or not is_frozen(owner):
            raise
        raise LeaseHeldError(_who_has_it(row, owner, "lease", ttl_s)) from error


def _who_has_it(row: RunRow, owner: str, what: str, ttl_s: float) -> str:
    """Return who holds a run without a sign of life, since when, and what to do."""
    renewed = None if row["lease_expires_at"] is None else row["lease_expires_at"] - ttl_s
    since = "" if renewed is None else f", silent since {_utc(renewed)}"
    if is_frozen(owner):
        pid = owner.split("/")[-2]
        state = " and is stopped (SIGSTOP, Ctrl-Z)"
        remedy = f"let it go on with `kill -CONT {pid}`, or end it with `kill -KILL {pid}`"
    else:
        state, remedy = "", "see there whether it hangs, and end it"
    return (
        f"run {row['id']!r}: expected a free {what}, got one that {readable(owner)} "
        f"holds{since}{state}; {remedy}, then resume the run."
    )


def _utc(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
