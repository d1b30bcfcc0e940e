"""Chunk sizes stay within their bounds, and truncation never changes proportions."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cadenza.stream.chunk_samplers import GMMChunkSampler, UniformChunkSampler, truncated_mixture

MEANS = st.floats(-50.0, 150.0)
STDS = st.floats(0.05, 60.0)
COMPONENTS = st.lists(st.tuples(MEANS, STDS, st.floats(0.01, 5.0)), min_size=1, max_size=4)
BOUNDS = st.tuples(st.integers(1, 40), st.integers(0, 60)).map(lambda x: (x[0], x[0] + x[1]))


@given(bounds=BOUNDS, seed=st.integers(0, 2**40))
def test_uniform_sizes_lie_within_the_bounds(bounds: tuple[int, int], seed: int) -> None:
    sampler = UniformChunkSampler(*bounds, seed=seed)
    assert all(bounds[0] <= sampler() <= bounds[1] for _ in range(20))


@given(components=COMPONENTS, bounds=BOUNDS, truncate=st.booleans(), seed=st.integers(0, 2**40))
def test_mixture_sizes_lie_within_the_bounds(components, bounds, truncate, seed) -> None:
    means, stds, weights = zip(*components, strict=True)
    sampler = GMMChunkSampler(means, stds, weights, *bounds, truncate=truncate, seed=seed)
    copied = sampler.copy_for(torch.Generator().manual_seed(seed), bounds[1])
    assert all(bounds[0] <= draw() <= bounds[1] for draw in (sampler, copied) for _ in range(20))


@given(components=COMPONENTS, bounds=BOUNDS, cut=st.integers(0, 20))
def test_narrower_truncation_keeps_the_proportions(components, bounds, cut) -> None:
    means, stds, weights = (np.array(values) for values in zip(*components, strict=True))
    low, high = bounds
    wide = truncated_mixture(means, np.maximum(stds, 10.0), weights, low, high + cut)
    narrow = truncated_mixture(means, np.maximum(stds, 10.0), weights, low, high)
    assert narrow.sum() == pytest.approx(1.0)
    kept = wide[: len(narrow)]
    np.testing.assert_allclose(narrow, kept / kept.sum(), rtol=1e-6, atol=1e-12)
