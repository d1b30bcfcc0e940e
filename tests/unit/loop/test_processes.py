import os
import shutil
import signal
import subprocess
import sys

import pytest

from cadenza.loop.processes import environment_of, is_gone, kill_if, start_ticks, this_process


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


def test_killed_process_is_gone_before_and_after_its_parent_looks():
    code = "from cadenza.loop.processes import this_process; print(this_process()); input()"
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
    )
    name = child.stdout.readline().strip()
    assert not is_gone(name)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # a zombie now
    assert is_gone(name)
    child.communicate()
    assert is_gone(name)


def test_number_of_a_dead_process_given_to_another_does_not_revive_it():
    head, _, start = this_process().rpartition("/")
    assert is_gone(f"{head}/{int(start) - 1}")


def test_nothing_is_known_of_other_machines_and_odd_names():
    machine, pid, start = this_process().rsplit("/", 2)
    assert not is_gone(f"elsewhere/{machine}/999999999/{start}")
    for name in ("", "controller", f"{machine}/{pid}x/{start}", f"{machine}//{start}"):
        assert not is_gone(name)
