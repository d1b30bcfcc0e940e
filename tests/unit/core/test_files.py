import errno
import hashlib
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from cadenza.core import files
from cadenza.core.errors import StorageError
from cadenza.core.files import (
    atomic_write_bytes,
    atomic_write_json,
    canonical_json,
    confined_path,
    finite_or_none,
    make_folder,
    remove_temporaries,
    sha256_file,
)


def test_atomic_write_creates_parents_and_replaces_content(tmp_path):
    path = tmp_path / "a" / "b" / "c.bin"
    atomic_write_bytes(path, b"first, longer")
    atomic_write_bytes(path, b"second")
    assert path.read_bytes() == b"second"
    assert list(path.parent.iterdir()) == [path]


def test_atomic_write_json_is_canonical_with_a_final_newline(tmp_path):
    atomic_write_json(tmp_path / "j", {"b": 1, "a": [1.5, None]})
    assert (tmp_path / "j").read_bytes() == b'{"a":[1.5,null],"b":1}\n'


def test_atomic_write_respects_the_umask(tmp_path):
    before = os.umask(0o077)
    try:
        atomic_write_bytes(tmp_path / "private", b"x")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "private").stat().st_mode) == 0o600


def test_atomic_write_over_a_folder_leaves_it_and_no_temporary(tmp_path):
    (tmp_path / "target" / "inside").mkdir(parents=True)
    with pytest.raises(StorageError, match="expected to write this file, got 'Is a directory'"):
        atomic_write_bytes(tmp_path / "target", b"x")
    assert [path.name for path in tmp_path.iterdir()] == ["target"]
    assert (tmp_path / "target" / "inside").is_dir()


def test_atomic_write_on_a_full_disk_keeps_the_old_file(tiny_disk):
    path = tiny_disk / "result"
    atomic_write_bytes(path, b"old")
    with pytest.raises(StorageError, match=r"No space left on device.*free space") as caught:
        atomic_write_bytes(path, b"n" * 200_000)
    assert caught.value.errno == errno.ENOSPC
    assert path.read_bytes() == b"old"
    assert list(tiny_disk.iterdir()) == [path]
    atomic_write_bytes(path, b"fits")
    assert path.read_bytes() == b"fits"


WRITER = """
import itertools, sys
from pathlib import Path
from cadenza.core.files import atomic_write_bytes
for number in itertools.count():
    atomic_write_bytes(Path(sys.argv[1]), (b"%08d" % number) * 20_000)
"""


def assert_is_whole(data: bytes) -> None:
    assert len(data) == 160_000
    assert data == data[:8] * 20_000


def test_killed_stream_of_writes_always_leaves_a_whole_file(tmp_path):
    path = tmp_path / "stream"
    for kill_after in (1, 7, 23):
        path.unlink(missing_ok=True)
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)])
        try:
            seen = set()
            while len(seen) < kill_after:
                assert writer.poll() is None
                if path.exists():
                    data = path.read_bytes()
                    assert_is_whole(data)
                    seen.add(data[:8])
        finally:
            writer.send_signal(signal.SIGKILL)
            writer.wait()
        assert_is_whole(path.read_bytes())
    remove_temporaries(tmp_path)
    assert list(tmp_path.iterdir()) == [path]


def test_remove_temporaries_deletes_only_what_killed_writers_left(tmp_path):
    script = """
import os, sys
from pathlib import Path
from cadenza.core.files import atomic_write_bytes
sys.addaudithook(lambda event, arguments: event == "os.rename" and os._exit(9))
atomic_write_bytes(Path(sys.argv[1]), b"never arrives")
"""
    (tmp_path / ".hidden").write_bytes(b"mine")
    path = tmp_path / "result"
    child = subprocess.run([sys.executable, "-c", script, str(path)], check=False)
    assert child.returncode == 9
    assert len(list(tmp_path.iterdir())) == 2
    assert remove_temporaries(tmp_path) == 1
    assert [left.name for left in tmp_path.iterdir()] == [".hidden"]


def test_remove_temporaries_of_some_files_leaves_those_of_others(tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "unlink", lambda *_, **__: None)  # as if killed before it
    monkeypatch.setattr(Path, "replace", lambda *_: None)
    for name in ("abc_1", "abcd_1", "n" * 255):
        atomic_write_bytes(tmp_path / name, b"never arrives")
    monkeypatch.undo()
    assert len(list(tmp_path.iterdir())) == 3
    assert remove_temporaries(tmp_path, prefixes=("abc_", "x")) == 1
    left = sorted(path.name for path in tmp_path.iterdir())
    assert [name.startswith(".abcd_1.") for name in left].count(True) == 1
    assert len(left) == 2
    assert remove_temporaries(tmp_path) == 2


def test_make_folder_on_an_existing_folder_changes_nothing(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "kept").write_bytes(b"")
    make_folder(tmp_path / "a")
    make_folder(tmp_path / "a" / "b" / "c")
    assert (tmp_path / "a" / "b" / "c").is_dir()
    assert (tmp_path / "a" / "kept").exists()


def test_make_folder_that_another_process_makes_meanwhile_goes_on(tmp_path, monkeypatch):
    folder = tmp_path / "a" / "b"
    monkeypatch.setattr(files, "fsync_folder", lambda _: folder.mkdir(exist_ok=True))
    make_folder(folder)
    assert folder.is_dir()


def test_sha256_file_larger_than_one_chunk_equals_hashlib(tmp_path):
    data = bytes(range(256)) * 10_000
    (tmp_path / "large").write_bytes(data)
    assert sha256_file(tmp_path / "large") == hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"b": 1, "a": {"d": [], "c": "é"}}, b'{"a":{"c":"\xc3\xa9","d":[]},"b":1}'),
        ([1, 1.0, True, None, "x"], b'[1,1.0,true,null,"x"]'),
    ],
)
def test_canonical_json_is_sorted_compact_utf8(value, expected):
    assert canonical_json(value) == expected


def test_confined_path_inside_the_root_is_returned_resolved(tmp_path):
    expected = tmp_path.resolve() / "b" / "c"
    assert confined_path(tmp_path, "a/../b/c") == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0.5, 0.5), (float("nan"), None), (float("inf"), None), (float("-inf"), None)],
)
def test_finite_or_none_drops_what_json_cannot_hold(value, expected):
    assert finite_or_none(value) == expected


@pytest.mark.parametrize(
    ("value", "error"), [({"a": float("nan")}, ValueError), ({"a": object()}, TypeError)]
)
def test_canonical_json_of_what_json_cannot_express_is_refused(value, error):
    with pytest.raises(error, match="not JSON"):
        canonical_json(value)


@pytest.mark.parametrize(
    ("relative", "told"),
    [
        *((p, "a path inside") for p in ("../x", "a/../../x", "/etc/passwd", "link/x", "../root2")),
        ("{root}/x", "a path inside"),
        ("a\0b", "no NUL character"),
    ],
)
def test_confined_path_that_leads_outside_is_refused(tmp_path, relative, told):
    root = tmp_path / "root"
    root.mkdir()
    (root / "link").symlink_to(tmp_path)
    with pytest.raises(StorageError, match=f"expected {told}") as caught:
        confined_path(root, relative.format(root=root))
    assert caught.value.errno is None
