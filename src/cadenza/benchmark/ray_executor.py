"""Run independent jobs on a Ray cluster, or wherever they belong (`dispatch`).

See `cadenza.benchmark.executor` for jobs, batches and the processes of this machine.

Actors:    as many as the cluster has room for. Each serves one configuration (environment and
           partner) while that has batches, then helps with the fullest; it has at most
           `IN_FLIGHT` batches, so that results never pile up.
Losses:    an actor that died is replaced. The batch it worked on runs again job by job, with the
           same seeds, and a job that loses `MAX_LOST_WORKERS` actors has failed, as in the pool.
           Ray's own retries are off: they would also count what only waited behind a lethal job.
Results:   come back as bytes that the driver stores: nodes need no common folder for them. Weights
           are read at ``artifacts_root`` of each node.
Cluster:   the one of ``address``, else that ``RAY_ADDRESS`` names, else one of this machine. Needs
           the extra ``ray``, and the same installation on all nodes.
"""

import os
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from cadenza.benchmark.executor import (
    MAX_LOST_WORKERS,
    REPORTED_ERRORS,
    Answer,
    Board,
    FailurePolicy,
    Fingerprint,
    Job,
    JobFailure,
    JobProgress,
    Note,
    RunnerFactory,
    Store,
    answers,
    default_workers,
    require_same,
    run_jobs,
)
from cadenza.core.errors import ConfigurationError, NotReadyError
from cadenza.core.extras import load_extra
from cadenza.core.progress import ProgressReport

#: Namespace of the actors.
_NAMESPACE: Final = "cadenza-jobs"
#: Seconds within which the head of a cluster accepts a connection.
_CONNECT_S: Final = 10.0
#: Batches that an actor has at most: the next one is there when it has done the last.
IN_FLIGHT: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class RayCluster:
    """Where jobs run, and what each actor takes.

    Attributes:
        address: ``HOST:PORT`` of the head; None as the module says.
        num_cpus: Cores of an actor.
        num_gpus: GPUs of an actor.
        resources: Labels that a node must have, such as ``{"sim": 1.0}``, and how much is taken.
    """

    address: str | None = None
    num_cpus: float = 1.0
    num_gpus: float = 0.0
    resources: Mapping[str, float] = field(default_factory=dict[str, float])

    def needs(self) -> dict[str, float]:
        """Return what one actor takes, by Ray's names, without zeros."""
        needs = {"CPU": self.num_cpus, "GPU": self.num_gpus, **self.resources}
        return {name: amount for name, amount in needs.items() if amount > 0.0}


class Actor:
    """Body of an actor: a runner, and the batches it is given."""

    def __init__(self, factory: RunnerFactory, fingerprint: Fingerprint | None) -> None:
        self._answer = Answer("")
        try:
            self._runner = factory()
            self._answer = Answer("", "", "" if fingerprint is None else fingerprint())
        except REPORTED_ERRORS as error:
            self._answer = Answer("", type(error).__name__, str(error))

    def ready(self) -> Answer:
        """Return the fingerprint of this process, or why there is no runner."""
        return self._answer

    def work(self, keys: list[str]) -> list[Answer]:
        """Do a batch."""
        return list(answers(self._runner, keys))


def run_jobs_on_ray(
    jobs: Sequence[Job],
    factory: RunnerFactory,
    *,
    cluster: RayCluster | None = None,
    actors: int | None = None,
    failure_policy: FailurePolicy = "strict",
    progress: JobProgress | None = None,
    store: Store | None = None,
    time_limit_s: float | None = None,
    fingerprint: Fingerprint | None = None,
) -> list[JobFailure]:
    """Run every job on ``cluster`` and return the failures; see `run_jobs`.

    ``actors`` is how many processes at most; None for as many as there is room for.

    Raises:
        MissingExtraError: Ray is not installed.
        NotReadyError: There is no cluster.
        ConfigurationError: The cluster has no room for an actor, or one rounds otherwise.
        CadenzaError: A job failed and the policy is strict.
        StorageError: ``store`` failed.
    """
    board = Board(jobs, failure_policy, progress, store)
    if not jobs:
        return []
    cluster = cluster or RayCluster()
    ray = _connected(cluster.address)
    room = _room(ray, cluster)
    crew = _Crew(ray, cluster, factory, fingerprint, time_limit_s)
    try:
        crew.run(board, min(room, len(board.waiting), actors or room))
    finally:
        crew.dismiss()
    return board.result()


