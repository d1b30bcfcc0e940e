"""Soft actor-critic with memory, collector and trainer learns, not only runs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
def test_sac_hits_the_middle_after_2000_updates(tmp_path):
    command = [sys.executable, "examples/hit_the_middle_sac.py", "--seed", "0", "--json"]
    done = subprocess.run(
        [*command, "--out", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=800,
        check=True,
    )
    result = json.loads(done.stdout)["seeds"]["0"]
    # A policy that has learned nothing gets about -30; -5 is the bar of the engine this follows.
    assert result["mean_return"] > -3.0
    assert result["curve"][0][1] < -15.0
