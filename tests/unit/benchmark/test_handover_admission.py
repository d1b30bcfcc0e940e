"""The handover's table: the reference passes, and every condition means something."""

import pytest

from cadenza.benchmark.admission import HANDOVER, play_row
from cadenza.benchmark.tasks import HANDOVER_MJ
from tests.campaigns import size

pytest.importorskip("mjbatch")
EPISODES = size(4, 50)


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("reference, presenter", 0.95, 1.0),
        ("reference, large errors", size(0.75, 0.95), 1.0),
        ("blind receiver", 0.0, size(0.5, 0.25)),
        ("presenter absent", 0.0, 0.0),
        ("presenter frozen", 0.0, 0.0),
        ("presenter frozen, takt 25 s", 0.95, 1.0),
        ("nominal grasp", 0.95, 1.0),
        ("nominal grasp, weld 4 mm", 0.0, 0.05),
        ("reference, weld 4 mm", 0.95, 1.0),
    ],
)
def test_row(name, low, high):
    row = next(row for row in HANDOVER.rows if row.name == name)
    outcomes = play_row(HANDOVER_MJ, row, episodes=EPISODES)
    assert low <= sum(outcome.success for outcome in outcomes) / EPISODES <= high
