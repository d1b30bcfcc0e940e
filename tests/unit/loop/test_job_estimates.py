import pytest

from cadenza.loop.job_estimates import JobEstimates, kind_of
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


def test_the_newest_ended_job_of_the_same_kind_says_what_is_left(tmp_path):
    jobs = [
        row("train", 0, duration_s=40.0, finished=1.0),
        row("train", 1, duration_s=60.0, finished=2.0),
        row("train", 2, duration_s=99.0, finished=3.0, status="failed"),
        row("data", 1, duration_s=7.0, finished=4.0),
    ]
    estimates = JobEstimates(jobs, folder=tmp_path)
    assert estimates.left_s(key("train", 3), 10.0, done=None) == 50.0
    assert estimates.left_s(key("train", 3), 70.0, done=None) == 0.0
    assert estimates.left_s(key("harvest", 3), 10.0, done=None) is None


def test_evaluations_of_one_look_take_the_same_whoever_is_evaluated():
    assert kind_of("eval_candidate_2") == kind_of("eval_baseline_2") == "eval 2"
    assert kind_of("eval_candidate_1") != kind_of("eval_candidate_2")
    assert kind_of("select_adapted") == kind_of("select_candidate")


def test_the_share_that_a_job_says_it_has_done_wins(tmp_path):
    estimates = JobEstimates([row("train", duration_s=1000.0)], folder=tmp_path)
    assert estimates.left_s(key("train", 1), 30.0, done=0.25) == 90.0
    assert estimates.left_s(key("train", 1), 30.0, done=0.0) == 970.0


@pytest.mark.parametrize(
    ("log", "share"),
    [
        (b"eval:  10%|#  | 2/20 [00:01<..]\reval:  60%|## | 12/20 [00:04<00:03]", 0.6),
        (b"INFO step:1K smpl:8K ep:3 loss:0.1\nINFO step:1.5K smpl:12K ep:4 loss:0.1\n", 0.75),
        (b"INFO step:9K smpl:8K\n", 1.0),
        (b"nothing of the kind\n", None),
        (b"0/0 [00:00<?]", None),
    ],
)
def test_progress_is_read_from_the_log(log, share, tmp_path):
    (tmp_path / "cycle_0").mkdir()
    (tmp_path / "cycle_0" / "train.log").write_bytes(b"x" * 20_000 + log)
    estimates = JobEstimates([row("train")], folder=tmp_path)
    assert estimates.share_done(key("train")) == share
    assert estimates.share_done(key("data")) is None


def test_the_heartbeat_of_the_job_itself_counts_when_its_controller_is_dead(tmp_path):
    running = row("train", status="running", attempt_s=5.0, heartbeat=105.0)
    estimates = JobEstimates([running], folder=tmp_path)
    signs = estimates.signs_of_life(running, moment=160.0)
    assert (signs.elapsed_s, signs.silent_s) == (5.0, 55.0)
    folder = tmp_path / "cycle_0" / "jobs" / "train"
    folder.mkdir(parents=True)
    (folder / "heartbeat").write_text("58.000\n")
    signs = estimates.signs_of_life(running, moment=160.0)
    assert (signs.elapsed_s, signs.silent_s) == (58.0, 0.0)
