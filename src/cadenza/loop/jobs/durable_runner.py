"""Running a job to its end, whichever process is killed, wherever its host runs.

The holder of the lock of a job's folder is in charge of it. A runner that gets the lock knows that
no host lives: it records how the last attempt ended, judges it, and closes the job or starts the
next attempt by handing its lock to a new host. A runner that does not get it waits; for a host of
its own, for one that a killed runner left, and for another runner alike.
"""

import logging
import math
import re
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import BinaryIO, Final

from cadenza.core.errors import InputError
from cadenza.core.files import finite_or_none
from cadenza.loop.config import NAME_PATTERN, JobsConfig
from cadenza.loop.contracts.records import Device, JobEnd, JobSpec
from cadenza.loop.errors import (
    JobHostError,
    RecordConflictError,
    StopRequestedError,
    StoreUnavailableError,
)
from cadenza.loop.jobs.attempt_files import AttemptFolder, AttemptHost, AttemptRequest
from cadenza.loop.jobs.outcomes import (
    JobProgress,
    Outcome,
    job_failure,
    judge,
    kept_by,
    kills_after,
    recorded_end,
    remove_output,
)
from cadenza.loop.jobs.terms import BudgetMeter, ProgramTable, StopCheck, StopLevel, never
from cadenza.loop.processes import JobMark, kill_if, readable, reap, start_ticks
from cadenza.loop.store.jobstore import JobStore
from cadenza.loop.store.rows import JobRow, Lease

_logger = logging.getLogger(__name__)

#: Longest wait for a host to be gone, s; one that ends takes milliseconds.
_GONE_S: Final = 5.0


def host_command(folder: AttemptFolder, request: AttemptRequest) -> tuple[str, ...]:
    """Return the command of the host of an attempt, which takes the lock itself."""
    module = (sys.executable, "-P", "-m", "cadenza.loop.jobs.host")
    return (*module, str(folder.request_path), str(request.attempt))


class Hosts(ABC):
    """Where hosts run; unless overridden, there is room for each and it starts with the lock."""

    def require_room(self, device: Device) -> None:  # noqa: B027 - there is room
        """Raise `JobHostError` if a host for ``device`` can never start here."""

    def waits_for(self, folder: AttemptFolder, *, waited_s: float) -> str | None:  # noqa: ARG002 - none
        """Return what keeps a host from taking the lock, which the caller holds, for ``waited_s``.

        Empty if nobody knows; None if no host is on its way.
        """
        return None

    @abstractmethod
    def start(self, folder: AttemptFolder, request: AttemptRequest, lock: BinaryIO) -> None:
        """Start the host that does what is requested in ``folder``, or raise `JobHostError`."""

    @abstractmethod
    def kill(self, folder: AttemptFolder, attempt: int) -> bool:
        """Kill the host of an attempt; False if there is none that can be killed."""

    def explain(self, folder: AttemptFolder, attempt: int, outcome: Outcome) -> Outcome:  # noqa: ARG002 - unknown
        """Return the outcome of an attempt that left no end, as far as anybody else knows it."""
        return outcome


class LocalHosts(Hosts):
    """Hosts as processes of this machine, each in a session of its own."""

    def __init__(self) -> None:
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self, folder: AttemptFolder, request: AttemptRequest, lock: BinaryIO) -> None:
        """Start a host and share the lock with it, so that the job is never without a keeper."""
        argv = (*host_command(folder, request), str(lock.fileno()))
        self._started = [host for host in self._started if host.poll() is None]
        try:
            with Path(request.log_path).open("ab") as log:
                host = subprocess.Popen(  # noqa: S603 - our own module; no shell
                    argv,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    pass_fds=(lock.fileno(),),
                )
        except OSError as error:
            raise JobHostError(
                f"{folder.path}: expected to start the host of an attempt, got '{error}'; free "
                "memory or processes and resume the run."
            ) from error
        self._started.append(host)  # the next start takes the exit status of those that ended

    def kill(self, folder: AttemptFolder, attempt: int) -> bool:
        """Kill the host that ``folder`` names, if it is still the same process."""
        host = folder.read_host(attempt)
        if host is None:
            return False
        return kill_if(host.pid, lambda pid: start_ticks(pid) == host.start_ticks, wait_s=_GONE_S)


#: Longest pause between two signs of life in the store, s; a short lease asks for more of them.
_HEARTBEAT_S: Final = 2.0
#: Signs of life per duration of a lease.
_PER_LEASE: Final = 4
#: First and longest pause between two looks at a running job, s.
_FIRST_POLL_S, _LONGEST_POLL_S = 0.01, 0.2
#: Longest pause between two attempts, s.
_LONGEST_BACKOFF_S: Final = 300.0
#: A job that is not closed yet.
_OPEN: Final = ("pending", "running")
#: Stands for a host that has not told of itself yet.
_NOBODY: Final = AttemptHost(attempt=0, pid=0, start_ticks=0)


