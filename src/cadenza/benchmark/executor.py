"""Run independent jobs in this process, in a pool of local processes, or on a Ray cluster.

A job is a key; the runner does the work and stores the result itself, atomically: a job that was
killed leaves nothing behind and a job that ran twice leaves the same bytes. Hence the order of
jobs, the number of workers and retries cannot change a result.

A worker that dies (killed, out of memory) costs its job one retry in a fresh process; a job that
fails by an error is deterministic and is not retried.

Ray:     needs the extra ``ray``, a folder that all nodes see at the same path, and the same
         installation on all nodes. The cluster is the one that ``RAY_ADDRESS`` names, else one of
         this machine.
"""

import importlib
import multiprocessing
import os
import signal
import socket
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Final, Literal, TypeAlias

import cadenza.core.errors as error_types
from cadenza.core.errors import CadenzaError, ConfigurationError, MissingExtraError, NotReadyError

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
#: Does the work of the job with this key and stores its result.
JobRunner: TypeAlias = Callable[[str], None]
#: Builds the runner of a process; holds only plain values, so that it travels to workers.
RunnerFactory: TypeAlias = Callable[[], JobRunner]


class JobError(CadenzaError, RuntimeError):
    """A job failed for good; the message names the job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One unit of work."""

    key: str
    label: str


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


#: Called with (jobs done, jobs in all, label of the last one).
JobProgress: TypeAlias = Callable[[int, int, str], None]


def run_jobs(
    jobs: Sequence[Job],
    factory: RunnerFactory,
    *,
    workers: int,
    failure_policy: FailurePolicy = "strict",
    progress: JobProgress | None = None,
) -> list[JobFailure]:
    """Run every job and return the failures, sorted by key.

    The factory is called once in each process; ``workers`` = 1 runs the jobs in this one.
    ``"strict"`` raises on the first failure, ``"best_effort"`` goes on.

    Raises:
        ConfigurationError: ``workers`` < 1 or two jobs share a key.
        CadenzaError: A job failed and the policy is strict.
    """
    if workers < 1:
        raise ConfigurationError(f"run_jobs: expected workers >= 1, got {workers}.")
    if len({job.key for job in jobs}) != len(jobs):
        raise ConfigurationError("run_jobs: expected distinct job keys, got duplicates.")
    if not jobs:
        return []
    board = _Board(jobs, failure_policy, progress)
    if workers == 1 or len(jobs) == 1:
        _run_inline(jobs, factory, board)
    else:
        with _Pool(factory, min(workers, len(jobs))) as pool:
            pool.run(board)
    return sorted(board.failures, key=lambda failure: failure.key)


def default_workers() -> int:
    """Return the number of cores this process may use."""
    return len(os.sched_getaffinity(0))


class _Board:
    """What is still to do, what failed, and whom to tell."""

    def __init__(
        self, jobs: Sequence[Job], policy: FailurePolicy, progress: JobProgress | None
    ) -> None:
        self.waiting = deque(jobs)
        self.failures: list[JobFailure] = []
        self._total = len(jobs)
        self._done = 0
        self._policy = policy
        self._progress = progress
        self._lost: dict[str, int] = {}

    @property
    def finished(self) -> bool:
        return self._done + len(self.failures) == self._total

    def record(self, job: Job, error: str, message: str) -> None:
        """Note what became of ``job``; ``error`` is empty where it was done."""
        if error:
            failure = JobFailure(key=job.key, label=job.label, error=error, message=message)
            if self._policy == "strict":
                raise failure.as_exception()
            self.failures.append(failure)
        else:
            self._done += 1
        if self._progress is not None:
            self._progress(self._done + len(self.failures), self._total, job.label)

    def record_lost_worker(self, job: Job, reason: str) -> None:
        """Queue ``job`` again, or fail it when it has lost too many workers."""
        lost = self._lost.get(job.key, 0) + 1
        self._lost[job.key] = lost
        if lost < MAX_LOST_WORKERS:
            self.waiting.appendleft(job)
            return
        self.record(
            job,
            "WorkerLost",
            f"expected its worker process to finish, got {lost} lost in a row ({reason}); "
            "check the memory, then run again: finished cells are kept",
        )


def _run_inline(jobs: Sequence[Job], factory: RunnerFactory, board: _Board) -> None:
    runner = factory()
    for job in jobs:
        board.record(job, *_outcome(runner, job.key))


@dataclass(slots=True, eq=False)  # eq=False: a worker is itself only
class _Worker:
    """One process and the job it works on."""

    process: BaseProcess
    connection: Connection
    ready: bool = False
    job: Job | None = None


