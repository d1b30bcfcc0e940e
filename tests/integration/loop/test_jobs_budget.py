"""Budgets: enforced before a job and during it, failed attempts included."""

import time

import pytest

from cadenza.loop.config import BudgetConfig
from cadenza.loop.errors import BudgetExceededError
from cadenza.loop.jobs.terms import BudgetMeter
from tests.integration.loop.job_harness import RUN, bench_in, nothing_left_of, spec_of

SLEEP = "import time; time.sleep(600)"


@pytest.fixture
def bench(tmp_path):
    with bench_in(tmp_path) as opened:
        yield opened


def meter_of(bench, **limits_s):
    hours = {name: seconds / 3600.0 for name, seconds in limits_s.items()}
    return BudgetMeter(bench.store.jobs.spent_s, RUN, BudgetConfig(**hours), uses_gpu=True)


@pytest.mark.parametrize("limit", ["max_gpu_hours", "max_wall_hours"])
def test_job_is_ended_when_the_budget_is_used_up(bench, tmp_path, limit):
    limits = {"max_gpu_hours": 99.0} | {limit: 0.8}
    spec, began = spec_of(tmp_path, SLEEP, device="gpu"), time.monotonic()
    with pytest.raises(BudgetExceededError, match=rf"within {limit} = .*hours spent") as caught:
        bench.runner(budget=meter_of(bench, **limits)).run(spec)
    assert caught.value.limit == limit
    assert nothing_left_of(spec)
    row = bench.row(spec)
    assert (row.status, row.attempt, row.interruptions) == ("pending", 1, 1)
    assert 0.8 <= row.duration_s <= min(time.monotonic() - began, 300.0)
    with pytest.raises(BudgetExceededError, match=limit):  # nothing more is started
        bench.runner(budget=meter_of(bench, **limits)).run(spec)
    assert bench.row(spec).attempt == 1


def spent(**seconds):
    return lambda _run_id: seconds


@pytest.mark.parametrize(
    ("uses_gpu", "device", "left_s"),
    [
        (True, "gpu", 7200.0 - 600.0),  # two hours on the GPU, 600 s of them gone
        (True, "cpu", 10800.0 - 1600.0),  # three hours of everything, 1600 s gone
        (False, "cpu", 7200.0 - 1600.0),  # without a GPU the two hours are those of all jobs
    ],
)
def test_limits_of_a_configuration_are_hours_per_device(uses_gpu, device, left_s):
    config = BudgetConfig(max_gpu_hours=2.0, max_wall_hours=3.0)
    meter = BudgetMeter(spent(cpu=1000.0, gpu=600.0), RUN, config, uses_gpu=uses_gpu)
    assert meter.left_s(device) == left_s
    meter.require(device)
    overdrawn = BudgetMeter(spent(cpu=0.0, gpu=8000.0), RUN, config, uses_gpu=True)
    assert overdrawn.left_s("gpu") == 0.0
    with pytest.raises(BudgetExceededError, match=r"max_gpu_hours = 2, got 2\.22 hours spent"):
        overdrawn.require("gpu")
