"""Jobs that end: well, badly, too late, without a result, and once for ever."""

import json
import os
import signal
import sys
import time

import pytest

from cadenza.core.errors import InputError, IntegrityError
from cadenza.loop.config import JobsConfig
from cadenza.loop.errors import (
    JobFailedError,
    JobHostError,
    StopRequestedError,
    StoreUnavailableError,
)
from cadenza.loop.jobs.outcomes import last_lines
from cadenza.loop.jobs.terms import StopLevel
from tests.integration.loop.job_harness import (
    CONFIG,
    UNTIL,
    bench_in,
    files_of,
    is_alive,
    nothing_left_of,
    spec_of,
)

#: Time limits, s: a busy machine may need longer than the first for a command to get to its work.
LIMITS_S = (1.0, 10.0, 100.0)
#: Adds a line to a file for each time it runs to its end.
COUNT = """
with open(sys.argv[2], "a") as file:
    file.write("done\\n")
finish(sys.argv[1], value=1)
"""
#: Fails as often as told, then succeeds.
FLAKY = """
tries = open(sys.argv[2], "a+")
tries.write("x")
print("try", tries.tell(), flush=True)
if tries.tell() <= int(sys.argv[3]):
    sys.exit(3)
finish(sys.argv[1])
"""
#: Ignores SIGTERM, as does a grandchild that hides in a session of its own; names them both.
STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        with open(sys.argv[2] + ".part", "w") as file:
            file.write(f"{os.getpid()} {os.getppid()}")
        os.replace(sys.argv[2] + ".part", sys.argv[2])
        time.sleep(600)
    os._exit(0)