@dataclass(slots=True)
class DurableRunner:
    """Runs jobs of one run, each key at most once to its end.

    Attributes:
        lease: The right to change the run; renewed while a job is waited for.
        hosts: Where jobs run.
        budget: May end a job, like ``stop``.
        on_progress: Told every few seconds how a job stands.
        on_incident: Gets kind and message of what went wrong on the way, and of which job it is:
            ``cycle``, ``stage``, ``attempt``. An undisturbed job has no incident.
        stuck_s: Seconds without a sign of life after which a host is killed.
        silent_s: Seconds without anything new in log and folder after which that is told.
    """

    store: JobStore
    lease: Lease
    config: JobsConfig
    programs: ProgramTable
    hosts: Hosts
    _: KW_ONLY
    budget: BudgetMeter | None = None
    stop: StopCheck = never
    on_progress: Callable[[JobProgress], None] | None = None
    on_incident: Callable[..., None] | None = None
    stuck_s: float = 120.0  # a host gives a sign of life each second
    silent_s: float = 600.0

    def run(self, spec: JobSpec) -> JobEnd:
        """Return the end of ``spec``; errors as `JobRunner.run`.

        Raises:
            UnknownNameError: Its program is not in the table, or not installed.
            JobHostError: The job's host can neither be started nor ended.
        """
        return _Job(self, spec).run()

    def heartbeat_due(self, last: float) -> bool:
        """Return whether the lease needs a sign of life, the last one given at ``last``."""
        return time.monotonic() - last >= min(_HEARTBEAT_S, self.lease.ttl_s / _PER_LEASE)


