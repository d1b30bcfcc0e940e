"""Jobs and cells on a real Ray cluster of this machine: the bytes of one process, whatever dies."""

import os
import signal
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cadenza.benchmark.executor import Job
from cadenza.benchmark.ray_executor import RayCluster, run_jobs_on_ray
from cadenza.cli.main import app
from cadenza.core.errors import ConfigurationError, InputError, NotReadyError
from cadenza.loop.processes import running_pids
from tests.campaigns import nightly
from tests.integration.benchmark.job_runners import ReturningFactory, process_number
from tests.integration.benchmark.test_evaluation_run import bundle_bytes, config, evaluate
from tests.integration.loop.ray_cluster import quiet_ray, running_cluster

JOBS = [
    Job(key=f"job{n}", label=f"job number {n}", batch=f"batch {n // 2}", configuration=str(n // 4))
    for n in range(8)
]


@pytest.fixture(scope="module")
def cluster():
    """One cluster of two cores for all tests; starting one takes 10 to 30 s."""
    with quiet_ray(), running_cluster():
        yield RayCluster()


def kill_one_actor():
    """SIGKILL an actor of this machine that is at work."""
    for pid in running_pids():
        try:
            title = Path(f"/proc/{pid}/cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if title.startswith(b"ray::Actor"):
            os.kill(pid, signal.SIGKILL)
            return
    raise AssertionError("no actor at work")


def test_evaluation_with_a_killed_actor_has_the_bytes_of_one_process(cluster, tmp_path):
    evaluate(config(), tmp_path / "one")
    killed: list[int] = []

    def kill_once(done, total, label):
        if done >= 1 and not killed:
            killed.append(done)
            kill_one_actor()

    evaluate(config(), tmp_path / "ray", cluster=cluster, lanes=2, progress=kill_once)
    assert killed
    assert bundle_bytes(tmp_path / "ray") == bundle_bytes(tmp_path / "one")


@nightly
def test_failing_and_lethal_jobs_fail_alone_and_the_others_are_stored(cluster, tmp_path):
    stored: dict[str, bytes] = {}
    factory = ReturningFactory(tmp_path, failing=("job2",), lethal=("job5",))
    failures = run_jobs_on_ray(
        JOBS, factory, cluster=cluster, failure_policy="best_effort", store=stored.__setitem__
    )
    assert [(f.key, f.error) for f in failures] == [("job2", "InputError"), ("job5", "WorkerLost")]
    assert stored == {f"job{n}": f"bytes of job{n}".encode() for n in range(8) if n not in (2, 5)}
    with pytest.raises(InputError, match="job number 2: job job2 was told to fail"):
        run_jobs_on_ray(JOBS, factory, cluster=cluster)


@nightly
def test_job_that_takes_too_long_is_stopped(cluster, tmp_path):
    stored: dict[str, bytes] = {}
    (failure,) = run_jobs_on_ray(
        JOBS[:4],
        ReturningFactory(tmp_path, slow=("job1",)),
        cluster=cluster,
        failure_policy="best_effort",
        store=stored.__setitem__,
        time_limit_s=4.0,
    )
    assert (failure.key, failure.error) == ("job1", "TimeLimitExceeded")
    assert sorted(stored) == ["job0", "job2", "job3"]


def test_what_does_not_fit_the_cluster_is_refused(cluster, tmp_path):
    factory = ReturningFactory(tmp_path)
    with pytest.raises(ConfigurationError, match=r"expected a cluster with .*'sim': 1\.0"):
        run_jobs_on_ray(JOBS, factory, cluster=RayCluster(resources={"sim": 1.0}))
    with pytest.raises(ConfigurationError, match=r"Ray actor: expected the bits of this process"):
        run_jobs_on_ray(JOBS, factory, cluster=cluster, fingerprint=process_number)


@nightly
def test_commands_of_populations_give_the_same_bytes_on_a_cluster(cluster, tmp_path):
    def ended(line: str, out: Path) -> dict[Path, bytes]:
        finished = CliRunner().invoke(app, [*line.split(), "--out", str(out), "--quiet"])
        assert finished.exit_code == 0, finished.output
        kept = [*out.rglob("*.safetensors"), *out.rglob("best-responses.json")]
        return {path.relative_to(out): path.read_bytes() for path in kept}

    zoo = tmp_path / "zoo"
    settings = "num_envs=4 episodes=4 ppo.rollout_length=10 ppo.batch_size=40"
    ended(f"zoo train fcp --task crossing population=2 steps=240 {settings}", zoo)
    for command in (
        f"zoo best-response {zoo} steps=240 {settings}",
        f"train crossing --zoo {zoo} --seeds 2 --episodes 2 total_frames=512 env.num_envs=2",
    ):
        alone = ended(f"{command} --workers 1", tmp_path / "alone" / command.split()[0])
        on_ray = ended(f"{command} --executor ray", tmp_path / "ray" / command.split()[0])
        assert alone
        assert on_ray == alone


@nightly
def test_evaluation_with_a_killed_node_has_the_bytes_of_one_process(tmp_path):
    with quiet_ray(), pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_raylet_start_wait_time_s", "150")
        import ray
        from ray.cluster_utils import Cluster

        evaluate(config(), tmp_path / "one")
        nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
        try:
            second = nodes.add_node(num_cpus=1)
            ray.init(address=nodes.address, namespace="cadenza-jobs", log_to_driver=False)
            lost: list[int] = []

            def lose_a_node(done, total, label):
                if done >= 1 and not lost:
                    lost.append(done)
                    nodes.remove_node(second, allow_graceful=False)

            evaluate(
                config(), tmp_path / "ray", cluster=RayCluster(), lanes=2, progress=lose_a_node
            )
        finally:
            ray.shutdown()
            nodes.shutdown()
    assert lost
    assert bundle_bytes(tmp_path / "ray") == bundle_bytes(tmp_path / "one")


def test_head_that_does_not_listen_is_named_at_once(tmp_path):
    pytest.importorskip("ray", reason="the extra 'ray' is not installed")
    import ray

    ray.shutdown()
    with pytest.raises(NotReadyError, match=r"expected a cluster at '127\.0\.0\.1:9'"):
        run_jobs_on_ray(JOBS, ReturningFactory(tmp_path), cluster=RayCluster(address="127.0.0.1:9"))
