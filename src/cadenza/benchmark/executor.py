"""Run independent jobs in this process or in a pool of local processes.

A job is a key. Its runner returns bytes that the driver stores, or stores the result itself,
atomically: a job that was killed leaves nothing behind and one that ran twice leaves the same
bytes. Hence the order of jobs, the number of workers and retries cannot change a result.

Batch:    jobs that share one are given to a worker together, and answered one by one. Where a batch
          fails or loses its worker, what is left of it runs job by job: only the guilty one fails.
Retries:  a worker that dies (killed, out of memory) costs its jobs one retry in a fresh process; a
          job that fails by an error, or alone exceeds its time, is not retried.
Starts:   workers are forked from a server that has imported the runner's module once.
Orphans:  a worker ends as soon as its driver is gone, however that ended: whoever goes on finds
          nobody in the job's folder.
Ray:      `cadenza.benchmark.ray_executor`.
"""

import multiprocessing
import os
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Final, Literal, NamedTuple, Protocol, TypeAlias, runtime_checkable

import cadenza.core.errors as error_types
from cadenza.core.errors import CadenzaError, ConfigurationError
from cadenza.core.fork_server import preload, set_environment

#: How often a job may lose its worker before the run gives up on it.
MAX_LOST_WORKERS: Final = 2
#: Seconds a worker gets to leave by itself before it is killed.
GRACE_S: Final = 5.0
#: Errors a job may raise that are reported by name; any other is a bug and ends its worker.
REPORTED_ERRORS: Final = (
    CadenzaError,
    ArithmeticError,
    LookupError,
    OSError,
    RuntimeError,
    ValueError,
)

FailurePolicy: TypeAlias = Literal["strict", "best_effort"]
#: Does the work of the job with this key; returns what to store, None if it has stored it itself.
JobRunner: TypeAlias = Callable[[str], bytes | None]
#: Builds the runner of a process; holds only plain values, so that it travels to workers.
RunnerFactory: TypeAlias = Callable[[], JobRunner]
#: Stores the bytes of the job with this key.
Store: TypeAlias = Callable[[str, bytes], None]
#: Says what all processes must agree on, as a digest; a function of a module.
Fingerprint: TypeAlias = Callable[[], str]


@runtime_checkable
class BatchRunner(Protocol):
    """A `JobRunner` that also does several jobs at once."""

    def __call__(self, key: str, /) -> bytes | None:
        """Do one job; see `JobRunner`."""
        ...

    def batch(self, keys: Sequence[str], /) -> Iterator[tuple[str, bytes]]:
        """Do the jobs; yield key and bytes of each as soon as it is done."""
        ...


class Note(NamedTuple):
    """How far the job with this key is: work done, work in all, what was last seen."""

    key: str
    done: int
    total: int
    detail: str


class NotingRunner(ABC):
    """A `JobRunner` of long jobs, which calls ``note`` now and then; on Ray nobody listens."""

    note: Callable[[Note], object] = bool  # which says nothing

    @abstractmethod
    def __call__(self, key: str, /) -> bytes | None:
        """Do one job; see `JobRunner`."""


class JobError(CadenzaError, RuntimeError):
    """A job failed for good; the message names the job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One unit of work.

    Attributes:
        key: What the runner is given.
        label: Name for people.
        batch: Jobs with the same one run together; alone if empty.
        configuration: Jobs with the same one suit one worker; used by Ray.
    """

    key: str
    label: str
    batch: str = ""
    configuration: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFailure:
    """A job that failed for good."""

    key: str
    label: str
    error: str
    message: str

    def as_exception(self) -> CadenzaError:
        """Return an exception of the original kind if it is one of ours, else a `JobError`."""
        text = f"{self.label}: {self.message}"
        kind = getattr(error_types, self.error, None)
        if isinstance(kind, type) and issubclass(kind, CadenzaError):
            return kind(text)
        return JobError(f"{text} ({self.error})")


#: Called with (jobs done or failed, jobs in all, label of the last one, and whether it failed).
JobProgress: TypeAlias = Callable[[int, int, str], None]


