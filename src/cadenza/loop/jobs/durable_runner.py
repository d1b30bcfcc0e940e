"""Running a job to its end, whoever is killed meanwhile, wherever its host runs.

Whoever holds the lock of a job's folder is in charge of it. A runner that gets the lock knows that
no host lives: it records how the last attempt ended, judges it, and closes the job or starts the
next attempt by handing its lock to a new host. A runner that does not get it waits; for a host of
its own, for one that a killed runner left, and for another runner alike.
"""

import logging
import math
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from cadenza.core.errors import InputError
from cadenza.loop.config import NAME_PATTERN, JobsConfig
from cadenza.loop.contracts.records import JobEnd, JobSpec
from cadenza.loop.errors import StopRequestedError
from cadenza.loop.jobs.attempt_files import AttemptFolder, AttemptLock, HostRequest
from cadenza.loop.jobs.budget import BudgetMeter
from cadenza.loop.jobs.course import Course, read_course, write_course
from cadenza.loop.jobs.ends import job_failure, recorded_end
from cadenza.loop.jobs.hosts import Hosts, LocalHosts
from cadenza.loop.jobs.outcomes import Outcome, judge
from cadenza.loop.jobs.programs import ProgramTable
from cadenza.loop.jobs.progress import kept_by
from cadenza.loop.jobs.reaping import JobMark, reap
from cadenza.loop.jobs.reports import Incident, IncidentKind, JobProgress
from cadenza.loop.jobs.results import remove_output
from cadenza.loop.jobs.stopping import StopCheck, StopLevel, never
from cadenza.loop.jobs.watching import Rhythm, Watch, time_limit_of
from cadenza.loop.store.jobstore import JobStore
from cadenza.loop.store.rows import JobRow, Lease

_logger = logging.getLogger(__name__)

#: First and longest pause between two looks at a running job, s.
_FIRST_POLL_S, _LONGEST_POLL_S = 0.01, 0.2
#: Interruptions of a job that cost it no pause, and what each further one adds, at most, s.
_FREE_INTERRUPTIONS, _INTERRUPTED_S, _LONGEST_INTERRUPTED_S = 3, 0.2, 2.0
#: Longest pause between two attempts, s.
_LONGEST_BACKOFF_S: Final = 300.0
#: Seconds without a sign of life after which a host counts as stuck; it gives one each second.
STUCK_S: Final = 120.0
#: Seconds without a trace of a command after which it is told that it may hang.
SILENT_S: Final = 600.0


def job_folder(spec: JobSpec) -> Path:
    """Return the folder of a job's attempts: ``jobs/<stage>`` beside its log.

    Raises:
        InputError: The stage cannot name a folder.
    """
    if re.fullmatch(NAME_PATTERN, spec.key.stage) is None:
        raise InputError(
            f"stage {spec.key.stage!r}: expected letters, digits, '.', '_' and '-', at most 100; "
            "it names a folder."
        )
    return spec.log_path.absolute().parent / "jobs" / spec.key.stage


class DurableRunner(ABC):
    """Runs jobs of one run, each key at most once to its end; subclasses say where."""

    def __init__(
        self,
        store: JobStore,
        lease: Lease,
        config: JobsConfig,
        programs: ProgramTable,
        *,
        budget: BudgetMeter | None = None,
        stop: StopCheck = never,
        on_progress: Callable[[JobProgress], None] | None = None,
        on_incident: Callable[[Incident], None] | None = None,
        stuck_s: float = STUCK_S,
        silent_s: float = SILENT_S,
    ) -> None:
        """Run jobs under ``lease``; errors as `open_hosts`.

        Args:
            store: Store of the run; jobs are recorded in it.
            lease: The controller's right to change the run; renewed while it waits.
            config: Attempts, pauses and limits.
            programs: What the names in commands stand for.
            budget: What the run may spend; None for no limit.
            stop: Says whether the run is asked to stop.
            on_progress: Told every few seconds how a job stands.
            on_incident: Told what went wrong on the way.
            stuck_s: Seconds without a sign of life after which a host is killed.
            silent_s: Seconds without anything new in a job's log and folder after which that is
                told.
        """
        self.store = store
        self.lease = lease
        self.config = config
        self.programs = programs
        self.hosts = self.open_hosts(config)
        self.budget = budget
        self.stop = stop
        self.on_progress = on_progress
        self.on_incident = on_incident
        self.stuck_s = stuck_s
        self.silent_s = silent_s

    @staticmethod
    @abstractmethod
    def open_hosts(config: JobsConfig) -> Hosts:
        """Return where hosts run."""

    def run(self, spec: JobSpec) -> JobEnd:
        """Return the end of ``spec``: recorded, adopted from a live host, or run now.

        Raises:
            JobFailedError: It failed in every attempt.
            BudgetExceededError: The budget ended before the job did.
            StopRequestedError: Someone asked the run to stop; the job was ended.
            IntegrityError: It succeeded before, and its result file was changed since.
            UnknownNameError: Its program is not in the table, or not installed.
            StaleLeaseError: Another controller took the run over; the job goes on without us.
            JobHostError: The job's host can neither be started nor ended.
        """
        return _Job(self, spec).run()

    def tell(self, incident: Incident) -> None:
        """Report what went wrong on the way."""
        _logger.warning("%s", incident.message, extra={"incident": incident.model_dump()})
        if self.on_incident is not None:
            self.on_incident(incident)


