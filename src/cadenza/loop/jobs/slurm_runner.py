"""Jobs on a cluster with Slurm, each attempt a batch job of its own.

The host of an attempt is all that a batch job runs; it takes the lock of its folder on whichever
node it starts. A batch job is named after folder and attempt, so that a controller finds what a
killed one submitted. All else is as on one machine.

Needs:    ``sbatch``, ``squeue`` and ``scancel``, and ``sacct`` where Slurm keeps accounts; a folder
          of runs and an installation that login and compute nodes see at the same paths, on a file
          system whose locks work between nodes.
Limits:   one node per job. A job that Slurm cancels, preempts or ends at its time limit counts as
          interrupted; one that it ends for want of memory, or that ends by itself without a word,
          as failed.
Departs:  from `submitit`, which pickles what it runs and keeps six files per job of its own.
"""

import contextlib
import logging
import math
import os
import shlex
import shutil
import subprocess
import time
from dataclasses import dataclass, replace
from typing import BinaryIO, Final

from cadenza.loop.config import SlurmConfig
from cadenza.loop.errors import JobHostError
from cadenza.loop.jobs.attempt_files import AttemptFolder, AttemptRequest
from cadenza.loop.jobs.durable_runner import Hosts, host_command
from cadenza.loop.jobs.outcomes import Outcome
from cadenza.loop.processes import job_environment

_logger = logging.getLogger(__name__)

#: States of batch jobs that are over: https://slurm.schedmd.com/squeue.html, job state codes.
_OVER: Final = frozenset(
    {"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY"}
    | {"PREEMPTED", "REVOKED", "TIMEOUT"}
)
#: Commands that must be there, and one that helps.
_COMMANDS, _ACCOUNTS = ("sbatch", "squeue", "scancel"), "sacct"
#: Longest time that Slurm gets to take a job, and to answer, s.
_SUBMIT_S, _ANSWER_S = 60.0, 10.0
#: Pause between two questions about one job, or two orders to cancel it, s; Slurm serves many.
ASK_EVERY_S: Final = 5.0
#: Seconds before a time limit, beyond the grace, at which a job is told to end; Slurm may be late.
_EARLY_S: Final = 30


@dataclass(frozen=True, slots=True)
class _BatchJob:
    """A batch job as Slurm tells it; `reason` is why it waits."""

    number: str
    state: str
    reason: str = ""

    @property
    def is_over(self) -> bool:
        return self.state in _OVER


