"""A command as a plain call: the runner that workers take, two of them, and jobs run by one.

The names and signatures are those of LeAgents, so that runners written for it work here. A call
blocks until its command is over, so nothing survives a killed controller: the next one starts the
command again. Use `cadenza.loop.jobs.durable_runner` where that is too dear.
"""

import shlex
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from cadenza.core.errors import IntegrityError
from cadenza.loop.contracts.records import JobEnd, JobSpec
from cadenza.loop.errors import JobFailedError
from cadenza.loop.jobs.outcomes import (
    job_failure,
    recorded_end,
    remove_output,
    result_digest,
    wanted_end,
)
from cadenza.loop.jobs.terms import ProgramTable
from cadenza.loop.store.rows import JobRow, Lease

if TYPE_CHECKING:
    from cadenza.loop.store.jobstore import JobStore


@dataclass
class RunResult:
    """How a command ended.

    Attributes:
        cmd: Program and arguments.
        exit_code: Exit status; negative for the signal that ended it.
        duration_s: Seconds it took.
        log_path: File with its output; None if it has none.
    """

    cmd: list[str]
    exit_code: int
    duration_s: float
    log_path: Path | None = None


#: Runs a command to its end, with its output going to a log file.
Runner: TypeAlias = Callable[[Sequence[str], Path], RunResult]


def subprocess_runner(cmd: Sequence[str], log_path: Path) -> RunResult:
    """Run ``cmd`` without a shell; its output goes straight to ``log_path``, which is replaced.

    Raises:
        OSError: The program is not there or may not be run.
    """
    log_path.parent.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    with log_path.open("wb") as log:
        done = subprocess.run(  # noqa: S603 - cleared by the constitution; no shell
            list(cmd), stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=False
        )
    return RunResult(list(cmd), done.returncode, time.monotonic() - began, log_path)


def dry_runner(cmd: Sequence[str], log_path: Path) -> RunResult:
    """Note in ``log_path`` what would be run, and run nothing."""
    log_path.parent.mkdir(parents=True, exist_ok=True)
    log_path.write_text(f"DRY RUN: {shlex.join(cmd)}\n", encoding="utf-8")
    return RunResult(list(cmd), 0, 0.0, log_path)


class CallableRunner:
    """Runs each job by one call of a function; a `cadenza.loop.contracts.records.JobRunner`."""

    def __init__(
        self,
        store: "JobStore",
        lease: Lease,
        call: Runner,
        *,
        programs: ProgramTable | None = None,
    ) -> None:
        """Run jobs by ``call``, once each.

        Args:
            store: Store of the run; jobs are recorded in it.
            lease: The controller's right to change the run.
            call: Gets command and log file, returns when the command is over.
            programs: What the names in commands stand for; None leaves that to ``call``.
        """
        self._jobs = store.jobs
        self._lease = lease
        self._call = call
        self._programs = programs

    def run(self, spec: JobSpec) -> JobEnd:
        """Return the recorded end of ``spec``, or that of a call made now.

        Raises:
            JobFailedError: The command failed, or left no result.
            IntegrityError: It succeeded before, and its result file was changed since.
            StaleLeaseError: Another controller took the run over.
        """
        row = self._jobs.open(self._lease, spec)
        if row.status == "running":  # by a controller that was killed
            row = self._end(spec, row, exit_code=None, duration_s=row.attempt_s)
        if row.status == "pending":
            row = self._attempt(spec)
        return recorded_end(spec, row)

    def _attempt(self, spec: JobSpec) -> JobRow:
        command = spec.command if self._programs is None else self._programs.resolve(spec.command)
        row = self._jobs.begin_attempt(self._lease, spec.key)
        if spec.on_existing == "remove":
            remove_output(spec)
        result = self._call(command, spec.log_path)
        row = self._end(spec, row, exit_code=result.exit_code, duration_s=result.duration_s)
        digest, problem = _judged(spec, result)
        if problem:
            self._jobs.close(self._lease, spec.key, "failed")
            raise job_failure(spec, row, problem)
        return self._jobs.close(self._lease, spec.key, "succeeded", result_sha256=digest)

    def _end(
        self, spec: JobSpec, row: JobRow, *, exit_code: int | None, duration_s: float
    ) -> JobRow:
        return self._jobs.end_attempt(
            self._lease,
            spec.key,
            attempt=row.attempt,
            exit_code=exit_code,
            duration_s=duration_s,
            interrupted=exit_code is None,
        )


class PlainJobs:
    """Runs each job by one call, recorded nowhere: for a worker used on its own."""

    def __init__(self, runner: Runner) -> None:
        """Run jobs by ``runner``."""
        self._runner = runner

    def run(self, spec: JobSpec) -> JobEnd:
        """Run ``spec`` now, in place of what an earlier call left if its command wants that.

        Raises:
            InputError: The folder to be replaced lies outside the run's, or is a link.
            JobFailedError: It ended with another exit code than 0, or without its result.
        """
        if spec.on_existing == "remove" and self._runner is not dry_runner:
            remove_output(spec)
        result = self._runner(spec.command, spec.log_path)
        digest, problem = _judged(spec, result)
        if problem:
            raise JobFailedError(
                f"{spec.command[0]}: expected {wanted_end(result.exit_code)}, got "
                f"{problem.rstrip('.')}; see {spec.log_path}.",
                exit_code=result.exit_code,
                duration_s=result.duration_s,
                log_path=spec.log_path,
            )
        return JobEnd(
            key=spec.key,
            exit_code=0,
            duration_s=result.duration_s,
            attempts=1,
            log_path=spec.log_path,
            result_sha256=digest,
        )


def _judged(spec: JobSpec, result: RunResult) -> tuple[str | None, str]:
    """Return the digest of a job's result, and why it did not do its job; empty if it did."""
    if result.exit_code != 0:
        return None, f"exit code {result.exit_code}"
    try:
        return None if spec.result_path is None else result_digest(spec.result_path), ""
    except IntegrityError as error:
        return None, f"exit code 0, but {error}"
