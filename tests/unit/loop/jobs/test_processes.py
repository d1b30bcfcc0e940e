import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cadenza.loop.jobs.processes import (
    children_of,
    environment_of,
    is_held,
    kill_if,
    running_pids,
    start_ticks,
)


@pytest.fixture
def sleeper(tmp_path):
    program = shutil.copy("/bin/cat", tmp_path / "a ) Z b")
    command = {"args": [program], "env": {"NAME": "a=b c"}}
    with subprocess.Popen(**command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdin.write(b"x")
        process.stdin.flush()
        process.stdout.read(1)  # only now has it all that a program begins with
        yield process
        process.kill()


@pytest.fixture
def dead():
    with subprocess.Popen(["/bin/true"]) as process:
        process.wait()
    return process.pid


def test_live_process_is_known_by_number_start_parent_and_environment(sleeper):
    fields = Path(f"/proc/{sleeper.pid}/stat").read_text().rpartition(")")[2].split()
    assert start_ticks(sleeper.pid) == int(fields[19])
    assert sleeper.pid in running_pids()
    assert sleeper.pid in children_of(os.getpid())
    assert environment_of(sleeper.pid) == {b"NAME=a=b c", b""}


def test_a_stopped_process_is_held_until_it_is_continued(sleeper, dead):
    assert not is_held(sleeper.pid)
    sleeper.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, sleeper.pid, os.WSTOPPED)
    assert is_held(sleeper.pid)
    sleeper.send_signal(signal.SIGCONT)
    os.waitid(os.P_PID, sleeper.pid, os.WCONTINUED)
    assert not is_held(sleeper.pid)
    assert not is_held(dead)


def test_zombie_and_dead_process_count_as_gone(sleeper, dead):
    sleeper.kill()
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    assert start_ticks(sleeper.pid) is None
    assert not kill_if(sleeper.pid, lambda _: True, wait_s=1.0)
    assert start_ticks(dead) is None
    assert environment_of(dead) == frozenset()
    assert not kill_if(dead, lambda _: True, wait_s=1.0)


def test_only_the_process_that_is_meant_is_killed(sleeper):
    assert not kill_if(sleeper.pid, lambda pid: pid != sleeper.pid, wait_s=1.0)
    assert sleeper.poll() is None
    assert kill_if(sleeper.pid, lambda pid: pid == sleeper.pid, wait_s=60.0)
    assert sleeper.wait(60.0) == -signal.SIGKILL


def test_child_dies_with_its_parent_and_one_that_comes_too_late_leaves_at_once():
    script = f"""
import os, subprocess, sys
from cadenza.loop.jobs.processes import die_with_parent
parent = os.getpid() if sys.argv[1] == "mine" else 1
child = subprocess.Popen(["/bin/sleep", "60"], preexec_fn=die_with_parent(parent))
print(child.pid, flush=True)
if sys.argv[1] == "mine":
    os.kill(os.getpid(), {int(signal.SIGKILL)})
sys.exit(child.wait())
"""
    command = [sys.executable, "-c", script]
    mine = subprocess.run([*command, "mine"], capture_output=True, text=True, check=False)
    child = int(mine.stdout)
    deadline = time.monotonic() + 800.0
    while start_ticks(child) is not None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert start_ticks(child) is None
    late = subprocess.run([*command, "late"], capture_output=True, text=True, check=False)
    assert late.returncode == 125
