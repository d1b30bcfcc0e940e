"""Real jobs for the tests of this folder: tiny commands, a store, and what is left of them."""

import json
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

from cadenza.loop.config import JobsConfig, SlurmConfig
from cadenza.loop.contracts.records import JobKey, JobSpec
from cadenza.loop.jobs.attempt_files import AttemptFolder
from cadenza.loop.jobs.durable_runner import DurableRunner, LocalHosts
from cadenza.loop.jobs.ray_runner import RayHosts
from cadenza.loop.jobs.slurm_runner import SlurmHosts
from cadenza.loop.jobs.terms import ProgramTable
from cadenza.loop.processes import JobMark, find_marked, start_ticks, this_process
from cadenza.loop.store import JobStore

RUN = "run-1"
CONTROLLER = (sys.executable, "-m", "tests.integration.loop.job_controller")
#: Seconds of a lease; runners show signs of life four times as often.
TTL_S = 1.2
PROGRAMS = ProgramTable({"python": (sys.executable, "-S")})
CONFIG = JobsConfig(max_attempts=3, max_kills=100, backoff_s=0.01, grace_s=0.3)
#: Writes its result as a job must: atomically, as its last act.
RESULT = """
import json, os, sys
def finish(path, **result):
    with open(path + ".part", "w") as file:
        json.dump(result, file)
    os.replace(path + ".part", path)
"""


#: Waits for a file, its second argument.
UNTIL = """
import time
while not os.path.exists(sys.argv[2]):
    time.sleep(0.01)
finish(sys.argv[1])
"""
#: Says that it runs, works for the seconds it is told or until it is let end, in later attempts not
#: at all, and adds a line when it is done.
WORK = """
import time
later = os.path.exists(sys.argv[2])
with open(sys.argv[2] + ".part", "w") as file:
    file.write(str(os.getpid()))
os.replace(sys.argv[2] + ".part", sys.argv[2])
end = time.monotonic() + (0.0 if later else float(sys.argv[3]))
while time.monotonic() < end and not os.path.exists(sys.argv[2] + ".enough"):
    time.sleep(0.01)
with open(sys.argv[2] + ".done", "a") as file:
    file.write("done\\n")
finish(sys.argv[1])
"""


def spec_of(folder: Path, script: str, *arguments: str, stage: str = "train", **changes) -> JobSpec:
    """Return a job that runs ``script``; its first argument is the result file."""
    cycle = folder / RUN / "cycle_0"
    result = cycle / stage / "result.json"
    result.parent.mkdir(parents=True, exist_ok=True)
    values = {
        "key": JobKey(run_id=RUN, cycle=0, stage=stage),
        "command": ("python", "-c", RESULT + script, str(result), *arguments),
        "output_dir": result.parent,
        "log_path": cycle / f"{stage}.log",
        "result_path": result,
    }
    return JobSpec(**(values | changes))


class Bench:
    """A store with one run, and runners for it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = JobStore(folder / "cadenza.db")
        if not self.store.list_runs():
            self.store.create_run(RUN, "{}")
        self.lease = self.store.leases.acquire(RUN, this_process(), ttl_s=TTL_S)
        self.incidents = []
        self.programs = PROGRAMS

    def note(self, kind: str, message: str, **job) -> None:
        self.incidents.append(SimpleNamespace(kind=kind, message=message, **job))

    def runner(self, config: JobsConfig = CONFIG, hosts=None, **options) -> DurableRunner:
        options.setdefault("on_incident", self.note)
        hosts = hosts or LocalHosts()
        return DurableRunner(self.store, self.lease, config, self.programs, hosts, **options)

    def ray_runner(self, address: str, **options) -> DurableRunner:
        return self.runner(hosts=RayHosts(address), **options)

    def slurm_runner(self, *, slurm=None, **options) -> DurableRunner:
        return self.runner(hosts=SlurmHosts(SlurmConfig(**slurm or {})), **options)

    def row(self, spec: JobSpec):
        return self.store.jobs.get(spec.key)

    @property
    def kinds(self) -> list[str]:
        return [incident.kind for incident in self.incidents]


def mark_of(spec: JobSpec) -> JobMark:
    key = spec.key
    return JobMark(f"{key.run_id}/{key.cycle}/{key.stage}", str(files_of(spec).path))


def files_of(spec: JobSpec) -> AttemptFolder:
    return AttemptFolder(spec.key.attempts_beside(spec.log_path))


def wait_for(condition, *, seconds: float = 800.0):
    """Return the first true value of ``condition()``."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.01)
    return value


def nothing_left_of(spec: JobSpec) -> bool:
    """Return whether no process of the job is left."""
    return not find_marked(mark_of(spec))


def is_alive(pid: int) -> bool:
    return start_ticks(pid) is not None


@contextmanager
def bench_in(folder: Path):
    bench = Bench(folder)
    try:
        yield bench
    finally:
        bench.store.leases.release(bench.lease)
        bench.store.close()


def work_of(folder: Path, seconds: float = 600.0, *, before: str = "", **changes):
    """Return a job that works for ``seconds`` at most, and the file that will name its process."""
    running = folder / "running"
    return spec_of(folder, before + WORK, str(running), str(seconds), **changes), running


def let_end(running: Path) -> None:
    """Let the job of `work_of` come to its end."""
    running.with_name("running.enough").touch()


def done(running: Path) -> str:
    """Return one line for each time that the job of `work_of` came to its end."""
    return running.with_name("running.done").read_text()


def start_controller(folder: Path, spec: JobSpec, *arguments: str):
    """Start a controller of one job in a process of its own."""
    argv = [*CONTROLLER, str(folder), str(write_spec(folder, spec)), *arguments]
    return subprocess.Popen(argv, stdin=subprocess.DEVNULL)


def write_spec(folder: Path, spec: JobSpec) -> Path:
    """Write ``spec`` for a controller."""
    path = folder / "spec.json"
    path.write_text(spec.model_dump_json())
    return path


class Controllers:
    """Starts controllers quickly: each is forked off one process that has imported everything."""

    def __init__(self) -> None:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self._server = subprocess.Popen([*CONTROLLER, "serve"], text=True, bufsize=1, **pipes)

    def start(self, folder: Path, spec: JobSpec) -> int:
        """Return the number of a new controller."""
        print(json.dumps([str(folder), str(write_spec(folder, spec))]), file=self._server.stdin)
        return int(self._server.stdout.readline())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._server.stdin.close()
        self._server.wait(120.0)
        self._server.stdout.close()
