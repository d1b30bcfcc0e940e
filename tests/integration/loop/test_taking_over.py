"""A run whose controller is frozen: who has it is told, and nothing is taken from it."""

import calendar
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest

from cadenza.loop.errors import EventLogHeldError, LeaseHeldError
from cadenza.loop.events import bus as log_file
from cadenza.loop.orchestrator.loop import take
from cadenza.loop.processes import is_held
from cadenza.loop.store import JobStore
from tests.integration.loop.job_harness import wait_for

#: Holds lease and log of a run as a controller does, until it is killed.
CONTROLLER = """
import sys
from pathlib import Path
from cadenza.loop.orchestrator.loop import take
from cadenza.loop.events.bus import LogFile
from cadenza.loop.store import JobStore
folder = Path(sys.argv[1])
take(JobStore(folder / "cadenza.db"), "run", folder / "log", ttl_s=float(sys.argv[2]))
log = LogFile(folder / "log")
print("at work", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setattr(log_file, "LOCK_WAIT_S", 0.05)
    with JobStore(tmp_path / "cadenza.db") as opened:
        opened.create_run("run", "{}")
        yield opened


@contextmanager
def frozen_controller(folder, ttl_s):
    """Run a controller that is frozen at work; give its process id."""
    argv = [sys.executable, "-c", CONTROLLER, str(folder), str(ttl_s)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"at work\n"
        try:
            process.send_signal(signal.SIGSTOP)
            wait_for(lambda: is_held(process.pid))
            yield process.pid
        finally:
            process.kill()


def test_frozen_controller_that_lost_its_lease_keeps_the_run_and_is_named_each_time(
    store, tmp_path
):
    began = time.time()
    with frozen_controller(tmp_path, 0.5) as pid:
        wait_for(lambda: store.leases.holder("run") is None)
        before = store.get_run("run")
        for _ in range(2):
            with pytest.raises(EventLogHeldError, match=f"kill -CONT {pid}") as caught:
                take(store, "run", tmp_path / "log", ttl_s=0.5)
            assert "expected a free event log" in str(caught.value)
        assert store.get_run("run") == before  # thawed, it goes on
        silent = re.search(r"silent since (.+? UTC)", str(caught.value))[1]
        since = time.strptime(silent, "%Y-%m-%d %H:%M:%S UTC")
        assert began - 1.0 <= calendar.timegm(since) <= time.time()
    assert take(store, "run", tmp_path / "log", ttl_s=9.0).epoch == 2  # it is dead now


def test_frozen_controller_whose_lease_lasts_is_named_too(store, tmp_path):
    with (
        frozen_controller(tmp_path, 60.0) as pid,
        pytest.raises(LeaseHeldError, match=f"silent since .*`kill -CONT {pid}"),
    ):
        take(store, "run", tmp_path / "log", ttl_s=60.0)
