"""A run whose controller is frozen: nothing is taken from it."""

import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest

from cadenza.loop.errors import EventLogHeldError
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
    """Run a controller that is frozen at work."""
    argv = [sys.executable, "-c", CONTROLLER, str(folder), str(ttl_s)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"at work\n"
        try:
            process.send_signal(signal.SIGSTOP)
            wait_for(lambda: is_held(process.pid))
            yield
        finally:
            process.kill()


def test_frozen_controller_that_lost_its_lease_keeps_the_run(store, tmp_path):
    with frozen_controller(tmp_path, 0.5):
        wait_for(lambda: store.leases.holder("run") is None)
        before = store.get_run("run")
        for _ in range(2):
            with pytest.raises(EventLogHeldError, match="no other process works on the run"):
                take(store, "run", tmp_path / "log", ttl_s=0.5)
        assert store.get_run("run") == before  # thawed, it goes on
    assert take(store, "run", tmp_path / "log", ttl_s=9.0).epoch == 2  # it is dead now
