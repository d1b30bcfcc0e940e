"""Both ways through x_t = b_t + c_t x_{t+1} against a loop over Python floats."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from cadenza.learn.advantages import (
    SCAN_MAX_COLUMNS,
    reverse_linear_recurrence,
    scan_backwards,
    step_backwards,
)

WAYS = [scan_backwards, step_backwards]
#: Discounts, ends of episodes, and the undiscounted sum.
FACTORS = st.one_of(st.just(0.0), st.just(1.0), st.floats(0.0, 1.0))


@st.composite
def tables(draw):
    shape = (draw(st.integers(0, 40)), draw(st.integers(1, 4)))
    terms = draw(arrays(np.float64, shape, elements=st.floats(-1e3, 1e3)))
    return terms, draw(arrays(np.float64, shape, elements=FACTORS))


def by_loop(terms, factors):
    """x in exact arithmetic, rounded once at the end."""
    sums = np.zeros(terms.shape)
    for column in range(terms.shape[1]):
        running = Fraction(0)
        for t in reversed(range(len(terms))):
            running = Fraction(terms[t, column]) + Fraction(factors[t, column]) * running
            sums[t, column] = float(running)
    return sums


@pytest.mark.parametrize("way", WAYS)
@given(table=tables())
def test_sums_equal_exact_arithmetic(way, table):
    terms, factors = table
    # At most 40 products and sums, each off by 1.2e-16 of partial sums up to 4e4.
    np.testing.assert_allclose(way(*table), by_loop(terms, factors), rtol=1e-13, atol=1e-9)


@pytest.mark.parametrize("way", WAYS)
@given(table=tables())
@example(table=(np.zeros((0, 3)), np.zeros((0, 3))))
def test_inputs_stay_and_the_last_factor_multiplies_nothing(way, table):
    terms, factors = table
    before = terms.tobytes(), factors.tobytes()
    result = way(terms, factors)
    assert (terms.tobytes(), factors.tobytes()) == before
    other = factors.copy()
    other[-1:] = 0.5
    assert result.tobytes() == way(terms, other).tobytes()


@pytest.mark.parametrize("columns", [1, SCAN_MAX_COLUMNS, SCAN_MAX_COLUMNS + 1])
def test_every_width_gives_the_same_sums(columns):
    rng = np.random.default_rng(columns)
    terms = rng.normal(size=(257, columns))
    factors = 0.99 * (rng.random((257, columns)) > 0.05)
    chosen = reverse_linear_recurrence(terms, factors)
    expected = scan_backwards if columns <= SCAN_MAX_COLUMNS else step_backwards
    assert chosen.tobytes() == expected(terms, factors).tobytes()
    for way in WAYS:
        np.testing.assert_allclose(way(terms, factors), chosen, rtol=1e-12, atol=1e-12)
