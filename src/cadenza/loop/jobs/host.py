"""The host of one attempt: a small process that runs a command and outlives whoever asked for it.

``python -m cadenza.loop.jobs.host <request.json> [descriptor of the lock]``

It runs the command in a process group of its own, appends its output to the log, shows signs of
life, and ends the group (SIGTERM, a grace period, SIGKILL) at the time limit, when it leaves no
trace for too long, at the end of the budget, when asked to by file, or when it gets SIGTERM or
SIGINT itself. Last, it writes how the attempt ended. Killed, it takes the command with it: the
kernel sees to that.

It must start fast, so it loads the standard library and two light modules of `cadenza.core`.
"""

import contextlib
import os
import select
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import BinaryIO, Final

from cadenza.loop.jobs.attempt_files import (
    AttemptEnd,
    AttemptFolder,
    AttemptLock,
    EndReason,
    HostProcess,
    HostRequest,
)
from cadenza.loop.jobs.job_environment import without_secrets
from cadenza.loop.jobs.memory_kills import memory_kills
from cadenza.loop.jobs.processes import (
    adopt_orphans,
    children_of,
    die_with_parent,
    kill_if,
    start_ticks,
)
from cadenza.loop.jobs.reaping import JobMark, reap
from cadenza.loop.jobs.silence import Silence

#: Pause between two looks at the limits, s.
_TICK_S: Final = 0.1
#: Pause between two signs of life, s.
_BEAT_S: Final = 1.0
#: Longest wait for a lock that a runner is just looking at, s.
_LOCK_S: Final = 10.0
#: Longest wait for the end of what a command leaves behind, s.
_LEFTOVERS_S: Final = 10.0
#: Exit statuses: of a command that could not be started (as a shell would), of a host without lock.
NOT_STARTED: Final = 127
NO_LOCK: Final = 75


def main(arguments: Sequence[str]) -> int:
    """Run one attempt and return 0, or `NO_LOCK` if someone else is in charge of the job."""
    folder = AttemptFolder(Path(arguments[0]).parent)
    lock = _inherited_lock(arguments[1]) if len(arguments) > 1 else _own_lock(folder)
    if lock is None:
        return NO_LOCK
    with lock:
        folder.write_end(_Attempt(folder, folder.read_request()).run())
    return 0


def _inherited_lock(descriptor: str) -> AttemptLock:
    os.set_inheritable(int(descriptor), False)  # the command must not hold it
    return AttemptLock(int(descriptor))


def _own_lock(folder: AttemptFolder) -> AttemptLock | None:
    deadline = time.monotonic() + _LOCK_S
    while (lock := folder.try_lock()) is None:
        if time.monotonic() > deadline:
            return None
        time.sleep(_TICK_S)
    return lock


