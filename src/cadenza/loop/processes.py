"""Processes of this machine, by what the kernel says of them; light, for the host of a job.

A number of a dead process may be given to a new one. A signal is therefore sent through a
descriptor, after asking again whether it is the process that is meant; and an owner in the store is
named by machine, boot, process-id namespace, process id and start time.

Source:  proc(5): `/proc/<pid>/stat`, `/proc/<pid>/environ`; pidfd_open(2); prctl(2).
Limits:  Linux. Processes of other users are never touched; those elsewhere count as alive.
"""

import contextlib
import os
import re
import select
import signal
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_PROCESSES: Final = Path("/proc")
#: Fields of a process's state behind its name, counted from field 3.
_STATE, _PARENT, _START = 0, 1, 19
#: States of a process that has ended: zombie, dead.
_ENDED: Final = frozenset("ZX")
#: States of a process that is held: by SIGSTOP or Ctrl-Z, by a debugger.
_HELD: Final = frozenset("Tt")
#: From <linux/prctl.h>.
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
#: Exit status of a child whose parent died before the child could ask to die with it.
_PARENT_DIED: Final = 125


def _fields_of(pid: int) -> list[str] | None:
    """Return the state of a process that has not ended; None if there is none."""
    try:
        status = (_PROCESSES / str(pid) / "stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name in parentheses may hold anything, half a letter included: it is cut at 15 bytes.
    fields = status.rpartition(b")")[2].decode().split()
    return None if fields[_STATE] in _ENDED else fields


#: Variables of every job: places of programs, caches and screens, languages, and what libraries of
#: computing and rendering are told; of families, those that may hold a key are left out.
_PASSED: Final = re.compile(
    r"PATH|HOME|USER|LOGNAME|SHELL|LANG|LANGUAGE|TZ|TERM|COLUMNS|TMPDIR|TMP|TEMP|LD_LIBRARY_PATH"
    r"|VIRTUAL_ENV|CONDA_PREFIX|DISPLAY|WAYLAND_DISPLAY|XAUTHORITY|TOKENIZERS_PARALLELISM"
    r"|SSL_CERT_(FILE|DIR)|(REQUESTS|CURL)_CA_BUNDLE|VK_(ICD_FILENAMES|DRIVER_FILES)"
    r"|HF_(HOME|(HUB|ASSETS|DATASETS)_CACHE|(HUB|DATASETS)_OFFLINE|LEROBOT_HOME)"
    r"|TRANSFORMERS_(CACHE|OFFLINE)|HUGGINGFACE_HUB_CACHE|CADENZA_([A-Z]+_PYTHON|ARTIFACTS_ROOT)"
    r"|(?!.*(KEY|TOKEN|SECRET|PASS|CRED|AUTH))("
    r"PYTHON|MPL|(LC|XDG|MUJOCO|PYOPENGL|EGL|SDL|LIBGL|MESA|LIBERO|CUDA|NVIDIA|CUBLAS|CUDNN|NCCL|HIP"
    r"|ROCR|HSA|OMP|GOMP|KMP|MKL|OPENBLAS|NUMEXPR|NUMBA|TORCH|PYTORCH|TORCHINDUCTOR|TRITON)_"
    r")[A-Z0-9_]+"
)
#: ... and addresses, unless they name a user or password.
_ADDRESSES: Final = re.compile(r"(HTTP|HTTPS|ALL|NO|FTP)_PROXY|HF_ENDPOINT", re.IGNORECASE)


def job_environment(environ: Mapping[str, str], further: Iterable[str] = ()) -> dict[str, str]:
    """Return what of ``environ`` a job gets, which runs programs of others; ``further`` are names.

    With keys it could spend money, with the store's address answer the questions that wait for a
    person. Against programs that look for what they were not given only another user helps: a
    process may read the variables of others of the same user.
    """
    named = frozenset(further)
    return {
        name: value
        for name, value in environ.items()
        if name in named
        or _PASSED.fullmatch(name)
        or (_ADDRESSES.fullmatch(name) and "@" not in value)
    }


def start_ticks(pid: int) -> int | None:
    """Return when a live process started, in clock ticks since boot; None if there is none."""
    fields = _fields_of(pid)
    return None if fields is None else int(fields[_START])


def is_held(pid: int) -> bool:
    """Return whether a live process is stopped (SIGSTOP, Ctrl-Z, a debugger) and does nothing."""
    fields = _fields_of(pid)
    return fields is not None and fields[_STATE] in _HELD


def running_pids() -> list[int]:
    """Return the numbers of all processes, ended ones included."""
    return [int(entry.name) for entry in _PROCESSES.iterdir() if entry.name.isdecimal()]


def environment_of(pid: int) -> frozenset[bytes]:
    """Return the ``NAME=value`` strings that a process began with; none if it is gone or secret."""
    try:
        return frozenset((_PROCESSES / str(pid) / "environ").read_bytes().split(b"\0"))
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return frozenset()


def children_of(parent: int) -> list[int]:
    """Return the live children of a process."""
    return [
        pid
        for pid in running_pids()
        if (fields := _fields_of(pid)) is not None and int(fields[_PARENT]) == parent
    ]


def kill_if(pid: int, is_meant: Callable[[int], bool], *, wait_s: float) -> bool:
    """Kill a process if it is the one that is meant, and wait for its end; return whether it was.

    ``is_meant`` is asked while the number is held, so that it cannot be given to another process.
    """
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        if start_ticks(pid) is None or not is_meant(pid):
            return False
        with contextlib.suppress(ProcessLookupError):  # it ended meanwhile
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        select.select([descriptor], [], [], wait_s)
    finally:
        os.close(descriptor)
    return True


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parents die."""
    _process_control()(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent: int) -> Callable[[], None]:
    """Return what a new child calls first so that the kernel kills it when ``parent`` dies.

    To be called by the thread that starts the child: the kernel means its end.
    """
    control = _process_control()  # the child of a process with threads must import nothing

    def prepare() -> None:
        control(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before we could ask
            os._exit(_PARENT_DIED)

    return prepare


def _process_control() -> Callable[[int, int], None]:
    """Return prctl(2) for options with one argument; it raises `OSError`."""
    import ctypes

    prctl = ctypes.CDLL(None, use_errno=True).prctl

    def control(option: int, value: int) -> None:
        if prctl(option, value, 0, 0, 0) != 0:
            error = ctypes.get_errno()
            raise OSError(error, f"prctl({option}, {value}): {os.strerror(error)}")

    return control


def this_process() -> str:
    """Return the name of the calling process."""
    pid = os.getpid()
    return f"{_machine()}/{pid}/{start_ticks(pid)}"


def readable(owner: str) -> str:
    """Return an owner as people say it: ``process 4242 on host``; odd names as they are."""
    parts = owner.split("/")
    if len(parts) < 5 or not parts[-2].isdecimal():
        return owner
    return f"process {parts[-2]} on {parts[0]}"


def is_gone(owner: str) -> bool:
    """Return whether ``owner`` is known to be dead; False for other machines and odd names."""
    pid = _pid_here(owner)
    return pid is not None and str(start_ticks(pid)) != owner.rpartition("/")[2]


def is_frozen(owner: str) -> bool:
    """Return whether ``owner`` is known to be alive and stopped (SIGSTOP, Ctrl-Z, a debugger)."""
    pid = _pid_here(owner)
    return pid is not None and not is_gone(owner) and is_held(pid)


def _pid_here(owner: str) -> int | None:
    """Return the number of a process of this machine; None for other machines and odd names."""
    machine, _, process = owner.rpartition("/")[0].rpartition("/")
    return int(process) if machine == _machine() and process.isdecimal() else None


def _machine() -> str:
    boot = (_PROCESSES / "sys/kernel/random/boot_id").read_text().strip()
    return f"{socket.gethostname()}/{boot}/{(_PROCESSES / 'self/ns/pid').readlink()}"


#: Variables that mark the processes of a job.
KEY_VARIABLE: Final = "CADENZA_JOB"
FOLDER_VARIABLE: Final = "CADENZA_JOB_FOLDER"
#: Longest wait for killed processes to be gone, s; the kernel takes milliseconds.
_REAP_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class JobMark:
    """What tells the processes of a job from all others: its key and the folder of its attempts."""

    key: str
    folder: str

    def variables(self) -> dict[str, str]:
        """Return the variables that carry the mark."""
        return {KEY_VARIABLE: self.key, FOLDER_VARIABLE: self.folder}

    def is_on(self, pid: int) -> bool:
        """Return whether a process carries this very mark."""
        found = environment_of(pid)
        return all(os.fsencode(f"{k}={value}") in found for k, value in self.variables().items())


def find_marked(mark: JobMark) -> list[int]:
    """Return the processes that carry ``mark``, the calling one left out."""
    return [pid for pid in running_pids() if pid != os.getpid() and mark.is_on(pid)]


def reap(mark: JobMark, *, wait_s: float = _REAP_S) -> list[int]:
    """Kill every process that carries ``mark``, also those they start meanwhile; return them."""
    killed: list[int] = []
    deadline = time.monotonic() + wait_s
    while marked := find_marked(mark):
        left_s = max(0.0, deadline - time.monotonic())
        killed += [pid for pid in marked if kill_if(pid, mark.is_on, wait_s=left_s)]
        if left_s == 0.0:
            break
    return killed
