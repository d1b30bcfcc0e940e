"""Running a job to its end, whichever process is killed, wherever its host runs.

The holder of the lock of a job's folder is in charge of it. A runner that gets the lock knows that
no host lives: it records how the last attempt ended, judges it, and closes the job or starts the
next attempt by handing its lock to a new host. A runner that does not get it waits; for a host of
its own, for one that a killed runner left, and for another runner alike.
"""

import contextlib
import logging
import math
import re
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final, Self

from cadenza.core.errors import InputError
from cadenza.loop.config import NAME_PATTERN, JobsConfig
from cadenza.loop.contracts.records import Device, JobEnd, JobSpec
from cadenza.loop.errors import (
    JobHostError,
    RecordConflictError,
    StopRequestedError,
    StoreUnavailableError,
)
from cadenza.loop.jobs.attempt_files import (
    AttemptFolder,
    AttemptLock,
    Heartbeat,
    HostProcess,
    HostRequest,
)
from cadenza.loop.jobs.outcomes import (
    Course,
    Incident,
    IncidentKind,
    JobProgress,
    Outcome,
    job_failure,
    judge,
    kept_by,
    read_course,
    recorded_end,
    remove_output,
    write_course,
)
from cadenza.loop.jobs.terms import BudgetMeter, ProgramTable, StopCheck, StopLevel, never
from cadenza.loop.processes import JobMark, kill_if, readable, reap, start_ticks
from cadenza.loop.store.jobstore import JobStore
from cadenza.loop.store.rows import JobRow, Lease

_logger = logging.getLogger(__name__)

#: Longest wait for a host to be gone, s; one that ends takes milliseconds.
_GONE_S: Final = 5.0


class Hosts(ABC):
    """Where hosts run; unless overridden, there is room for each and it starts with the lock."""

    def require_room(self, device: Device) -> None:  # noqa: B027 - there is room
        """Raise unless a host for ``device`` can start here, now or later.

        Raises:
            JobHostError: There is no room for it, and there never will be.
        """

    def obstacle(self, device: Device, *, waited_s: float) -> str | None:  # noqa: ARG002 - none
        """Return what keeps a host, on its way for ``waited_s``, from starting; None if unknown."""
        return None

    def expected(self, folder: AttemptFolder) -> bool:  # noqa: ARG002 - none is on its way
        """Return whether a host that holds no lock yet is on its way."""
        return False

    @abstractmethod
    def start(self, folder: AttemptFolder, lock: AttemptLock, device: Device) -> None:
        """Start the host that does what ``folder`` requests; it is in charge from now on.

        Raises:
            JobHostError: It could not be started.
        """

    @abstractmethod
    def kill(self, folder: AttemptFolder, attempt: int) -> bool:
        """Kill the host of an attempt; False if there is none that can be killed."""

    def collect(self, folder: AttemptFolder) -> None:  # noqa: B027 - it leaves by itself
        """Wait until the host that gave up the lock of ``folder`` is gone."""


class LocalHosts(Hosts):
    """Hosts as processes of this machine, each in a session of its own."""

    def __init__(self) -> None:
        self._started: dict[Path, subprocess.Popen[bytes]] = {}

    def start(self, folder: AttemptFolder, lock: AttemptLock, device: Device) -> None:  # noqa: ARG002 - one machine
        """Start a host and share the lock with it, so that the job is never without a keeper."""
        argv = (
            *(sys.executable, "-P", "-m", "cadenza.loop.jobs.host"),
            *(str(folder.request_path), str(lock.descriptor)),
        )
        try:
            with folder.host_log.open("ab") as log:
                process = subprocess.Popen(  # noqa: S603 - our own module; no shell
                    argv,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    pass_fds=(lock.descriptor,),
                )
        except OSError as error:
            raise JobHostError(
                f"{folder.path}: expected to start the host of an attempt, got '{error}'; free "
                "memory or processes and resume the run."
            ) from error
        self._started[folder.path] = process

    def kill(self, folder: AttemptFolder, attempt: int) -> bool:
        """Kill the host that ``folder`` names, if it is still the same process."""
        host = folder.read_host(attempt)
        if host is None:
            return False
        return kill_if(host.pid, lambda pid: start_ticks(pid) == host.start_ticks, wait_s=_GONE_S)

    def collect(self, folder: AttemptFolder) -> None:
        """Take the exit status of a host that gave up its lock, which it does by ending."""
        process = self._started.pop(folder.path, None)
        if process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_GONE_S)


#: Longest pause between two signs of life in the store, s; a short lease asks for more of them.
_HEARTBEAT_S: Final = 2.0
#: Signs of life per duration of a lease.
_PER_LEASE: Final = 4


