"""What agents stand on: runners of a command, and the one way from a plan to what its job left.

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

from cadenza.core.errors import CadenzaError, IntegrityError
from cadenza.loop.backends.base import Backend, program_table
from cadenza.loop.constitution import Constitution, ConstitutionError, JobPlan, Roots
from cadenza.loop.contracts.records import JobEnd, JobKey, JobRunner, JobSpec
from cadenza.loop.errors import JobFailedError, StageError
from cadenza.loop.events.bus import Event, EventBus
from cadenza.loop.jobs.outcomes import (
    job_failure,
    recorded_end,
    remove_output,
    result_digest,
    wanted_end,
)
from cadenza.loop.processes import job_environment
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

    def __init__(self, store: "JobStore", lease: Lease, call: Runner) -> None:
        """Run jobs by ``call``, once each, recorded in ``store`` under ``lease``."""
        self._jobs = store.jobs
        self._lease = lease
        self._call = call

    def run(self, spec: JobSpec) -> JobEnd:
        """Return the recorded end of ``spec``, or that of a call made now; see `JobRunner.run`."""
        if self._call is dry_runner:
            spec = spec.model_copy(update={"result_path": None})
        row = self._jobs.open(self._lease, spec)
        if row.status == "running":  # by a controller that was killed
            row = self._end(spec, row, exit_code=None, duration_s=row.attempt_s)
        if row.status == "pending":
            row = self._attempt(spec)
        return recorded_end(spec, row)

    def _attempt(self, spec: JobSpec) -> JobRow:
        row = self._jobs.begin_attempt(self._lease, spec.key)
        result, digest, problem = _called(spec, self._call)
        row = self._end(spec, row, exit_code=result.exit_code, duration_s=result.duration_s)
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


def _called(spec: JobSpec, call: Runner) -> tuple[RunResult, str | None, str]:
    """Run a command in place of what an earlier call left, if it wants that.

    Returned are how it ended, the digest of its result, and why it did not do its job, if so.
    """
    if spec.on_existing == "remove" and call is not dry_runner:
        remove_output(spec)
    result = call(spec.command, spec.log_path)
    if result.exit_code != 0:
        return result, None, f"exit code {result.exit_code}"
    try:
        digest = None if spec.result_path is None else result_digest(spec.result_path)
    except IntegrityError as error:
        return result, None, f"exit code 0, but {error}"
    return result, digest, ""


def _run_unrecorded(spec: JobSpec, call: Runner) -> RunResult:
    """Run a job of an agent that is used on its own, without a store."""
    result, _, problem = _called(spec, call)
    if problem:
        raise JobFailedError(
            f"{spec.command[0]}: expected {wanted_end(result.exit_code)}, got "
            f"{problem.rstrip('.')}; see {spec.log_path}.",
            exit_code=result.exit_code,
            duration_s=result.duration_s,
            log_path=spec.log_path,
        )
    return result


#: Root seed of an agent that is used on its own.
OWN_SEED: Final = 0

_Settings = TypeVar("_Settings")
_Request = TypeVar("_Request")
_Result = TypeVar("_Result")


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
    def key(self) -> JobKey:
        """What the job is for."""
        return JobKey(run_id=self.run_id, cycle=self.cycle, stage=self.stage)

    @property
    def log_path(self) -> Path:
        """Its log, outside the folder, which some commands want to create themselves."""
        return self.key.log_in(self.workdir.absolute())


def cycle_of(output_dir: Path) -> int:
    """Return the cycle that a folder of a job belongs to by its path; 0 if to none."""
    prefix, _, number = output_dir.parent.name.partition("_")
    return int(number) if prefix == "cycle" and number.isdecimal() else 0


class Agent(ABC, Generic[_Settings]):
    """Asks a back end for a plan, runs its job and asks the back end to read what it left.

    Every command is cleared by the constitution before it runs. What ``run`` of each agent takes:

    - ``run_id``, ``cycle`` and ``stage`` name the job; ``workdir`` is the folder of the run.
    - ``seeds`` are the initial states it may use; None for fixed ones.
    - ``jobs`` runs the command; None for one call of the agent's own runner, which may then read
      what its caller names. A run reads its own folder and its roots alone.

    Events:  ``constitution_denied`` {rule, reason}, ``job_started`` {stage, cmd}, ``job_finished``
             {exit_code, duration_s, log, stage}.
    """

    #: Stage of its events.
    EVENT_STAGE: ClassVar[str]
    #: Raised where the job fails, and where it ends well and leaves nothing usable.
    FAILED: ClassVar[type[StageError]]
    UNUSABLE: ClassVar[type[CadenzaError]] = IntegrityError

    def __init__(
        self,
        cfg: _Settings,
        constitution: Constitution,
        bus: EventBus,
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
        self.constitution = constitution
        self.bus = bus
        self.backend: Backend = self._lerobot() if backend is None else backend
        self.runner = _by_program(self.backend) if runner is subprocess_runner else runner
        self._read_roots = read_roots

    @abstractmethod
    def _lerobot(self) -> Backend:
        """Return LeRobot with the agent's settings."""

    def _emit(self, place: JobPlace, kind: str, payload: Mapping[str, Any]) -> None:
        self.bus.emit(Event(place.run_id, self.EVENT_STAGE, kind, place.cycle, payload))

    def _made(
        self,
        place: JobPlace,
        request: _Request,
        plan: Callable[[_Request], JobPlan | None],
        read: Callable[[_Request], _Result],
        jobs: JobRunner | None,
        given: Iterable[str | None] = (),
    ) -> _Result:
        """Return what ``read`` finds after the planned job; ``given`` are its caller's paths."""
        try:
            planned = plan(request)
            if planned is not None:
                self._run(place, planned, jobs, given)
            return read(request)
        except JobFailedError as error:
            raise self.FAILED(str(error)) from error
        except IntegrityError as error:
            raise self.UNUSABLE(str(error)) from error

    def _run(
        self, place: JobPlace, plan: JobPlan, jobs: JobRunner | None, given: Iterable[str | None]
    ) -> None:
        # of what is given, names that are no path are those of a hub
        own = (Path(name).absolute() for name in given if name and Path(name).exists())
        read = (*self._read_roots, *(() if jobs is not None else own))
        roots = Roots(write=(place.workdir.absolute(),), read=read, job=place.folder)
        try:
            command = self.constitution.clear(plan.job, roots).argv()
        except ConstitutionError as error:
            verdict = {"rule": error.verdict.rule, "reason": error.verdict.reason}
            self._emit(place, "constitution_denied", verdict)
            raise
        self._emit(place, "job_started", {"stage": place.stage, "cmd": command})
        spec = JobSpec(
            key=place.key,
            command=command,
            log_path=place.log_path,
            **plan.model_dump(exclude={"job"}),
        )
        try:
            end = _run_unrecorded(spec, self.runner) if jobs is None else jobs.run(spec)
        except JobFailedError as error:
            self._tell_end(place, error)
            raise
        self._tell_end(place, end)

    def _tell_end(self, place: JobPlace, end: JobEnd | RunResult | JobFailedError) -> None:
        told = {"exit_code": end.exit_code, "duration_s": end.duration_s, "log": place.log_path}
        self._emit(place, "job_finished", {**told, "stage": place.stage})


def _by_program(backend: Backend) -> Runner:
    """Return `subprocess_runner` with the executables that the names of a back end stand for.

    Nobody's ``PATH`` can put others in their place; every other runner gets the names.
    """

    def run_program(cmd: Sequence[str], log_path: Path) -> RunResult:
        return subprocess_runner(program_table(backend).resolve(cmd), log_path)

    return run_program
