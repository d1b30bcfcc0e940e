import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadenza.core.proportions import clopper_pearson_interval
from cadenza.evaluation.statistics.cluster_means import StudentT
from cadenza.evaluation.statistics.estimate import (
    KORN_GRAUBARD,
    effective_trials,
    mean_estimate,
    rate_estimate,
)

outcomes = st.dictionaries(
    st.integers(0, 50), st.lists(st.booleans(), min_size=1, max_size=8), min_size=1, max_size=12
)
#: Multiples of 1 / 8: exact in float64, so permutations change nothing.
samples = st.lists(st.integers(-400, 400).map(lambda k: k / 8), min_size=5, max_size=12).filter(
    lambda v: len(set(v)) > 2
)


@given(values=outcomes)
def test_rate_lies_inside_bounds_that_lie_inside_zero_and_one(values):
    estimate = rate_estimate(values)
    assert 0.0 <= estimate.low <= estimate.value <= estimate.high <= 1.0
    assert estimate.low < estimate.high


@given(values=outcomes)
def test_rate_of_failures_mirrors_the_rate_of_successes(values):
    there = rate_estimate(values)
    back = rate_estimate({seed: [not x for x in v] for seed, v in values.items()})
    assert back.value == pytest.approx(1 - there.value)
    assert (back.low, back.high) == pytest.approx((1 - there.high, 1 - there.low), abs=1e-9)


@given(values=outcomes, data=st.data())
def test_rate_does_not_depend_on_names_or_order_of_seeds(values, data):
    names = data.draw(st.permutations(range(100, 100 + len(values))))
    renamed = dict(zip(names, values.values(), strict=True))
    there, back = rate_estimate(values), rate_estimate(renamed)
    assert (back.low, back.high) == pytest.approx((there.low, there.high), abs=1e-12)


@given(values=outcomes)
def test_older_rate_interval_is_never_narrower_than_the_binomial_one(values):
    estimate = rate_estimate(values, estimator=KORN_GRAUBARD)
    successes = sum(sum(v) for v in values.values())
    low, high = clopper_pearson_interval(successes, estimate.n)
    assert estimate.low <= low + 1e-9
    assert estimate.high >= high - 1e-9


@given(values=outcomes)
def test_effective_trials_are_positive_and_never_exceed_the_count(values):
    successes = np.array([float(sum(v)) for v in values.values()])
    trials = np.array([float(len(v)) for v in values.values()])
    assert 0.0 < effective_trials(successes, trials, confidence=0.95) <= trials.sum()


@given(values=st.dictionaries(st.integers(0, 30), samples, min_size=2, max_size=8))
def test_mean_estimate_holds_its_value_and_ignores_order_within_seeds(values):
    there = mean_estimate(values, method=StudentT())
    back = mean_estimate({seed: v[::-1] for seed, v in values.items()}, method=StudentT())
    assert (there.value, there.undefined_reason) == (back.value, back.undefined_reason)
    if there.low is not None:
        assert (back.low, back.high) == pytest.approx((there.low, there.high), abs=1e-9)
        assert there.low <= there.value <= there.high
