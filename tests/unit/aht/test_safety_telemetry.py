"""Safety telemetry and the audit gate."""

import json

import numpy as np
import pytest

from cadenza.aht.safety_telemetry import (
    FINAL_EVENT,
    SafetyAggregator,
    audit_run_log,
    evaluate_audit_gate,
)
from cadenza.core.errors import InputError


def record(**changes):
    """A closing record that passes."""
    passing = {
        "event": FINAL_EVENT,
        "safety_enabled": True,
        "cartesian_accel_capacity": 10.0,
        "saturation_threshold": 0.9,
        "lambda_clamp_bound": 7.0,
        "lambda_mean": -1.0,
        "lambda_var": 0.5,
        "lambda_steady_state": -1.0,
        "n_loss": 100,
        "loss_positive_fraction": 0.2,
    }
    return {**passing, **changes}


def test_aggregator_wrong_number_of_lambdas_names_n_pairs():
    with pytest.raises(InputError, match="expected n_pairs = 2 lambdas, got 1"):
        SafetyAggregator(2, 10.0).observe({("a", "b"): 0.0})


def test_window_of_a_hand_example():
    aggregator = SafetyAggregator(2, 10.0)
    aggregator.observe([1.0, 3.0], fallback_fired=True, loss={"p": 0.5, "q": 0.0})
    aggregator.observe([-1.0, 5.0], qp_infeasible=True, intervention=0.5)
    aggregator.observe([4.0, 6.0], braking_fired=True, uncertified=True, loss={"p": 0.0, "q": 0.0})
    window = aggregator.flush_window_stats()
    # step means 2, 2, 5: mean 3, variance (1 + 1 + 4)/3
    assert window["n_obs"] == 3
    assert window["lambda_mean"] == pytest.approx(3.0)
    assert window["lambda_var"] == pytest.approx(2.0)
    assert (window["lambda_max"], window["lambda_min"]) == (6.0, -1.0)
    assert (window["n_fallback_fires"], window["n_qp_infeasible"]) == (1, 1)
    assert (window["n_braking_fires"], window["n_uncertified"]) == (1, 1)
    # losses 0.25 and 0: two measured steps, one positive
    assert (window["n_loss"], window["loss_mean"]) == (2, pytest.approx(0.125))
    assert window["loss_positive_fraction"] == 0.5
    assert window["intervention_mean"] == pytest.approx(0.5 / 3)
    assert (window["intervention_max"], window["intervention_fraction"]) == (0.5, 1 / 3)


def test_flush_clears_the_window_and_keeps_the_run():
    aggregator = SafetyAggregator(1, 10.0)
    aggregator.observe([2.0], fallback_fired=True)
    aggregator.flush_window_stats()
    aggregator.observe([4.0])
    assert aggregator.flush_window_stats()["lambda_mean"] == 4.0
    final = aggregator.finalise(safety_enabled=True)
    assert (final["n_filter_calls"], final["lambda_mean"], final["n_fallback_fires"]) == (2, 3.0, 1)
    assert (final["lambda_max_observed"], final["lambda_min_observed"]) == (4.0, 2.0)


def test_final_record_steady_state_is_the_newest_tenth():
    aggregator = SafetyAggregator(1, 10.0, lambda_clamp_bound=7.0)
    for k in range(20):
        aggregator.observe([float(k)], braking_fired=k < 5)
    final = aggregator.finalise(safety_enabled=True)
    assert final["lambda_steady_state"] == 18.5
    assert final["braking_fire_rate"] == 0.25
    assert (final["event"], final["predictor_kind"]) == (FINAL_EVENT, "constant_velocity")
    assert (final["lambda_clamp_bound"], final["saturation_threshold"]) == (7.0, 0.9)


@pytest.mark.parametrize(("value", "saturated"), [(9.0, True), (-9.0, True), (-8.9, False)])
def test_saturation_counts_on_both_sides(value, saturated):
    aggregator = SafetyAggregator(1, 10.0)
    aggregator.observe([value])
    assert aggregator.finalise(safety_enabled=True)["saturated"] is saturated


def test_no_pairs_count_steps_and_events():
    aggregator = SafetyAggregator(0, 10.0)
    aggregator.observe({}, fallback_fired=True)
    final = aggregator.finalise(safety_enabled=True)
    assert (final["n_filter_calls"], final["n_fallback_fires"], final["lambda_mean"]) == (1, 1, 0.0)


