"""Jobs on a Ray cluster, each attempt on whichever node has room.

The host of an attempt runs under a detached actor named after the job, so that it outlives the
controller and the next one finds it. All else is as on one machine.

Needs:   the extra ``ray``; a folder of runs that all nodes see at the same path, on a file system
         whose locks work between nodes; the same installation at the same paths on all nodes.
Limits:  a cluster that this process started ends with it, and its jobs with the cluster. No node
         can join it, so a job that it has no room for is refused; elsewhere the job waits.
         Processes that hide from a killed host on another node end when the next attempt starts
         there.
"""

import os
import socket
import subprocess
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any, BinaryIO, Final
from urllib.parse import urlsplit

from cadenza.core.errors import MissingExtraError
from cadenza.core.extras import load_extra
from cadenza.loop.contracts.records import Device
from cadenza.loop.errors import JobHostError
from cadenza.loop.jobs.attempt_files import AttemptFolder, AttemptRequest
from cadenza.loop.jobs.durable_runner import Hosts, host_command
from cadenza.loop.jobs.terms import signals_kept
from cadenza.loop.processes import die_with_parent

#: Namespace of the actors.
NAMESPACE: Final = "cadenza-loop"
#: Seconds after which a host that has not started waits for others to end; to start takes some.
_BUSY_S: Final = 15.0


class HostActor:
    """The process that keeps the host of one attempt, and dies with it, and it with the process."""

    def __init__(self, command: tuple[str, ...]) -> None:
        """Start the host; it continues without further calls."""
        self._ray = load_extra("ray")
        self._host = subprocess.Popen(  # noqa: S603 - our own module; no shell
            command,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=die_with_parent(os.getpid()),
        )
        self._ray.get_runtime_context().current_actor.wait_and_leave.remote()

    def wait_and_leave(self) -> None:
        """Wait for the host and end this process."""
        self._host.wait()
        self._ray.actor.exit_actor()


class RayHosts(Hosts):
    """Hosts under detached actors of a Ray cluster."""

    def __init__(self, address: str | None) -> None:
        """Connect to the cluster at ``address``.

        None means the one that ``RAY_ADDRESS`` names, one that runs on this machine, or, without
        either, one that is started for this process.
        """
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        address = address or os.environ.get("RAY_ADDRESS") or None
        if address is None:
            # read at Ray's import: a cluster that it starts listens on the loopback address only
            os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        self._ray = load_extra("ray")
        self._may_grow = True
        if self._ray.is_initialized():
            return
        with signals_kept():  # Ray takes SIGTERM: it would abort the controller
            self._connect(address)

    def _connect(self, address: str | None) -> None:
        """Connect to a cluster, or start one for this process; arguments as `__init__`."""
        options: dict[str, Any] = {"namespace": NAMESPACE, "log_to_driver": False}
        try:
            self._ray.init(address=address or "auto", **options)
        except ConnectionError as error:
            if address is not None:
                raise JobHostError(
                    f"Ray at {address}: expected a cluster, got '{error}'; start one, or correct "
                    "jobs.ray_address (RAY_ADDRESS where that is not set)."
                ) from error
            self._ray.init(address="local", include_dashboard=False, **options)
            self._may_grow = False  # it listens to this machine alone, and ends with this process

    def require_room(self, device: Device) -> None:
        """Raise `JobHostError` if a host would wait for ever: no node has room, or can join."""
        lack = None if self._may_grow else self._lack(_needs_of(on_gpu=device == "gpu"))
        if lack is not None:
            raise JobHostError(
                f"jobs on Ray: expected room for a job on the {device}, got a cluster of this "
                f"machine alone, started for this run: {lack}; name a cluster that has it in "
                "jobs.ray_address, or run the jobs on the cpu."
            )

    def waits_for(self, folder: AttemptFolder, *, waited_s: float) -> str | None:
        """Return what the cluster lacks for the job's actor, or that it is busy."""
        if self._find(folder) is None:
            return None
        needs = _needs_of(on_gpu=folder.read_request().on_gpu)
        lack = self._lack(needs)
        if lack is not None:
            return f"{lack}; it starts when such a node joins"
        if waited_s < _BUSY_S:
            return ""
        idle = self._ray.available_resources()
        if all(idle.get(name, 0.0) >= count for name, count in needs.items()):
            return "the cluster has room, but has not started it yet; see Ray's own logs"
        return f"it needs {_listed(needs)}, which the cluster has, but others use"

    def _lack(self, needs: Mapping[str, int]) -> str | None:
        """Return what no node of the cluster has, even idle; None if one has it."""
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        if any(all(node.get(n, 0.0) >= count for n, count in needs.items()) for node in nodes):
            return None
        total = {name: sum(node.get(name, 0.0) for node in nodes) for name in ("CPU", "GPU")}
        count = "1 node" if len(nodes) == 1 else f"{len(nodes)} nodes"
        return (
            f"it needs {_listed(needs)} on one node, the cluster has {count} with {_listed(total)}"
        )

    def start(self, folder: AttemptFolder, request: AttemptRequest, lock: BinaryIO) -> None:  # noqa: ARG002 - the host takes its own
        """Ask the cluster for the host; it takes the lock itself, wherever it starts."""
        needs, name = _needs_of(on_gpu=request.on_gpu), _name_of(folder)
        options = {"name": name, "namespace": NAMESPACE, "lifetime": "detached", "max_restarts": 0}
        options |= {"num_cpus": needs["CPU"], "num_gpus": needs.get("GPU", 0)}
        try:
            self._ray.remote(HostActor).options(**options).remote(host_command(folder, request))
        except ValueError as error:
            raise JobHostError(
                f"{folder.path}: expected no actor {name!r}, got one; another "
                "controller has started this job: resume the run."
            ) from error

    def kill(self, folder: AttemptFolder, attempt: int) -> bool:  # noqa: ARG002 - one actor per job
        """Kill the job's actor, and with it host and command."""
        actor = self._find(folder)
        if actor is None:
            return False
        self._ray.kill(actor)
        return True

    def _find(self, folder: AttemptFolder) -> Any:
        try:
            return self._ray.get_actor(_name_of(folder), namespace=NAMESPACE)
        except ValueError:
            return None


