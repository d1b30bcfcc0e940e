import pytest

from cadenza.loop.jobs.host import memory_kills

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
