import errno
import io
import logging
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from cadenza.cli.loop_run import LoopDisplay
from cadenza.cli.loop_status import (
    command,
    cycle_table,
    event_line,
    headline,
    notes,
)
from cadenza.cli.output import ExitCode, exit_code_of
from cadenza.loop import errors
from cadenza.loop.constitution import ConstitutionError, Verdict
from cadenza.loop.contracts.records import JobKey
from cadenza.loop.events import Event, EventBus
from cadenza.loop.jobs.outcomes import JobProgress
from cadenza.loop.status_report import run_status
from tests.loop_runs import RUN, begun_run


def test_the_payload_of_a_line_is_cut_at_160_characters():
    line = event_line(3, "train", "job_started", {"cmd": "x" * 300})
    assert line.startswith('[cycle 3] train/job_started {"cmd": "xxx')
    assert len(line.partition("job_started ")[2]) == 160
    assert line.endswith("...")
    assert event_line(None, "orchestrator", "run_finished", {}).startswith("[cycle -] ")
    exact = {"k": "x" * (160 - len('{"k": ""}'))}
    assert event_line(0, "a", "b", exact).endswith('x"}')


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.StoreNotFoundError("s"), ExitCode.CHECK_FAILED),
        (errors.StoreUnavailableError("s"), ExitCode.STORAGE),
        (errors.StoreCorruptError("s"), ExitCode.DAMAGED_DATA),
        (errors.StoreOutdatedError("s"), ExitCode.NOT_READY),
        (errors.LeaseHeldError("s"), ExitCode.NOT_READY),
        (errors.EventLogHeldError("s"), ExitCode.STORAGE),
        (errors.StaleLeaseError("s"), ExitCode.NOT_READY),
        (errors.JobFailedError("s"), ExitCode.JOB_FAILED),
        (errors.JobHostError("s"), ExitCode.JOB_FAILED),
        (errors.TrainError("s"), ExitCode.JOB_FAILED),
        (errors.StopRequestedError("s"), ExitCode.INTERRUPTED),
        (ConstitutionError(Verdict(allowed=False, rule="r", reason="w")), ExitCode.REFUSED),
        (errors.StoreError("s"), ExitCode.USAGE),
    ],
)
def test_each_error_of_the_loop_has_its_exit_code(error, code):
    assert exit_code_of(error) is code


def test_commands_to_copy_name_the_store_but_no_password(tmp_path, monkeypatch):
    assert command("resume", "r", Path("runs"), None) == "cadenza loop resume r"
    assert command("stop", "r", Path("my runs"), None) == "cadenza loop stop r --workdir 'my runs'"
    url = "postgresql+psycopg://me:secret@host/db"
    assert command("stop", "r", Path("runs"), url).endswith(
        "--store 'postgresql+psycopg://me:***@host/db'"
    )
    monkeypatch.setenv("CADENZA_STORE", url)
    assert command("stop", "r", Path("runs"), url) == "cadenza loop stop r"
    of_folder = f"--workdir {tmp_path} --store sqlite:///{tmp_path}/cadenza.db"
    assert command("stop", "r", tmp_path, None) == f"cadenza loop stop r {of_folder}"


@pytest.fixture
def run(tmp_path):
    """An open store with a run, and how it stands."""
    with begun_run(tmp_path) as store:
        yield store, run_status(store, RUN, workdir=tmp_path)


def test_a_job_without_output_and_what_became_of_earlier_attempts_is_told(
    run, tmp_path, monkeypatch
):
    store, status = run
    [job] = status.jobs
    problem = "the kernel killed it for want of memory\x1b[2J"
    changes = {"attempt": 4, "interrupted": 2, "failed": 1, "last_problem": problem}
    times = {"quiet_s": 190.0, "silent_s": 0.0, "left_s": None}
    job = job.model_copy(update={**changes, **times, "pid": None})
    shown = notes(status.model_copy(update={"jobs": (job,)}), tmp_path, None)
    assert (
        "job: train of cycle 1, attempt 4 (2 interrupted, 1 failed, the last: the kernel killed it "
        "for want of memory [2J), runs for 30 s, time left unknown, no output for 3 min 10 s"
    ) in shown
    hung = progress(30.0).model_copy(update={"quiet_s": 61.0})
    for stream in (io.StringIO(), Terminal()):
        text = shown_by(stream, store, tmp_path, monkeypatch, told=hung)
        assert "left, no output for 1 min 01 s" in text