#: Longest time a cluster gets to answer, s.
_ANSWER_S: Final = 5.0


def require_cluster(address: str | None, environ: Mapping[str, str]) -> str:
    """Return which Ray, and which cluster at ``address``, jobs can be given to; start nothing.

    Raises:
        MissingExtraError: Ray is not installed.
        JobHostError: No cluster answers at the address.
    """
    try:
        release = version("ray")
    except PackageNotFoundError as error:
        raise MissingExtraError(
            "jobs.runner: expected Ray for 'ray', which is not installed; install 'cadenza[ray]', "
            "or set jobs.runner: local."
        ) from error
    address = address or environ.get("RAY_ADDRESS")
    if not address:
        return f"{release}; the cluster of this machine, or one that is started for the run"
    told = "" if address in ("auto", "local") else _complaint(address)  # these name no server
    if told:
        raise JobHostError(
            f"{release}; {address}: {told}; start the cluster, or correct jobs.ray_address "
            "(RAY_ADDRESS where that is not set)."
        )
    return f"{release}; {address}"


def _complaint(address: str) -> str:
    """Return what is wrong with the address of a server; empty if it answers."""
    parts = urlsplit(address if "://" in address else f"//{address}")
    try:
        if not (parts.hostname and parts.port):
            return "expected host:port"
        socket.create_connection((parts.hostname, parts.port), timeout=_ANSWER_S).close()
    except ValueError:
        return "expected host:port"
    except OSError as error:
        return f"no answer ({error})"
    return ""


def _needs_of(*, on_gpu: bool) -> dict[str, int]:
    """Return what a host takes of its node, by Ray's names."""
    return {"CPU": 1, "GPU": 1} if on_gpu else {"CPU": 1}


def _listed(resources: Mapping[str, float]) -> str:
    return " and ".join(f"{count:g} {name}" for name, count in resources.items())


def _name_of(folder: AttemptFolder) -> str:
    return f"job-{folder.digest[:16]}"
