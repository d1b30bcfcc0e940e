import json
from dataclasses import replace

import pytest

from cadenza.loop.contracts.records import JobKey
from cadenza.loop.jobs.attempt_files import AttemptFolder, AttemptRequest
from cadenza.loop.status_report import JobEstimates
from cadenza.loop.store.rows import JobRow


def key(stage, cycle=0):
    return JobKey(run_id="r", cycle=cycle, stage=stage)


def row(stage, cycle=0, command=("lerobot-train", "--steps=2000"), **changes):
    values = {
        "id": 1, **key(stage, cycle).model_dump(), "attempt": 1, "status": "succeeded", "exit": 0,
        "cmd": json.dumps(command), "pid": 1, "pid_start_time": 1.0,
        "started": 100.0, "heartbeat": 130.0, "finished": 150.0, "duration_s": 50.0,
        "attempt_s": 0.0, "interruptions": 0, "device": "cpu", "result_path": None,
        "result_sha256": None,
    }  # fmt: skip
    return JobRow(**(values | changes))


def left_of(jobs, running, elapsed_s, folder):
    return JobEstimates([*jobs, running], folder=folder).outlook(running.key, elapsed_s).left_s


@pytest.mark.parametrize(
    ("before", "now", "left_s"),
    [
        ("lerobot-train --steps=1000", "lerobot-train --steps=3000", 140.0),
        ("lerobot-eval --eval.n_episodes=50", "lerobot-eval --eval.n_episodes=25", 15.0),
        ("cadenza job evaluate --episodes=100", "cadenza job evaluate --episodes=400", 190.0),
        ("cadenza job train --episodes=1,2 --steps=10", "cadenza job train --steps=20", 90.0),
        ("cadenza job merge", "cadenza job merge", 40.0),
        ("cadenza job train --episodes=1,2", "cadenza job train --steps=20", 40.0),
        ("cadenza job train --rung=bc", "cadenza job train --rung=x", None),
        ("lerobot-train --policy.type=act", "lerobot-train --policy.type=diffusion", None),
        ("cadenza job collect", "cadenza job harvest", None),
    ],
)
def test_history_is_scaled_by_steps_or_episodes_and_other_work_is_no_guide(
    tmp_path, before, now, left_s
):
    ended = row("a", 0, command=tuple(before.split()), duration_s=50.0)
    running = row("b", 1, command=tuple(now.split()), status="running", duration_s=0.0)
    assert left_of([ended], running, 10.0, tmp_path) == left_s


def begin(folder, job, done):
    """Say that the present attempt of ``job`` went on from the share ``done``."""
    attempts = AttemptFolder(folder / f"cycle_{job.key.cycle}" / "jobs" / job.key.stage)
    places = {"cwd": "/", "log_path": "/log", "output_dir": "/out"}
    limits = {"time_limit_s": None, "silent_limit_s": None, "grace_s": 1.0}
    request = AttemptRequest(attempt=job.attempt, key="k", argv=(), done=done, **places, **limits)
    attempts.prepare(request)


def test_only_what_the_present_attempt_did_tells_its_speed(tmp_path):
    command = ("cadenza", "job", "evaluate", "--episodes=8", "--batch-size=2", f"--out={tmp_path}")
    (tmp_path / "blocks").mkdir()
    for number in range(2):
        (tmp_path / "blocks" / f"{number:05d}.json").touch()
    killed = {"status": "running", "attempt": 4, "duration_s": 600.0}  # and 600 s for nothing
    ours = row("b", 1, command=command, **killed)
    like = row("a", 0, command=command, duration_s=100.0)
    begin(tmp_path, ours, 0.25)
    assert left_of([], ours, 10.0, tmp_path) == 20.0  # a quarter in 10 s, half is left
    begin(tmp_path, ours, 0.5)
    assert left_of([], ours, 10.0, tmp_path) is None  # nothing of its own yet
    assert left_of([like], ours, 10.0, tmp_path) == 40.0  # half of its like
    begin(tmp_path, replace(ours, attempt=3), 0.25)
    assert left_of([], ours, 10.0, tmp_path) is None  # nobody knows where it began
