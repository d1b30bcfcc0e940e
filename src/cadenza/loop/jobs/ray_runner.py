"""Jobs on a Ray cluster, each attempt on whichever node has room.

The host of an attempt runs under a detached actor named after the job, so that it outlives the
controller and the next one finds it. All else is as on one machine: the host talks through the
files of the job's folder, and the runner of `DurableRunner` decides.

Needs:   the extra ``ray``; a folder of runs that all nodes see at the same path, on a file system
         whose locks work between nodes; the same installation at the same paths on all nodes.
Limits:  a cluster that this process started ends with it, and its jobs with the cluster; give the
         address of a lasting one to survive. Processes that hide from a killed host on another
         node end when the next attempt starts on that node.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any, Final

from cadenza.core.errors import MissingExtraError
from cadenza.core.files import sha256_bytes
from cadenza.loop.config import JobsConfig
from cadenza.loop.errors import JobHostError
from cadenza.loop.jobs.attempt_files import AttemptFolder, AttemptLock
from cadenza.loop.jobs.budget import BudgetMeter
from cadenza.loop.jobs.durable_runner import STUCK_S, DurableRunner
from cadenza.loop.jobs.processes import die_with_parent
from cadenza.loop.jobs.programs import ProgramTable
from cadenza.loop.jobs.reports import Incident, JobProgress
from cadenza.loop.jobs.spec import Device
from cadenza.loop.jobs.stopping import StopCheck, never
from cadenza.loop.store.jobstore import JobStore
from cadenza.loop.store.rows import Lease

#: Namespace of the actors.
NAMESPACE: Final = "cadenza-loop"
#: Digits of the digest that tells equal jobs of different folders apart.
_DIGITS: Final = 16


class HostActor:
    """The process that keeps the host of one attempt, and dies with it, and it with the process."""

    def __init__(self, request_path: str) -> None:
        """Start the host; nobody needs to call anything for it to go on."""
        self._ray = _import_ray()
        self._host = subprocess.Popen(  # noqa: S603 - our own module; no shell
            (sys.executable, "-P", "-m", "cadenza.loop.jobs.host", request_path),
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=die_with_parent(os.getpid()),
        )
        self._ray.get_runtime_context().current_actor.wait_and_leave.remote()

    def wait_and_leave(self) -> None:
        """Wait for the host and end this process."""
        self._host.wait()
        self._ray.actor.exit_actor()


class RayHosts:
    """Hosts under detached actors of a Ray cluster."""

    def __init__(self, address: str | None) -> None:
        """Connect to the cluster at ``address``, or to one of this machine, started if need be.

        Raises:
            MissingExtraError: Ray is not installed.
            JobHostError: No cluster answers at ``address``.
        """
        if address is None:
            _keep_to_this_machine()
        self._ray = _import_ray()
        if self._ray.is_initialized():
            return
        options: dict[str, Any] = {"namespace": NAMESPACE, "log_to_driver": False}
        if address is None:
            options["include_dashboard"] = False
        try:
            self._ray.init(address=address, **options)
        except ConnectionError as error:
            raise JobHostError(
                f"Ray at {address}: expected a cluster, got '{error}'; start one, or correct "
                "jobs.ray_address."
            ) from error

    def start(self, folder: AttemptFolder, lock: AttemptLock, device: Device) -> None:  # noqa: ARG002 - the host takes its own
        """Ask the cluster for the host; it takes the lock itself, wherever it starts."""
        options = {
            "name": _name_of(folder),
            "namespace": NAMESPACE,
            "lifetime": "detached",
            "num_cpus": 1,
            "num_gpus": 1 if device == "gpu" else 0,
            "max_restarts": 0,
        }
        try:
            self._ray.remote(HostActor).options(**options).remote(str(folder.request_path))
        except ValueError as error:
            raise JobHostError(
                f"{folder.path}: expected no actor {options['name']!r}, got one; another "
                "controller has started this job: resume the run."
            ) from error

    def expected(self, folder: AttemptFolder) -> bool:
        """Return whether the job's actor lives or waits for room."""
        return self._find(folder) is not None

    def kill(self, folder: AttemptFolder, attempt: int) -> bool:  # noqa: ARG002 - one actor per job
        """Kill the job's actor, and with it host and command."""
        actor = self._find(folder)
        if actor is None:
            return False
        self._ray.kill(actor)
        return True

    def collect(self, folder: AttemptFolder) -> None:
        """Do nothing: actors leave by themselves."""

    def _find(self, folder: AttemptFolder) -> Any:
        try:
            return self._ray.get_actor(_name_of(folder), namespace=NAMESPACE)
        except ValueError:
            return None


class RayJobRunner(DurableRunner):
    """Runs each attempt on a node of a Ray cluster; see `DurableRunner`."""

    def __init__(
        self,
        store: JobStore,
        lease: Lease,
        config: JobsConfig,
        programs: ProgramTable,
        *,
        budget: BudgetMeter | None = None,
        stop: StopCheck = never,
        on_progress: Callable[[JobProgress], None] | None = None,
        on_incident: Callable[[Incident], None] | None = None,
        stuck_s: float = STUCK_S,
    ) -> None:
        """Run jobs under ``lease``; arguments as `DurableRunner`, errors as `RayHosts`."""
        super().__init__(
            store,
            lease,
            config,
            programs,
            RayHosts(config.ray_address),
            budget=budget,
            stop=stop,
            on_progress=on_progress,
            on_incident=on_incident,
            stuck_s=stuck_s,
        )


def _name_of(folder: AttemptFolder) -> str:
    return f"job-{sha256_bytes(os.fsencode(folder.path))[:_DIGITS]}"


def _keep_to_this_machine() -> None:
    """Let a cluster that Ray starts listen on the loopback address only.

    Ray reads this switch, made for systems without clusters, when it is imported.
    """
    os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")


def _import_ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"jobs on Ray: expected Ray, got '{error}'; install 'cadenza[ray]'."
        ) from error
    return ray
