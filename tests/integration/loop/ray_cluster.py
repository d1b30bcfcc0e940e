"""A real Ray cluster of this machine, for tests."""

import secrets
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest

from cadenza.loop.jobs.ray_runner import NAMESPACE
from cadenza.loop.processes import running_pids, start_ticks
from tests.integration.loop.job_harness import wait_for

#: Ray reads a process's token once, whatever the environment says later.
TOKEN = secrets.token_hex(32)


@contextmanager
def quiet_ray():
    """Keep Ray to the loopback address, and its token out of the home folder."""
    pytest.importorskip("ray", reason="the extra 'ray' is not installed")
    from ray._private import ray_constants

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ray_constants, "ENABLE_RAY_CLUSTER", False)  # if it was imported before
        patch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_AUTH_TOKEN", TOKEN)
        yield


@contextmanager
def running_cluster():
    """Run a cluster that no controller owns and give its address; within `quiet_ray`."""
    import ray

    folder = tempfile.mkdtemp(prefix="cz", dir="/tmp")  # sockets need short paths
    try:
        context = ray.init(
            num_cpus=2,
            num_gpus=0,
            include_dashboard=False,
            object_store_memory=128 << 20,
            log_to_driver=False,
            namespace=NAMESPACE,
            _temp_dir=folder,
        )
        yield context.address_info["address"]
    finally:
        ray.shutdown()
        wait_for(lambda: not _processes_of(folder))
        shutil.rmtree(folder, ignore_errors=True)


def _processes_of(folder):
    found = []
    for pid in running_pids():
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if folder.encode() in command and start_ticks(pid):
            found.append(pid)
    return found
