import io
import shutil
import sys
from types import SimpleNamespace

import pytest

from cadenza.cli.loop_run import LoopDisplay
from cadenza.loop.events import Event
from tests.loop_runs import RUN


def leave(monkeypatch, free_gib):
    usage = SimpleNamespace(free=int(free_gib * 2**30))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)


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
