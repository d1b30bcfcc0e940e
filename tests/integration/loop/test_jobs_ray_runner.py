"""Jobs on a real Ray cluster of this machine: the promises of the local runner hold there too."""

import os
import signal
import sys
from pathlib import Path

import pytest

from cadenza.loop.errors import JobHostError, StopRequestedError
from cadenza.loop.jobs.ray_runner import RayHosts
from cadenza.loop.jobs.terms import StopLevel
from cadenza.loop.orchestrator.assembly import build_loop
from cadenza.loop.store import JobStore
from tests.campaigns import nightly
from tests.integration.loop.job_harness import (
    RUN,
    bench_in,
    done,
    files_of,
    is_alive,
    let_end,
    nothing_left_of,
    spec_of,
    start_controller,
    wait_for,
    work_of,
)
from tests.integration.loop.loop_harness import config
from tests.integration.loop.ray_cluster import quiet_ray, running_cluster
from tests.loop_fakes import FakeBackend


@pytest.fixture(scope="module", autouse=True)
def quiet():
    with quiet_ray():
        yield


@pytest.fixture(scope="module")
def address(quiet):
    """Address of a cluster that no controller owns."""
    with running_cluster() as address:
        yield address


def parent_of(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def told_of_the_job(bench):
    """Return the kinds of incidents without those of a cluster that is slow to start a host."""
    return [kind for kind in bench.kinds if kind != "waiting_for_room"]


@nightly
def test_killed_worker_takes_host_and_command_with_it_and_the_job_is_tried_again(address, tmp_path):
    spec, running = work_of(tmp_path)

    def kill_worker(progress):
        host = files_of(spec).read_host(1)
        if not killed and running.exists() and host is not None:
            killed.append((host.pid, int(running.read_text())))
            os.kill(parent_of(host.pid), signal.SIGKILL)

    killed = []
    with bench_in(tmp_path) as bench:
        end = bench.ray_runner(address, on_progress=kill_worker).run(spec)
        assert (end.attempts, told_of_the_job(bench)[-1]) == (2, "interrupted")
    assert len(killed) == 1
    assert not any(is_alive(pid) for pid in killed[0])
    assert done(running) == "done\n"
    assert nothing_left_of(spec)


@pytest.mark.slow
def test_job_of_a_killed_controller_is_adopted_by_its_name(address, tmp_path):
    spec, running = work_of(tmp_path)
    first = start_controller(tmp_path, spec, address)
    wait_for(running.exists)
    first.kill()
    first.wait()
    pid = running.read_text()
    with bench_in(tmp_path) as bench:
        runner = bench.ray_runner(address, on_progress=lambda _: bench.kinds and let_end(running))
        assert runner.hosts.waits_for(files_of(spec), waited_s=0.0) is not None
        end = runner.run(spec)
        assert (end.attempts, bench.kinds) == (1, ["adopted"])
    assert running.read_text() == pid
    assert done(running) == "done\n"


@nightly
def test_job_without_room_waits_without_counting_as_stuck_and_can_be_stopped(address, tmp_path):
    spec = spec_of(tmp_path, "finish(sys.argv[1])", device="gpu")  # the cluster has no GPU
    looks = []
    with bench_in(tmp_path) as bench:
        runner = bench.ray_runner(
            address,
            stuck_s=0.5,
            on_progress=looks.append,
            stop=lambda: StopLevel.END if len(looks) > 5 else StopLevel.NONE,
        )
        with pytest.raises(StopRequestedError, match="resume the run"):
            runner.run(spec)
        assert bench.kinds == ["waiting_for_room", "interrupted"]
        assert bench.incidents[0].message == (
            "waits for room: it needs 1 CPU and 1 GPU on one node, the cluster has 1 node with "
            "2 CPU and 0 GPU; it starts when such a node joins"
        )
        assert bench.incidents[0].message == f"waits for room: {looks[-1].waits_for}"
        assert looks[-1].attempt_s == 0.0
        assert not runner.hosts.kill(files_of(spec), 1)


class FakeRay:
    """Ray as far as hosts ask it, with nodes of our own.

    Attributes:
        asked: Options that a cluster was asked for with, in order.
        idle: What of the nodes is idle.
    """

    def __init__(self, *nodes, running=False, connected=False):
        self._nodes = [{"Alive": True, "Resources": node} for node in nodes]
        self._running = running
        self._connected = connected
        self.idle = {}
        self.asked = []

    def is_initialized(self):
        return self._connected

    def init(self, **options):
        self.asked.append(options)
        if options["address"] != "local" and not self._running:
            raise ConnectionError("nobody there")
        self._connected = True

    def nodes(self):
        return [*self._nodes, {"Alive": False, "Resources": {"CPU": 9.0, "GPU": 9.0}}]

    def available_resources(self):
        return self.idle


@pytest.fixture
def fake_ray(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.delenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", raising=False)

    def install(*nodes, **options):
        fake = FakeRay(*nodes, **options)
        monkeypatch.setitem(sys.modules, "ray", fake)
        return fake

    return install


def test_job_that_a_cluster_of_this_process_can_never_run_is_refused_at_once(fake_ray):
    fake_ray({"CPU": 4.0})
    hosts = RayHosts(None)
    hosts.require_room("cpu")
    with pytest.raises(
        JobHostError,
        match=r"room for a job on the gpu, got a cluster of this machine alone.* needs 1 CPU and "
        r"1 GPU on one node, the cluster has 1 node with 4 CPU and 0 GPU; name a cluster",
    ):
        hosts.require_room("gpu")


def test_without_an_address_a_cluster_that_runs_is_used_or_one_is_started(fake_ray, monkeypatch):
    ray = fake_ray({"CPU": 1.0}, running=True)
    RayHosts(None).require_room("gpu")  # others may add nodes to it
    assert [options["address"] for options in ray.asked] == ["auto"]
    assert os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] == "0"
    ray = fake_ray({"CPU": 1.0})
    RayHosts(None)
    assert [options["address"] for options in ray.asked] == ["auto", "local"]
    assert ray.asked[1]["include_dashboard"] is False
    RayHosts("another")  # what this process is connected to stays
    assert len(ray.asked) == 2
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    monkeypatch.delenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER")
    ray = fake_ray({"CPU": 1.0}, running=True)
    RayHosts(None)
    assert [options["address"] for options in ray.asked] == ["10.0.0.1:6379"]
    assert "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER" not in os.environ


def test_run_that_needs_a_gpu_is_refused_before_its_first_job(fake_ray, tmp_path):
    fake_ray({"CPU": 4.0})
    backend = FakeBackend()
    backend.capabilities = {"device": "cuda"}
    loop = build_loop(config(workdir=str(tmp_path), jobs={"runner": "ray"}), RUN, backend=backend)
    with loop, pytest.raises(JobHostError, match="room for a job on the gpu"):
        loop.run()
    with JobStore(tmp_path / "cadenza.db") as store:
        assert store.get_run(RUN)["status"] == "failed"
        assert store.jobs.of_run(RUN) == []
