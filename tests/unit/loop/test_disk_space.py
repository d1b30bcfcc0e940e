import io
import shutil
import sys
from types import SimpleNamespace

import pytest

from cadenza.cli.loop_display import LoopDisplay
from cadenza.cli.loop_status import notes
from cadenza.loop.disk_space import disk_space, shortage
from cadenza.loop.events import Event
from cadenza.loop.status_report import run_status
from tests.loop_runs import RUN, begun_run


def leave(monkeypatch, free_gib):
    usage = SimpleNamespace(free=int(free_gib * 2**30))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)


@pytest.mark.parametrize(
    ("backend", "free_gib", "short"),
    [
        ("native", 0.9, True),
        ("native", 1.0, False),
        ("lerobot", 9.9, True),
        ("lerobot", 10.0, False),
    ],
)
def test_what_is_short_depends_on_the_back_end(backend, free_gib, short, tmp_path, monkeypatch):
    leave(monkeypatch, free_gib)
    space = disk_space(tmp_path, backend)
    assert (space.free_gib, space.is_short) == (pytest.approx(free_gib), short)
    assert bool(shortage(space, tmp_path)) is short


def test_status_warns_of_runs_that_can_be_gone_on_with(tmp_path, monkeypatch):
    leave(monkeypatch, 0.25)
    told = f"disk nearly full: 0.2 GiB left at {tmp_path}, less than 1 GiB may not last"
    with begun_run(tmp_path) as store:
        status = run_status(store, RUN, workdir=tmp_path)
        assert status.disk.free_gib == 0.25
        assert [line for line in notes(status, tmp_path, None) if line.startswith(told)]
        ended = status.model_copy(update={"status": "finished"})
        assert "disk" not in "\n".join(notes(ended, tmp_path, None))
        leave(monkeypatch, 2.0)
        roomy = run_status(store, RUN, workdir=tmp_path)
        assert "disk" not in "\n".join(notes(roomy, tmp_path, None))


@pytest.mark.parametrize("quiet", [False, True])
def test_a_run_warns_before_a_job_and_again_only_after_there_was_room(quiet, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    subscribe = SimpleNamespace(subscribe=lambda _: None)
    config = SimpleNamespace(workdir=tmp_path, backend="native")
    display = LoopDisplay(quiet=quiet)
    counts = []
    with display.following(SimpleNamespace(bus=subscribe, config=config)):
        for free_gib in (2.0, 0.5, 0.4, 2.0, 0.5):
            leave(monkeypatch, free_gib)
            display.on_event(Event(RUN, "train", "job_started", 1, {}))
            counts.append(sys.stderr.getvalue().count("warning: disk nearly full"))
    assert counts == [0, 1, 1, 1, 2]
