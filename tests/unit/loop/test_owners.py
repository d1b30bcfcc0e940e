import os
import subprocess
import sys

from cadenza.loop.processes import is_gone, this_process


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
