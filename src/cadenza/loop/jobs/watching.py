"""Watching a live host: signs of life for the store, requests to stop, hosts that are stuck."""

import logging
import math
import time
from typing import TYPE_CHECKING, Final, Self

from cadenza.loop.config import JobsConfig
from cadenza.loop.contracts.records import JobSpec
from cadenza.loop.errors import JobHostError, RecordConflictError, StoreUnavailableError
from cadenza.loop.jobs.attempt_files import AttemptFolder, Heartbeat, HostProcess
from cadenza.loop.jobs.reports import Incident, IncidentKind, JobProgress
from cadenza.loop.jobs.stopping import StopLevel
from cadenza.loop.processes import readable
from cadenza.loop.store.rows import JobRow, Lease

if TYPE_CHECKING:
    from cadenza.loop.jobs.durable_runner import DurableRunner

_logger = logging.getLogger(__name__)

#: Longest pause between two signs of life in the store, s; a short lease asks for more of them.
_HEARTBEAT_S: Final = 2.0
#: Signs of life per duration of a lease.
_PER_LEASE: Final = 4


def time_limit_of(spec: JobSpec, config: JobsConfig) -> float | None:
    """Return how long an attempt may take, s: the job's limit or that of all, whichever is less."""
    limits = [limit for limit in (spec.time_limit_s, config.time_limit_s) if limit is not None]
    return min(limits, default=None)


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
    """One wait for whoever is in charge of a job."""

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

        Args:
            host_has_lock: Off while a host is on its way, e.g. waits for room on a cluster.

        Raises:
            StaleLeaseError: Another controller took the run over; the job goes on without us.
            JobHostError: Whoever is in charge is stuck and cannot be killed.
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
        """Tell, once, for what a host waits that is on its way; nobody shall wait in silence."""
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
            spent_s=self._row.duration_s,
            time_limit_s=time_limit_of(self._spec, self._runner.config),
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
                f"{self._folder.path}: expected a sign of life of whoever holds attempt.lock, got "
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
