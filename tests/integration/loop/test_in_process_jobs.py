"""Native jobs in the process of the loop: same files, codes and logs, and nothing left changed."""

import os
import signal
import sys

import pytest

from cadenza.benchmark.jobs.encounters import Encounters
from cadenza.cli.in_process import run_in_process


def collect(folder, *, partners="crossing_stationary", name="data"):
    return (
        "cadenza", "job", "collect", "--task=crossing", f"--partners={partners}", "--episodes=1",
        "--seed-start=5", "--seed-count=4", "--repo-id=local/x", f"--out={folder / name}",
        f"--result-json={folder / name}.json",
    )  # fmt: skip


def test_command_writes_its_result_and_its_log(tmp_path, capfd):
    hook, streams = sys.excepthook, (sys.stdout, sys.stderr)
    ended = run_in_process(collect(tmp_path), tmp_path / "logs" / "data.log")
    assert (ended.exit_code, ended.cmd) == (0, list(collect(tmp_path)))
    assert ended.log_path.read_text() == f"kept 1 episodes of 1 attempts: {tmp_path}/data.json\n"
    assert (tmp_path / "data.json").is_file()
    assert (sys.excepthook, (sys.stdout, sys.stderr)) == (hook, streams)
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stop_is_no_failure_of_the_job(tmp_path, monkeypatch, number):
    monkeypatch.setattr(Encounters, "play", lambda *_: os.kill(os.getpid(), number))
    with pytest.raises(KeyboardInterrupt):
        run_in_process(collect(tmp_path), tmp_path / "log")
    assert "run the same command again to continue" in (tmp_path / "log").read_text()
