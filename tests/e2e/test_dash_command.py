"""`cadenza dash`: what it refuses or warns of before it serves; the port is taken, so it ends."""

import signal
import socket
import subprocess
import sys

import pytest

from tests.e2e.in_process import here
from tests.loop_runs import begun_run


@pytest.fixture
def started(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        yield lambda *words: here("dash", "--port", port, *words, cwd=tmp_path)


def test_a_file_is_no_folder_of_runs(started, tmp_path):
    (tmp_path / "file").touch()
    done = started("--workdir", "file")
    assert (done.code, "expected a folder of runs, got a file" in done.err) == (2, True)
    assert "free address" not in done.err


def test_a_folder_or_named_store_that_is_missing_is_told_at_the_start(started, tmp_path):
    told = started("-w", "nowhere").err
    assert "warning: nowhere/cadenza.db: expected a job store, got no file" in told
    told = started("--store", f"sqlite:///{tmp_path}/none.db").err
    assert f"warning: {tmp_path}/none.db: expected a job store" in told
    begun_run(tmp_path / "runs").close()
    for words in ((), ("--store", f"sqlite:///{tmp_path}/runs/cadenza.db")):
        done = started(*words)
        assert "warning" not in done.err
        assert "free address" in done.err


def test_ctrl_c_is_the_normal_end_of_a_dashboard(tmp_path):
    command = [sys.executable, "-m", "cadenza", "dash", "--port", "0", "--workdir", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as dash:
        assert dash.stdout.readline().startswith("dashboard: http://127.0.0.1:")
        dash.send_signal(signal.SIGINT)
        assert dash.stdout.read() == "dashboard stopped\n"
    assert dash.returncode == 0