def test_a_job_that_waits_for_room_says_for_what(run, tmp_path, monkeypatch):
    store, status = run
    lack = "it needs 1 GPU, the cluster has 0"
    job = status.jobs[0].model_copy(update={"waits_for": lack, "pid": None})
    shown = notes(status.model_copy(update={"jobs": (job,)}), tmp_path, None)
    assert f"job: train of cycle 1, waits for room: {lack}" in shown
    waiting = progress(0.0).model_copy(update={"waits_for": lack})
    text = shown_by(io.StringIO(), store, tmp_path, monkeypatch, told=waiting)
    assert f"[cycle 1] train waits for room: {lack}\n" in text
    assert f"waits for room: {lack}" in shown_by(
        Terminal(), store, tmp_path, monkeypatch, told=waiting
    )


def test_a_run_out_of_cycles_or_hours_tells_how_to_go_on_and_one_at_its_end_nothing(run, tmp_path):
    store, _ = run
    store.finish_run(RUN, "finished", "budget: max_gpu_hours")
    status = run_status(store, RUN, workdir=tmp_path)
    assert headline(status).startswith(f"Run {RUN}: finished (budget: max_gpu_hours), begun ")
    assert notes(status, tmp_path, None)[-1] == (
        "to continue, raise budgets.max_gpu_hours in a copy of its configuration, then: "
        f"cadenza loop resume {RUN} --workdir {tmp_path} --config COPY.yaml"
    )
    spent = status.model_copy(update={"stop_reason": "budget: max_cycles"})
    assert notes(spent, tmp_path, None)[-1].startswith(
        "to continue, raise budgets.max_cycles in a "
    )
    ended = status.model_copy(update={"stop_reason": "policy ladder exhausted"})
    assert not [line for line in notes(ended, tmp_path, None) if "resume" in line]


def test_a_run_that_compares_scores_shows_them_under_their_name(run):
    _, status = run
    assert cycle_table(status)[0][4:6] == ("success", "reference")
    graded = [
        cycle.candidate and cycle.candidate.model_copy(update={"score": -1.25})
        for cycle in status.cycles
    ]
    cycles = tuple(
        cycle.model_copy(update={"candidate": candidate, "baseline": candidate})
        for cycle, candidate in zip(status.cycles, graded, strict=True)
    )
    best = status.blessed.model_copy(update={"score": -1.25})
    scored = status.model_copy(update={"metric": "score", "cycles": cycles, "blessed": best})
    columns, rows = cycle_table(scored)
    first = dict(zip(columns, rows[0], strict=True))
    assert (first["score"], first["reference"]) == ("-1.250", "-1.250")
    assert first["success"].startswith("60.0% [")
    [blessed] = [line for line in notes(scored, Path("runs"), None) if "blessed" in line]
    assert blessed.endswith("(bc, cycle 0, score -1.250, success 60.0%)")


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"max_gpu_hours": None}, "hours: 0.04 of all jobs, there is no GPU"),
        (
            {"max_wall_hours": 2.0},
            "hours: 0.04 (at most 2) of all jobs; without a GPU they count for max_gpu_hours, too",
        ),
        (
            {"uses_gpu": True, "gpu_hours": 0.01},
            "hours: 0.01 (at most 0.5) on the GPU, 0.04 of all jobs",
        ),
    ],
)
def test_hours_are_told_with_the_limits_that_they_count_against(run, tmp_path, changes, line):
    _, status = run
    spending = status.spending.model_copy(update=changes)
    assert line in notes(status.model_copy(update={"spending": spending}), tmp_path, None)