def run_jobs(
    jobs: Sequence[Job],
    factory: RunnerFactory,
    *,
    workers: int,
    failure_policy: FailurePolicy = "strict",
    progress: JobProgress | None = None,
    store: Store | None = None,
    time_limit_s: float | None = None,
    fingerprint: Fingerprint | None = None,
    notes: Callable[[Note], object] = lambda _: None,
) -> list[JobFailure]:
    """Run every job and return the failures, sorted by key.

    Args:
        jobs: What to do.
        factory: Builds the runner, once in each process.
        workers: Processes; 1 runs the jobs in this one, unless there is a time limit.
        failure_policy: ``"strict"`` raises on the first failure, ``"best_effort"`` goes on.
        progress: Told of every job that is done or failed.
        store: Stores what runners return, in this process.
        time_limit_s: Time of one job, a batch having that of all its jobs; None for no limit.
        fingerprint: What workers must agree on with this process.
        notes: Told how far jobs are, by runners that say so.

    Raises:
        ConfigurationError: ``workers`` < 1, two jobs share a key, or a worker differs.
        CadenzaError: A job failed and the policy is strict.
        StorageError: ``store`` failed.
    """
    if workers < 1:
        raise ConfigurationError(f"run_jobs: expected workers >= 1, got {workers}.")
    board = Board(jobs, failure_policy, progress, store)
    if not jobs:
        return []
    if time_limit_s is None and (workers == 1 or len(board.waiting) == 1):
        runner = factory()
        if isinstance(runner, NotingRunner):
            runner.note = notes
        while board.waiting:
            given = {job.key: job for job in board.waiting.popleft()}
            for answer in answers(runner, list(given)):
                board.record(given[answer.key], answer)
    else:
        size = min(workers, len(board.waiting))
        with _Pool(factory, size, time_limit_s, fingerprint, notes) as pool:
            pool.run(board)
    return board.result()


def default_workers() -> int:
    """Return the number of cores this process may use."""
    return len(os.sched_getaffinity(0))


class Answer(NamedTuple):
    """What became of a job: type and message of its error, two blanks if done, and its bytes."""

    key: str
    error: str = ""
    message: str = ""
    data: bytes | None = None


def answers(runner: JobRunner, keys: Sequence[str]) -> Iterator[Answer]:
    """Do jobs, together where the runner can; yield each answer as soon as it is known."""
    left = list(keys)
    if len(keys) > 1 and isinstance(runner, BatchRunner):
        with suppress(*REPORTED_ERRORS):  # each by itself shows whose error it is
            for key, data in runner.batch(keys):
                left.remove(key)
                yield Answer(key, data=data)
    for key in left:
        try:
            data = runner(key)
        except REPORTED_ERRORS as error:
            yield Answer(key, type(error).__name__, str(error))
        else:
            yield Answer(key, data=data)


