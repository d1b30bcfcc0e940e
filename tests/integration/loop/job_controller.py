"""Controllers of one job each, as processes that tests kill.

``job_controller <folder> <spec.json> [Ray address, or slurm]`` is one; ``job_controller serve``
forks one for each line of arguments (JSON) that it reads, without importing everything again, and
answers with its number.
"""

import json
import os
import signal
import sys
from pathlib import Path

from cadenza.core.files import atomic_write_json
from cadenza.loop.contracts.records import JobSpec
from cadenza.loop.errors import StopRequestedError
from cadenza.loop.jobs.terms import StopSignals
from tests.integration.loop.job_harness import bench_in

STOPPED = 3


def control(folder: Path, spec_path: Path, *cluster: str) -> int:
    try:
        with StopSignals() as stop, bench_in(folder) as bench:
            spec = JobSpec.model_validate_json(spec_path.read_bytes())
            if cluster == ("slurm",):
                runner = bench.slurm_runner(stop=stop)
            else:
                make = bench.ray_runner if cluster else bench.runner
                runner = make(*cluster, stop=stop)
            end = runner.run(spec)
            report = {"attempts": end.attempts, "incidents": bench.kinds}
            atomic_write_json(folder / "ended.json", report)
    except StopRequestedError:
        return STOPPED
    return 0


def serve() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the controllers
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            folder, spec_path = json.loads(line)
            os._exit(control(Path(folder), Path(spec_path)))
        sys.stdout.write(f"{pid}\n")
        sys.stdout.flush()


def main() -> int:
    if sys.argv[1] == "serve":
        serve()
        return 0
    return control(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])


if __name__ == "__main__":
    sys.exit(main())
