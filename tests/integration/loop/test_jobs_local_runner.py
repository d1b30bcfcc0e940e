"""Jobs that end: well, badly, too late, without a result, and once for ever."""

import sys
import time
from pathlib import Path

import pytest

from cadenza.core.errors import InputError, IntegrityError
from cadenza.loop.config import JobsConfig
from cadenza.loop.errors import JobFailedError, UnknownProgramError
from tests.integration.loop.job_harness import (
    CONFIG,
    bench_in,
    is_alive,
    nothing_left_of,
    spec_of,
    wait_for,
)

#: Adds a line to a file for each time it runs to its end.
COUNT = """
with open(sys.argv[2], "a") as file:
    file.write("done\\n")
finish(sys.argv[1], value=1)
"""


@pytest.fixture
def bench(tmp_path):
    with bench_in(tmp_path) as opened:
        yield opened


def test_job_that_succeeds_is_recorded_and_not_run_again(bench, tmp_path):
    count = tmp_path / "count"
    spec = spec_of(tmp_path, COUNT, str(count))
    first = bench.runner().run(spec)
    again = bench.runner().run(spec)
    assert (first.exit_code, first.attempts, len(first.result_sha256)) == (0, 1, 64)
    assert again == first
    assert count.read_text() == "done\n"
    assert bench.row(spec).status == "succeeded"
    assert bench.kinds == []
