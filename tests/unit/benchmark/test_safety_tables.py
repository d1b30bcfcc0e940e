from importlib import metadata

import numpy as np
import pytest

from cadenza.aht.config import SafetyConfig
from cadenza.benchmark import safety_tables
from cadenza.benchmark.cells import ConditionEntry
from cadenza.benchmark.safety_tables import safety_report, solver_version_of
from cadenza.safety.reporting import ConditionRow
from tests.unit.benchmark.samples import make_cell_episodes, make_plan


def episodes_of(plan, policy="ego"):
    cells = [cell for cell in plan.cells.values() if cell.policy == policy]
    return [episode for cell in cells for episode in make_cell_episodes(plan, cell)]


def report_of(**changes):
    plan = make_plan(**changes)
    return safety_report(plan, episodes_of(plan), solver_version="1.2")


def test_tables_add_up_the_episodes_of_the_filtered_condition():
    # 2 partners x 2 seeds, 3 episodes i = 0, 1, 2 of 100 + i steps each: four times the sum over i
    report = report_of()
    counts = [(row.assumption, row.violations, row.n_steps) for row in report.table_1]
    assert counts == [("A1", 4 * 3, 4 * 303), ("A2", 4 * 6, 4 * 300), ("A3", 4 * 1, 4 * 303)]
    assert all("Condition filter_on." in row.description for row in report.table_1)
    assert report.table_2 == (ConditionRow("pred", "Learn", None, 12, 4 * 3, 4 * 2),)
    assert [row.condition for row in report.table_3] == ["filter_on"]
    details = report.details
    (condition,) = details.conditions
    assert condition.to_jsonable() == {
        "condition": "filter_on",
        "n_steps": 4 * 303,
        "violating_episodes": 8,
        "contact_episodes": 0,
        "infeasible_steps": 4,
        "uncertified_steps": 12,
        "intervened_steps": 36,
        "min_distance_m": 0.41,
        "intervention_mean": 0.5,
        "intervention_peak": 3.0,
        "slack_peak": 0.25,
        "latency_p50_ms": None,
        "latency_p99_ms": None,
        "brake_reasons": {"contact": 4, "ttc": 8},
    }
    assert details.seeds == (0, 5)
    assert details.config_hash == make_plan().digest
    assert (details.solver, details.solver_version) == ("daqp", "1.2")
    assert (details.control_timestep_s, details.predictor_kind) == (0.05, "constant_velocity")
    assert details.notes[0].startswith("Table 3: the oracle")


def test_ego_off_its_model_has_a_row_of_its_own():
    plan = make_plan()
    off = {"ego_breaches": 2}
    episodes = [
        e.model_copy(update={"safety": e.safety and e.safety.model_copy(update=off)})
        for e in episodes_of(plan)
    ]
    row = safety_report(plan, episodes, solver_version=None).table_1[-1]
    assert (row.assumption, row.violations, row.n_steps) == ("A5", 12 * 2, 4 * 300)


def test_order_of_the_episodes_is_of_no_account():
    # Bundles store episodes by seed, runs give them in plan order; 0.1 has no exact sum.
    plan = make_plan()
    episodes = []
    for i, episode in enumerate(episodes_of(plan)):
        changes = {"intervention_mean": 0.1 + 1e-3 * i} if episode.safety else {}
        if episode.safety:
            numbers = {"lambda_mean": -0.1 * 1.37**i, "lambda_var": 0.3 / (1 + i)}
            changes["safety"] = episode.safety.model_copy(update=numbers)
        episodes.append(episode.model_copy(update=changes))
    expected = safety_report(plan, episodes, solver_version=None)
    rng = np.random.default_rng(0)
    for _ in range(20):
        shuffled = [episodes[k] for k in rng.permutation(len(episodes))]
        assert safety_report(plan, shuffled, solver_version=None) == expected


