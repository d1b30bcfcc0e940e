import math
from dataclasses import FrozenInstanceError, dataclass, fields

import numpy as np
import pytest

from cadenza.core.errors import InputError, UnknownNameError
from cadenza.safety.reporting import (
    AssumptionRow,
    ConditionDetails,
    ConditionRow,
    GapRow,
    ReportDetails,
    ThreeTableReport,
    aggregate_oscbf_slack,
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
    ("row", "payload"),
    [(AssumptionRow, ASSUMPTION), (ConditionRow, CONDITION), (GapRow, GAP)],
)
def test_rows_keep_the_promised_fields_in_their_order(row, payload):
    assert [field.name for field in fields(row)] == list(payload)
    assert row(*payload.values()).to_jsonable() == payload
    assert row.from_jsonable({**payload, "unknown": 1}) == row(*payload.values())


@pytest.mark.parametrize(
    ("row", "payload"),
    [(AssumptionRow, ASSUMPTION), (ConditionRow, CONDITION), (GapRow, GAP)],
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


def test_rows_are_immutable():
    with pytest.raises(FrozenInstanceError):
        AssumptionRow.from_jsonable(ASSUMPTION).violations = 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"violations": 10}, "violations: expected a count >= 0 and <= 9, got 10"),
        ({"violations": -1}, "violations: expected a count >= 0"),
        ({"n_steps": -1, "violations": 0}, "n_steps: expected a count >= 0, got -1"),
        ({"n_steps": 9.5}, "n_steps: expected a whole number"),
        ({"n_steps": True}, "n_steps: expected a whole number"),
        ({"n_steps": float("nan")}, "n_steps: expected a whole number"),
        ({"assumption": ""}, "assumption: expected text"),
        ({"description": 3}, "description: expected text"),
        ({"description": "\ud800"}, "expected text that UTF-8 can express"),
    ],
)
def test_assumption_row_out_of_range_is_refused(changes, message):
    with pytest.raises(InputError, match=message):
        AssumptionRow(**{**ASSUMPTION, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"predictor": "oracle"}, "predictor: expected one of gt, pred, got 'oracle'"),
        ({"conformal_mode": "learn"}, "conformal_mode: expected one of noLearn, Learn"),
        ({"vendor_compliance": ""}, "vendor_compliance: expected text"),
        ({"n_episodes": -1}, "n_episodes: expected a count"),
        ({"fallback_fires": "2"}, "fallback_fires: expected a whole number"),
        ({"n_episodes": 0}, "no violations and no fallbacks without an episode, got 8 and 2"),
        ({"max_slack": -1e-9}, "max_slack: expected a slack >= 0"),
        ({"slack_l2": float("nan")}, "slack_l2: expected a finite number"),
        ({"max_slack": float("inf")}, "max_slack: expected a finite number"),
    ],
)
def test_condition_row_out_of_range_is_refused(changes, message):
    with pytest.raises(InputError, match=message):
        ConditionRow(**{**CONDITION, **changes})


def test_gap_row_stores_a_missing_number_as_none():
    row = GapRow("c", math.nan, None, 1.0)
    assert row == GapRow("c", None, math.nan, 1.0)  # NaN would differ from itself
    assert row.to_jsonable()["lambda_mean"] is None
    assert row.gap is None
    assert GapRow("c", -0.5, 0.0, 1.0).gap == 1.5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"condition": ""}, "condition: expected text"),
        ({"lambda_mean": float("-inf")}, "lambda_mean: expected a finite number"),
        ({"oracle_lambda_mean": "0"}, "oracle_lambda_mean: expected a finite number"),
        ({"lambda_var": -0.5}, "lambda_var: expected >= 0"),
    ],
)
def test_gap_row_out_of_range_is_refused(changes, message):
    with pytest.raises(InputError, match=message):
        GapRow(**{**GAP, **changes})


def test_numpy_numbers_become_plain_ones():
    row = AssumptionRow("A1", "x", np.int64(1), np.int32(4))
    assert type(row.violations) is int
    assert type(ConditionRow("gt", "Learn", None, 1, 0, 0, np.float32(0.5)).max_slack) is float


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


def test_slack_of_no_steps_is_zero():
    aggregate = aggregate_oscbf_slack([])
    assert (aggregate.max_slack, aggregate.slack_l2) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"condition": ""}, "condition: expected text"),
        ({"infeasible_steps": 11}, "infeasible_steps: expected a count >= 0 and <= 10"),
        ({"violating_episodes": -1}, "violating_episodes: expected a count"),
        ({"min_distance_m": -0.5}, "min_distance_m: expected >= 0"),
        ({"latency_p50_ms": float("inf")}, "latency_p50_ms: expected a finite number"),
        ({"brake_reasons": {"ttc": -1}}, r"brake_reasons\['ttc'\]: expected a count"),
        ({"brake_reasons": {"": 1}}, "brake_reasons: expected text"),
    ],
)
def test_condition_details_out_of_range_are_refused(changes, message):
    with pytest.raises(InputError, match=message):
        ConditionDetails(**{"condition": "c", "n_steps": 10, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seeds": (-1,)}, "seeds: expected a count"),
        ({"solver": ""}, "solver: expected text"),
        ({"control_timestep_s": 0.0}, "control_timestep_s: expected > 0 s"),
        ({"notes": ("",)}, "notes: expected text"),
    ],
)
def test_report_details_out_of_range_are_refused(changes, message):
    with pytest.raises(InputError, match=message):
        ReportDetails(**changes)


def test_details_survive_json():
    assert ReportDetails.from_jsonable(DETAILS.to_jsonable()) == DETAILS
    assert ReportDetails.from_jsonable({"unknown": 1}) == ReportDetails()


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        ({"conditions": {}}, "conditions: expected a list"),
        ({"conditions": [1]}, "conditions: expected objects"),
        ({"conditions": [{"condition": "c", "brake_reasons": 1}]}, "expected an object, got 1"),
        ({"seeds": 1}, "seeds: expected a list"),
    ],
)
def test_malformed_details_are_refused(payload, message):
    with pytest.raises(InputError, match=message):
        ReportDetails.from_jsonable(payload)


def test_details_of_other_conditions_are_refused():
    with pytest.raises(InputError, match="details of each of the 0 conditions of table 2"):
        ThreeTableReport((), (), (), details=DETAILS)
    assert sample_report(details=DETAILS).details == DETAILS


def test_report_of_another_version_is_refused():
    with pytest.raises(InputError, match="expected schema_version 3, got 2"):
        ThreeTableReport((), (), (), schema_version=2)