class _Attempt:
    """One command from its start to its end."""

    def __init__(self, folder: AttemptFolder, request: HostRequest) -> None:
        self._folder = folder
        self._request = request
        self._mark = JobMark(request.key, str(folder.path))
        self._began = time.monotonic()
        self._last_beat = -_BEAT_S
        self._silence = Silence(
            Path(request.log_path), Path(request.output_dir), limit_s=request.silent_limit_s
        )
        self._asked_by_signal = False

    def run(self) -> AttemptEnd:
        """Return how the command ended, once nothing of it is left."""
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, self._on_signal)
        adopt_orphans()
        reap(self._mark)
        self._say_who_runs()
        killed_before = memory_kills()
        self._beat()
        log_path = Path(self._request.log_path)
        log_path.parent.mkdir(parents=True, exist_ok=True)
        with log_path.open("ab", buffering=0) as log:
            self._note(log, f"attempt {self._request.attempt}: {shlex.join(self._request.argv)}")
            exit_code, reason = self._run_command(log)
            self._note(log, f"attempt {self._request.attempt}: {reason}, exit code {exit_code}")
        killed = 0 if killed_before is None else (memory_kills() or 0) - killed_before
        return AttemptEnd(
            attempt=self._request.attempt,
            exit_code=exit_code,
            duration_s=self._elapsed_s(),
            reason=reason,
            memory_kills=max(0, killed),
        )

    def _run_command(self, log: BinaryIO) -> tuple[int, EndReason]:
        environment = without_secrets(os.environ) | self._mark.variables()
        try:
            command = subprocess.Popen(  # noqa: S603 - cleared by the constitution; no shell
                self._request.argv,
                cwd=self._request.cwd,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,
                preexec_fn=die_with_parent(os.getpid()),
            )
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            self._note(log, f"the command could not be started: {error}")
            return NOT_STARTED, "finished"
        descriptor = os.pidfd_open(command.pid)
        try:
            reason = self._watch(command, descriptor)
        finally:
            os.close(descriptor)
        exit_code = command.wait()
        self._end_leftovers()
        return exit_code, reason

    def _watch(self, command: subprocess.Popen[bytes], descriptor: int) -> EndReason:
        while not self._ended_within(_TICK_S, descriptor):
            self._beat()
            _bury_orphans(command.pid)
            reason = self._reason_to_end()
            if reason is not None:
                self._end_group(command.pid, descriptor)
                return reason
        return "finished"

    def _reason_to_end(self) -> EndReason | None:
        elapsed_s = self._elapsed_s()
        if self._folder.stop_asked():
            return "stopped"
        if self._asked_by_signal:
            return "signal"
        if self._request.time_limit_s is not None and elapsed_s >= self._request.time_limit_s:
            return "time_limit"
        if self._silence.too_long:
            return "silent"
        deadline_s = self._folder.read_deadline()
        if deadline_s is not None and elapsed_s >= deadline_s:
            return "budget"
        return None

    def _end_group(self, group: int, descriptor: int) -> None:
        """Ask the group to end, and kill it after the grace period."""
        _signal_group(group, signal.SIGTERM)
        deadline = time.monotonic() + self._request.grace_s
        while (left_s := deadline - time.monotonic()) > 0.0:
            if self._ended_within(min(_TICK_S, left_s), descriptor):
                break
            self._beat()
        _signal_group(group, signal.SIGKILL)

    def _end_leftovers(self) -> None:
        """Kill what the command left behind, in whatever session it hides."""
        reap(self._mark)
        me = os.getpid()
        deadline = time.monotonic() + _LEFTOVERS_S
        while (children := children_of(me)) and time.monotonic() < deadline:
            for pid in children:
                kill_if(pid, lambda _: True, wait_s=_LEFTOVERS_S)
        _bury_orphans(None)

    def _ended_within(self, seconds: float, descriptor: int) -> bool:
        return bool(select.select([descriptor], [], [], seconds)[0])

    def _elapsed_s(self) -> float:
        return time.monotonic() - self._began

    def _beat(self) -> None:
        elapsed_s = self._elapsed_s()
        if elapsed_s - self._last_beat >= _BEAT_S:
            self._silence.look(elapsed_s)
            self._folder.beat(elapsed_s, self._silence.seconds)
            self._last_beat = elapsed_s

    def _say_who_runs(self) -> None:
        pid = os.getpid()
        ticks = start_ticks(pid)
        if ticks is None:
            raise ProcessLookupError(f"/proc/{pid}/stat: expected this process, got none.")
        self._folder.write_host(
            HostProcess(attempt=self._request.attempt, pid=pid, start_ticks=ticks)
        )

    def _note(self, log: BinaryIO, text: str) -> None:
        moment = datetime.now(UTC).isoformat(timespec="seconds")
        line = f"=== {moment} {self._request.key} {text}\n"
        log.write(line.encode(errors="surrogateescape"))

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._asked_by_signal = True


def _signal_group(leader: int, number: signal.Signals) -> None:
    """Signal a group and its leader, who may have left it; nobody waited for the leader yet."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, number)
    os.kill(leader, number)


def _bury_orphans(command: int | None) -> None:
    """Take the exit status of ended children other than the command."""
    while True:
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if ended is None or ended.si_pid == command:
            return
        os.waitpid(ended.si_pid, 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