class _Pool:
    """A fixed number of worker processes; lost ones are replaced."""

    def __init__(self, factory: RunnerFactory, size: int) -> None:
        self._context = multiprocessing.get_context("spawn")
        self._factory = factory
        self._size = size
        self._workers: list[_Worker] = []
        self._starts_lost = 0

    def __enter__(self) -> "_Pool":
        for _ in range(self._size):
            self._start_worker()
        return self

    def __exit__(self, *exception: object) -> None:
        """Stop every worker: politely first, then for certain."""
        for worker in self._workers:
            if worker.job is not None:
                worker.process.terminate()
            worker.connection.close()  # an idle worker reads the end of its pipe and leaves
        for worker in self._workers:
            worker.process.join(GRACE_S)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()

    def run(self, board: _Board) -> None:
        """Feed the workers until every job is done or failed."""
        while not board.finished:
            for worker in list(self._workers):
                if worker.ready and worker.job is None and board.waiting:
                    self._give(worker, board.waiting.popleft(), board)
            heard = wait([worker.connection for worker in self._workers])
            for worker in [one for one in self._workers if one.connection in heard]:
                self._attend(worker, board)

    def _start_worker(self) -> None:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(
            target=_work, args=(theirs, self._factory), name="cadenza-worker", daemon=True
        )
        process.start()
        theirs.close()
        self._workers.append(_Worker(process=process, connection=ours))

    def _give(self, worker: _Worker, job: Job, board: _Board) -> None:
        worker.job = job
        try:
            worker.connection.send(job.key)
        except OSError:  # it died while idle, so the job is none of its losses
            worker.job = None
            board.waiting.appendleft(job)
            self._replace(worker, board)

    def _attend(self, worker: _Worker, board: _Board) -> None:
        """Handle what one worker said, or its death."""
        try:
            error, message = worker.connection.recv()
        except (EOFError, OSError):  # the operating system closed its end: it died
            self._replace(worker, board)
            return
        if not worker.ready:
            if error:
                raise JobFailure(
                    key="", label="worker start", error=error, message=message
                ).as_exception()
            worker.ready, self._starts_lost = True, 0
            return
        job, worker.job = worker.job, None
        assert job is not None, "a ready worker answers what it was given"  # noqa: S101
        board.record(job, error, message)

    def _replace(self, worker: _Worker, board: _Board) -> None:
        worker.process.join()
        worker.connection.close()
        self._workers.remove(worker)
        if not worker.ready:
            self._bear_lost_start(worker.process.exitcode or 0)
        self._start_worker()
        if worker.job is not None:
            board.record_lost_worker(worker.job, f"exit code {worker.process.exitcode}")

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
                "again: finished cells are kept."
            )


def _work(connection: Connection, factory: RunnerFactory) -> None:
    """Body of a worker process: build the runner, then do one job after the other."""
    # Ctrl-C reaches the whole process group; the parent decides when its workers stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(BrokenPipeError, ConnectionResetError):  # the parent is gone: nobody to tell
        try:
            runner = factory()
        except REPORTED_ERRORS as error:
            connection.send((type(error).__name__, str(error)))
            return
        connection.send(("", ""))
        while True:
            try:
                key: str = connection.recv()
            except EOFError:
                return  # the parent closed the pipe or died
            connection.send(_outcome(runner, key))


def _outcome(runner: JobRunner, key: str) -> tuple[str, str]:
    """Do a job; return type and message of an error that is reported by name, or two blanks."""
    try:
        runner(key)
    except REPORTED_ERRORS as error:
        return type(error).__name__, str(error)
    return "", ""


#: Namespace of the tasks.
_NAMESPACE: Final = "cadenza-jobs"
#: Seconds within which the head of a cluster accepts a connection.
_CONNECT_S: Final = 10.0


def run_jobs_on_ray(jobs: Sequence[Job], factory: RunnerFactory) -> None:
    """Run every job as a task that takes one CPU of the cluster and builds its own runner.

    Raises:
        MissingExtraError: Ray is not installed.
        NotReadyError: There is no cluster.
        CadenzaError: A job failed; those that run are cancelled.
    """
    if not jobs:
        return
    ray = _connected()
    task = ray.remote(num_cpus=1, max_retries=MAX_LOST_WORKERS - 1)(do_job)
    waiting = {task.remote(factory, job.key): job for job in jobs}
    try:
        while waiting:
            (done,), _ = ray.wait(list(waiting), num_returns=1)
            job = waiting.pop(done)
            try:
                kind, message = ray.get(done)
            except ray.exceptions.RayError as error:
                kind, message = "WorkerLost", str(error)
            if kind:
                raise JobFailure(
                    key=job.key, label=job.label, error=kind, message=message
                ).as_exception()
    finally:
        for running in waiting:
            ray.cancel(running, force=True)


def do_job(factory: RunnerFactory, key: str) -> tuple[str, str]:
    """Build a runner and do one job; return what `_outcome` does."""
    return _outcome(lambda key: factory()(key), key)


def _connected() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        ray: Any = importlib.import_module("ray")
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"jobs on Ray: expected Ray, got '{error}'; install 'cadenza[ray]'."
        ) from error
    if not ray.is_initialized():
        address = os.environ.get("RAY_ADDRESS") or "auto"
        try:
            _require_listener(address)
            ray.init(address=address, namespace=_NAMESPACE, log_to_driver=False)
        except OSError as error:
            raise NotReadyError(
                f"jobs on Ray: expected a cluster at {address!r}, got '{error}'; start one (ray "
                "start --head), name it in RAY_ADDRESS, or use --executor local."
            ) from error
    return ray


def _require_listener(address: str) -> None:
    """Raise `OSError` if nobody listens at ``HOST:PORT``; Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if host and "/" not in host and port.isdecimal():
        socket.create_connection((host, int(port)), timeout=_CONNECT_S).close()
