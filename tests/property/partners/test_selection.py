"""Greedy selection by determinant against the best of all subsets."""

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cadenza.partners.selection import best_subset, greedy_subset, similarity


@given(
    seed=st.integers(0, 10_000),
    count=st.integers(3, 9),
    dims=st.integers(1, 4),
    size=st.integers(1, 4),
)
def test_greedy_volume_is_within_its_bound_of_the_best(seed, count, dims, size):
    size = min(size, count)
    kernel = similarity(np.random.default_rng(seed).normal(size=(count, dims)))

    def determinant(chosen):
        return float(np.linalg.det(kernel[np.ix_(chosen, chosen)]))

    greedy, best = greedy_subset(kernel, size), best_subset(kernel, size)
    assert len(set(greedy)) == len(set(best)) == size
    # The volume is the root of the determinant, so the bound 1/k! of volumes is squared here.
    assert determinant(best) >= determinant(greedy) - 1e-12
    assert determinant(greedy) >= determinant(best) / math.factorial(size) ** 2 - 1e-12
