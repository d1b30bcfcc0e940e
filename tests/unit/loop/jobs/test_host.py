import subprocess
import sys

from cadenza.loop.jobs import host
from cadenza.loop.jobs.attempt_files import AttemptFolder

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
        assert host.main([str(folder.request_path)]) == host.NO_LOCK
    assert sorted(path.name for path in tmp_path.iterdir()) == ["attempt.lock"]
