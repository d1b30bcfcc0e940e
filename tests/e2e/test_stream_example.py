"""The example that trains from live producers runs from its command line."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "stream_to_memory.py"


@pytest.mark.slow
def test_example_trains_on_what_producers_simulate_meanwhile(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), "--smoke", "--json", "--out", str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    (seed,) = json.loads((tmp_path / "results.json").read_text())["seeds"].values()
    # Five episodes of 200 steps before training, and one after updates 200 and 400 of 500.
    assert (seed["env_steps"], seed["updates"]) == (1_400, 500)