class Rhythm:
    """Says when a certain time has passed again."""

    def __init__(self, period_s: float) -> None:
        self._period_s = period_s
        self._next = time.monotonic()

    @classmethod
    def of(cls, lease: Lease) -> Self:
        """Return the rhythm in which a lease is renewed."""
        return cls(min(_HEARTBEAT_S, lease.ttl_s / _PER_LEASE))

    def is_due(self) -> bool:
        """Return whether the time has passed, and begin anew if so; true at first."""
        moment = time.monotonic()
        if moment < self._next:
            return False
        self._next = moment + self._period_s
        return True


class Watch:
    """One wait for the process in charge of a job: signs of life, stop requests, stuck hosts."""

    def __init__(
        self,
        runner: "DurableRunner",
        spec: JobSpec,
        folder: AttemptFolder,
        row: JobRow,
        *,
        own_attempt: int,
    ) -> None:
        """Watch the attempt that ``row`` tells; ``own_attempt`` is the one we started, or 0."""
        self._runner = runner
        self._spec = spec
        self._folder = folder
        self._row = row
        self._own_attempt = own_attempt
        self._rhythm = Rhythm.of(runner.lease)
        self._host: HostProcess | None = None
        self._asked_to_stop = False
        self._last_life = (-1.0, time.monotonic())  # heartbeat, when we first saw it
        self._told_silence = False
        self._began = time.monotonic()
        self._waits_for: str | None = None

    def look(self, *, host_has_lock: bool) -> None:
        """Do what is due; called every fraction of a second.

        ``host_has_lock`` is off while a host is on its way, e.g. waits for room on a cluster.

        Raises:
            StaleLeaseError: Another controller took the run over; the job goes on without us.
            JobHostError: The process in charge is stuck and cannot be killed.
        """
        self._pass_on_stop(host_has_lock=host_has_lock)
        if not host_has_lock:
            self._last_life = (-1.0, time.monotonic())
        if self._rhythm.is_due():
            self._say_what_it_waits_for(host_has_lock=host_has_lock)
            self._meet_host()
            self._require_life()
            self._tell_silence()
            try:
                self._show_life()
            except StoreUnavailableError as error:  # the job needs no store; we try again
                _logger.warning("no sign of life could be stored: %s", error)

    def _pass_on_stop(self, *, host_has_lock: bool) -> None:
        level = self._runner.stop()
        if level is StopLevel.NONE:
            return
        if not self._asked_to_stop:
            self._asked_to_stop = True
            who = readable(self._runner.lease.owner)
            self._folder.ask_to_stop(f"{who}, the run's controller, which was asked to stop")
        if level is StopLevel.KILL or not host_has_lock:
            self._runner.hosts.kill(self._folder, self._row.attempt)

    def _say_what_it_waits_for(self, *, host_has_lock: bool) -> None:
        """Show once what a starting host waits for, so that no wait is silent."""
        reason: str | None = None
        if not host_has_lock:
            waited_s = time.monotonic() - self._began
            reason = self._runner.hosts.obstacle(self._spec.device, waited_s=waited_s)
        if reason == self._waits_for:
            return
        self._waits_for = reason
        self._folder.say_waiting(reason)
        if reason is not None:
            self._tell("waiting_for_room", f"waits for room: {reason}")

    def _meet_host(self) -> None:
        """Note the host once it has said who it is."""
        if self._host is not None and self._host.attempt == self._row.attempt:
            return
        self._host = self._folder.read_host(self._row.attempt)
        if self._host is None:
            return
        if self._row.attempt != self._own_attempt:
            self._tell("adopted", f"took over attempt {self._row.attempt} of a live host")
            self._move_deadline()

    def _move_deadline(self) -> None:
        """Tell an adopted host what the budget allows now."""
        if self._runner.budget is None:
            return
        left_s = self._runner.budget.left_s(self._spec.device)
        until_s = self._row.attempt_s + left_s  # what is left counts from the recorded seconds
        self._folder.set_deadline(None if math.isinf(until_s) else until_s)

    def _show_life(self) -> None:
        store, lease, key = self._runner.store, self._runner.lease, self._spec.key
        store.leases.renew(lease)
        beat = Heartbeat(attempt_s=0.0, quiet_s=0.0)
        if self._host is not None:
            beat = self._folder.read_heartbeat()
        try:
            if self._host is not None and self._row.pid != self._host.pid:
                start = float(self._host.start_ticks)
                store.jobs.set_process(lease, key, pid=self._host.pid, pid_start_time=start)
            self._row = store.jobs.heartbeat(lease, key, attempt_s=beat.attempt_s)
        except RecordConflictError:  # another runner of ours has just recorded the end
            return
        self._tell_progress(beat)

    def _tell_progress(self, beat: Heartbeat) -> None:
        """Tell how the job stands; that nobody hears it, as a terminal is gone, ends nothing."""
        if self._runner.on_progress is None:
            return
        progress = JobProgress(
            key=self._spec.key,
            attempt=self._row.attempt,
            attempt_s=beat.attempt_s,
            waits_for=self._waits_for,
            quiet_s=beat.quiet_s,
        )
        try:
            self._runner.on_progress(progress)
        except (OSError, ValueError) as error:  # ValueError: a closed file
            _logger.warning("progress could not be shown: %s", error)

    def _require_life(self) -> None:
        """Kill a host that is stuck; time counts only while this process runs too."""
        moment = time.monotonic()
        beat = self._folder.read_heartbeat().attempt_s
        if beat != self._last_life[0]:
            self._last_life = (beat, moment)
            return
        silent_s = moment - self._last_life[1]
        if silent_s < self._runner.stuck_s:
            return
        if not self._runner.hosts.kill(self._folder, self._row.attempt):
            raise JobHostError(
                f"{self._folder.path}: expected a sign of life of the holder of attempt.lock, got "
                f"none for {silent_s:.0f} s; find that process (fuser attempt.lock), end it and "
                "resume the run."
            )
        self._last_life = (-1.0, moment)
        self._tell("host_killed", f"killed a host without a sign of life for {silent_s:.0f} s")

    def _tell_silence(self) -> None:
        """Tell, once, that a command leaves no trace for long; it may hang."""
        quiet_s = 0.0 if self._host is None else self._folder.read_heartbeat().quiet_s
        if quiet_s < self._runner.silent_s:
            self._told_silence = False
        elif not self._told_silence:
            self._told_silence = True
            self._tell(
                "silent",
                f"nothing new in its log and its folder for {quiet_s:.0f} s, it may hang; "
                "jobs.silent_limit_s ends such attempts",
            )

    def _tell(self, kind: IncidentKind, message: str) -> None:
        key = self._spec.key
        self._runner.tell(Incident(kind=kind, key=key, attempt=self._row.attempt, message=message))


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
        """Run jobs under ``lease``, which is renewed while it waits; errors as `open_hosts`.

        ``budget`` and ``stop`` may end a job; ``on_progress`` is told every few seconds how one
        stands, ``on_incident`` what went wrong on the way. A host is killed after ``stuck_s``
        seconds without a sign of life; of a command that leaves nothing new in log and folder for
        ``silent_s`` seconds that is told.
        """
        self.store = store
        self.lease = lease
        self.config = config
        self.programs = programs
        self.hosts: Hosts = self.open_hosts(config)
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
        """Return the end of ``spec``; errors as `JobRunner.run`.

        Raises:
            UnknownNameError: Its program is not in the table, or not installed.
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
        """Settle the last attempt, then close the job, rest, or start the next; see `run`."""
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
                f"{self._mark.key}: expected no stop, got a request to stop; resume the run to "
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
        """Return the outcome of the last attempt; one kill too many counts as a failure."""
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
        """Return the pause before the next attempt, s; raise and close the job without one."""
        failures = row.attempt - row.interruptions
        if failures >= self._runner.config.max_attempts:
            self._jobs.close(self._runner.lease, row.key, "failed")
            raise job_failure(self._spec, row, outcome.problem)
        if outcome.kind == "interrupted":  # do not restart a host in a spin that dies at once
            further = max(0, row.interruptions - _FREE_INTERRUPTIONS)
            return min(_INTERRUPTED_S * further, _LONGEST_INTERRUPTED_S)
        if outcome.kind != "failed" or failures == 0:
            return 0.0
        return min(self._runner.config.backoff_s * 2.0 ** (failures - 1), _LONGEST_BACKOFF_S)

    # The start of an attempt

    def _start(self, lock: AttemptLock, before: JobRow, outcome: Outcome | None) -> JobRow:
        """Start the next attempt, sharing ``lock`` with its host; ``outcome``: of the last."""
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
            time_limit_s=runner.config.time_limit_s,
            silent_limit_s=runner.config.silent_limit_s,
            grace_s=runner.config.grace_s,
            environment=runner.config.environment,
        )
        self._folder.prepare(request, deadline_s=None if math.isinf(left_s) else left_s)
        done = kept_by(spec.command)
        write_course(self._folder, course.model_copy(update={"attempt": row.attempt, "done": done}))
        self._started = row.attempt
        runner.hosts.start(self._folder, lock, spec.device)
        return row

    def _course_after(self, row: JobRow, outcome: Outcome | None) -> Course:
        """Return how the job reached its next attempt; where that begins is not known yet."""
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