class _Job:
    """One job on its way to its end."""

    def __init__(self, runner: DurableRunner, spec: JobSpec) -> None:
        self._runner = runner
        self._spec = spec
        self._jobs = runner.store.jobs
        self._folder = AttemptFolder(job_folder(spec))
        key = spec.key
        self._mark = JobMark.of(key.run_id, key.cycle, key.stage, self._folder.path)
        self._started = 0  # attempt that this runner started last
        self._rested_after = 0  # attempt that this runner made the pause after

    def run(self) -> JobEnd:
        row = self._jobs.open(self._runner.lease, self._spec)
        while row.status in ("pending", "running"):
            with self._take_charge(row) as lock:
                row, pause_s = self._go_on(lock)
            self._rest(pause_s)
        return recorded_end(self._spec, row)

    def _go_on(self, lock: AttemptLock) -> tuple[JobRow, float]:
        """Settle the last attempt and, unless a pause is due, close the job or start the next.

        Returns:
            The job's row, and the pause to make now, s.
        """
        row = self._jobs.open(self._runner.lease, self._spec)
        if row.status == "running":
            row = self._settle(row)
        if row.status != "pending":
            return row, 0.0
        outcome: Outcome | None = None
        if row.attempt > 0:
            outcome = self._judge(row)
            if outcome.kind == "succeeded":
                lease = self._runner.lease
                row = self._jobs.close(lease, row.key, "succeeded", result_sha256=outcome.digest)
                return row, 0.0
            pause_s = self._pause_after(outcome, row)
            if pause_s > 0.0 and self._rested_after != row.attempt:
                self._rested_after = row.attempt
                return row, pause_s
        return self._start(lock, row, outcome), 0.0

    # Waiting

    def _take_charge(self, row: JobRow) -> AttemptLock:
        """Return the lock once no host lives."""
        watch = Watch(self._runner, self._spec, self._folder, row, own_attempt=self._started)
        pause_s = _FIRST_POLL_S
        while True:
            lock = self._folder.try_lock()
            if lock is not None:
                if not self._runner.hosts.expected(self._folder):
                    self._runner.hosts.collect(self._folder)
                    return lock
                lock.release()
            watch.look(host_has_lock=lock is None)
            time.sleep(pause_s)
            pause_s = min(1.2 * pause_s, _LONGEST_POLL_S)

    def _rest(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        renewal = Rhythm.of(self._runner.lease)
        while (left_s := deadline - time.monotonic()) > 0.0:
            self._require_no_stop()
            if renewal.is_due():
                self._runner.store.leases.renew(self._runner.lease)
            time.sleep(min(left_s, _LONGEST_POLL_S))

    def _require_no_stop(self) -> None:
        if self._runner.stop() is not StopLevel.NONE:
            raise StopRequestedError(
                f"{self._mark.key}: expected to go on, got a request to stop; resume the run to "
                "continue with this job."
            )

    # The end of an attempt

    def _settle(self, row: JobRow) -> JobRow:
        """Record how the attempt ended, after ending whatever it left."""
        reaped = reap(self._mark)
        if reaped:
            self._tell("reaped", row, f"killed processes that a dead host left: {reaped}")
        outcome = self._judge(row)
        interrupted = outcome.kind == "ended_by_us" or (
            outcome.kind == "interrupted"
            and row.interruptions < self._runner.config.max_interruptions
        )
        end = outcome.end
        if outcome.kind != "succeeded":
            kind: IncidentKind = "interrupted" if interrupted else "attempt_failed"
            self._tell(kind, row, outcome.problem)
        return self._jobs.end_attempt(
            self._runner.lease,
            row.key,
            attempt=row.attempt,
            exit_code=None if end is None else end.exit_code,
            duration_s=self._seconds_until_lost(row) if end is None else end.duration_s,
            interrupted=interrupted,
        )

    def _judge(self, row: JobRow) -> Outcome:
        """Return what the last attempt came to; one kill too many counts as a failure."""
        outcome = judge(self._folder, row.attempt, self._spec.result_path)
        kills = self._course.kills_after(outcome, kept_by(self._spec.command))
        few = kills <= self._runner.config.max_kills
        if outcome.kind != "interrupted" or not outcome.killed_alone or few:
            return outcome
        problem = (
            f"{outcome.problem}, {kills} times in a row without getting further; most likely it "
            "needs more memory than there is"
        )
        return replace(outcome, kind="failed", problem=problem)

    @property
    def _course(self) -> Course:
        return read_course(self._folder) or Course(attempt=0)

    def _seconds_until_lost(self, row: JobRow) -> float:
        """Return the seconds of an attempt without an end, up to its last sign of life."""
        if self._folder.read_host(row.attempt) is None:
            return row.attempt_s
        return max(row.attempt_s, self._folder.read_heartbeat().attempt_s)

    def _pause_after(self, outcome: Outcome, row: JobRow) -> float:
        """Return the pause before the next attempt, s.

        Raises:
            JobFailedError: There is none; the job is closed.
        """
        failures = row.attempt - row.interruptions
        if failures >= self._runner.config.max_attempts:
            self._jobs.close(self._runner.lease, row.key, "failed")
            raise job_failure(self._spec, row, outcome.problem)
        if outcome.kind == "interrupted":  # a host that dies at once shall not be started in a spin
            further = max(0, row.interruptions - _FREE_INTERRUPTIONS)
            return min(_INTERRUPTED_S * further, _LONGEST_INTERRUPTED_S)
        if outcome.kind != "failed" or failures == 0:
            return 0.0
        return min(self._runner.config.backoff_s * 2.0 ** (failures - 1), _LONGEST_BACKOFF_S)

    # The start of an attempt

    def _start(self, lock: AttemptLock, before: JobRow, outcome: Outcome | None) -> JobRow:
        """Start the next attempt and share ``lock`` with its host.

        Args:
            lock: The lock.
            before: The job's row.
            outcome: What the last attempt came to; None before the first.
        """
        runner, spec = self._runner, self._spec
        argv = runner.programs.resolve(spec.command)
        runner.hosts.require_room(spec.device)
        self._require_no_stop()
        left_s = math.inf
        if runner.budget is not None:
            runner.budget.require(spec.device)
            left_s = runner.budget.left_s(spec.device)
        course = self._course_after(before, outcome)
        row = self._jobs.begin_attempt(runner.lease, spec.key)
        if spec.on_existing == "remove":
            remove_output(spec)
        request = HostRequest(
            attempt=row.attempt,
            key=self._mark.key,
            argv=argv,
            cwd=str(Path.cwd()),
            log_path=str(spec.log_path.absolute()),
            output_dir=str(spec.output_dir.absolute()),
            time_limit_s=time_limit_of(spec, runner.config),
            silent_limit_s=runner.config.silent_limit_s,
            grace_s=runner.config.grace_s,
        )
        self._folder.prepare(request, deadline_s=None if math.isinf(left_s) else left_s)
        done = kept_by(spec.command)
        write_course(self._folder, course.model_copy(update={"attempt": row.attempt, "done": done}))
        self._started = row.attempt
        runner.hosts.start(self._folder, lock, spec.device)
        return row

    def _course_after(self, row: JobRow, outcome: Outcome | None) -> Course:
        """Return how the job came to its next attempt; where that begins is not said yet."""
        if outcome is None:
            return Course(attempt=row.attempt)
        course = self._course
        failed = outcome.kind == "failed"
        forgiven = failed and row.interruptions == row.attempt  # a person let it run again
        return Course(
            attempt=row.attempt,
            failed=course.failed + int(failed),
            kills=0 if forgiven else course.kills_after(outcome, kept_by(self._spec.command)),
            last=outcome.problem,
        )

    def _tell(self, kind: IncidentKind, row: JobRow, message: str) -> None:
        self._runner.tell(Incident(kind=kind, key=row.key, attempt=row.attempt, message=message))


class LocalJobRunner(DurableRunner):
    """Runs each attempt in a host process of this machine."""

    @staticmethod
    def open_hosts(config: JobsConfig) -> LocalHosts:  # noqa: ARG004 - one machine, no choice
        """Return this machine."""
        return LocalHosts()
