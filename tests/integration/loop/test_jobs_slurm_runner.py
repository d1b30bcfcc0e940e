"""Jobs on a fake Slurm of this machine: the promises of the local runner hold there too."""

import signal
import stat

import pytest

from cadenza.core.errors import ConfigurationError, MissingExtraError
from cadenza.loop.backends.base import make_backend
from cadenza.loop.backends.lerobot_probe import LeRobotEnvironment
from cadenza.loop.config import LoopConfig
from cadenza.loop.errors import JobFailedError, JobHostError, StopRequestedError
from cadenza.loop.jobs import slurm_runner
from cadenza.loop.jobs.host import NOT_IN_CHARGE
from cadenza.loop.jobs.slurm_runner import require_slurm
from cadenza.loop.jobs.terms import StopLevel
from tests.integration.loop.fake_slurm import fake_slurm
from tests.integration.loop.job_harness import (
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


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    monkeypatch.setattr(slurm_runner, "ASK_EVERY_S", 0.1)
    with fake_slurm(tmp_path / "slurm", monkeypatch) as running:
        yield running


@pytest.fixture
def bench(slurm, tmp_path):
    with bench_in(tmp_path) as opened:
        yield opened


def test_job_runs_in_a_batch_job_with_the_options_of_the_configuration(
    bench, slurm, tmp_path, monkeypatch
):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    monkeypatch.setenv("SBATCH_RESERVATION", "lab")
    settings = {"partition": "long", "account": "robots", "gpus": 2, "cpus": 8, "memory": "32G"}
    settings |= {
        "time": "4:00:00",
        "options": {"hold": False, "constraint": "a100", "exclusive": True, "nice": 0},
    }
    spec = spec_of(tmp_path, "print('in a batch job'); finish(sys.argv[1])", device="gpu")
    end = bench.slurm_runner(slurm=settings).run(spec)
    assert (end.attempts, bench.kinds) == (1, [])
    [job] = slurm.submitted()
    wanted = {"partition": "long", "account": "robots", "gres": "gpu:2", "cpus-per-task": "8"}
    wanted |= {"mem": "32G", "time": "4:00:00", "constraint": "a100", "exclusive": "", "nice": "0"}
    assert job["given"].items() >= {**wanted, "signal": "B:TERM@31", "no-requeue": ""}.items()
    assert "hold" not in job["given"]
    assert job["environ"]["SBATCH_RESERVATION"] == "lab"
    assert "OPENAI_API_KEY" not in job["environ"]
    assert "in a batch job" in spec.log_path.read_text()
    folder = files_of(spec)
    found = sorted(path.name for path in folder.path.iterdir())
    assert found == ["attempt.lock", "end.json", "request.json"]
    assert folder.read_request().cluster_id == "1"


def test_job_on_the_cpu_asks_for_no_gpu_and_for_nothing_that_is_not_configured(
    bench, slurm, tmp_path
):
    bench.slurm_runner().run(spec_of(tmp_path, "finish(sys.argv[1])"))
    left_to_slurm = {"gres", "partition", "account", "cpus-per-task", "mem", "time"}
    assert not left_to_slurm & slurm.submitted()[0]["given"].keys()


@pytest.mark.parametrize("moment", ["pending", "running"])
def test_batch_job_of_a_killed_controller_is_found_and_not_submitted_again(slurm, tmp_path, moment):
    spec, running = work_of(tmp_path)
    if moment == "pending":
        slurm.says("hold")
    first = start_controller(tmp_path, spec, "slurm")
    wait_for(slurm.submitted if moment == "pending" else running.exists)
    first.kill()
    first.wait()
    looks = []

    def go_on(progress):
        looks.append(progress)
        if moment == "pending" and len(looks) == 3:
            slurm.no_longer("hold")
        if running.exists():
            let_end(running)

    with bench_in(tmp_path) as bench:
        runner = bench.slurm_runner(on_progress=go_on)
        end = runner.run(spec)
        assert end.attempts == 1
        assert bench.kinds[-1] == "adopted"
        if moment == "pending":
            assert bench.incidents[0].message == (
                "waits for room: Slurm job 1 is pending: Priority"
            )
            assert looks[0].waits_for == "Slurm job 1 is pending: Priority"
    assert len(slurm.submitted()) == 1
    assert done(running) == "done\n"
    assert nothing_left_of(spec)


def test_submission_that_a_controller_did_not_live_to_note_is_found_by_its_name(slurm, tmp_path):
    spec, running = work_of(tmp_path)
    slurm.says("hold")
    first = start_controller(tmp_path, spec, "slurm")
    wait_for(lambda: slurm.submitted() and files_of(spec).request.cluster_id)
    first.kill()
    first.wait()
    files_of(spec).change_request(cluster_id="")
    slurm.no_longer("hold")
    wait_for(running.exists)
    let_end(running)
    with bench_in(tmp_path) as bench:
        assert bench.slurm_runner().run(spec).attempts == 1
    assert len(slurm.submitted()) == 1


@pytest.mark.parametrize(
    ("state", "kind", "told"),
    [
        ("CANCELLED", signal.SIGKILL, "Slurm says of its job 1: CANCELLED"),
        ("PREEMPTED", signal.SIGKILL, "Slurm says of its job 1: PREEMPTED"),
        ("NODE_FAIL", signal.SIGKILL, "Slurm says of its job 1: NODE_FAIL"),
        ("TIMEOUT", signal.SIGTERM, "ended by a signal from outside the run"),
    ],
)
def test_batch_job_that_slurm_ends_is_an_interruption(bench, slurm, tmp_path, state, kind, told):
    spec, running = work_of(tmp_path)

    def strike(progress):
        if progress.attempt == 1 and running.exists() and not struck:
            struck.append(slurm.end(1, state, kind))

    struck = []
    end = bench.slurm_runner(on_progress=strike).run(spec)
    row = bench.row(spec)
    assert (end.attempts, row.interruptions, bench.kinds) == (2, 1, ["interrupted"])
    assert told in bench.incidents[0].message
    assert [job["given"]["job-name"].split(".")[3] for job in slurm.submitted()] == ["1", "2"]
    assert nothing_left_of(spec)


def test_batch_job_that_needs_too_much_memory_or_cannot_begin_has_failed(
    bench, slurm, tmp_path, monkeypatch
):
    spec, running = work_of(tmp_path)

    def strike(progress):
        if progress.attempt == 1 and running.exists() and not struck:
            struck.append(slurm.end(1, "OUT_OF_MEMORY", signal.SIGKILL))

    struck = []
    assert bench.slurm_runner(on_progress=strike).run(spec).attempts == 2
    assert bench.kinds == ["attempt_failed"]
    assert "Slurm says of its job 1: OUT_OF_MEMORY" in bench.incidents[0].message
    monkeypatch.setattr("sys.executable", "/nowhere/python")  # as on a node without it
    spec = spec_of(tmp_path, "finish(sys.argv[1])", stage="other")
    with pytest.raises(JobFailedError, match=r"job \d: FAILED in the last of 3 attempts"):
        bench.slurm_runner().run(spec)
    assert "/nowhere/python" in spec.log_path.read_text()


def test_pending_job_can_be_stopped_and_is_cancelled(bench, slurm, tmp_path):
    slurm.says("hold")
    spec = spec_of(tmp_path, "finish(sys.argv[1])")
    looks = []
    runner = bench.slurm_runner(
        stuck_s=0.5,
        on_progress=looks.append,
        stop=lambda: StopLevel.END if len(looks) > 3 else StopLevel.NONE,
    )
    with pytest.raises(StopRequestedError, match="resume the run"):
        runner.run(spec)
    assert bench.kinds == ["waiting_for_room", "interrupted"]
    assert slurm.calls("scancel") == 1
    assert bench.row(spec).status == "pending"
    slurm.no_longer("hold")
    assert bench.slurm_runner().run(spec).attempts == 2


@pytest.mark.parametrize("level", [StopLevel.END, StopLevel.KILL])
def test_running_job_ends_on_request(bench, slurm, tmp_path, level):
    spec, running = work_of(tmp_path)
    stop = lambda: level if running.exists() else StopLevel.NONE  # noqa: E731
    with pytest.raises(StopRequestedError, match="resume the run"):
        bench.slurm_runner(stop=stop).run(spec)
    assert not is_alive(int(running.read_text()))
    assert bench.kinds == ["interrupted"]
    assert bench.row(spec).interruptions == 1
    assert nothing_left_of(spec)


def test_slurm_that_does_not_answer_costs_a_job_nothing(bench, slurm, tmp_path):
    spec, running = work_of(tmp_path)
    slurm.says("hold")
    looks = []

    def go_on(progress):
        looks.append(progress.waits_for)
        if len(looks) == 2:
            slurm.says("deaf", "Unable to contact slurm controller")
        if looks[-1] is not None and "Unable to contact" in looks[-1]:
            slurm.no_longer("deaf")
            slurm.no_longer("hold")
        if running.exists():
            let_end(running)

    assert bench.slurm_runner(on_progress=go_on).run(spec).attempts == 1
    assert any("Unable to contact" in (look or "") for look in looks)


def test_job_that_slurm_took_without_saying_so_is_not_submitted_again(bench, slurm, tmp_path):
    slurm.says("mute")
    assert bench.slurm_runner().run(spec_of(tmp_path, "finish(sys.argv[1])")).attempts == 1
    assert len(slurm.submitted()) == 1


def test_job_that_slurm_refuses_says_why_and_can_be_resumed(bench, slurm, tmp_path):
    slurm.says("refuse", "invalid partition specified: lnog")
    spec = spec_of(tmp_path, "finish(sys.argv[1])")
    with pytest.raises(JobHostError, match=r"got 'sbatch: error: invalid partition .*resume the"):
        bench.slurm_runner().run(spec)
    slurm.no_longer("refuse")
    assert bench.slurm_runner().run(spec).attempts == 2


def test_batch_job_that_is_put_back_into_the_queue_does_nothing(bench, slurm, tmp_path):
    spec, running = work_of(tmp_path, 0.0)
    bench.slurm_runner().run(spec)
    assert slurm.run_again(1) == NOT_IN_CHARGE
    assert done(running) == "done\n"
    folder = files_of(spec)
    with folder.try_lock():  # another attempt is requested meanwhile
        folder.change_request(attempt=2)
    assert slurm.run_again(1) == NOT_IN_CHARGE
    assert done(running) == "done\n"


def test_slurm_is_asked_for_and_missing_commands_are_named(slurm, tmp_path, monkeypatch):
    assert require_slurm() == "slurm 24.05.1"
    (slurm.bin / "squeue").chmod(stat.S_IRUSR)
    monkeypatch.setenv("PATH", str(slurm.bin))
    with pytest.raises(JobHostError, match="got no squeue on PATH"):
        require_slurm()


@pytest.mark.parametrize(("gpus", "device"), [(1, "cuda"), (0, "cpu")])
def test_gpus_of_the_nodes_count_and_not_those_of_the_login_node(gpus, device, monkeypatch):
    def nowhere(*_):
        raise MissingExtraError("no LeRobot here")

    monkeypatch.setattr(LeRobotEnvironment, "find", nowhere)
    jobs = {"runner": "slurm", "slurm": {"gpus": gpus}}
    rung = {"policy_ladder": [{"name": "act"}], "eval": {"env_type": "pusht"}}
    document = {"run_name": "a", "seed_dataset": "lerobot/pusht", "backend": "lerobot", **rung}
    config = LoopConfig.from_document({**document, "jobs": jobs}, source="test")
    assert make_backend(config).capabilities["device"] == device


@pytest.mark.parametrize(
    ("jobs", "told"),
    [
        ({"slurm": {"partition": "long"}}, "expected nothing with runner 'local'"),
        ({"runner": "slurm", "slurm": {"options": {"mem": "1G"}}}, "set already, got mem"),
        ({"runner": "slurm", "slurm": {"options": {"--qos": "x"}}}, "qos"),
        ({"runner": "slurm", "slurm": {"memory": "much"}}, "memory"),
        ({"runner": "slurm", "slurm": {"time": "tomorrow"}}, "time"),
    ],
)
def test_settings_that_slurm_would_not_take_are_refused(jobs, told):
    document = {"run_name": "a", "seed_dataset": "local/a", "data": {"initial_episodes": 4}}
    with pytest.raises(ConfigurationError, match=told):
        LoopConfig.from_document({**document, "jobs": jobs}, source="test")
