"""Loaders with every way to start workers: streams of their own, a quick end, no warning."""

import json
import os
import subprocess
import sys

import pytest

from tests.e2e.commands import REPOSITORY
from tests.stream_engines import nothing_left


@pytest.mark.slow
def test_loaders_of_every_kind_end_at_once_and_never_repeat_a_stream() -> None:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "error", "-m", "tests.integration.stream.loader_program"]
    with nothing_left():
        result = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=800, check=False
        )
    assert (result.returncode, result.stderr) == (0, "")
    reports = [json.loads(line) for line in result.stdout.splitlines()]
    made = [(found["workers"], found["start"]) for found in reports]
    assert made == [(0, None), (1, "fork"), (2, "fork"), (1, "spawn")]
    for found in reports:
        assert len(set(found["seen"])) == len(found["seen"])  # per worker and epoch
        assert found["end_s"] < 2.0 * found["slowdown"], found
    # Equal seeds draw the same, however the workers were started.
    assert reports[1]["seen"] == reports[3]["seen"]