@pytest.mark.parametrize(
    ("changes", "exit_code", "message"),
    [
        ({}, 0, "passed"),
        ({"safety_enabled": False, "lambda_steady_state": 99.0}, 0, "operator override"),
        ({"lambda_steady_state": 9.0}, 8, "gate A"),
        ({"lambda_steady_state": -9.0}, 8, "gate A"),
        ({"lambda_steady_state": float("nan")}, 8, "gate A"),
        ({"lambda_steady_state": 8.99}, 0, "passed"),
        ({"loss_positive_fraction": 0.0}, 9, "loss was 0 in all 100"),
        ({"n_loss": 0, "loss_positive_fraction": 0.0}, 9, "loss was 0 in all 0"),
        ({"lambda_var": 1e-13}, 9, "stuck at -1"),
        ({"lambda_var": 1e-13, "lambda_mean": 1e-7}, 0, "passed"),
        ({"lambda_var": 0.0, "lambda_mean": -7.0}, 0, "clamp-saturated"),
        ({"lambda_var": 0.0, "lambda_mean": 7.0}, 0, "clamp-saturated"),
        ({"lambda_var": 0.0, "lambda_mean": -7.0, "lambda_clamp_bound": None}, 9, "stuck"),
        ({"lambda_var": 0.0, "lambda_mean": -7.0, "loss_positive_fraction": 0.0}, 9, "loss was 0"),
    ],
)
def test_gate_verdict(changes, exit_code, message):
    verdict = evaluate_audit_gate(record(**changes))
    assert verdict.exit_code == exit_code
    assert verdict.passed is (exit_code == 0)
    assert message in verdict.message


def test_gate_on_an_upstream_record_without_loss_applies_the_upstream_rules():
    upstream = record(lambda_mean=-7.0, lambda_var=0.0, lambda_steady_state=-7.0)
    del upstream["n_loss"], upstream["loss_positive_fraction"]
    assert evaluate_audit_gate(upstream).passed


def test_gate_without_a_record_has_its_own_code():
    assert evaluate_audit_gate(None).exit_code == 3


def test_audit_of_a_log_takes_the_last_record(tmp_path):
    log = tmp_path / "run.jsonl"
    lines = [record(), {"event": "x"}, record(lambda_steady_state=-9.5), {"event": "training_end"}]
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert audit_run_log(log).exit_code == 8


def test_audit_of_a_log_cut_off_by_a_kill_ignores_the_torn_line(tmp_path):
    log = tmp_path / "run.jsonl"
    log.write_text(json.dumps(record()) + "\n" + json.dumps(record(lambda_var=0.0))[:-9])
    assert audit_run_log(log).exit_code == 0


def test_audit_of_a_damaged_line_names_it(tmp_path):
    log = tmp_path / "run.jsonl"
    log.write_text(f'{{"event": {FINAL_EVENT}\n{json.dumps(record())}\n')
    with pytest.raises(InputError, match=r"run\.jsonl:1: expected one JSON object per line"):
        audit_run_log(log)


def test_audit_of_a_missing_log_says_so(tmp_path):
    verdict = audit_run_log(tmp_path / "none.jsonl")
    assert (verdict.exit_code, verdict.passed) == (2, False)
    assert "not found" in verdict.message


def test_batch_of_steps_counts_like_the_single_steps():
    rng = np.random.default_rng(0)
    batch, single = SafetyAggregator(2, 10.0), SafetyAggregator(2, 10.0)
    for _ in range(40):
        lambda_, loss = -rng.uniform(0, 7, (5, 2)), np.maximum(0.0, rng.normal(size=(5, 2)))
        flags = rng.integers(0, 2, (4, 5)).astype(bool)
        intervention = np.maximum(0.0, rng.normal(size=5))
        batch.observe(
            lambda_,
            fallback_fired=flags[0],
            braking_fired=flags[0],
            qp_infeasible=flags[1],
            uncertified=flags[2],
            loss=loss,
            scored=flags[3],
            intervention=intervention,
        )
        for row in range(5):
            single.observe(
                lambda_[row].tolist(),
                fallback_fired=bool(flags[0, row]),
                braking_fired=bool(flags[0, row]),
                qp_infeasible=bool(flags[1, row]),
                uncertified=bool(flags[2, row]),
                loss={"a": loss[row, 0], "b": loss[row, 1]} if flags[3, row] else None,
                intervention=float(intervention[row]),
            )
    ours, theirs = (a.finalise(safety_enabled=True) for a in (batch, single))
    words = ("event", "predictor_kind", "lambda_clamp_bound")
    assert [ours.pop(word) for word in words] == [theirs.pop(word) for word in words]
    assert ours == pytest.approx(theirs, rel=1e-12)
    assert batch.flush_window_stats() == pytest.approx(single.flush_window_stats(), rel=1e-12)


def test_batch_without_a_scored_step_has_no_loss():
    aggregator = SafetyAggregator(1, 10.0)
    none = np.zeros(2, dtype=bool)
    aggregator.observe(
        np.zeros((2, 1)),
        braking_fired=none,
        qp_infeasible=none,
        uncertified=none,
        loss=np.ones((2, 1)),
        scored=none,
        intervention=np.zeros(2),
    )
    final = aggregator.finalise(safety_enabled=True)
    assert (final["n_filter_calls"], final["n_loss"], final["loss_mean"]) == (2, 0, 0.0)


def test_batch_of_other_pairs_is_refused():
    none = np.zeros(2, dtype=bool)
    with pytest.raises(InputError, match="expected n_pairs = 2 lambdas, got 1"):
        SafetyAggregator(2, 10.0).observe(
            np.zeros((2, 1)),
            braking_fired=none,
            qp_infeasible=none,
            uncertified=none,
            loss=np.zeros((2, 1)),
            scored=none,
            intervention=np.zeros(2),
        )