class Board:
    """What is still to do, what failed, and whom to tell."""

    def __init__(
        self,
        jobs: Sequence[Job],
        policy: FailurePolicy,
        progress: JobProgress | None,
        store: Store | None,
    ) -> None:
        if len({job.key for job in jobs}) != len(jobs):
            raise ConfigurationError("run_jobs: expected distinct job keys, got duplicates.")
        together = dict[str, list[Job]]()
        for job in jobs:
            together.setdefault(f"batch {job.batch}" if job.batch else job.key, []).append(job)
        #: Batches that no worker has.
        self.waiting: deque[list[Job]] = deque(together.values())
        self.failures: list[JobFailure] = []
        self._total, self._done = len(jobs), 0
        self._policy, self._progress, self._store = policy, progress, store
        self._lost: dict[str, int] = {}

    @property
    def finished(self) -> bool:
        """Whether every job is done or failed."""
        return self._done + len(self.failures) == self._total

    def result(self) -> list[JobFailure]:
        """Return the failures, sorted by key."""
        return sorted(self.failures, key=lambda failure: failure.key)

    def record(self, job: Job, answer: Answer) -> None:
        """Store what ``job`` returned, or note why it failed.

        Raises:
            CadenzaError: It failed, and the policy is strict; or it cannot be stored.
        """
        if answer.error:
            failure = JobFailure(
                key=job.key, label=job.label, error=answer.error, message=answer.message
            )
            if self._policy == "strict":
                raise failure.as_exception()
            self.failures.append(failure)
        else:
            if self._store is not None and answer.data is not None:
                self._store(job.key, answer.data)
            self._done += 1
        if self._progress is not None:
            label = f"{job.label} failed" if answer.error else job.label
            self._progress(self._done + len(self.failures), self._total, label)

    def record_lost_worker(self, jobs: Sequence[Job], reason: str) -> None:
        """Queue what a dead worker has not answered, alone; fail a job that has lost too many."""
        for job in jobs:
            lost = self._lost[job.key] = self._lost.get(job.key, 0) + 1
            if lost < MAX_LOST_WORKERS:
                self.waiting.appendleft([job])
                continue
            text = (
                f"expected its worker process to finish, got {lost} lost in a row ({reason}); "
                "check the memory, then run again: what is finished is kept"
            )
            self.record(job, Answer(job.key, "WorkerLost", text))

    def record_overrun(self, jobs: Sequence[Job], limit_s: float) -> None:
        """Queue what a worker that was stopped has not answered, alone; fail a job that was so."""
        if len(jobs) > 1:
            self.waiting.extendleft([job] for job in jobs)
            return
        text = f"expected an end within {limit_s:g} s, got none; raise the time limit"
        for job in jobs:
            self.record(job, Answer(job.key, "TimeLimitExceeded", text))


def require_same(ours: str, theirs: str, who: str) -> None:
    """Raise unless ``who`` computes what this process does.

    Raises:
        ConfigurationError: The fingerprints differ.
    """
    if ours != theirs:
        raise ConfigurationError(
            f"{who}: expected the bits of this process ({ours[:16]}), got others ({theirs[:16]}): "
            "its processor or libraries round networks differently; use equal machines, or start "
            "all with MKL_CBWR=AVX2 ATEN_CPU_CAPABILITY=avx2."
        )


@dataclass(slots=True, eq=False)  # eq=False: a worker is itself only
class _Worker:
    """One process and the jobs it has not answered."""

    process: BaseProcess
    connection: Connection
    ready: bool = False
    jobs: dict[str, Job] = field(default_factory=dict[str, Job])
    deadline: float = float("inf")


