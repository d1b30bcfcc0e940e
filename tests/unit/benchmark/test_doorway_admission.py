"""The doorway's table, on both robots: who looks passes, and who does not look falls."""

import pytest

from cadenza.benchmark.admission import DOOR, play_row
from cadenza.benchmark.tasks import get_task
from tests.campaigns import size

EPISODES = size(6, 50)


@pytest.mark.parametrize("task", ["doorway", "doorway_diffdrive"])
@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("reference, mixed", 0.95, 1.0),
        ("reference, changing", 0.95, 1.0),
        ("first, polite", 0.95, 1.0),
        ("first, pushy", 0.0, size(0.5, 0.2)),
        ("late, polite", 0.0, size(0.7, 0.4)),
        ("partner parked", 0.0, 0.0),
        ("ego parked", 0.0, 0.0),
        ("late ego, polite, takt 20 s", 0.95, 1.0),
    ],
)
def test_row(task, name, low, high):
    row = next(row for row in DOOR.rows if row.name == name)
    outcomes = play_row(get_task(task), row, episodes=EPISODES)
    assert low <= sum(outcome.success for outcome in outcomes) / EPISODES <= high
