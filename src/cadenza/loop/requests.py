"""Requests to a run from outside: to stop, to resume, or to answer an open question.

All are safe while a controller works on the run. Who asked, and why, is kept with the answer, or
among the run's incidents.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from cadenza.core.files import make_folder
from cadenza.loop.contracts.records import Record
from cadenza.loop.errors import LeaseHeldError, StoreError, UnknownRowError
from cadenza.loop.incidents import IncidentLog, who_stopped
from cadenza.loop.jobs.attempt_files import AttemptFolder
from cadenza.loop.processes import readable, this_process
from cadenza.loop.state import STOP_REQUESTED
from cadenza.loop.store.database import require_plain
from cadenza.loop.store.jobstore import JobStore
from cadenza.loop.store.rows import ApprovalRow

#: Runs of these statuses are over; a failed one may still be resumed.
_OVER: Final = ("finished", "failed")
#: Longest the run is kept from others while it is stopped, s.
_LEASE_S: Final = 30.0
#: File in a run's folder: output of the controllers that `resume_run` started.
CONTROLLER_LOG: Final = "controller.log"
#: Variable that may hold the dashboard's token; controllers do not get it.
DASH_VARIABLE: Final = "CADENZA_DASH_TOKEN"
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


def stop_run(
    store: JobStore, run_id: str, *, workdir: Path, reason: str | None = None, by: str | None = None
) -> StopOutcome:
    """Ask the controller of a run to stop; without one, stop the run and the jobs it left."""
    _require_said("a stop", reason, by)
    run = store.get_run(run_id)
    if run["status"] in _OVER:
        raise StoreError(
            f"run {run_id!r}: expected an active run, got one that is {run['status']} "
            f"({run['stop_reason']}); there is nothing to stop."
        )
    note_request(workdir / run_id, "stop_asked", reason, by)
    try:
        lease = store.leases.acquire(run_id, this_process(), ttl_s=_LEASE_S)
    except LeaseHeldError:
        store.request_stop(run_id)  # after whoever has it took it, which forgets earlier requests
        return StopOutcome(run_id=run_id, controller=store.leases.holder(run_id) or "unknown")
    try:
        asked: list[str] = []
        for job in store.jobs.of_run(run_id):
            folder = job.key.attempts_beside(job.key.log_in(workdir / run_id))
            if job.status == "running" and folder.is_dir():
                AttemptFolder(folder).change_request(stop_by=_ASKED_BY)
                asked.append(f"cycle {job.key.cycle} {job.key.stage}")
        store.finish_run(run_id, "stopped", who_stopped(workdir / run_id) or STOP_REQUESTED)
    finally:
        store.leases.release(lease)
    return StopOutcome(run_id=run_id, controller=None, jobs=tuple(asked))


class ResumeOutcome(Record):
    """The process that was started to work on a run, and the file that it writes to."""

    run_id: str
    pid: int
    log: str


def resume_run(
    store: JobStore,
    run_id: str,
    *,
    workdir: Path,
    location: str | None = None,
    reason: str | None = None,
    by: str | None = None,
) -> ResumeOutcome:
    """Start `cadenza loop resume` for a run, in a process of its own that outlives this one.

    ``location`` is the URL of a store outside of ``workdir``. If the run cannot go on, the log says
    why.
    """
    _require_said("a resumption", reason, by)
    run = store.get_run(run_id)
    owner = store.leases.holder(run_id)
    if owner is not None:
        raise LeaseHeldError(
            f"run {run_id!r}: expected a run that nobody works on, got one that {readable(owner)} "
            "works on; there is nothing to resume."
        )
    if run["status"] == "finished":
        raise StoreError(
            f"run {run_id!r}: expected a run with work left, got a finished one "
            f"({run['stop_reason']}); with a larger budget it goes on: `cadenza loop resume "
            f"{run_id} --config FILE`."
        )
    folder = (workdir / run_id).absolute()
    make_folder(folder)
    note_request(folder, "resume_asked", reason, by)
    log = folder / CONTROLLER_LOG
    command = [sys.executable, "-m", "cadenza", "loop", "resume", run_id, "--by="]  # noted above
    environment = {name: value for name, value in os.environ.items() if name != DASH_VARIABLE}
    if location is not None:  # it may hold a password, which others see in a command
        environment["CADENZA_STORE"] = location
    with log.open("ab") as file:
        process = subprocess.Popen(  # noqa: S603 -- our own command
            [*command, "--workdir", str(folder.parent)],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
    return ResumeOutcome(run_id=run_id, pid=process.pid, log=str(log))


def _require_said(what: str, reason: str | None, by: str | None) -> None:
    if reason is not None:
        require_plain(f"reason for {what}", reason)
    if by is not None:
        require_plain(f"name of who asks for {what}", by)


def note_request(folder: Path, kind: str, reason: str | None, by: str | None) -> None:
    """Keep who asked for something, and why, among the incidents of a run whose folder is here."""
    if (reason or by) and folder.is_dir():
        IncidentLog(folder).note(kind, reason or "no reason given", by=by)


def answer(
    store: JobStore, run_id: str, *, approve: bool, reason: str, by: str, cycle: int | None = None
) -> ApprovalRow:
    """Answer the open question of a run, or the one it asked in ``cycle``.

    Raises:
        ApprovalDecidedError: The question of ``cycle`` was answered before.
        UnknownRowError: Nothing waits, or nothing was asked.
    """
    rows = store.approvals.of_run(run_id)
    if cycle is None:
        rows, cycle = store.approvals.pending(run_id), store.load_state(run_id)[0].cycle
    asked = [row for row in rows if row.cycle == cycle]
    if not asked:
        raise UnknownRowError(
            f"run {run_id!r}: expected a decision that waits for approval, got none; "
            "`cadenza loop status` shows what waits."
        )
    status = "approved" if approve else "rejected"
    return store.approvals.decide(run_id, cycle, asked[-1].gate, status, reason=reason, by=by)