class _Job:
    """One job on its way to its end; ``row`` is what the store last said of it."""

    def __init__(self, runner: DurableRunner, spec: JobSpec) -> None:
        if re.fullmatch(NAME_PATTERN, spec.key.stage) is None:
            raise InputError(
                f"stage {spec.key.stage!r}: expected letters, digits, '.', '_' and '-', at most "
                "100; it names a folder."
            )
        self.runner = runner
        self.spec = spec
        self.folder = AttemptFolder(spec.key.attempts_beside(spec.log_path))
        self.row: JobRow = runner.store.jobs.open(runner.lease, spec)
        self.started = 0  # attempt that this runner started last
        key = spec.key
        self._mark = JobMark(f"{key.run_id}/{key.cycle}/{key.stage}", str(self.folder.path))

    def run(self) -> JobEnd:
        while self.row.status in _OPEN:
            with self._take_charge() as lock:
                self._go_on(lock)
        return recorded_end(self.spec, self.row)

    def tell(self, kind: str, message: str) -> None:
        """Report what went wrong on the way."""
        key = self.spec.key
        job = {"cycle": key.cycle, "stage": key.stage, "attempt": self.row.attempt}
        _logger.warning("%s", message, extra={"job": job})
        if self.runner.on_incident is not None:
            self.runner.on_incident(kind, message, **job)

    def _take_charge(self) -> BinaryIO:
        """Return the lock once no host lives."""
        watch, pause_s = _Watch(self), _FIRST_POLL_S
        while True:
            lock, reason = self.folder.try_lock(), None
            if lock is not None:
                reason = self.runner.hosts.waits_for(self.folder, waited_s=watch.waited_s)
                if reason is None:
                    return lock
                lock.close()
            watch.look(reason)
            time.sleep(pause_s)
            pause_s = min(1.2 * pause_s, _LONGEST_POLL_S)

    def _go_on(self, lock: BinaryIO) -> None:
        """Settle the last attempt; then close the job, or start its next one after a pause."""
        jobs, lease, key = self.runner.store.jobs, self.runner.lease, self.spec.key
        self.row = jobs.open(lease, self.spec)
        if self.row.status not in _OPEN:
            return
        outcome: Outcome | None = None
        if self.row.attempt > 0:
            outcome = self._judge()
            if self.row.status == "running":
                self._record(outcome)
            if outcome.kind == "succeeded":
                self.row = jobs.close(lease, key, "succeeded", result_sha256=outcome.digest)
                return
            self._rest(self._pause_after(outcome))
        self._start(lock, outcome)

    def _judge(self) -> Outcome:
        """Return the outcome of the last attempt; one kill too many counts as a failure."""
        outcome = judge(self.folder, self.row.attempt, self.spec.result_path)
        if outcome.end is None:
            outcome = self.runner.hosts.explain(self.folder, self.row.attempt, outcome)
        if outcome.kind != "interrupted" or not outcome.killed_alone:
            return outcome
        kills = kills_after(self.folder.request, outcome, kept_by(self.spec.command))
        if kills <= self.runner.config.max_kills:
            return outcome
        problem = (
            f"{outcome.problem}, {kills} times in a row without getting further; most likely it "
            "needs more memory than there is"
        )
        return replace(outcome, kind="failed", problem=problem)

    def _record(self, outcome: Outcome) -> None:
        """Record how the attempt ended, and end what a host left that did not see to its end."""
        end, attempt = outcome.end, self.row.attempt
        if end is None and (reaped := reap(self._mark)):
            self.tell("reaped", f"killed processes that a dead host left: {reaped}")
        interrupted = outcome.kind == "ended_by_us" or (
            outcome.kind == "interrupted"
            and self.row.interruptions < self.runner.config.max_interruptions
        )
        if outcome.kind != "succeeded":
            self.tell("interrupted" if interrupted else "attempt_failed", outcome.problem)
        host = self.folder.read_host(attempt) or _NOBODY  # a killed one counts to its last sign
        seen_s = max(self.row.attempt_s, host.attempt_s)
        self.row = self.runner.store.jobs.end_attempt(
            self.runner.lease,
            self.spec.key,
            attempt=attempt,
            exit_code=None if end is None else end.exit_code,
            duration_s=seen_s if end is None else end.duration_s,
            interrupted=interrupted,
        )

    def _pause_after(self, outcome: Outcome) -> float:
        """Return the pause before the next attempt, s; raise and close the job without one."""
        row, config = self.row, self.runner.config
        failures = row.attempt - row.interruptions
        if failures >= config.max_attempts:
            self.runner.store.jobs.close(self.runner.lease, row.key, "failed")
            raise job_failure(self.spec, row, outcome.problem)
        if outcome.kind != "failed" or failures == 0:
            return 0.0
        return min(config.backoff_s * 2.0 ** (failures - 1), _LONGEST_BACKOFF_S)

    def _rest(self, seconds: float) -> None:
        deadline, renewed = time.monotonic() + seconds, -math.inf
        while (left_s := deadline - time.monotonic()) > 0.0:
            self._require_no_stop()
            if self.runner.heartbeat_due(renewed):
                self.runner.store.leases.renew(self.runner.lease)
                renewed = time.monotonic()
            time.sleep(min(left_s, _LONGEST_POLL_S))

    def _require_no_stop(self) -> None:
        if self.runner.stop() is not StopLevel.NONE:
            raise StopRequestedError(
                f"{self._mark.key}: expected no stop, got a request to stop; resume the run to "
                "continue with this job."
            )

    def _start(self, lock: BinaryIO, outcome: Outcome | None) -> None:
        """Start the next attempt, sharing ``lock`` with its host; ``outcome``: of the last."""
        runner, spec, config, before = self.runner, self.spec, self.runner.config, self.row
        argv = runner.programs.resolve(spec.command)
        runner.hosts.require_room(spec.device)
        self._require_no_stop()
        left_s = math.inf if runner.budget is None else runner.budget.require(spec.device)
        last = None if outcome is None else self.folder.request
        failed = outcome is not None and outcome.kind == "failed"
        forgiven = failed and before.interruptions == before.attempt  # a person let it run again
        kills = 0
        if outcome is not None and not forgiven:
            kills = kills_after(last, outcome, kept_by(spec.command))
        self.row = runner.store.jobs.begin_attempt(runner.lease, spec.key)
        if spec.on_existing == "remove":
            remove_output(spec)
        request = AttemptRequest(
            attempt=self.row.attempt,
            key=self._mark.key,
            argv=argv,
            cwd=str(Path.cwd()),
            log_path=str(spec.log_path.absolute()),
            output_dir=str(spec.output_dir.absolute()),
            time_limit_s=config.time_limit_s,
            silent_limit_s=config.silent_limit_s,
            grace_s=config.grace_s,
            environment=config.environment,
            on_gpu=spec.device == "gpu",
            done=kept_by(spec.command),
            failed=(0 if last is None else last.failed) + int(failed),
            kills=kills,
            last="" if outcome is None else outcome.problem,
            deadline_s=finite_or_none(left_s),
        )
        self.folder.prepare(request)
        self.started = self.row.attempt
        runner.hosts.start(self.folder, request, lock)


