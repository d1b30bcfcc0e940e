import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cadenza.core.timing import WINDOW, MovingWindowAccumulator, WelfordAccumulator

samples = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=150)


@given(values=samples)
def test_welford_always_agrees_with_numpy(values):
    accumulator = WelfordAccumulator()
    for value in values:
        accumulator.add(value)
    expected = np.mean(values), np.var(values)
    np.testing.assert_allclose(accumulator.current(), expected, rtol=1e-9, atol=1e-3)


@given(values=samples)
def test_moving_window_always_agrees_with_numpy_on_the_last_samples(values):
    accumulator = MovingWindowAccumulator()
    for value in values:
        accumulator.add(value)
    last = values[-WINDOW:]
    np.testing.assert_allclose(
        accumulator.current(), (np.mean(last), np.var(last)), rtol=1e-9, atol=1e-3
    )
