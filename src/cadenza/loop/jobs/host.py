"""The host of one attempt: a small process that runs a command and outlives its caller.

``python -m cadenza.loop.jobs.host <request.json> <attempt> [descriptor of the lock]``

It runs the command in a process group of its own, appends its output to the log, shows signs of
life, ends the group (SIGTERM, a grace period, SIGKILL) when a limit is reached or someone asks, and
last writes how the attempt ended. Killed, it takes the command with it. One that comes too late,
as a cluster kept it waiting, finds another attempt requested or its own ended, and does nothing. It
must start fast, so it loads the standard library and two light modules of `cadenza.core`.
"""

import contextlib
import math
import os
import re
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
    AttemptHost,
    AttemptRequest,
    EndReason,
)
from cadenza.loop.processes import (
    JobMark,
    adopt_orphans,
    children_of,
    die_with_parent,
    job_environment,
    kill_if,
    reap,
    start_ticks,
)

#: Pause between two looks through the folder, s, and looks at least within a limit.
_FOLDER_S, _PER_LIMIT = 30.0, 4
#: Most seconds that count between two looks: those that this process slept through tell nothing.
_LONGEST_STEP_S: Final = 5.0


class Silence:
    """Watches what one attempt of a job leaves: new lines in its log, changes in its folder.

    Files are told apart by number, sizes and times of change; the folder is looked through only
    while the log is silent. ``seconds`` counts since something changed, as far as was looked.
    """

    def __init__(self, log_path: Path, folder: Path, *, limit_s: float | None) -> None:
        """Watch a log and a folder, which may come later, for a silence of ``limit_s``."""
        self.seconds: float = 0.0
        self._log_path, self._folder = log_path, folder
        self._limit_s = math.inf if limit_s is None else limit_s
        self._log = _size_and_time(log_path)
        self._files: tuple[int, int, int] | None = None
        self._looked_at_s = 0.0  # silence at the last look through the folder
        self._moment: float | None = None

    @property
    def too_long(self) -> bool:
        """Whether it counts as a hang."""
        return self.seconds >= self._limit_s

    def look(self, moment: float) -> None:
        """Look again at ``moment``, seconds of any clock that does not jump."""
        passed_s = 0.0 if self._moment is None else moment - self._moment
        self._moment = moment
        self.seconds += min(passed_s, _LONGEST_STEP_S)
        before, self._log = self._log, _size_and_time(self._log_path)
        changed = self._log != before
        pause_s = min(_FOLDER_S, self._limit_s / _PER_LIMIT)
        if not changed and self.seconds - self._looked_at_s >= pause_s:
            known, self._files = self._files, _files_below(self._folder)
            self._looked_at_s = self.seconds
            changed = known not in (None, self._files)
        if changed:
            self.seconds = self._looked_at_s = 0.0