time.sleep(600)
"""


@pytest.fixture
def bench(tmp_path):
    with bench_in(tmp_path) as opened:
        yield opened


def test_job_that_succeeds_is_recorded_and_not_run_again(bench, tmp_path):
    count = tmp_path / "count"
    spec = spec_of(tmp_path, COUNT, str(count))
    first = bench.runner().run(spec)
    again = bench.runner().run(spec)
    assert (first.exit_code, first.attempts, len(first.result_sha256)) == (0, 1, 64)
    assert again == first
    assert count.read_text() == "done\n"
    assert bench.row(spec).status == "succeeded"
    assert bench.kinds == []


def test_job_of_several_attempts_leaves_three_files(bench, tmp_path):
    spec = spec_of(tmp_path, FLAKY, str(tmp_path / "tries"), "1")
    bench.runner().run(spec)
    folder = files_of(spec)
    found = sorted(path.name for path in folder.path.iterdir())
    assert found == ["attempt.lock", "end.json", "request.json"]
    assert [folder.read_end(attempt).exit_code for attempt in (1, 2)] == [3, 0]
    request = folder.read_request()
    assert (request.attempt, request.failed, request.last) == (2, 1, "exit code 3")


def test_job_that_fails_always_says_so_in_one_sentence_and_names_its_log(bench, tmp_path):
    spec = spec_of(tmp_path, FLAKY, str(tmp_path / "tries"), "9")
    with pytest.raises(JobFailedError, match="exit code 3") as caught:
        bench.runner().run(spec)
    assert str(caught.value) == (
        "job run-1/0/train: expected an end with exit code 0, got exit code 3 in the last of 3 "
        f"attempts; see its log {spec.log_path}"
    )
    assert caught.value.log_path == spec.log_path
    assert last_lines(spec.log_path).splitlines()[-2] == "try 3"
    assert bench.kinds == ["attempt_failed"] * 3
    row = bench.row(spec)
    assert (row.status, row.attempt, row.exit_code) == ("failed", 3, 3)
    assert row.duration_s > 0.0
    with pytest.raises(JobFailedError, match="got exit code 3 in the last of 3"):  # it is recorded
        bench.runner().run(spec)
    assert (tmp_path / "tries").read_text() == "xxx"


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("pass", "exit code 0, but .*got 'No such file or directory'"),
        ("open(sys.argv[1], 'w').write('[1]')", "exit code 0, but .*a JSON object"),
    ],
)
def test_exit_code_0_without_a_sound_result_is_a_failure(bench, tmp_path, script, problem):
    config = JobsConfig(max_attempts=2, backoff_s=0.0)
    with pytest.raises(JobFailedError, match=problem):
        bench.runner(config).run(spec_of(tmp_path, script))
    assert bench.kinds == ["attempt_failed"] * 2


@pytest.mark.parametrize("change", ["other", None], ids=["changed", "removed"])
def test_result_file_that_was_tampered_with_is_refused(bench, tmp_path, change):
    spec = spec_of(tmp_path, COUNT, str(tmp_path / "count"))
    bench.runner().run(spec)
    if change is None:
        spec.result_path.unlink()
    else:
        spec.result_path.write_text('{"value":2}')
    with pytest.raises(IntegrityError, match=r"result.json: expected the result"):
        bench.runner().run(spec)


def test_arguments_with_spaces_quotes_and_foreign_letters_arrive_unchanged(
    bench, tmp_path, monkeypatch
):
    monkeypatch.setenv("CADENZA_JOB", "forged")
    arguments = ["two words", "$HOME `id` ; & | > x", "żółć 日本", "", "\"'\\", "--a=[0, 1]\n", "*"]
    spec = spec_of(
        tmp_path,
        "finish(sys.argv[1], got=sys.argv[2:], mark=os.environ['CADENZA_JOB'],"
        " stdin=sys.stdin.read())",
        *arguments,
    )
    bench.runner().run(spec)
    result = json.loads(spec.result_path.read_text())
    assert result == {"got": arguments, "mark": "run-1/0/train", "stdin": ""}


def test_time_limit_ends_a_command_that_ignores_sigterm_and_what_hides_in_other_sessions(
    bench, tmp_path
):
    pids = tmp_path / "pids"
    bystander = os.posix_spawn("/bin/sleep", ["sleep", "600"], os.environ)
    try:
        for limit_s in LIMITS_S:
            runner = bench.runner(JobsConfig(max_attempts=1, grace_s=0.3, time_limit_s=limit_s))
            stage, began = f"within_{limit_s:g}", time.monotonic()
            spec = spec_of(tmp_path, STUBBORN, str(pids), stage=stage)
            with pytest.raises(JobFailedError, match="time limit ended it after") as caught:
                runner.run(spec)
            took_s = time.monotonic() - began
            assert limit_s <= bench.row(spec).duration_s <= min(took_s, limit_s + 300.0)
            if pids.exists():
                break
        assert caught.match("SIGKILL")
        grandchild = int(pids.read_text().split()[0])
        assert not is_alive(grandchild)
        assert nothing_left_of(spec)
        assert is_alive(bystander)
    finally:
        os.kill(bystander, signal.SIGKILL)
        os.waitpid(bystander, 0)


def test_host_that_cannot_be_started_is_reported_and_the_job_can_be_resumed(
    bench, tmp_path, monkeypatch
):
    spec = spec_of(tmp_path, "finish(sys.argv[1])")
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", "/nowhere/python")
        with pytest.raises(JobHostError, match="expected to start the host of an attempt"):
            bench.runner().run(spec)
    assert bench.runner().run(spec).attempts == 2


def test_store_that_does_not_answer_for_a_while_costs_the_job_nothing(bench, tmp_path, monkeypatch):
    answered = tmp_path / "answered"
    spec = spec_of(tmp_path, UNTIL, str(answered))
    heartbeat, failures = bench.store.jobs.heartbeat, []

    def sometimes(*arguments, **options):
        if len(failures) < 3:
            failures.append(None)
            raise StoreUnavailableError("no answer")
        answered.touch()
        return heartbeat(*arguments, **options)

    monkeypatch.setattr(bench.store.jobs, "heartbeat", sometimes)
    assert bench.runner().run(spec).attempts == 1
    assert len(failures) == 3


def test_what_a_command_leaves_running_is_ended_with_it(bench, tmp_path):
    pids = tmp_path / "pids"
    leave = """
import subprocess, time
child = subprocess.Popen(["/bin/sleep", "600"], start_new_session=True)
open(sys.argv[2], "w").write(str(child.pid))
finish(sys.argv[1])
"""
    spec = spec_of(tmp_path, leave, str(pids))
    bench.runner().run(spec)
    assert not is_alive(int(pids.read_text()))


@pytest.mark.parametrize(("policy", "seen"), [("keep", True), ("remove", False)])
def test_output_of_an_earlier_attempt_is_kept_or_removed(bench, tmp_path, policy, seen):
    script = """
folder = os.path.dirname(sys.argv[1])
part = os.path.join(folder, "part")
tries = open(sys.argv[2], "a+")
tries.write("x")
if tries.tell() == 1:
    open(part, "w").close()
    sys.exit(1)
