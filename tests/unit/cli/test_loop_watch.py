"""What `cadenza loop status --watch` shows of many runs on a small screen."""

import io
import math

import pytest
from rich.console import Console

from cadenza.cli.loop_status import headline, screen, watch
from cadenza.loop.processes import this_process
from cadenza.loop.status_report import all_statuses
from tests.loop_runs import RUN, begun_run

JOB = "job: train of cycle 1 as process 4243, runs for 30 s, about 1 min 10 s left"


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """Three runs that have ended, then a newer one at work, with its store."""
    monkeypatch.setattr("cadenza.cli.loop_status._SILENT_S", math.inf)  # however slow this test is
    monkeypatch.setenv("TERM", "xterm")
    workdir = tmp_path / "runs"
    for number in range(3):
        with begun_run(workdir, run_id=f"old-{number}") as store:
            store.finish_run(f"old-{number}", "finished", "budget: max_cycles")
    with begun_run(workdir, owner=this_process()) as store:
        yield workdir, store


def small(height, *, file=None):
    return Console(file=file or io.StringIO(), force_terminal=True, width=100, height=height)


def lines_of(statuses, workdir, height):
    console = small(height)
    frame = screen(statuses, workdir, None, console=console)
    shown = console.render_lines(frame, pad=False)
    return ["".join(part.text for part in line).rstrip() for line in shown]


@pytest.mark.parametrize("height", [60, 12, 6])
def test_a_run_at_work_is_on_the_screen_with_its_job_and_fits(runs, height):
    workdir, store = runs
    lines = lines_of(all_statuses(store, workdir=workdir), workdir, height)
    assert len(lines) < height
    assert lines[0].startswith(f"Run {RUN}: running, begun ")
    assert lines[1].startswith(JOB)
    assert lines[2].startswith("controller: ")


def test_what_has_ended_is_told_where_there_is_room_and_counted_where_there_is_none(runs):
    workdir, store = runs
    statuses = all_statuses(store, workdir=workdir)
    text = "\n".join(lines_of(statuses, workdir, 60))
    assert [text.index(f"Run old-{n}: finished") for n in (2, 1, 0)] == sorted(
        text.index(f"Run old-{n}: finished") for n in range(3)
    )
    assert "shortened" not in text
    hint = "3 more runs; shortened to this screen, all of it: cadenza loop status"
    assert hint in "\n".join(lines_of(statuses, workdir, 12))


def test_several_runs_at_work_share_the_screen_newest_first(runs):
    workdir, store = runs
    begun_run(workdir, run_id="newer", owner=this_process()).close()
    text = "\n".join(lines_of(all_statuses(store, workdir=workdir), workdir, 14))
    assert 0 <= text.index("Run newer: running") < text.index(f"Run {RUN}: running")
    assert text.count(JOB) == 2


def test_watching_ends_with_the_runs_and_returns_those_that_worked(runs):
    workdir, store = runs
    file, seen = io.StringIO(), []

    def look():
        if len(seen) == 2:
            store.finish_run(RUN, "finished", "budget: max_cycles")
        seen.append(all_statuses(store, workdir=workdir))
        return seen[-1]

    left = watch(look, workdir, None, console=small(24, file=file), pause_s=0.0)
    assert [(one.run_id, one.status) for one in left] == [(RUN, "finished")]
    assert len(seen) == 3
    assert JOB in file.getvalue()


def test_a_cycle_counts_once_it_is_decided(runs):
    workdir, store = runs
    [status] = [one for one in all_statuses(store, workdir=workdir) if one.run_id == RUN]
    assert headline(status).endswith(" UTC, 1 of 4 cycles decided, cycle 1 undecided")
    decided = status.model_copy(update={"cycles": status.cycles[:1], "max_cycles": None})
    assert headline(decided).endswith(" UTC, 1 cycles decided")
