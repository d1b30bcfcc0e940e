import errno
import os

import pytest

from cadenza.loop.errors import EventLogError
from cadenza.loop.events import bus as log_file
from cadenza.loop.events.bus import LogFile

KIB64 = 1 << 16
LONG = 3 * KIB64 * b"t"


@pytest.fixture(autouse=True)
def short_wait(monkeypatch):
    monkeypatch.setattr(log_file, "LOCK_WAIT_S", 0.05)


def test_lines_are_appended_and_made_durable(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.fstat(fd).st_size))
    log = LogFile(tmp_path / "deep" / "events.jsonl")
    assert log.last_line() is None
    log.append(b"one\n")
    assert synced[-1] == 4
    log.append(b"two\nthree\n")
    assert (synced[-1], log.last_line()) == (14, b"three\n")
    log.close()
    assert (tmp_path / "deep" / "events.jsonl").read_bytes() == b"one\ntwo\nthree\n"


@pytest.mark.parametrize(
    ("content", "kept", "last"),
    [
        (b"", b"", None),
        (b"torn", b"", None),
        (b"one\n", b"one\n", b"one\n"),
        (b"one\ntwo\n", b"one\ntwo\n", b"two\n"),
        (b"one\ntwo\nto", b"one\ntwo\n", b"two\n"),
        (b"\n", b"\n", b"\n"),
        # The file is read backwards in blocks of 64 KiB: a line end behind, at and in their edges.
        *((b"one\n" + LONG[:n], b"one\n", b"one\n") for n in (KIB64 - 1, KIB64, KIB64 + 1)),
        (LONG, b"", None),
        (LONG + b"\ntwo", LONG + b"\n", LONG + b"\n"),
    ],
)
def test_torn_last_line_is_cut_off_at_opening(tmp_path, content, kept, last):
    path = tmp_path / "events.jsonl"
    path.write_bytes(content)
    log = LogFile(path)
    assert (path.read_bytes(), log.last_line()) == (kept, last)
    log.append(b"new\n")
    log.close()
    assert path.read_bytes() == kept + b"new\n"


def test_full_disk_leaves_the_lines_before_intact(tmp_path, monkeypatch):
    path = tmp_path / "events.jsonl"
    log = LogFile(path)
    log.append(b"one\n")
    real = os.pwrite

    def half(fd, data, place):
        if len(data) > 3:
            return real(fd, data[:3], place)
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", half)
        with pytest.raises(EventLogError, match="got 'No space left on device'"):
            log.append(b"two\n")
    assert path.read_bytes() == b"one\n"
    log.append(b"three\n")
    log.close()
    assert path.read_bytes() == b"one\nthree\n"
