import os
from unittest.mock import MagicMock

import psutil
import pytest

from cadenza.learn import Trainer
from cadenza.learn.callbacks import SystemLogger


def test_growth_is_per_step_since_the_last_measurement(monkeypatch):
    process = MagicMock()
    process.cpu_percent.side_effect = [0.0, 50.0, 70.0]  # since the call before, as psutil does
    memory = process.memory_info.return_value
    monkeypatch.setattr(psutil, "Process", lambda: process)
    logger = SystemLogger()
    memory.rss = 3 * 2**20
    logger.end_cycle(bp_step=1000)
    memory.rss = 7 * 2**20
    logger.end_cycle(bp_step=1008)
    assert logger.scalar_logs["system/ram_usage_growth_mb_step"] == 0.5
    assert logger.scalar_logs["system/cpu_load"] == 50.0
    memory.rss = 100 * 2**20
    logger.end_cycle(bp_step=1008)  # no step in between
    assert logger.scalar_logs["system/ram_usage_growth_mb_step"] == 0.5
    assert logger.scalar_logs["system/ram_usage_mb"] == 100.0


def test_it_measures_this_process_every_thousand_steps():
    logger = SystemLogger()
    assert logger.cycle == 1000
    Trainer([logger], [{"batch_size": 1}] * 1000).train()
    own_mb = psutil.Process(os.getpid()).memory_info().rss / 2**20
    assert logger.scalar_logs["system/ram_usage_mb"] == pytest.approx(own_mb, rel=0.2)
