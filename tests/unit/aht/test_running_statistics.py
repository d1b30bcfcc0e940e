"""Running moments and the tail mean."""

import numpy as np
import pytest

from cadenza.aht.safety_telemetry import TailMean
from cadenza.safety.record import RunningMoments


def filled(values, cls):
    statistic = cls()
    for value in values:
        statistic.add(value)
    return statistic


def test_moments_resolve_a_tiny_variance_beside_a_large_mean():
    values = [1e3 - 1e-6, 1e3 + 1e-6] * 500
    exact = float(np.var(np.array(values) - 1e3))
    assert filled(values, RunningMoments).variance == pytest.approx(exact, rel=1e-6, abs=0.0)
    naive = sum(v * v for v in values) / 1000 - (sum(values) / 1000) ** 2
    assert naive != pytest.approx(exact, rel=0.1, abs=0.0)  # so the test has teeth


def test_tail_mean_beyond_the_table_stays_close():
    count = 100_001
    tail = filled(map(float, range(count)), TailMean)
    wanted = count // 10
    exact = count - 1 - (wanted - 1) / 2
    assert len(tail.state_dict()["block_sums"]) < 8192
    assert tail.value() == pytest.approx(exact, abs=0.003 * wanted)
