"""A controller of one job, as a process that tests kill: ``<folder> <spec.json> [Ray address]``."""

import json
import sys
from pathlib import Path

from cadenza.loop.errors import StopRequestedError
from cadenza.loop.jobs.spec import JobSpec
from cadenza.loop.jobs.stopping import StopSignals
from tests.integration.loop.job_harness import bench_in

folder, spec_path = Path(sys.argv[1]), Path(sys.argv[2])
with StopSignals() as stop:
    try:
        with bench_in(folder) as bench:
            spec = JobSpec.model_validate_json(spec_path.read_bytes())
            make = bench.ray_runner if len(sys.argv) > 3 else bench.runner
            end = make(*sys.argv[3:], stop=stop).run(spec)
            report = {"attempts": end.attempts, "incidents": bench.kinds}
            (folder / "ended.json").write_text(json.dumps(report))
    except StopRequestedError:
        sys.exit(3)
