"""A Slurm of this machine, for tests: `sbatch`, `squeue`, `scancel` and `sacct` on PATH.

One script under four names. A batch job is a folder: ``job.json`` as submitted, ``pid`` of what
runs, ``verdict`` of who ended it, ``ended`` state and exit code. While the file ``hold`` is there,
jobs stay pending; the text of ``refuse`` is why `sbatch` takes none, that of ``deaf`` why nobody
answers; while ``mute`` is there, `sbatch` takes a job and says that it failed.
"""

import json
import os
import signal
import sys
from contextlib import contextmanager, suppress
from pathlib import Path

from cadenza.loop.processes import start_ticks
from tests.integration.loop.job_harness import wait_for

SCRIPT = """#!{python} -S
import json, os, subprocess, sys, time
from pathlib import Path

STATE = Path({state!r})
program, words = Path(sys.argv[0]).name, sys.argv[1:]
given = dict((w[2:].split("=", 1) + [""])[:2] for w in words if w.startswith("--"))


def read(path):
    return path.read_text() if path.exists() else ""


def state_of(job):
    verdict, ended, began = (read(job / name) for name in ("verdict", "ended", "pid"))
    if verdict and (ended or not began):
        return verdict, ended.partition("|")[2] or "0:0"
    return tuple(ended.split("|")) if ended else ("RUNNING" if began else "PENDING", "0:0")


def supervise(job):
    while (STATE / "hold").exists():
        if (job / "verdict").exists():
            return
        time.sleep(0.02)
    with open(given["output"].replace("%%", "%"), "a") as log:
        process = subprocess.Popen(
            ["/bin/sh", job / "script"], cwd=given["chdir"], stdin=subprocess.DEVNULL, stdout=log,
            stderr=log, start_new_session=True, env={{**os.environ, "SLURM_JOB_ID": job.name}},
        )
    (job / "pid.part").write_text(str(process.pid))
    (job / "pid.part").rename(job / "pid")
    code = process.wait()
    text = "COMPLETED|0:0" if code == 0 else f"FAILED|{{max(code, 0)}}:{{max(-code, 0)}}"
    (job / "ended.part").write_text(text)
    (job / "ended.part").rename(job / "ended")


if "version" in given:
    print("slurm 24.05.1")
    sys.exit(0)
with open(STATE / "calls", "a") as calls:
    calls.write(program + "\\n")
for reason in ("deaf", "refuse") if program == "sbatch" else ("deaf",):
    if (STATE / reason).exists():
        sys.exit(f"{{program}}: error: {{read(STATE / reason)}}")
jobs = sorted((STATE / "jobs").iterdir(), key=lambda job: int(job.name))
if program == "sbatch":
    job = STATE / "jobs" / str(len(jobs) + 1)
    new = STATE / f"new-{{os.getpid()}}"
    new.mkdir()
    (new / "script").write_text(sys.stdin.read())
    (new / "job.json").write_text(json.dumps({{"given": given, "environ": dict(os.environ)}}))
    new.rename(job)
    if os.fork() == 0:
        os.setsid()
        for descriptor in (0, 1, 2):
            os.dup2(os.open(os.devnull, os.O_RDWR), descriptor)
        supervise(job)
        os._exit(0)
    if (STATE / "mute").exists():
        sys.exit("sbatch: error: Batch job submission failed: Socket timed out on send/recv")
    print(f"{{job.name}};cluster")
elif program == "squeue":
    for job in jobs:
        if json.loads(read(job / "job.json"))["given"]["job-name"] == given["name"]:
            state = state_of(job)[0]
            print(f"{{job.name}}|{{state}}|{{'Priority' if state == 'PENDING' else 'None'}}")
elif program == "sacct":
    print("|".join(state_of(STATE / "jobs" / given["jobs"])))
elif program == "scancel":
    job = STATE / "jobs" / words[-1]
    (job / "verdict").write_text("CANCELLED")
    if (job / "pid").exists() and not (job / "ended").exists():
        os.kill(int(read(job / "pid")), 9)
"""


class FakeSlurm:
    """The state of a fake Slurm, and what happens to its jobs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "jobs").mkdir(parents=True)
        self.bin = folder / "bin"
        self.bin.mkdir()
        for name in ("sbatch", "squeue", "scancel", "sacct"):
            (self.bin / name).write_text(SCRIPT.format(python=sys.executable, state=str(folder)))
            (self.bin / name).chmod(0o755)

    def says(self, name: str, text: str = "") -> None:
        """Let ``hold``, ``refuse``, ``deaf`` or ``mute`` be there."""
        (self.folder / name).write_text(text)

    def no_longer(self, name: str) -> None:
        """Let it be there no more."""
        (self.folder / name).unlink()

    def submitted(self) -> list[dict]:
        """Return options and environment of all submissions."""
        paths = sorted((self.folder / "jobs").glob("*/job.json"))
        return [json.loads(path.read_text()) for path in paths]

    def calls(self, program: str) -> int:
        """Return how often a command was called."""
        return (self.folder / "calls").read_text().split().count(program)

    def end(self, number: int, state: str, kind: signal.Signals) -> None:
        """End a running job as Slurm would, with a signal to what it runs."""
        job = self.folder / "jobs" / str(number)
        pid = int(wait_for(lambda: (job / "pid").exists() and (job / "pid").read_text()))
        (job / "verdict").write_text(state)
        os.kill(pid, kind)

    def run_again(self, number: int) -> int:
        """Run the script of a job once more, as an administrator's requeue does."""
        script = self.folder / "jobs" / str(number) / "script"
        pid = os.posix_spawn("/bin/sh", ["sh", str(script)], os.environ)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def close(self) -> None:
        """Leave nothing running."""
        for job in (self.folder / "jobs").iterdir():
            (job / "verdict").write_text("CANCELLED")
            if (job / "pid").exists() and not (job / "ended").exists():
                pid = int((job / "pid").read_text())
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                wait_for(lambda pid=pid: start_ticks(pid) is None)


@contextmanager
def fake_slurm(folder: Path, monkeypatch):
    """Put a fake Slurm on PATH."""
    slurm = FakeSlurm(folder)
    monkeypatch.setenv("PATH", f"{slurm.bin}{os.pathsep}{os.environ['PATH']}")
    try:
        yield slurm
    finally:
        slurm.close()