class _Watch:
    """One wait for the process in charge of a job: signs of life, requests to stop, stuck hosts."""

    def __init__(self, job: _Job) -> None:
        self._job, self._runner, self._folder = job, job.runner, job.folder
        self._attempt = job.row.attempt
        self._host = _NOBODY
        self._began = time.monotonic()
        self._last_look = -math.inf
        self._last_life = (-1.0, self._began)  # seconds of the attempt, when we first saw them
        self._waits_for: str | None = None
        self._asked_to_stop = self._told_silence = False

    @property
    def waited_s(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self._began

    def look(self, waits_for: str | None) -> None:
        """Do what is due; called every fraction of a second.

        ``waits_for`` is None once the host has the lock, see `Hosts.waits_for`.
        """
        self._pass_on_stop(at_once=waits_for is not None)
        if not self._runner.heartbeat_due(self._last_look):
            return
        self._last_look = time.monotonic()
        self._tell_what_it_waits_for(waits_for or None)
        self._meet_host()
        self._require_life(has_lock=waits_for is None)
        self._tell_silence()
        try:
            self._show_life()
        except StoreUnavailableError as error:  # the job needs no store; we try again
            _logger.warning("no sign of life could be stored: %s", error)

    def _pass_on_stop(self, *, at_once: bool) -> None:
        level = self._runner.stop()
        if level is StopLevel.NONE:
            return
        if not self._asked_to_stop:
            self._asked_to_stop = True
            who = readable(self._runner.lease.owner)
            by = f"{who}, the run's controller, which was asked to stop"
            self._folder.change_request(stop_by=by)
        if level is StopLevel.KILL or at_once:
            self._runner.hosts.kill(self._folder, self._attempt)

    def _tell_what_it_waits_for(self, reason: str | None) -> None:
        """Tell once what a starting host waits for, so that no wait is silent."""
        if reason == self._waits_for:
            return
        self._waits_for = reason
        self._folder.change_request(waits_for=reason)
        if reason is not None:
            self._job.tell("waiting_for_room", f"waits for room: {reason}")

    def _meet_host(self) -> None:
        """Look at the host; tell one that another runner started what the budget allows now."""
        met, self._host = self._host, self._folder.read_host(self._attempt) or _NOBODY
        if met.pid or not self._host.pid or self._attempt == self._job.started:
            return
        self._job.tell("adopted", f"took over attempt {self._attempt} of a live host")
        if self._runner.budget is not None:
            left_s = self._runner.budget.left_s(self._job.spec.device)
            until_s = self._job.row.attempt_s + left_s  # it counts from the recorded seconds
            self._folder.change_request(deadline_s=finite_or_none(until_s))

    def _require_life(self, *, has_lock: bool) -> None:
        """Kill a host that is stuck."""
        moment, life = time.monotonic(), self._host.attempt_s
        if life != self._last_life[0] or not has_lock:
            self._last_life = (life, moment)
            return
        silent_s = moment - self._last_life[1]
        if silent_s < self._runner.stuck_s:
            return
        if not self._runner.hosts.kill(self._folder, self._attempt):
            raise JobHostError(
                f"{self._folder.path}: expected a sign of life of the holder of attempt.lock, got "
                f"none for {silent_s:.0f} s; find that process (fuser attempt.lock), end it and "
                "resume the run."
            )
        self._last_life = (-1.0, moment)
        self._job.tell("host_killed", f"killed a host without a sign of life for {silent_s:.0f} s")

    def _tell_silence(self) -> None:
        """Tell, once, that a command leaves no trace for long; it may hang."""
        silent, told = self._host.quiet_s >= self._runner.silent_s, self._told_silence
        self._told_silence = silent
        if silent and not told:
            self._job.tell(
                "silent",
                f"nothing new in its log and its folder for {self._host.quiet_s:.0f} s, it may "
                "hang; jobs.silent_limit_s ends such attempts",
            )

    def _show_life(self) -> None:
        """Store that the job lives, and tell how it stands."""
        runner, host, key = self._runner, self._host, self._job.spec.key
        runner.store.leases.renew(runner.lease)
        try:
            if host.pid and self._job.row.pid != host.pid:
                runner.store.jobs.set_process(
                    runner.lease, key, pid=host.pid, pid_start_time=float(host.start_ticks)
                )
            row = runner.store.jobs.heartbeat(runner.lease, key, attempt_s=host.attempt_s)
        except RecordConflictError:  # another runner of ours has just recorded the end
            return
        self._job.row = row
        if runner.on_progress is not None:
            runner.on_progress(
                JobProgress(
                    key=key,
                    attempt=self._attempt,
                    attempt_s=host.attempt_s,
                    waits_for=self._waits_for,
                    quiet_s=host.quiet_s,
                )
            )
