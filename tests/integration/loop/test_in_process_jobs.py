"""Native jobs in the process of the loop: same files, codes and logs, and nothing left changed."""

import os
import re
import signal
import sys

import pytest

from cadenza.benchmark.jobs import collecting
from cadenza.cli import job
from cadenza.cli.in_process import run_in_process
from cadenza.core.errors import UnknownNameError


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


def test_command_tells_how_far_it_has_come_while_it_works(tmp_path, monkeypatch):
    monkeypatch.setattr(job, "LINE_EVERY_S", 0.0)
    run_in_process(collect(tmp_path), tmp_path / "log")
    measured = (
        *("cadenza", "job", "train", "--rung=bc", f"--dataset={tmp_path}/data/dataset"),
        *("--steps=1001", "--batch-size=4", "--seed=0", f"--out={tmp_path}/bc"),
        f"--result-json={tmp_path}/bc.json",
    )
    run_in_process(measured, tmp_path / "log2")
    told = (tmp_path / "log").read_text() + (tmp_path / "log2").read_text()
    progress = re.findall(r"^(.*) \(\d+ s\)$", told, re.MULTILINE)
    assert progress == ["collecting: 1 of 1", "training: 1000 of 1001"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("--partners=nobody", "error: --partners: expected default, leaving_way or partners"),
        ("--nonsense=1", "No such option"),
    ],
)
def test_refused_command_ends_with_its_code_and_says_why_in_the_log(tmp_path, change, words):
    ended = run_in_process((*collect(tmp_path), change), tmp_path / "log")
    assert ended.exit_code == 2
    assert words in (tmp_path / "log").read_text()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stop_is_no_failure_of_the_job(tmp_path, monkeypatch, number):
    monkeypatch.setattr(collecting, "_gather", lambda *_: os.kill(os.getpid(), number))
    with pytest.raises(KeyboardInterrupt):
        run_in_process(collect(tmp_path), tmp_path / "log")
    assert "run the same command again to go on" in (tmp_path / "log").read_text()


def test_other_program_is_refused(tmp_path):
    with pytest.raises(UnknownNameError, match="'lerobot-train --x=1': expected 'cadenza job'"):
        run_in_process(("lerobot-train", "--x=1"), tmp_path / "log")
