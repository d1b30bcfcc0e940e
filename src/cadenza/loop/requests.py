"""What people ask of a run from outside: to stop, or to take a decision that waits for them.

Neither needs the lease of the run's controller; both are safe while it works.
"""

from pathlib import Path
from typing import Final

from cadenza.loop.contracts.records import Record
from cadenza.loop.errors import LeaseHeldError, StoreError, UnknownRowError
from cadenza.loop.jobs.attempt_files import AttemptFolder
from cadenza.loop.processes import this_process
from cadenza.loop.state import STOP_REQUESTED
from cadenza.loop.store.jobstore import JobStore
from cadenza.loop.store.rows import ApprovalRow

#: Runs of these statuses are over; a failed one may still be resumed.
_OVER: Final = ("finished", "failed")
#: Longest the run is kept from others while it is stopped, s.
_LEASE_S: Final = 30.0
#: Who ends a job that a dead controller left.
_ASKED_BY: Final = "`cadenza loop stop`, as no controller worked on the run"


class StopOutcome(Record):
    """What became of a request to stop.

    Attributes:
        controller: Process that works on the run and will stop it; None if nobody did, and the
            run is stopped already.
        jobs: Stages of jobs that a dead controller left running and that were asked to end.
    """

    run_id: str
    controller: str | None
    jobs: tuple[str, ...] = ()


def stop_run(store: JobStore, run_id: str, *, workdir: Path) -> StopOutcome:
    """Ask the controller of a run to stop; without one, stop the run and the jobs it left.

    Raises:
        UnknownRowError: There is no such run.
        StoreError: It has ended.
    """
    run = store.get_run(run_id)
    if run["status"] in _OVER:
        raise StoreError(
            f"run {run_id!r}: expected an active run, got one that is {run['status']} "
            f"({run['stop_reason']}); there is nothing to stop."
        )
    try:
        lease = store.leases.acquire(run_id, this_process(), ttl_s=_LEASE_S)
    except LeaseHeldError:
        store.request_stop(run_id)  # after whoever has it took it, which forgets earlier requests
        return StopOutcome(run_id=run_id, controller=store.leases.holder(run_id) or "unknown")
    try:
        asked: list[str] = []
        for job in store.jobs.of_run(run_id):
            cycle = workdir / job.key.run_id / f"cycle_{job.key.cycle}"
            folder = cycle / "jobs" / job.key.stage
            if job.status == "running" and folder.is_dir():
                AttemptFolder(folder).change_request(stop_by=_ASKED_BY)
                asked.append(f"cycle {job.key.cycle} {job.key.stage}")
        store.finish_run(run_id, "stopped", STOP_REQUESTED)
    finally:
        store.leases.release(lease)
    return StopOutcome(run_id=run_id, controller=None, jobs=tuple(asked))


def answer(store: JobStore, run_id: str, *, approve: bool, reason: str, by: str) -> ApprovalRow:
    """Answer the question that a run waits with.

    Raises:
        UnknownRowError: There is no such run, or it waits for nothing.
        ApprovalDecidedError: Somebody answered meanwhile.
        InputError: The reason or the name is empty or no plain text.
    """
    state, _ = store.load_state(run_id)
    asked = [row for row in store.approvals.pending(run_id) if row.cycle == state.cycle]
    if not asked:
        raise UnknownRowError(
            f"run {run_id!r}: expected a decision that waits for approval, got none; "
            "`cadenza loop status` shows what waits."
        )
    status = "approved" if approve else "rejected"
    gate = asked[0].gate
    return store.approvals.decide(run_id, state.cycle, gate, status, reason=reason, by=by)
