"""What a quickstart's result says of groups of partners."""

from pathlib import Path

from cadenza.benchmark.quickstart import QuickstartResult
from cadenza.evaluation.results import CellSummary
from cadenza.evaluation.statistics.estimate import rate_estimate
from cadenza.evaluation.summary import interval_record


def test_success_with_a_group_without_partners_is_none():
    rate = interval_record(rate_estimate({0: [True, False], 1: [True, True]}))
    result = QuickstartResult(
        report=Path("report.html"),
        bundle=Path("bundle"),
        checkpoint=Path("policy.pt"),
        cells=[CellSummary(condition="filter_on", partner="met", success=rate)],
        partners=[("met", True, True)],
        checks=(),
        n_episodes=4,
        verdict="",
        filter_effect=None,
    )
    assert result.success_with_seen() == 0.75
    assert result.success_with_unseen() is None
    assert result.success_with_all_unseen() is None