def dispatch(
    jobs: Sequence[Job],
    factory: RunnerFactory,
    *,
    work: int,
    workers: int | None,
    cluster: RayCluster | None,
    report: ProgressReport | None,
    store: Store | None = None,
) -> None:
    """Do long jobs of equal ``work``, each to its end whatever becomes of the others.

    Args:
        jobs: What to do.
        factory: Builds the runner, once in each process.
        work: In one job, in the unit of its runner's notes.
        workers: Processes; None for one per core, or as many as the cluster has room for.
        cluster: Where they work; None for this machine. Its runners' notes are not heard.
        report: Called with the work done, the work in all, and which job was last heard of.
        store: Stores what runners return, in this process.

    Raises:
        CadenzaError: A job failed; the first by its key, and how many others did.
    """
    done = dict.fromkeys((job.key for job in jobs), 0)
    labels = {job.key: job.label for job in jobs}
    keys = {job.label: job.key for job in jobs}

    def hear(note: Note) -> None:
        done[note.key] = note.done
        if report is not None:
            report(sum(done.values()), work * len(jobs), f"{labels[note.key]}{note.detail}")

    def end(_: int, __: int, label: str) -> None:
        if label in keys:
            hear(Note(keys[label], work, work, " is done"))
        elif report is not None:  # it failed; only what it noted is done
            report(sum(done.values()), work * len(jobs), label)

    common: dict[str, Any] = {"failure_policy": "best_effort", "progress": end, "store": store}
    if cluster is not None:
        failures = run_jobs_on_ray(jobs, factory, cluster=cluster, actors=workers, **common)
    else:
        workers = workers or default_workers()
        failures = run_jobs(jobs, factory, workers=workers, notes=hear, **common)
    if failures:
        first, others = failures[0], len(failures) - 1
        more = f" ({others} more failed)" if others else ""
        raise replace(first, message=first.message + more).as_exception()


@dataclass(slots=True, eq=False)  # eq=False: an actor is itself only
class _Member:
    """An actor, its configuration, and its batches, the one it works on first."""

    handle: Any
    configuration: str
    greeting: Any = None
    batches: dict[Any, list[Job]] = field(default_factory=dict[Any, list[Job]])
    since: float = 0.0


