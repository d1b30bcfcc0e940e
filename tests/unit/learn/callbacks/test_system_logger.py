import os

import pytest

from cadenza.learn import Trainer
from cadenza.learn.callbacks import SystemLogger


class Process:
    """Stands for this process: memory as set, load as psutil gives it."""

    def __init__(self):
        self.rss = 0
        self.loads = iter([0.0, 50.0, 70.0])

    def memory_info(self):
        return self

    def cpu_percent(self):
        return next(self.loads)


@pytest.fixture
def logger():
    logger = SystemLogger()
    logger._process = Process()
    return logger


def test_growth_is_per_step_since_the_last_measurement(logger):
    logger._process.rss = 3 * 2**20
    logger.end_cycle(bp_step=1000)
    logger._process.rss = 7 * 2**20
    logger.end_cycle(bp_step=1008)
    assert logger.scalar_logs["system/ram_usage_growth_mb_step"] == 0.5
    assert logger.scalar_logs["system/cpu_load"] == 50.0
    logger._process.rss = 100 * 2**20
    logger.end_cycle(bp_step=1008)  # no step in between
    assert logger.scalar_logs["system/ram_usage_growth_mb_step"] == 0.5
    assert logger.scalar_logs["system/ram_usage_mb"] == 100.0


def test_it_measures_this_process_every_thousand_steps():
    logger = SystemLogger()
    assert logger.cycle == 1000
    assert logger._process.pid == os.getpid()
    Trainer([logger], [{"batch_size": 1}] * 1000).train()
    assert 10 < logger.scalar_logs["system/ram_usage_mb"] < 100_000