there = os.path.exists(part)
os.makedirs(folder, exist_ok=True)
finish(sys.argv[1], there=there)
"""
    spec = spec_of(tmp_path, script, str(tmp_path / "tries"), on_existing=policy)
    bench.runner().run(spec)
    assert spec.result_path.read_text() == f'{{"there": {str(seen).lower()}}}'


@pytest.mark.parametrize("kind", ["outside", "cycle", "link"])
def test_output_folder_that_is_not_the_jobs_own_is_never_removed(bench, tmp_path, kind):
    spec = spec_of(tmp_path, "sys.exit(1)", on_existing="remove")
    folder = {
        "outside": tmp_path / "precious",
        "cycle": spec.log_path.parent,
        "link": spec.log_path.parent / "link",
    }[kind]
    (tmp_path / "precious").mkdir()
    if kind == "link":
        folder.symlink_to(tmp_path / "precious")
    with pytest.raises(InputError, match="expected a plain folder inside"):
        bench.runner().run(spec.model_copy(update={"output_dir": folder}))
    assert (tmp_path / "precious").is_dir()
    assert spec.log_path.parent.is_dir()


def test_stop_request_ends_the_job_and_leaves_it_resumable(bench, tmp_path):
    script = """
import time
open(sys.argv[2], "a").write("x")
if os.path.getsize(sys.argv[2]) == 1:
    time.sleep(600)
finish(sys.argv[1])
"""
    started = tmp_path / "started"
    spec = spec_of(tmp_path, script, str(started))

    def stop():
        written = started.exists() and started.stat().st_size == 1
        return StopLevel.END if written else StopLevel.NONE

    with pytest.raises(StopRequestedError, match="run-1/0/train"):
        bench.runner(stop=stop).run(spec)
    row = bench.row(spec)
    assert (row.status, row.attempt, row.interruptions) == ("pending", 1, 1)
    assert nothing_left_of(spec)
    with pytest.raises(StopRequestedError, match="resume the run"):
        bench.runner(stop=stop).run(spec)  # nothing starts while the request stands
    assert bench.row(spec).attempt == 1
    end = bench.runner().run(spec)
    assert (end.exit_code, end.attempts) == (0, 2)


def test_a_job_gets_listed_variables_of_its_controller_and_named_ones(bench, tmp_path, monkeypatch):
    secret = ("ANTHROPIC_API_KEY", "OPENAI_BASE_URL", "CADENZA_STORE", "PGPASSWORD", "PGSERVICE")
    secret += ("AWS_SECRET_ACCESS_KEY", "AZURE_CLIENT_SECRET", "GITHUB_TOKEN", "HF_TOKEN")
    secret += ("NVIDIA_API_KEY", "CUDA_TOKEN", "WANDB_API_KEY", "SOMETHING_NEW", "RAY_AUTH_TOKEN")
    for name in secret:
        monkeypatch.setenv(name, "secret")
    monkeypatch.setenv("https_proxy", "http://me:secret@proxy:3128")
    usual = {
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "3",
        "CUDA_VISIBLE_DEVICES": "",
        "LC_ALL": "C",
    }
    usual |= {"HTTP_PROXY": "http://proxy:3128", "MUJOCO_GL": "egl", "PYTHONPATH": "/of/mine"}
    for name, value in {**usual, "MY_LICENSE": "here"}.items():
        monkeypatch.setenv(name, value)
    script = "finish(sys.argv[1], **{name: value for name, value in os.environ.items()})"
    spec = spec_of(tmp_path, script)
    config = CONFIG.model_copy(update={"environment": ("MY_LICENSE", "NOT_SET")})
    bench.runner(config).run(spec)
    variables = json.loads(spec.result_path.read_text())
    assert variables.items() >= {**usual, "MY_LICENSE": "here", "PATH": os.environ["PATH"]}.items()
    assert "secret" not in " ".join(variables.values())
    assert "NOT_SET" not in variables


def test_job_that_leaves_no_trace_is_told_of_once(bench, tmp_path):
    told, go = [], tmp_path / "go"

    def note(kind, message, **_):
        told.append((kind, message))
        go.touch()

    spec = spec_of(tmp_path, UNTIL + "time.sleep(1)", str(go))
    bench.runner(silent_s=0.1, on_incident=note).run(spec)
    assert 1 <= len(told) <= 2  # its result ends a silence, and another may begin
    assert {kind for kind, _ in told} == {"silent"}
    assert "it may hang; jobs.silent_limit_s ends such attempts" in told[0][1]