class Terminal(io.StringIO):
    def isatty(self):
        return True


def progress(seconds):
    key = JobKey(run_id=RUN, cycle=1, stage="train")
    return JobProgress(key=key, attempt=1, attempt_s=seconds)


def assembly(store, tmp_path):
    """Return what a display sees of a loop."""
    bus = EventBus(tmp_path / "events.jsonl")
    config = SimpleNamespace(workdir=tmp_path, backend="native")
    return SimpleNamespace(store=store, bus=bus, folder=tmp_path / RUN, config=config)


def shown_by(stream, store, tmp_path, monkeypatch, *, quiet=False, line_every_s=0.0, told=None):
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr("cadenza.cli.loop_run._LINE_EVERY_S", line_every_s)
    monkeypatch.setattr("cadenza.loop.retention.shortage", lambda *_: "")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    loop = assembly(store, tmp_path)
    display = LoopDisplay(quiet=quiet)
    with display.following(loop):
        loop.bus.emit(Event(RUN, "train", "job_started", 1, {"cmd": ["x"]}))
        display.on_progress(told or progress(30.0))
        logging.getLogger("cadenza.loop").warning("the disk is slow")
        loop.bus.emit(Event(RUN, "train", "job_finished", 1, {"exit_code": 0}))
    logging.getLogger("cadenza.loop").warning("not shown any more")
    loop.bus.close()
    return stream.getvalue()


def test_without_a_terminal_lines_tell_events_and_the_time_left(run, tmp_path, monkeypatch):
    text = shown_by(io.StringIO(), run[0], tmp_path, monkeypatch)
    assert text.splitlines()[:4] == [
        '[cycle 1] train/job_started {"cmd": ["x"]}',
        "[cycle 1] train at work: 30 s, about 1 min 10 s left",
        "warning: the disk is slow",
        '[cycle 1] train/job_finished {"exit_code": 0}',
    ]
    seldom = shown_by(io.StringIO(), run[0], tmp_path, monkeypatch, line_every_s=60.0)
    assert "at work" not in seldom


def test_a_terminal_gets_a_bar_with_the_time_left(run, tmp_path, monkeypatch):
    text = shown_by(Terminal(), run[0], tmp_path, monkeypatch)
    assert "cycle 1 train" in text
    assert "30 s, about 1 min 10 s left" in text
    assert '[cycle 1] train/job_finished {"exit_code": 0}' in text


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_a_terminal_that_is_closed_ends_nothing(run, tmp_path, monkeypatch, stream):
    class Closable(stream):
        closed_by_user = False

        def write(self, text):
            if self.closed_by_user:
                raise OSError(errno.EIO, "Input/output error")
            return super().write(text)

    place = Closable()
    monkeypatch.setattr(sys, "stderr", place)
    loop = assembly(run[0], tmp_path)
    display = LoopDisplay()
    with display.following(loop):
        place.closed_by_user = True
        display.on_event(Event(RUN, "train", "job_started", 1, {"cmd": ["x"]}))
        logging.getLogger("cadenza.loop").warning("the disk is slow")
    loop.bus.close()
    assert "slow" not in place.getvalue()


@pytest.mark.parametrize("quiet", [False, True])
def test_a_run_warns_before_a_job_and_again_only_after_there_was_room(quiet, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    subscribe = SimpleNamespace(subscribe=lambda _: None)
    config = SimpleNamespace(workdir=tmp_path, backend="native")
    display = LoopDisplay(quiet=quiet)
    counts = []
    with display.following(SimpleNamespace(bus=subscribe, config=config)):
        for free_gib in (2.0, 0.5, 0.4, 2.0, 0.5):
            usage = SimpleNamespace(free=int(free_gib * 2**30))
            monkeypatch.setattr(shutil, "disk_usage", lambda _, usage=usage: usage)
            display.on_event(Event(RUN, "train", "job_started", 1, {}))
            counts.append(sys.stderr.getvalue().count("warning: disk nearly full"))
    assert counts == [0, 1, 1, 1, 2]
