"""Runs independent jobs on a Ray cluster that is already there; see `executor` for what a job is.

Needs:   the extra ``ray``; a folder that all nodes see at the same path; the same installation on
         all nodes. The cluster is the one that ``RAY_ADDRESS`` names, else one of this machine.
"""

import importlib
import os
import socket
from collections.abc import Sequence
from typing import Any, Final

from cadenza.benchmark.executor import (
    MAX_LOST_WORKERS,
    REPORTED_ERRORS,
    Job,
    JobFailure,
    RunnerFactory,
)
from cadenza.core.errors import MissingExtraError, NotReadyError

#: Namespace of the tasks.
_NAMESPACE: Final = "cadenza-jobs"
#: Seconds within which the head of a cluster accepts a connection.
_CONNECT_S: Final = 10.0


def run_jobs_on_ray(jobs: Sequence[Job], factory: RunnerFactory) -> None:
    """Run every job as a task that takes one CPU of the cluster.

    Args:
        jobs: Jobs with distinct keys.
        factory: Builds the runner; called once for each job.

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
                failed: tuple[str, str] | None = ray.get(done)
            except ray.exceptions.RayError as error:
                failed = "WorkerLost", str(error)
            if failed is not None:
                raise JobFailure(
                    key=job.key, label=job.label, error=failed[0], message=failed[1]
                ).as_exception()
    finally:
        for running in waiting:
            ray.cancel(running, force=True)


def do_job(factory: RunnerFactory, key: str) -> tuple[str, str] | None:
    """Do one job; return the type and the message of an error that is reported by name."""
    try:
        factory()(key)
    except REPORTED_ERRORS as error:
        return type(error).__name__, str(error)
    return None


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