def _size_and_time(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except OSError:
        return -1, -1
    return status.st_size, status.st_mtime_ns


def _files_below(folder: Path) -> tuple[int, int, int]:
    """Return number, sum of sizes and newest time of the files below a folder."""
    found = [
        _size_and_time(Path(place, name)) for place, _, names in os.walk(folder) for name in names
    ]
    return len(found), sum(size for size, _ in found), max((time for _, time in found), default=0)


_GROUPS: Final = Path("sys/fs/cgroup")


def memory_kills(root: Path = Path("/")) -> int | None:
    """Return how many processes of this control group the kernel killed for want of memory.

    A job runs in the group of its host, so a count that rose tells a job that needs too much memory
    from one that a person or a shutdown killed. Other programs of the group count, too; None if
    nobody counts. Source: ``memory.events`` (cgroup v2). In a container the name of the group is
    often that outside, but its file is at the top.
    """
    with contextlib.suppress(OSError):
        found = re.search(r"^0::/?(.*)$", (root / "proc/self/cgroup").read_text(), re.MULTILINE)
        for group in () if found is None else (found[1], ""):
            with contextlib.suppress(OSError):
                text = (root / _GROUPS / group / "memory.events").read_text()
                count = re.search(r"^oom_kill (\d+)$", text, re.MULTILINE)
                return None if count is None else int(count[1])
    return None


#: Pause between two looks at the limits, s.
_TICK_S: Final = 0.1
#: Pause between two signs of life, s.
_BEAT_S: Final = 1.0
#: Longest wait for a lock that a runner holds while it asks a cluster for this host, s.
LOCK_WAIT_S: Final = 60.0
#: Longest wait for the end of what a command leaves behind, s.
_LEFTOVERS_S: Final = 10.0
#: Exit statuses: of a command that could not be started (as a shell would), of a host that has
#: nothing to do.
NOT_STARTED: Final = 127
NOT_IN_CHARGE: Final = 75


def main(arguments: Sequence[str]) -> int:
    """Run one attempt and return 0, or `NOT_IN_CHARGE` if it is not this process's to run."""
    folder, attempt = AttemptFolder(Path(arguments[0]).parent), int(arguments[1])
    if len(arguments) > 2:
        os.set_inheritable(int(arguments[2]), False)  # the command must not hold it
        lock: BinaryIO | None = os.fdopen(int(arguments[2]), "ab")
    elif (lock := folder.try_lock(wait_s=LOCK_WAIT_S)) is None:
        return NOT_IN_CHARGE
    with lock:
        request = folder.read_request()
        if request.attempt != attempt or folder.has_ended(attempt):
            return NOT_IN_CHARGE
        folder.write_end(_Attempt(folder, request).run())
    return 0


class _Attempt:
    """One command from its start to its end."""

    def __init__(self, folder: AttemptFolder, request: AttemptRequest) -> None:
        self._folder = folder
        self._request = request
        self._mark = JobMark(request.key, str(folder.path))
        self._began = time.monotonic()
        self._start_ticks = start_ticks(os.getpid()) or 0
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
        passed = job_environment(os.environ, self._request.environment)
        environment = passed | self._mark.variables()
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
        while not select.select([descriptor], [], [], _TICK_S)[0]:
            self._beat()
            reason = self._reason_to_end()
            if reason is not None:
                self._end_group(command.pid, descriptor)
                return reason
        return "finished"

    def _reason_to_end(self) -> EndReason | None:
        elapsed_s = self._elapsed_s()
        latest = self._folder.request
        if latest is not None and latest.attempt == self._request.attempt:
            self._request = latest
        limit_s, deadline_s = self._request.time_limit_s, self._request.deadline_s
        reasons: dict[EndReason, bool] = {
            "stopped": bool(self._request.stop_by),
            "signal": self._asked_by_signal,
            "time_limit": limit_s is not None and elapsed_s >= limit_s,
            "silent": self._silence.too_long,
            "budget": deadline_s is not None and elapsed_s >= deadline_s,
        }
        return next((reason for reason, holds in reasons.items() if holds), None)

    def _end_group(self, group: int, descriptor: int) -> None:
        """Ask the group to end, and kill it after the grace period."""
        _signal_group(group, signal.SIGTERM)
        deadline = time.monotonic() + self._request.grace_s
        while (left_s := deadline - time.monotonic()) > 0.0:
            if select.select([descriptor], [], [], min(_TICK_S, left_s))[0]:
                break
            self._beat()
        _signal_group(group, signal.SIGKILL)

    def _end_leftovers(self) -> None:
        """Kill what the command left behind, in whatever session: its orphans are our children."""
        me = os.getpid()
        deadline = time.monotonic() + _LEFTOVERS_S
        while (children := children_of(me)) and time.monotonic() < deadline:
            for pid in children:
                kill_if(pid, lambda _: True, wait_s=_LEFTOVERS_S)

    def _elapsed_s(self) -> float:
        return time.monotonic() - self._began

    def _beat(self) -> None:
        elapsed_s = self._elapsed_s()
        if elapsed_s - self._last_beat >= _BEAT_S:
            self._silence.look(elapsed_s)
            host = AttemptHost(
                attempt=self._request.attempt,
                pid=os.getpid(),
                start_ticks=self._start_ticks,
                attempt_s=round(elapsed_s, 3),
                quiet_s=round(self._silence.seconds, 3),
            )
            self._folder.write_host(host)
            self._last_beat = elapsed_s

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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
