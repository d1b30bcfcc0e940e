"""What a measured row says of its budget and its aim."""

import pytest

from perf.timing import Row


@pytest.mark.parametrize(
    ("ours", "better", "goals", "verdict", "target"),
    [
        (9.0, "lower", {}, "", None),
        (9.0, "lower", {"budget": 10.0}, "kept", 10.0),
        (11.0, "lower", {"budget": 10.0}, "MISSED", 10.0),
        (9.0, "lower", {"budget": 10.0, "aim": 8.0}, "aim missed", 8.0),
        (8.0, "lower", {"budget": 10.0, "aim": 8.0}, "kept", 8.0),
        (11.0, "lower", {"budget": 10.0, "aim": 8.0}, "MISSED", 10.0),
        (9.0, "higher", {"budget": 8.0, "aim": 10.0}, "aim missed", 10.0),
        (7.0, "higher", {"budget": 8.0, "aim": 10.0}, "MISSED", 8.0),
    ],
)
def test_a_missed_budget_outweighs_an_aim(ours, better, goals, verdict, target):
    row = Row("filter", ours, better=better, **goals)
    assert (row.verdict, row.target) == (verdict, target)
    assert (row.within_budget is False) == (verdict == "MISSED")