class SlurmHosts(Hosts):
    """Hosts in batch jobs."""

    def __init__(self, config: SlurmConfig) -> None:
        """Submit as ``config`` says; errors as `require_slurm`."""
        require_slurm()
        self._config = config
        self._known: dict[str, tuple[float, _BatchJob | None]] = {}  # by name: when we asked
        self._cancelled: dict[str, float] = {}

    def start(self, folder: AttemptFolder, request: AttemptRequest, lock: BinaryIO) -> None:  # noqa: ARG002 - the host takes its own
        """Submit the host, once: one that Slurm took without saying so is found by its name."""
        script = f"#!/bin/sh\nexec {shlex.join(host_command(folder, request))}\n"
        name, words = _name_of(folder, request), self._options(request)
        try:
            number = _told(
                "sbatch", f"--job-name={name}", *words, script=script, timeout_s=_SUBMIT_S,
                further=request.environment,
            ).split(";")[0]  # fmt: skip
        except JobHostError:
            job = self._find(name)
            if job is None:
                raise
            number = job.number
        self._known[name] = (time.monotonic(), _BatchJob(number, "PENDING"))
        folder.change_request(cluster_id=number)

    def waits_for(self, folder: AttemptFolder, *, waited_s: float) -> str | None:  # noqa: ARG002 - Slurm knows
        """Return why Slurm lets the batch job of the folder's attempt wait, or does not answer."""
        request = folder.request
        if request is None or folder.has_ended(request.attempt):
            return None
        try:
            job = self._look(_name_of(folder, request))
        except JobHostError as error:
            return str(error)
        if job is None or job.is_over:
            return None
        waits = job.state == "PENDING" and job.reason
        return f"Slurm job {job.number} is pending: {job.reason}" if waits else ""

    def kill(self, folder: AttemptFolder, attempt: int) -> bool:
        """Cancel the batch job of an attempt, and with it host and command."""
        request = folder.request
        if request is None or request.attempt != attempt:
            return False
        name, moment = _name_of(folder, request), time.monotonic()
        if moment - self._cancelled.get(name, -math.inf) < ASK_EVERY_S:
            return True
        try:
            job = self._find(name)
            if job is None or job.is_over:
                return False
            self._cancelled[name] = moment
            _told("scancel", job.number)
        except JobHostError as error:
            _logger.warning("a job could not be cancelled yet: %s", error)
        return True

    def explain(self, folder: AttemptFolder, attempt: int, outcome: Outcome) -> Outcome:
        """Return the outcome with what Slurm says of an attempt that left no end."""
        request = folder.request
        if request is None or request.attempt != attempt:
            return outcome
        try:
            job = self._find(_name_of(folder, request))
        except JobHostError:
            job = None
        number = request.cluster_id if job is None else job.number
        state, exit_code = job.state if job is not None and job.is_over else "", ""
        if number and shutil.which(_ACCOUNTS) is not None:
            words = ("--noheader", "--parsable2", "--allocations", "--format=State,ExitCode")
            with contextlib.suppress(JobHostError):
                told, _, exit_code = _told(_ACCOUNTS, *words, f"--jobs={number}").partition("|")
                first = told.split()[:1]  # "CANCELLED by 1000"
                state = state or next((word for word in first if word in _OVER), "")
        if not state:
            return outcome
        by_itself = state == "FAILED" and not exit_code.startswith("0:")  # 0:9 is a signal
        kind = "failed" if by_itself or state == "OUT_OF_MEMORY" else outcome.kind
        problem = f"{outcome.problem}; Slurm says of its job {number}: {state}"
        return replace(outcome, kind=kind, problem=problem)

    def _look(self, name: str) -> _BatchJob | None:
        """Return what Slurm said of a job at most `ASK_EVERY_S` ago."""
        asked, job = self._known.get(name, (-math.inf, None))
        if job is None or job.is_over or time.monotonic() - asked >= ASK_EVERY_S:
            job = self._find(name)
            self._known[name] = (time.monotonic(), job)
        return job

    @staticmethod
    def _find(name: str) -> _BatchJob | None:
        """Return the batch job of a name, also one that ended lately; None without one."""
        told = _told(
            *("squeue", "--me", "--all", "--noheader", "--states=all"),
            *(f"--name={name}", "--format=%i|%T|%r"),
        )
        lines = told.splitlines()
        return _BatchJob(*lines[-1].split("|", 2)) if lines else None

    def _options(self, request: AttemptRequest) -> list[str]:
        """Return the options of ``sbatch``."""
        slurm = self._config
        words = {
            "output": request.log_path.replace("%", "%%"),
            "open-mode": "append",
            "chdir": request.cwd,
            "nodes": 1,
            "ntasks": 1,
            "signal": f"B:TERM@{math.ceil(request.grace_s) + _EARLY_S}",
            "partition": slurm.partition,
            "account": slurm.account,
            "cpus-per-task": slurm.cpus,
            "mem": slurm.memory,
            "time": slurm.time,
            "gres": f"gpu:{slurm.gpus}" if request.on_gpu else None,
            **slurm.options,
        }
        flags = [
            f"--{name}" if value is True else f"--{name}={value}"
            for name, value in words.items()
            if value is not None and value is not False
        ]
        return ["--parsable", "--no-requeue", *flags]


def require_slurm() -> str:
    """Return which Slurm jobs can be given to; submit nothing.

    Raises:
        JobHostError: Its commands are not here, or do not run.
    """
    missing = [name for name in _COMMANDS if shutil.which(name) is None]
    if missing:
        raise JobHostError(
            f"jobs.runner: expected Slurm's commands for 'slurm', got no {', '.join(missing)} on "
            "PATH; run the loop where you submit jobs, or set jobs.runner: local."
        )
    return _told("sbatch", "--version").strip()


def _name_of(folder: AttemptFolder, request: AttemptRequest) -> str:
    return f"{request.key.replace('/', '.')}.{request.attempt}.{folder.digest[:12]}"


def _told(
    program: str,
    *words: str,
    script: str = "",
    timeout_s: float = _ANSWER_S,
    further: tuple[str, ...] = (),
) -> str:
    """Return what one of Slurm's commands answers, or raise `JobHostError` with its complaint.

    It gets the variables of a job, as ``sbatch`` hands its own on, and its settings.
    """
    own = [name for name in os.environ if name == "SLURM_CONF" or name.startswith("SBATCH_")]
    try:
        done = subprocess.run(  # noqa: S603 - Slurm's own commands; no shell
            [shutil.which(program) or program, *words],
            input=script,
            env=job_environment(os.environ, (*further, *own)),
            capture_output=True,
            timeout=timeout_s,
            text=True,
            errors="replace",
            check=False,
        )
        problem = done.stderr.strip() or f"exit code {done.returncode}"
    except (OSError, subprocess.TimeoutExpired) as error:
        done, problem = None, str(error)
    if done is None or done.returncode != 0:
        raise JobHostError(
            f"{program}: expected an answer of Slurm, got '{problem}'; correct jobs.slurm or wait "
            "for Slurm, and resume the run."
        )
    return done.stdout
