"""A disk that fills up, and a clock that stands still."""

import shutil
import subprocess
from pathlib import Path

import pytest


@pytest.fixture
def tiny_disk(tmp_path: Path):
    """A file system of 64 KiB; skips where mounting is not permitted."""
    mount, unmount = shutil.which("mount"), shutil.which("umount")
    folder = tmp_path / "tiny"
    folder.mkdir()
    command = [mount or "mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    if mount is None or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting a tmpfs is not permitted here")
    yield folder
    subprocess.run([unmount or "umount", str(folder)], check=True)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch):
    """A clock the test moves by hand."""

    class Clock:
        now = 0.0

    monkeypatch.setattr("time.perf_counter", lambda: Clock.now)
    return Clock
