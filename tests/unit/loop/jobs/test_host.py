import subprocess
import sys

import pytest

from cadenza.loop.jobs import host
from cadenza.loop.jobs.attempt_files import AttemptFolder
from cadenza.loop.jobs.host import Silence, memory_kills

HEAVY = ("pydantic", "torch", "numpy", "sqlalchemy", "psutil", "ray")


def test_host_loads_nothing_heavy():
    script = (
        "import sys, cadenza.loop.jobs.host; "
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


def test_host_without_the_lock_does_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(host, "LOCK_WAIT_S", 0.05)
    folder = AttemptFolder(tmp_path)
    with folder.try_lock():
        assert host.main([str(folder.request_path), "1"]) == host.NOT_IN_CHARGE
    assert sorted(path.name for path in tmp_path.iterdir()) == ["attempt.lock"]


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "train.log"
    path.write_text("begun\n")
    return path


def watch(log, limit_s=None):
    silence = Silence(log, log.with_suffix(""), limit_s=limit_s)
    silence.look(0.0)
    return silence


def wait(silence, begin, end):
    for moment in range(begin + 1, end + 1):
        silence.look(float(moment))
    return silence.seconds


def test_new_or_growing_files_end_it_too(log):
    folder = log.with_suffix("")
    silence = watch(log)
    assert wait(silence, 0, 40) == 40.0  # nothing there yet
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "a").write_text("x")
    assert wait(silence, 40, 70) == 10.0  # looked through at 30 s and 60 s
    (folder / "data" / "a").write_text("xy")
    assert wait(silence, 70, 120) == 30.0
    assert wait(silence, 120, 320) == 230.0


def test_too_long_is_what_the_limit_says(log):
    silence = watch(log, limit_s=20.0)
    wait(silence, 0, 19)
    assert not silence.too_long
    wait(silence, 19, 20)
    assert silence.too_long
    unlimited = watch(log)
    assert wait(unlimited, 0, 5000) == 5000.0
    assert not unlimited.too_long


def test_time_that_this_process_slept_through_does_not_count(log):
    silence = watch(log)
    silence.look(3600.0)
    assert silence.seconds == 5.0


V2 = "0::/user.slice/run.scope\n"
EVENTS = "low 0\nhigh 0\nmax 9\noom 4\noom_kill 3\noom_group_kill 1\n"


def system(root, groups, **files):
    """Lay out what the kernel says below ``root``."""
    for name, text in {"proc/self/cgroup": groups, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize(
    ("groups", "file", "text", "count"),
    [
        (V2, "user.slice/run.scope/memory.events", EVENTS, 3),
        (V2, "memory.events", EVENTS, 3),  # a container that sees its own group at the top
        (V2, "memory.events", "oom 4\n", None),  # an old kernel
        (V2, "memory.events", "oom_kill x\n", None),
        ("5:cpu:/user\n", "memory.events", EVENTS, None),  # memory is not controlled
    ],
)
def test_the_count_of_this_group_is_read(tmp_path, groups, file, text, count):
    system(tmp_path, groups, **{f"sys/fs/cgroup/{file}": text})
    assert memory_kills(tmp_path) == count


def test_nothing_is_known_where_the_kernel_says_nothing(tmp_path):
    assert memory_kills(tmp_path) is None
    system(tmp_path, V2)
    assert memory_kills(tmp_path) is None