class _Pool:
    """A fixed number of worker processes; lost ones are replaced."""

    def __init__(
        self,
        factory: RunnerFactory,
        size: int,
        time_limit_s: float | None,
        fingerprint: Fingerprint | None,
        notes: Callable[[Note], object],
    ) -> None:
        self._context = multiprocessing.get_context("forkserver")
        preload("torch", getattr(factory, "func", factory).__module__)  # `func` of a `partial`
        self._factory, self._size, self._limit = factory, size, time_limit_s
        self._fingerprint, self._notes = fingerprint, notes
        self._workers: list[_Worker] = []
        self._starts_lost = 0

    def __enter__(self) -> "_Pool":
        for _ in range(self._size):
            self._start_worker()
        return self

    def __exit__(self, *exception: object) -> None:
        """Stop every worker: politely first, then for certain."""
        for worker in self._workers:
            if worker.jobs:
                worker.process.terminate()
            worker.connection.close()  # an idle worker reads the end of its pipe and leaves
        for worker in self._workers:
            worker.process.join(GRACE_S)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()

    def run(self, board: Board) -> None:
        """Feed the workers until every job is done or failed."""
        while not board.finished:
            for worker in list(self._workers):
                if worker.ready and not worker.jobs and board.waiting:
                    self._give(worker, board.waiting.popleft(), board)
            due = min(worker.deadline for worker in self._workers) - time.monotonic()
            limit = None if self._limit is None or due == float("inf") else max(due, 0.0)
            heard = wait([worker.connection for worker in self._workers], limit)
            for worker in [one for one in self._workers if one.connection in heard]:
                self._attend(worker, board)
            for worker in [one for one in self._workers if one.deadline <= time.monotonic()]:
                self._stop(worker, board)

    def _start_worker(self) -> None:
        ours, theirs = self._context.Pipe()
        given = (theirs, self._factory, self._fingerprint, dict(os.environ))
        process = self._context.Process(
            target=_work, args=given, name="cadenza-worker", daemon=True
        )
        process.start()
        theirs.close()
        self._workers.append(_Worker(process=process, connection=ours))

    def _give(self, worker: _Worker, jobs: list[Job], board: Board) -> None:
        worker.jobs = {job.key: job for job in jobs}
        if self._limit is not None:
            worker.deadline = time.monotonic() + self._limit * len(jobs)
        try:
            worker.connection.send(list(worker.jobs))
        except OSError:  # it died while idle, so the jobs are none of its losses
            worker.jobs = {}
            board.waiting.appendleft(jobs)
            self._replace(worker, board)

    def _attend(self, worker: _Worker, board: Board) -> None:
        """Handle what one worker said, or its death."""
        try:
            answer: Answer | Note = worker.connection.recv()
        except (EOFError, OSError):  # the operating system closed its end: it died
            self._replace(worker, board)
            return
        if isinstance(answer, Note):
            self._notes(answer)
            return
        if not worker.ready:
            if answer.error:
                raise JobFailure(
                    key="", label="worker start", error=answer.error, message=answer.message
                ).as_exception()
            if self._fingerprint is not None:
                require_same(self._fingerprint(), answer.message, "worker process")
            worker.ready, self._starts_lost = True, 0
            return
        job = worker.jobs.pop(answer.key)
        if not worker.jobs:
            worker.deadline = float("inf")
        board.record(job, answer)

    def _stop(self, worker: _Worker, board: Board) -> None:
        """Kill a worker whose time is over."""
        jobs, worker.jobs = [*worker.jobs.values()], {}
        worker.process.kill()
        self._replace(worker, board)
        board.record_overrun(jobs, self._limit or 0.0)

    def _replace(self, worker: _Worker, board: Board) -> None:
        worker.process.join()
        worker.connection.close()
        self._workers.remove(worker)
        if not worker.ready:
            self._bear_lost_start(worker.process.exitcode or 0)
        self._start_worker()
        if worker.jobs:
            reason = f"exit code {worker.process.exitcode}"
            board.record_lost_worker([*worker.jobs.values()], reason)

    def _bear_lost_start(self, exit_code: int) -> None:
        """Raise unless a worker that died before it was ready is worth another start.

        One that ends by itself will do so again; one that was killed, say for memory, need not.
        """
        self._starts_lost += 1
        if exit_code >= 0:
            raise JobError(
                f"worker process: expected it to start, got exit code {exit_code}; a script that "
                "starts one must guard its body with if __name__ == '__main__', or pass workers=1."
            )
        if self._starts_lost >= MAX_LOST_WORKERS * self._size:
            raise JobError(
                f"worker process: expected it to start, got {self._starts_lost} killed in a row "
                f"(signal {-exit_code}); check the memory, use fewer workers, then run "
                "again: what is finished is kept."
            )


def _work(
    connection: Connection,
    factory: RunnerFactory,
    fingerprint: Fingerprint | None,
    variables: Mapping[str, str],
) -> None:
    """Body of a worker process: build the runner, then do one batch after the other."""
    set_environment(variables)
    # Ctrl-C reaches the whole process group; the parent decides when its workers stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_leave_with_parent, name="cadenza-orphan", daemon=True).start()
    with suppress(BrokenPipeError, ConnectionResetError):  # the parent is gone: nobody to tell
        try:
            runner = factory()
        except REPORTED_ERRORS as error:
            connection.send(Answer("", type(error).__name__, str(error)))
            return
        connection.send(Answer("", "", "" if fingerprint is None else fingerprint()))
        if isinstance(runner, NotingRunner):
            runner.note = connection.send
        while True:
            try:
                keys: list[str] = connection.recv()
            except EOFError:
                return  # the parent closed the pipe or died
            for answer in answers(runner, keys):
                connection.send(answer)


def _leave_with_parent() -> None:
    """End this process once its parent is gone, in the midst of a job: as safe as a kill."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
