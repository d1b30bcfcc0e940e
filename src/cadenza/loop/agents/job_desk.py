"""Where a worker hands in a command: cleared by the constitution, announced, run, reported.

Events:  ``constitution_denied`` {rule, reason}, ``job_started`` {stage, cmd}, ``job_finished``
         {exit_code, duration_s, log, stage}.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from cadenza.loop.agents.base import PlainJobs, Runner, RunResult, subprocess_runner
from cadenza.loop.backends.base import Backend, program_table
from cadenza.loop.constitution import Constitution, ConstitutionError, Roots
from cadenza.loop.contracts.records import JobEnd, JobKey, JobPlan, JobRunner, JobSpec
from cadenza.loop.errors import JobFailedError
from cadenza.loop.events.bus import Event, EventSink


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPlace:
    """Which job of a run, and where its files go.

    Attributes:
        run_id: The run.
        cycle: Its cycle, from 0.
        stage: What the job is for; unique within the cycle.
        workdir: Folder of the run.
    """

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


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDesk:
    """Runs the commands of one worker.

    Attributes:
        event_stage: Stage of its events.
        constitution: What commands must obey.
        bus: Where events go.
        runner: Runs commands where no job runner is given.
        read_roots: Folders outside the run's own that commands may read.
    """

    event_stage: str
    constitution: Constitution
    bus: EventSink
    runner: Runner
    read_roots: tuple[Path, ...] = ()

    def emit(self, place: JobPlace, kind: str, payload: Mapping[str, Any]) -> None:
        """Emit an event of the worker."""
        self.bus.emit(Event(place.run_id, self.event_stage, kind, place.cycle, payload))

    def run(
        self,
        place: JobPlace,
        plan: JobPlan,
        jobs: JobRunner | None,
        given: Iterable[str | None] = (),
    ) -> JobEnd:
        """Run ``plan`` to its end.

        Args:
            place: Which job it is.
            plan: What a back end wants to be run.
            jobs: Runs it; None for one call of `runner`, by a worker used on its own.
            given: Paths and names of a hub that the worker's caller named. A worker used on its
                own may read those paths; a run reads its own folder and its `read_roots` alone.

        Raises:
            ConstitutionError: It is refused; nothing was run.
            JobFailedError: It failed.
            BudgetExceededError: The budget ended before the job did.
            StopRequestedError: Someone asked the run to stop.
        """
        command = self._clear(place, plan, _paths(given) if jobs is None else ())
        self.emit(place, "job_started", {"stage": place.stage, "cmd": command})
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
            read=(*self.read_roots, *given),
            job=place.folder,
        )
        try:
            return self.constitution.clear(plan.command, roots).argv()
        except ConstitutionError as error:
            verdict = {"rule": error.verdict.rule, "reason": error.verdict.reason}
            self.emit(place, "constitution_denied", verdict)
            raise

    def _report(self, place: JobPlace, exit_code: int | None, duration_s: float) -> None:
        self.emit(
            place,
            "job_finished",
            {
                "exit_code": exit_code,
                "duration_s": duration_s,
                "log": place.log_path,
                "stage": place.stage,
            },
        )


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


class CommandWorker(ABC, Generic[_Settings]):
    """Hands a back end's commands in at a desk of its own.

    Attributes:
        cfg: How it works.
        constitution: What commands must obey.
        bus: Where events go.
        backend: The training stack.
        runner: Runs commands where a call gets no job runner.
    """

    #: Stage of its events.
    EVENT_STAGE: ClassVar[str]

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
        """Work for one run.

        Args:
            cfg: How to work.
            constitution: What commands must obey.
            bus: Where events go.
            runner: Runs commands where a call gets no job runner.
            backend: Training stack; None for LeRobot.
            read_roots: Folders outside the run's own that commands may read.
        """
        self.cfg = cfg
        self.constitution = constitution
        self.bus = bus
        self.backend = self._lerobot() if backend is None else backend
        self.runner = runner_for(self.backend, runner)
        self._desk = JobDesk(
            event_stage=self.EVENT_STAGE,
            constitution=constitution,
            bus=bus,
            runner=self.runner,
            read_roots=read_roots,
        )

    @abstractmethod
    def _lerobot(self) -> Backend:
        """Return LeRobot with the worker's settings."""