def test_tables_have_one_row_per_filtered_condition():
    frozen = SafetyConfig(enabled=True, eta=0.0, predictor_kind="constant_acceleration")
    report = report_of(
        conditions=(
            ConditionEntry(name="on", safety=SafetyConfig(enabled=True)),
            ConditionEntry(name="off", safety=SafetyConfig()),
            ConditionEntry(name="frozen", safety=frozen),
            ConditionEntry(name="dtaci", safety=SafetyConfig(enabled=True, conformal_rule="dtaci")),
        )
    )
    assert [row.conformal_mode for row in report.table_2] == ["Learn", "noLearn", "Learn"]
    assert [entry.condition for entry in report.details.conditions] == ["on", "frozen", "dtaci"]
    assert report.details.predictor_kind is None  # they differ
    assert len(report.table_1) == 9


def test_gap_is_taken_to_the_oracle_that_is_frozen_at_zero():
    frozen = SafetyConfig(enabled=True, eta=0.0)
    report = report_of(
        conditions=(
            ConditionEntry(name="on", safety=SafetyConfig(enabled=True)),
            ConditionEntry(name="off", safety=SafetyConfig()),
            ConditionEntry(name="frozen", safety=frozen),
        )
    )
    # lambda -0.25 i over 100 + i steps: mean -(0.25 * 101 + 0.5 * 102) / 303
    mean = -(0.25 * 101 + 0.5 * 102) / 303
    spread = (100 * mean**2 + 101 * (0.25 + mean) ** 2 + 102 * (0.5 + mean) ** 2) / 303
    assert [row.condition for row in report.table_3] == ["on", "frozen"]
    for row in report.table_3:
        assert row.lambda_mean == pytest.approx(mean, rel=1e-12)
        assert row.lambda_var == pytest.approx(0.5 + spread, rel=1e-12)
        assert row.oracle_lambda_mean == 0.0
        assert row.gap == -row.lambda_mean
    assert "frozen at lambda = 0 by definition" in report.details.notes[0]


def test_gap_of_a_condition_without_steps_is_unknown():
    plan = make_plan()
    none = {"overlapping_steps": 0, "accel_breaches": 0, "accel_checks": 0}
    halted = [
        episode.model_copy(
            update={
                "n_steps": 0,
                "infeasible_steps": 0,
                "uncertified_steps": 0,
                "interventions": 0,
                "safety": episode.safety and episode.safety.model_copy(update=none),
            }
        )
        for episode in episodes_of(plan)
    ]
    (row,) = safety_report(plan, halted, solver_version=None).table_3
    assert (row.lambda_mean, row.lambda_var, row.gap) == (None, None, None)


def test_a_predictor_that_is_told_the_future_is_named_so(monkeypatch):
    truth = "constant_acceleration"  # stands for such a predictor
    monkeypatch.setattr(safety_tables, "GROUND_TRUTH_PREDICTORS", frozenset({truth}))
    told = SafetyConfig(enabled=True, eta=0.0, predictor_kind=truth)
    report = report_of(conditions=(ConditionEntry(name="told", safety=told),))
    assert [row.predictor for row in report.table_2] == ["gt"]


def test_episodes_without_records_or_without_filter_give_no_tables():
    plan = make_plan()
    bare = [episode.model_copy(update={"safety": None}) for episode in episodes_of(plan)]
    assert safety_report(plan, bare, solver_version=None) is None
    unfiltered = make_plan(conditions=(ConditionEntry(name="off", safety=SafetyConfig()),))
    assert safety_report(unfiltered, episodes_of(unfiltered), solver_version=None) is None


def test_unknown_contacts_are_not_counted_as_none():
    plan = make_plan()
    episodes = [episode.model_copy(update={"contact": None}) for episode in episodes_of(plan)]
    report = safety_report(plan, episodes, solver_version=None)
    assert report.details.conditions[0].contact_episodes is None


def test_solver_version_is_the_installed_one_where_conditions_agree():
    assert solver_version_of(make_plan()) == metadata.version("daqp")

    def plan(*solvers):
        return make_plan(
            conditions=tuple(
                ConditionEntry(name=solver, safety=SafetyConfig(enabled=True, solver=solver))
                for solver in solvers
            )
        )

    assert solver_version_of(plan("closed_form")) is None
    assert solver_version_of(plan("daqp", "quadprog")) is None