class _Crew:
    """The actors of one run."""

    def __init__(
        self,
        ray: Any,
        cluster: RayCluster,
        factory: RunnerFactory,
        fingerprint: Fingerprint | None,
        limit_s: float | None,
    ) -> None:
        self._ray, self._factory, self._fingerprint = ray, factory, fingerprint
        self._limit, self._starts_lost, self._size = limit_s, 0, 1
        self._actor = ray.remote(
            num_cpus=cluster.num_cpus,
            num_gpus=cluster.num_gpus,
            resources=dict(cluster.resources),
            max_restarts=0,
            max_task_retries=0,
        )(Actor)
        self._members: list[_Member] = []

    def run(self, board: Board, size: int) -> None:
        """Feed ``size`` actors until every job is done or failed."""
        self._size = size
        for _ in range(size):
            self._hire(board)
        while not board.finished:
            for _ in range(IN_FLIGHT):
                for member in self._members:
                    if board.waiting and len(member.batches) < IN_FLIGHT and not member.greeting:
                        self._give(member, board)
            pending = [m.greeting for m in self._members if m.greeting]
            pending += [reference for m in self._members for reference in m.batches]
            done, _ = self._ray.wait(pending, num_returns=1, timeout=self._patience())
            for reference in done:
                self._attend(reference, board)
            self._stop_late(board)

    def dismiss(self) -> None:
        """End all actors."""
        for member in self._members:
            self._ray.kill(member.handle)
        self._members = []

    def _hire(self, board: Board) -> None:
        """Start an actor for the configuration that has the fewest of them."""
        served = [member.configuration for member in self._members]
        wanted = dict.fromkeys(jobs[0].configuration for jobs in board.waiting) or [""]
        handle = self._actor.remote(self._factory, self._fingerprint)
        member = _Member(handle, min(wanted, key=served.count))
        member.greeting = handle.ready.remote()
        self._members.append(member)

    def _give(self, member: _Member, board: Board) -> None:
        """Give the next batch of the member's configuration, or of the one with most of them."""
        waiting = [jobs[0].configuration for jobs in board.waiting]
        if member.configuration not in waiting:
            member.configuration = max(waiting, key=waiting.count)
        jobs = board.waiting[waiting.index(member.configuration)]
        board.waiting.remove(jobs)
        reference = member.handle.work.remote([job.key for job in jobs])
        if not member.batches:
            member.since = time.monotonic()
        member.batches[reference] = jobs

    def _attend(self, reference: Any, board: Board) -> None:
        """Handle an answer, or the loss of an actor."""
        member = next((m for m in self._members if reference in (m.greeting, *m.batches)), None)
        if member is None:  # of an actor that has been lost since
            return
        try:
            said: Any = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            if reference == member.greeting:
                self._bear_lost_start(member, board, error)
                return
            for earlier in list(member.batches)[: list(member.batches).index(reference)]:
                if self._ray.wait([earlier], timeout=0)[0]:  # done before the loss, or lost first
                    self._attend(earlier, board)
            if member in self._members:  # else the loss was one of those
                lost = self._replace(member, board)
                board.record_lost_worker(lost, " ".join(str(error).split())[:200])
            return
        if reference == member.greeting:
            member.greeting, self._starts_lost = None, 0
            self._require_sound(said)
            return
        jobs = {job.key: job for job in member.batches.pop(reference)}
        member.since = time.monotonic()
        for answer in said:
            board.record(jobs[answer.key], answer)

    def _require_sound(self, greeting: Answer) -> None:
        """Raise unless the actor has a runner and computes what this process does."""
        if greeting.error:
            raise JobFailure(
                key="", label="actor start", error=greeting.error, message=greeting.message
            ).as_exception()
        if self._fingerprint is not None:
            require_same(self._fingerprint(), greeting.message, "Ray actor")

    def _bear_lost_start(self, member: _Member, board: Board, error: Exception) -> None:
        """Start another actor for one that died before it was ready, unless all do."""
        self._starts_lost += 1
        if self._starts_lost >= MAX_LOST_WORKERS * self._size:
            raise NotReadyError(
                f"Ray actors: expected them to start, got {self._starts_lost} lost, the last by "
                f"'{error}'; check the memory of the nodes, then run again."
            ) from error
        self._replace(member, board)

    def _replace(self, member: _Member, board: Board) -> list[Job]:
        """End an actor, queue what it had not begun and start another; return what it worked on."""
        first, *others = member.batches.values() or [[]]
        self._ray.kill(member.handle)
        self._members.remove(member)
        board.waiting.extendleft(others)
        self._hire(board)
        return first

    def _patience(self) -> float | None:
        """Return the seconds until the first batch is late."""
        if self._limit is None:
            return None
        late = [self._deadline(member) for member in self._members if member.batches]
        return max(0.0, min(late, default=time.monotonic() + 1.0) - time.monotonic())

    def _deadline(self, member: _Member) -> float:
        return member.since + (self._limit or 0.0) * len(next(iter(member.batches.values())))

    def _stop_late(self, board: Board) -> None:
        """Replace every actor whose batch takes too long."""
        for member in list(self._members):
            if self._limit and member.batches and self._deadline(member) <= time.monotonic():
                board.record_overrun(self._replace(member, board), self._limit)


def free_actors(cluster: RayCluster | None = None) -> int:
    """Return how many actors ``cluster`` holds; see `run_jobs_on_ray`."""
    cluster = cluster or RayCluster()
    return _room(_connected(cluster.address), cluster)


def _room(ray: Any, cluster: RayCluster) -> int:
    """Return how many actors the cluster holds."""
    has, needs = ray.cluster_resources(), cluster.needs()
    room = [int(has.get(name, 0.0) / amount + 1e-9) for name, amount in needs.items()]
    if min(room, default=1) < 1:
        raise ConfigurationError(
            f"jobs on Ray: expected a cluster with {needs} for an actor, got {dict(has)}; start "
            "nodes with these resources or ask for less."
        )
    return min(room, default=int(has.get("CPU", 1.0)))


def _connected(address: str | None) -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray = load_extra("ray")
    if not ray.is_initialized():
        address = address or os.environ.get("RAY_ADDRESS") or "auto"
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
