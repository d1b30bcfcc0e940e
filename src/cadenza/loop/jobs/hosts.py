"""Starting and ending the hosts of attempts on this machine."""

import contextlib
import subprocess
import sys
from pathlib import Path
from typing import Final, Protocol

from cadenza.loop.contracts.records import Device
from cadenza.loop.errors import JobHostError
from cadenza.loop.jobs.attempt_files import AttemptFolder, AttemptLock
from cadenza.loop.processes import kill_if, start_ticks

#: Longest wait for a host to be gone, s; one that ends takes milliseconds.
_GONE_S: Final = 5.0


class Hosts(Protocol):
    """Where hosts run."""

    def require_room(self, device: Device) -> None:
        """Raise unless a host for ``device`` can start here, now or later.

        Raises:
            JobHostError: There is no room for it, and there never will be.
        """
        ...

    def obstacle(self, device: Device, *, waited_s: float) -> str | None:
        """Return what keeps a host that is on its way from starting; None if nothing is known.

        Args:
            device: What it is to run on.
            waited_s: Seconds it has been on its way.
        """
        ...

    def start(self, folder: AttemptFolder, lock: AttemptLock, device: Device) -> None:
        """Start the host that does what ``folder`` requests; it is in charge from now on.

        Raises:
            JobHostError: It could not be started.
        """
        ...

    def expected(self, folder: AttemptFolder) -> bool:
        """Return whether a host that holds no lock yet is on its way."""
        ...

    def kill(self, folder: AttemptFolder, attempt: int) -> bool:
        """Kill the host of an attempt; False if there is none that can be killed."""
        ...

    def collect(self, folder: AttemptFolder) -> None:
        """Wait until the host that gave up the lock of ``folder`` is gone."""
        ...


class LocalHosts:
    """Hosts as processes of this machine, each in a session of its own."""

    def __init__(self) -> None:
        self._started: dict[Path, subprocess.Popen[bytes]] = {}

    def require_room(self, device: Device) -> None:
        """Do nothing: a host of this machine starts at once."""

    def obstacle(self, device: Device, *, waited_s: float) -> str | None:  # noqa: ARG002 - as above
        """Return None: a host of this machine starts at once."""
        return None

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

    def expected(self, folder: AttemptFolder) -> bool:  # noqa: ARG002 - hosts start with the lock
        """Return False: hosts start with the lock."""
        return False

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
