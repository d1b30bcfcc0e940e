"""Shared memory without a name: room, closing, locks, processes, and nothing left behind."""

import errno
import gc
import os
import signal
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from cadenza.core.errors import InputError, StorageError
from cadenza.stream.shared_file import MEMORY_FOLDER, RESERVE, SharedFile, ThreadLock


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
        file.locked(),
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


def test_lock_excludes_other_threads_for_a_bounded_time() -> None:
    file = SharedFile.create(10)
    failures: list[str] = []

    def wait() -> None:
        try:
            with file.locked(timeout=0.05):
                pass
        except StorageError as error:
            failures.append(str(error))

    with file.locked():
        thread = threading.Thread(target=wait)
        thread.start()
        thread.join()
    wait()
    assert len(failures) == 1
    assert "expected the lock within 0.05 s, got none" in failures[0]


def test_lock_of_another_process_is_waited_for_and_freed_by_its_death() -> None:
    file = SharedFile.create(10)
    ready, child = os.pipe(), os.fork()
    if not child:
        with file.locked():
            os.write(ready[1], b"x")
            signal.pause()
    os.read(ready[0], 1)
    refusal = pytest.raises(StorageError, match="a process that holds it is stopped")
    with refusal, file.locked(timeout=0.05):
        pass
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with file.locked(timeout=60.0):
        pass
    for end in ready:
        os.close(end)


def test_fork_does_not_inherit_the_lock_of_a_thread() -> None:
    file = SharedFile.create(10)
    with file.locked():
        child = os.fork()
        if not child:
            try:
                with file.locked(timeout=0.05):
                    os._exit(1)
            except StorageError:  # the parent's, not a dead copy of it
                os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    child = os.fork()
    if not child:
        with file.locked(timeout=60.0):
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


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
