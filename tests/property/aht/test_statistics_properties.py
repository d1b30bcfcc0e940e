"""Invariants of the running statistics, the slope test and the configuration fingerprint."""

import json
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cadenza.aht.config import EgoAHTConfig, config_fingerprint
from cadenza.aht.learning_signal_check import assert_non_decreasing_window
from cadenza.aht.safety_telemetry import (
    SafetyAggregator,
    TailMean,
    evaluate_audit_gate,
)
from cadenza.aht.types import RewardCurve
from cadenza.safety.record import RunningMoments

numbers = st.floats(-1e6, 1e6)


def moments_of(values):
    moments = RunningMoments()
    for value in values:
        moments.add(value)
    return moments


@settings(deadline=None)
@given(st.lists(numbers, min_size=1, max_size=50), st.integers(0, 50))
def test_moments_equal_numpy_however_they_are_split(values, cut):
    merged = moments_of(values[:cut])
    merged.merge(moments_of(values[cut:]))
    scale = max(1.0, float(np.abs(values).max()))
    assert merged.mean == pytest.approx(np.mean(values), abs=1e-9 * scale)
    assert merged.variance == pytest.approx(np.var(values), rel=1e-6, abs=1e-9 * scale**2)
    assert (merged.low, merged.high) == (min(values), max(values))
    assert merged.variance >= 0.0


@settings(deadline=None)
@given(st.lists(numbers, min_size=1, max_size=200))
def test_tail_mean_equals_the_slice(values):
    tail = TailMean()
    for value in values:
        tail.add(value)
    expected = np.mean(values[-max(1, len(values) // 10) :])
    assert tail.value() == pytest.approx(expected, abs=1e-6)


@settings(deadline=None)
@given(st.lists(st.floats(-7, 7), min_size=1, max_size=60), st.integers(0, 60), st.floats(0, 1))
def test_aggregator_resumed_anywhere_goes_on_alike(lambdas, cut, loss):
    whole, first = SafetyAggregator(1, 10.0), SafetyAggregator(1, 10.0)
    for k, value in enumerate(lambdas):
        if k == cut:
            stored = json.loads(json.dumps(first.state_dict()))
            first = SafetyAggregator(1, 10.0)
            first.load_state_dict(stored)
        for aggregator in (whole, first):
            aggregator.observe([value], loss={"p": loss}, braking_fired=k % 2 == 0)
            if k % 7 == 0:
                aggregator.flush_window_stats()
    assert first.finalise(safety_enabled=True) == whole.finalise(safety_enabled=True)


@settings(deadline=None)
@given(st.lists(st.floats(-7, 7), min_size=1, max_size=60))
def test_gate_never_passes_a_filter_that_saw_no_motion(lambdas):
    aggregator = SafetyAggregator(1, 10.0)
    for value in lambdas:
        aggregator.observe([value], loss={"p": 0.0})
    assert not evaluate_audit_gate(aggregator.finalise(safety_enabled=True)).passed


@settings(deadline=None)
@given(st.lists(st.integers(-50, 50), max_size=40), st.integers(1, 12))
def test_window_check_counts_like_the_definition(values, window):
    report = assert_non_decreasing_window(
        RewardCurve("r", per_episode_ego_rewards=[float(v) for v in values]), window=window
    )
    sums = [sum(values[k : k + window]) for k in range(len(values) - window + 1)]
    expected = sum(b >= a for a, b in pairwise(sums))
    assert report.n_nondecreasing == expected
    assert report.n_intervals == max(len(values) - window, 0)


@settings(deadline=None)
@given(
    seed=st.integers(0, 2**31),
    frames=st.integers(1, 10**8),
    options=st.dictionaries(st.sampled_from("abc"), st.integers(-5, 5), max_size=3),
)
def test_fingerprint_survives_a_round_trip_and_ignores_the_order_of_options(seed, frames, options):
    config = EgoAHTConfig.model_validate(
        {"seed": seed, "total_frames": frames, "env": {"task": "t", "options": options}}
    )
    again = EgoAHTConfig.model_validate_json(config.model_dump_json())
    turned = dict(reversed(options.items()))
    reordered = config.model_copy(update={"env": config.env.model_copy(update={"options": turned})})
    assert config_fingerprint(again) == config_fingerprint(config)
    assert config_fingerprint(reordered) == config_fingerprint(config)
