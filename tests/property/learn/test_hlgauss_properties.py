"""Soft labels of values are distributions with the right mean."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from cadenza.learn.algorithms.hlgauss import hl_gauss_probabilities, two_hot_probabilities

supports = st.tuples(
    st.floats(-500, 400, width=32), st.floats(0.5, 1000, width=32), st.integers(2, 101)
)


@given(support=supports, share=st.floats(-0.5, 1.5), ratio=st.floats(0.1, 3.0))
def test_gaussian_labels_are_a_distribution_that_peaks_at_the_target(support, share, ratio):
    low, width, bins = support
    edges = torch.linspace(low, low + width, bins + 1)
    target = torch.tensor([[low + share * width]])
    found = hl_gauss_probabilities(target, edges, ratio * width / bins)[0]
    assert found.min() >= 0
    assert abs(float(found.sum()) - 1) < 1e-4
    bin_of_target = min(max(int(share * bins), 0), bins - 1)
    peak = int(found.argmax())
    assert abs(peak - bin_of_target) <= 1


@given(support=supports, share=st.floats(0.0, 1.0))
def test_two_hot_labels_are_neighbours_whose_mean_is_the_target(support, share):
    low, width, bins = support
    centers = torch.linspace(low, low + width, bins)
    value = low + share * width
    found = two_hot_probabilities(torch.tensor([[value]]), centers)[0]
    assert found.min() >= 0
    hot = torch.nonzero(found).flatten().tolist()
    assert len(hot) <= 2
    assert hot[-1] - hot[0] <= 1
    assert abs(float((found * centers).sum()) - value) < 1e-4 * (abs(low) + width)
