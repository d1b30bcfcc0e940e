"""Shared memory without a name: room, closing, locks, processes, and nothing left behind."""

import errno
import gc
import os
import re
import signal
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from cadenza.core.errors import InputError, StorageError
from cadenza.stream.shared_file import (
    MEMORY_FOLDER,
    RESERVE,
    SharedFile,
    Tally,
    ThreadLock,
    usable_memory,
)


def names() -> set[str]:
    return {path.name for path in MEMORY_FOLDER.glob("cadenza-*")}


@pytest.fixture(autouse=True)
def nothing_left() -> Generator[None]:
    before = names()
    yield
    assert names() <= before


@pytest.fixture
def no_garbage() -> None:
    """Give back what earlier tests forgot, so that nothing else does while this one counts."""
    gc.collect()


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_block_is_zeroed_and_has_no_name() -> None:
    before = names()
    file = SharedFile.create(10_000)
    assert (file.size, bytes(file.map[:])) == (10_000, bytes(10_000))
    assert names() == before


def test_size_below_one_is_refused() -> None:
    with pytest.raises(InputError, match="expected size >= 1 byte, got 0"):
        SharedFile.create(0)


def test_too_little_room_is_told_in_bytes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Full:
        f_bavail, f_frsize = 2, 4096

    monkeypatch.setattr(os, "statvfs", lambda _: Full())
    with pytest.raises(StorageError, match=r"expected 10000 bytes free in .*, got 8192; make"):
        SharedFile.create(5000, tmp_path)
    assert list(tmp_path.iterdir()) == []
    SharedFile.create(4096, tmp_path).close()  # a small block asks for little
    large = 2 * RESERVE
    with pytest.raises(StorageError, match=f"expected {large + RESERVE} bytes free in"):
        SharedFile.create(large, tmp_path)


@pytest.mark.usefixtures("no_garbage")
def test_room_lost_while_reserving_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(descriptor: int, offset: int, size: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    before = open_descriptors()
    with pytest.raises(StorageError, match=r"expected to reserve 5000 bytes in .*No space left"):
        SharedFile.create(5000, tmp_path)
    assert open_descriptors() == before
    assert list(tmp_path.iterdir()) == []


def test_file_system_that_wants_names_gets_one_for_a_moment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    really = os.open

    def refuse(path: Any, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        return really(path, flags, mode)

    monkeypatch.setattr(os, "open", refuse)
    file = SharedFile.create(10, tmp_path)
    assert bytes(file.map[:]) == bytes(10)
    assert list(tmp_path.iterdir()) == []


def test_folder_of_temporary_files_serves_without_a_memory_file_system(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("cadenza.stream.shared_file.MEMORY_FOLDER", tmp_path / "none")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    file = SharedFile.create(10)
    assert str(tmp_path) in Path("/proc/self/maps").read_text(encoding="utf-8")
    file.close()


@pytest.mark.usefixtures("no_garbage")
def test_closing_gives_descriptor_and_memory_back() -> None:
    before = open_descriptors()
    file = SharedFile.create(10_000)
    assert not file.is_closed
    file.close()
    file.close()
    assert file.is_closed
    assert open_descriptors() == before
    with (
        pytest.raises(StorageError, match="expected an open block, got a closed one"),
        file.claimed(0),
    ):
        pass


@pytest.mark.usefixtures("no_garbage")
def test_block_in_view_is_unmapped_with_the_last_view() -> None:
    before = open_descriptors()
    file = SharedFile.create(10_000)
    view = memoryview(file.map)
    file.map[0] = 7
    file.close()
    assert view[0] == 7
    view.release()
    assert open_descriptors() == before


@pytest.mark.usefixtures("no_garbage")
def test_forgotten_block_is_given_back() -> None:
    before = open_descriptors()
    SharedFile.create(10_000)
    assert open_descriptors() == before


def test_place_that_a_stopped_process_claimed_is_passed_by_and_freed_by_its_death() -> None:
    file = SharedFile.create(10)
    ready, child = os.pipe(), os.fork()
    if not child:
        with file.claimed(7):
            os.write(ready[1], b"x")
            os.kill(os.getpid(), signal.SIGSTOP)
    os.read(ready[0], 1)
    os.waitid(os.P_PID, child, os.WSTOPPED)
    with file.claimed(7) as seven, file.claimed(8) as eight:
        assert (seven, eight) == (False, True)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with file.claimed(7) as seven:
        assert seven
    for end in ready:
        os.close(end)


def test_tally_gives_no_number_twice_whoever_asks() -> None:
    tally, ready = Tally(), os.pipe()
    child = os.fork()
    numbers = [tally.next(5) for _ in range(300)]
    if not child:
        os.write(ready[1], b"".join(n.to_bytes(2, "little") for n in numbers))
        os._exit(0)
    os.waitpid(child, 0)
    data = os.read(ready[0], 600)
    others = [int.from_bytes(data[at : at + 2], "little") for at in range(0, 600, 2)]
    assert sorted(numbers + others) == list(range(600))
    assert (tally.next(5), tally.next(6), tally.next(6)) == (600, 0, 1)
    for end in ready:
        os.close(end)


def test_lock_that_a_thread_held_at_a_fork_is_free_in_the_new_process() -> None:
    lock, held, release = ThreadLock(), threading.Event(), threading.Event()

    def hold() -> None:
        with lock.here():
            held.set()
            release.wait(90)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(90)
    child = os.fork()
    if not child:
        os._exit(0 if lock.here().acquire(timeout=800) else 1)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    release.set()
    thread.join()
    assert code == 0


def control_group(root: Path, version: int) -> None:
    """Write what the kernel says of a process that may still use 700 bytes more, by its parent."""
    proc, group = root / "proc" / "self", root / "sys/fs/cgroup"
    files = {"memory.max": "max", "memory.current": "100", "memory.stat": ""}
    if version == 1:
        group /= "memory"
        files = {"memory.limit_in_bytes": "9" * 19, "memory.usage_in_bytes": "100"}
    proc.mkdir(parents=True)
    (root / "proc/meminfo").write_text("MemTotal: 90 kB\nMemAvailable: 5 kB\n")
    line = "0::/a/b" if version == 2 else "7:cpu,memory:/a/b"
    (proc / "cgroup").write_text(f"3:cpuset:/x\n{line}\n")
    (group / "a/b").mkdir(parents=True)
    limit, used, *_ = files
    for name, text in files.items():
        (group / "a/b" / name).write_text(text)
    (group / "a" / limit).write_text("1000\n")
    (group / "a" / used).write_text("500\n")
    stat = "file 300\nshmem 100\n" if version == 2 else "total_cache 300\ntotal_shmem 100\n"
    (group / "a/memory.stat").write_text(f"anon 7\n{stat}")


@pytest.mark.parametrize("version", [1, 2])
def test_least_of_the_limits_on_memory_is_refused_with_its_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    control_group(tmp_path, version)
    usable = usable_memory(tmp_path)
    assert usable["of available memory (/proc/meminfo)"] == 5 * 1024
    limit = {1: "memory/a/memory.limit_in_bytes", 2: "a/memory.max"}[version]
    assert usable[f"of {tmp_path}/sys/fs/cgroup/{limit}"] == 700  # 1000 - 500 + (300 - 100)
    monkeypatch.setattr("cadenza.stream.shared_file.usable_memory", lambda: usable)
    told = re.escape(f"expected 800 bytes of {tmp_path}/sys/fs/cgroup/{limit}, got 700")
    with pytest.raises(StorageError, match=told):
        SharedFile.create(400)
    SharedFile.create(350).close()
