import math
from dataclasses import dataclass, fields

import pytest

from cadenza.core.errors import InputError, UnknownNameError
from cadenza.safety.errors import ReportError
from cadenza.safety.reporting import (
    AssumptionRow,
    ConditionDetails,
    ConditionRow,
    GapRow,
    ReportDetails,
    ThreeTableReport,
    make_condition_row,
)
from tests.unit.safety.reporting.samples import DETAILS, sample_report

ASSUMPTION = {"assumption": "A3", "description": "feasible", "violations": 1, "n_steps": 9}
CONDITION = {
    "predictor": "gt",
    "conformal_mode": "noLearn",
    "vendor_compliance": "ISO 10218-2",
    "n_episodes": 5,
    "violations": 8,
    "fallback_fires": 2,
    "max_slack": 0.5,
    "slack_l2": 0.25,
}
GAP = {"condition": "c", "lambda_mean": -1.0, "lambda_var": 0.5, "oracle_lambda_mean": 0.0}


@dataclass(frozen=True)
class Result:
    max_slack: float
    slack_l2: float


@pytest.mark.parametrize(
    ("row", "payload"), [(AssumptionRow, ASSUMPTION), (ConditionRow, CONDITION), (GapRow, GAP)]
)
def test_rows_keep_the_promised_fields_in_their_order(row, payload):
    assert [field.name for field in fields(row)] == list(payload)
    assert row(*payload.values()).to_jsonable() == payload
    assert row.from_jsonable({**payload, "unknown": 1}) == row(*payload.values())


@pytest.mark.parametrize(
    ("row", "payload"), [(AssumptionRow, ASSUMPTION), (ConditionRow, CONDITION), (GapRow, GAP)]
)
def test_rows_without_a_required_key_are_refused(row, payload):
    for name in payload:
        rest = {key: value for key, value in payload.items() if key != name}
        if name in ("max_slack", "slack_l2"):
            assert getattr(row.from_jsonable(rest), name) == 0.0
        else:
            with pytest.raises(UnknownNameError, match=f"missing {name}") as caught:
                row.from_jsonable(rest)
            assert isinstance(caught.value, KeyError)


def test_gap_row_stores_a_missing_number_as_none():
    row = GapRow("c", math.nan, None, 1.0)
    assert row == GapRow("c", None, math.nan, 1.0)  # NaN would differ from itself
    assert row.to_jsonable()["lambda_mean"] is None
    assert row.gap is None
    assert GapRow("c", -0.5, 0.0, 1.0).gap == 1.5


def test_slack_is_the_largest_peak_and_the_mean_norm():
    results = iter([Result(0.5, 1.0), Result(0.25, 3.0)])
    row = make_condition_row(
        predictor="gt",
        conformal_mode="Learn",
        vendor_compliance=None,
        n_episodes=2,
        violations=0,
        fallback_fires=1,
        oscbf_results=results,
    )
    assert row == ConditionRow("gt", "Learn", None, 2, 0, 1, 0.5, 2.0)
    assert list(results) == []


@pytest.mark.parametrize(
    ("row", "changes", "message"),
    [
        (AssumptionRow, {"violations": 10}, "violations: expected a count >= 0 and <= 9, got 10"),
        (AssumptionRow, {"n_steps": -1, "violations": 0}, "n_steps: expected a count >= 0, got -1"),
        (AssumptionRow, {"n_steps": 9.5}, "n_steps: expected a whole number"),
        (AssumptionRow, {"assumption": ""}, "assumption: expected text"),
        (AssumptionRow, {"description": "\ud800"}, "expected text that UTF-8 can express"),
        (ConditionRow, {"predictor": "oracle"}, "expected one of gt, pred, got .oracle."),
        (ConditionRow, {"conformal_mode": "learn"}, "conformal_mode: expected one of"),
        (ConditionRow, {"vendor_compliance": ""}, "vendor_compliance: expected text"),
        (ConditionRow, {"fallback_fires": "2"}, "fallback_fires: expected a whole number"),
        (ConditionRow, {"n_episodes": 0}, "without an episode, got 8"),
        (ConditionRow, {"max_slack": -1e-9}, "max_slack: expected a slack >= 0"),
        (ConditionRow, {"slack_l2": math.nan}, "slack_l2: expected a finite number"),
        (GapRow, {"condition": ""}, "condition: expected text"),
        (GapRow, {"lambda_mean": -math.inf}, "lambda_mean: expected a finite number"),
        (GapRow, {"oracle_lambda_mean": "0"}, "oracle_lambda_mean: expected a finite number"),
        (GapRow, {"lambda_var": -0.5}, "lambda_var: expected >= 0"),
        (ConditionDetails, {"condition": ""}, "condition: expected text"),
        (ConditionDetails, {"infeasible_steps": 11}, "infeasible_steps: expected a count >= 0 and"),
        (ConditionDetails, {"min_distance_m": -0.5}, "min_distance_m: expected >= 0"),
        (ConditionDetails, {"latency_p50_ms": math.inf}, "latency_p50_ms: expected a finite"),
        (ConditionDetails, {"brake_reasons": {"ttc": -1}}, r"brake_reasons\['ttc'\]: expected"),
        (ReportDetails, {"seeds": (-1,)}, "seeds: expected a count"),
        (ReportDetails, {"solver": ""}, "solver: expected text"),
        (ReportDetails, {"control_timestep_s": 0.0}, "control_timestep_s: expected > 0 s"),
        (ReportDetails, {"notes": ("",)}, "notes: expected text"),
        (ThreeTableReport, {"details": DETAILS}, "details of each of the 0 conditions of table 2"),
        (ThreeTableReport, {"schema_version": 2}, "expected schema_version 3, got 2"),
        (ReportDetails.from_jsonable, {"conditions": {}}, "conditions: expected a list"),
        (ReportDetails.from_jsonable, {"conditions": [1]}, "conditions: expected objects"),
        (ReportDetails.from_jsonable, {"seeds": 1}, "seeds: expected a list"),
        (ThreeTableReport.from_jsonable, {"details": 3}, "details: expected an object, got 3"),
    ],
)
def test_malformed_part_is_refused(row, changes, message):
    good = {
        AssumptionRow: ASSUMPTION,
        ConditionRow: CONDITION,
        GapRow: GAP,
        ConditionDetails: {"condition": "c", "n_steps": 10},
        ThreeTableReport: {"table_1": (), "table_2": (), "table_3": ()},
        ThreeTableReport.from_jsonable: sample_report().to_jsonable(),
    }
    fields = good.get(row, {}) | changes
    with pytest.raises((InputError, ReportError), match=message):
        row(fields) if row.__name__ == "from_jsonable" else row(**fields)
