from dataclasses import replace

import pytest

from cadenza.loop.job_estimates import JobEstimates, Outlook
from cadenza.loop.jobs.attempt_files import AttemptFolder
from cadenza.loop.jobs.course import Course, write_course
from cadenza.loop.jobs.spec import JobKey
from cadenza.loop.store.rows import JobRow


def key(stage, cycle=0):
    return JobKey(run_id="r", cycle=cycle, stage=stage)


def row(stage, cycle=0, **changes):
    values = {
        "id": 1,
        "key": key(stage, cycle),
        "attempt": 1,
        "command": ("lerobot-train", "--steps=2000"),
        "pid": 1,
        "pid_start_time": 1.0,
        "status": "succeeded",
        "started": 100.0,
        "heartbeat": 130.0,
        "finished": 150.0,
        "exit_code": 0,
        "duration_s": 50.0,
        "attempt_s": 0.0,
        "interruptions": 0,
        "device": "cpu",
        "result_path": None,
        "result_sha256": None,
    }
    return JobRow(**(values | changes))


def left_of(jobs, running, elapsed_s, folder):
    return JobEstimates([*jobs, running], folder=folder).outlook(running.key, elapsed_s).left_s


def test_the_newest_ended_job_of_the_same_work_says_what_is_left(tmp_path):
    jobs = [
        row("train", 0, duration_s=40.0, finished=1.0),
        row("train", 1, duration_s=60.0, finished=2.0),
        row("train", 2, duration_s=99.0, finished=3.0, status="failed"),
        row("data", 1, duration_s=7.0, finished=4.0, command=("lerobot-collect",)),
    ]
    running = row("train", 3, status="running", duration_s=0.0)
    assert left_of(jobs, running, 10.0, tmp_path) == 50.0
    harvest = row("harvest", 3, status="running", command=("cadenza-lerobot-collect",))
    assert left_of(jobs, harvest, 10.0, tmp_path) is None


def test_a_job_that_takes_longer_than_its_like_has_an_unknown_end(tmp_path):
    running = row("train", 3, status="running", duration_s=0.0)
    assert left_of([row("train", 0)], running, 70.0, tmp_path) is None


@pytest.mark.parametrize(
    ("before", "now", "left_s"),
    [
        (("lerobot-train", "--steps=1000"), ("lerobot-train", "--steps=3000"), 140.0),
        (
            ("lerobot-eval", "--eval.n_episodes=50"),
            ("lerobot-eval", "--eval.n_episodes=25"),
            15.0,
        ),
        (
            ("cadenza", "job", "evaluate", "--episodes=100"),
            ("cadenza", "job", "evaluate", "--episodes=400"),
            190.0,
        ),
        (
            ("cadenza", "job", "train", "--episodes=1,2", "--steps=10", "--rung=bc"),
            ("cadenza", "job", "train", "--episodes=7", "--steps=20", "--rung=bc"),
            90.0,
        ),
        (("cadenza", "job", "merge"), ("cadenza", "job", "merge"), 40.0),
        (("cadenza", "job", "train", "--rung=bc"), ("cadenza", "job", "train", "--rung=x"), None),
        (
            ("lerobot-train", "--policy.type=act"),
            ("lerobot-train", "--policy.type=diffusion"),
            None,
        ),
        (("cadenza", "job", "collect"), ("cadenza", "job", "harvest"), None),
    ],
)
def test_history_is_scaled_by_steps_or_episodes_and_other_work_is_no_guide(
    tmp_path, before, now, left_s
):
    ended = row("a", 0, command=before, duration_s=50.0)
    running = row("b", 1, command=now, status="running", duration_s=0.0)
    assert left_of([ended], running, 10.0, tmp_path) == left_s


def test_the_share_that_a_job_says_it_has_done_wins_over_history(tmp_path):
    command = ("cadenza", "job", "evaluate", "--episodes=8", "--batch-size=2", f"--out={tmp_path}")
    ended = row("a", 0, command=command, duration_s=1000.0)
    running = row("b", 1, command=command, status="running", duration_s=0.0)
    estimates = JobEstimates([ended, running], folder=tmp_path)
    (tmp_path / "blocks").mkdir()
    assert estimates.outlook(running.key, 30.0) == Outlook(done=0.0, left_s=970.0)
    (tmp_path / "blocks" / "00000.json").touch()
    assert estimates.outlook(running.key, 30.0) == Outlook(done=0.25, left_s=90.0)


def begin(folder, job, done):
    """Say that the present attempt of ``job`` went on from the share ``done``."""
    attempts = AttemptFolder(folder / f"cycle_{job.key.cycle}" / "jobs" / job.key.stage)
    attempts.path.mkdir(parents=True, exist_ok=True)
    write_course(attempts, Course(attempt=job.attempt, done=done))


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


@pytest.mark.parametrize(
    ("log", "outlook"),
    [
        ("INFO step:16K smpl:1M ep:3 loss:0.1\n", Outlook(done=0.8, left_s=240.0)),
        ("Training: 20%|## | 1000/5000 [01:00<04:00]", Outlook(done=0.8, left_s=240.0)),
        ("loading\n", Outlook(done=0.75, left_s=None)),
    ],
)
def test_their_training_that_goes_on_from_a_checkpoint_is_not_taken_for_faster(
    tmp_path, log, outlook
):
    (tmp_path / "cycle_1").mkdir()
    (tmp_path / "cycle_1" / "train.log").write_text(log)
    command = ("lerobot-train", "--steps=20000")
    job = row("train", 1, command=command, status="running", attempt=2, duration_s=900.0)
    begin(tmp_path, job, 0.75)
    found = JobEstimates([job], folder=tmp_path).outlook(job.key, 60.0)
    assert found.done == outlook.done
    assert found.left_s == pytest.approx(outlook.left_s)


def test_their_evaluation_starts_over(tmp_path):
    (tmp_path / "cycle_1").mkdir()
    (tmp_path / "cycle_1" / "c.log").write_text("1/2 [00:04<00:03]")
    theirs = row("c", 1, command=("lerobot-eval",), status="running", attempt=2, duration_s=20.0)
    begin(tmp_path, theirs, 0.0)
    assert left_of([], theirs, 10.0, tmp_path) == 10.0


def test_a_job_that_says_nothing_of_its_parts_is_taken_to_go_on_from_all_of_them(tmp_path):
    command = ("cadenza", "job", "collect", "--episodes=8")
    ours = row("b", 1, command=command, status="running", attempt=2, duration_s=20.0)
    begin(tmp_path, ours, None)
    assert left_of([row("a", 0, command=command)], ours, 10.0, tmp_path) == 20.0


def test_nothing_is_known_of_a_job_that_the_store_does_not_have(tmp_path):
    assert JobEstimates([], folder=tmp_path).outlook(key("train"), 1.0) == Outlook()


def test_the_heartbeat_of_the_job_itself_counts_when_its_controller_is_dead(tmp_path):
    running = row("train", status="running", attempt_s=5.0, heartbeat=105.0)
    estimates = JobEstimates([running], folder=tmp_path)
    signs = estimates.signs_of_life(running, moment=160.0)
    assert (signs.elapsed_s, signs.silent_s) == (5.0, 55.0)
    folder = tmp_path / "cycle_0" / "jobs" / "train"
    folder.mkdir(parents=True)
    AttemptFolder(folder).beat(58.0, 44.0)
    signs = estimates.signs_of_life(running, moment=160.0)
    assert (signs.elapsed_s, signs.silent_s, signs.quiet_s) == (58.0, 0.0, 44.0)
