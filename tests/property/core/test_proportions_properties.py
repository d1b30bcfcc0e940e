from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadenza.core.proportions import clopper_pearson_interval, wilson_interval


@given(trials=st.integers(1, 300), data=st.data())
def test_wilson_interval_holds_the_rate_and_mirrors(trials, data):
    successes = data.draw(st.integers(0, trials))
    low, high = wilson_interval(successes, trials)
    assert 0.0 <= low <= successes / trials <= high <= 1.0
    mirrored = wilson_interval(trials - successes, trials)
    assert mirrored == pytest.approx((1 - high, 1 - low), abs=1e-12)


@given(trials=st.integers(1, 300))
def test_exact_bounds_rise_with_the_number_of_successes(trials):
    bounds = [clopper_pearson_interval(k, trials) for k in range(min(trials, 20) + 1)]
    assert all(b[0] > a[0] and b[1] >= a[1] for a, b in pairwise(bounds))
