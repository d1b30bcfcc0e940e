"""What workers stand on: runners of a command, jobs run by one, and how commands are handed in.

Names and signatures of runners are those of LeAgents, so that those written for it work here. A
call blocks until its command is over, so nothing survives a killed controller: the next one starts
the command again. Use `cadenza.loop.jobs.durable_runner` where that is too dear.
"""

import os
import shlex
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeAlias, TypeVar

from cadenza.core.errors import IntegrityError
from cadenza.loop.backends.base import Backend, program_table
from cadenza.loop.constitution import Constitution, ConstitutionError, JobPlan, Roots
from cadenza.loop.contracts.records import JobEnd, JobKey, JobRunner, JobSpec
from cadenza.loop.errors import JobFailedError
from cadenza.loop.events.bus import Event, EventSink
from cadenza.loop.jobs.outcomes import (
    job_failure,
    recorded_end,
    remove_output,
    result_digest,
    wanted_end,
)
from cadenza.loop.jobs.terms import ProgramTable
from cadenza.loop.processes import job_environment
from cadenza.loop.schedule import SeedLedger
from cadenza.loop.store.rows import JobRow, Lease

if TYPE_CHECKING:
    from cadenza.loop.store.jobstore import JobStore


@dataclass
class RunResult:
    """How a command ended; `exit_code` is negative for the signal that ended it."""

    cmd: list[str]
    exit_code: int
    duration_s: float
    log_path: Path | None = None


#: Runs a command to its end, with its output going to a log file.
Runner: TypeAlias = Callable[[Sequence[str], Path], RunResult]


def subprocess_runner(cmd: Sequence[str], log_path: Path) -> RunResult:
    """Run ``cmd`` without a shell, or raise `OSError`; its output replaces ``log_path``.

    It gets the variables of every job alone; see `job_environment`.
    """
    log_path.parent.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    with log_path.open("wb") as log:
        done = subprocess.run(  # noqa: S603 - cleared by the constitution; no shell
            list(cmd),
            env=job_environment(os.environ),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            check=False,
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
        """Run jobs by ``call``, once each, recorded in ``store`` under ``lease``.

        ``programs`` tells what the names in commands stand for; None leaves that to ``call``.
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


#: Initial states of a worker used on its own.
OWN_SEEDS: Final = SeedLedger(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPlace:
    """Which job of a run, unique in cycle and stage, and where its files go."""

    run_id: str
    cycle: int
    stage: str
    workdir: Path

    @property
    def folder(self) -> Path:
        """Folder of the job."""
        return self.workdir.absolute() / f"cycle_{self.cycle}" / self.stage

    @property
    def log_path(self) -> Path:
        """Its log, outside the folder, which some commands want to create themselves."""
        return self.folder.with_name(f"{self.stage}.log")


class Worker:
    """Hands in the commands of a back end: cleared by the constitution, announced, run, reported.

    Events:  ``constitution_denied`` {rule, reason}, ``job_started`` {stage, cmd}, ``job_finished``
             {exit_code, duration_s, log, stage}. `runner` runs what a call gives no job runner for.
    """

    #: Stage of its events.
    EVENT_STAGE: ClassVar[str]

    def __init__(
        self,
        constitution: Constitution,
        bus: EventSink,
        runner: Runner,
        read_roots: tuple[Path, ...] = (),
    ) -> None:
        """Work for one run, whose commands may read ``read_roots`` outside its own folder."""
        self.constitution = constitution
        self.bus = bus
        self.runner = runner
        self._read_roots = read_roots

    def _emit(self, place: JobPlace, kind: str, payload: Mapping[str, Any]) -> None:
        self.bus.emit(Event(place.run_id, self.EVENT_STAGE, kind, place.cycle, payload))

    def _run(
        self,
        place: JobPlace,
        plan: JobPlan,
        jobs: JobRunner | None,
        given: Iterable[str | None] = (),
    ) -> JobEnd:
        """Run ``plan`` to its end; errors as `JobRunner.run`, and a `ConstitutionError`.

        ``jobs`` None is one call of `runner`, by a worker used on its own, which may then read what
        is ``given``: paths that its caller named. A run reads its own folder and its roots alone.
        """
        command = self._clear(place, plan, _paths(given) if jobs is None else ())
        self._emit(place, "job_started", {"stage": place.stage, "cmd": command})
        spec = JobSpec(
            key=JobKey(run_id=place.run_id, cycle=place.cycle, stage=place.stage),
            command=command,
            output_dir=plan.output_dir,
            log_path=place.log_path,
            result_path=plan.result_path,
            device=plan.device,
            on_existing=plan.on_existing,
        )
        try:
            end = (jobs or PlainJobs(self.runner)).run(spec)
        except JobFailedError as error:
            self._report(place, error.exit_code, error.duration_s)
            raise
        self._report(place, end.exit_code, end.duration_s)
        return end

    def _clear(self, place: JobPlace, plan: JobPlan, given: tuple[Path, ...]) -> tuple[str, ...]:
        roots = Roots(
            write=(place.workdir.absolute(),),
            read=(*self._read_roots, *given),
            job=place.folder,
        )
        try:
            return self.constitution.clear(plan.job, roots).argv()
        except ConstitutionError as error:
            verdict = {"rule": error.verdict.rule, "reason": error.verdict.reason}
            self._emit(place, "constitution_denied", verdict)
            raise

    def _report(self, place: JobPlace, exit_code: int | None, duration_s: float) -> None:
        told = {"exit_code": exit_code, "duration_s": duration_s, "log": place.log_path}
        self._emit(place, "job_finished", {**told, "stage": place.stage})


def _paths(given: Iterable[str | None]) -> tuple[Path, ...]:
    """Return which of ``given`` are there, absolute; the others are names of a hub."""
    return tuple(Path(name).absolute() for name in given if name and Path(name).exists())


def runner_for(backend: Backend, runner: Runner) -> Runner:
    """Return how a worker of ``backend`` runs commands.

    `subprocess_runner` gets the executables that the names stand for, so that nobody's ``PATH``
    can put others in their place; every other runner gets the names, as in LeAgents.
    """
    if runner is not subprocess_runner:
        return runner

    def run_program(cmd: Sequence[str], log_path: Path) -> RunResult:
        return runner(program_table(backend).resolve(cmd), log_path)

    return run_program


def cycle_of(output_dir: Path) -> int:
    """Return the cycle that a folder of a job belongs to by its path; 0 if to none."""
    prefix, _, number = output_dir.parent.name.partition("_")
    return int(number) if prefix == "cycle" and number.isdecimal() else 0


_Settings = TypeVar("_Settings")


class CommandWorker(Worker, ABC, Generic[_Settings]):
    """A worker with settings of its own, ``cfg``, and a ``backend``."""

    def __init__(
        self,
        cfg: _Settings,
        constitution: Constitution,
        bus: EventSink,
        runner: Runner = subprocess_runner,
        *,
        backend: Backend | None = None,
        read_roots: tuple[Path, ...] = (),
    ) -> None:
        """Work for one run, with a ``backend``, LeRobot for None.

        ``runner`` runs commands where a call gets no job runner; ``read_roots`` are folders
        outside the run's own that commands may read.
        """
        self.cfg = cfg
        self.backend: Backend = self._lerobot() if backend is None else backend
        super().__init__(constitution, bus, runner_for(self.backend, runner), read_roots)

    @abstractmethod
    def _lerobot(self) -> Backend:
        """Return LeRobot with the worker's settings."""
