"""A plain function as a job runner."""

import pytest

from cadenza.loop.agents import RunResult, dry_runner, subprocess_runner
from cadenza.loop.agents.base import CallableRunner
from cadenza.loop.errors import JobFailedError
from tests.integration.loop.job_harness import PROGRAMS, bench_in, spec_of


@pytest.fixture
def bench(tmp_path):
    with bench_in(tmp_path) as opened:
        yield opened


def runner_of(bench, call):
    return CallableRunner(bench.store, bench.lease, call)


def test_job_that_ended_well_is_not_run_again(bench, tmp_path):
    def call(command, log_path):
        return subprocess_runner(PROGRAMS.resolve(command), log_path)

    spec = spec_of(tmp_path, "finish(sys.argv[1], a=1)")
    end = runner_of(bench, call).run(spec)
    assert len(end.result_sha256) == 64
    assert runner_of(bench, dry_runner).run(spec) == end  # recorded


@pytest.mark.parametrize(
    ("exit_code", "problem", "again"),
    [
        (4, "0, got exit code 4", "0, got exit code 4; see"),
        (0, "0 and its result, got exit code 0, but ", "0, but no usable result; see"),
    ],
)
def test_call_that_fails_or_leaves_no_result_fails_the_job(
    bench, tmp_path, exit_code, problem, again
):
    spec = spec_of(tmp_path, "")
    calls = []

    def call(command, log_path):
        calls.append(command)
        return RunResult(list(command), exit_code, 1.5, log_path)

    runner = runner_of(bench, call)
    with pytest.raises(JobFailedError, match=rf"exit code {problem}.*; see its log .*train.log$"):
        runner.run(spec)
    assert bench.row(spec).duration_s == 1.5
    with pytest.raises(JobFailedError, match=again):
        runner.run(spec)
    assert calls == [spec.command]
