"""Chunk sizes: golden rules, distributions against closed forms, refused arguments."""

import random

import numpy as np
import pytest
import torch
from scipy import stats

from cadenza.core.errors import ConfigurationError
from cadenza.stream.chunk_samplers import (
    ChunkSizeSampler,
    GMMChunkSampler,
    UniformChunkSampler,
    first_at_least,
    rounded_size,
    truncated_mixture,
)

#: A right sampler fails one of the tests below once in a hundred thousand seeds.
P_VALUE = 1e-5


def draws(sampler: ChunkSizeSampler, count: int) -> np.ndarray:
    return np.array([sampler() for _ in range(count)])


def chi_square(sizes: np.ndarray, first: int, expected: np.ndarray) -> float:
    """Return the p-value of ``sizes``, expected[i] being the probability of first + i."""
    observed = np.bincount(sizes - first, minlength=len(expected))
    assert len(observed) == len(expected)
    counts = expected * len(sizes)
    rare = counts < 5.0
    observed = np.r_[observed[~rare], observed[rare].sum()]
    counts = np.r_[counts[~rare], counts[rare].sum()]
    if counts[-1] == 0.0:
        assert observed[-1] == 0
        observed, counts = observed[:-1], counts[:-1]
    return float(stats.chisquare(observed, counts).pvalue)


def rounded_mixture(means, stds, weights, sizes) -> np.ndarray:
    """Return P(size) of the rounded mixture without bounds."""
    return sum(
        w * (stats.norm.cdf(sizes + 0.5, m, s) - stats.norm.cdf(sizes - 0.5, m, s))
        for m, s, w in zip(means, stds, weights, strict=True)
    )


@pytest.mark.parametrize(
    ("x", "size"), [(2.5, 2), (3.5, 4), (2.5000001, 3), (0.5, 1), (-7.0, 1), (1.4, 1), (64.49, 64)]
)
def test_halves_are_rounded_to_the_even_size_and_never_below_one(x: float, size: int) -> None:
    assert rounded_size(x, None, None) == size


@pytest.mark.parametrize(("u", "index"), [(0.1, 0), (0.25, 0), (0.2500001, 1), (0.9, 2), (1.1, 2)])
def test_component_is_the_first_whose_cumulative_weight_reaches_u(u: float, index: int) -> None:
    assert first_at_least(u, np.array([0.25, 0.5, 1.0])) == index


def test_uniform_sizes_are_uniform_with_both_bounds() -> None:
    sizes = draws(UniformChunkSampler(3, 9, seed=1), 7000)
    assert chi_square(sizes, 3, np.full(7, 1 / 7)) > P_VALUE


def test_mixture_without_bounds_is_the_rounded_mixture() -> None:
    means, stds, weights = [16.0, 40.0], [2.0, 3.0], [3.0, 1.0]
    sizes = draws(GMMChunkSampler(means, stds, weights, seed=2), 8000)
    expected = rounded_mixture(means, stds, [0.75, 0.25], np.arange(1, 61))
    assert chi_square(sizes, 1, expected) > P_VALUE


def test_weights_left_out_are_equal() -> None:
    assert GMMChunkSampler([1, 2, 3, 4], [1] * 4).weights.tolist() == [0.25] * 4


def test_clamped_mixture_piles_the_tails_on_the_bounds() -> None:
    sizes = draws(GMMChunkSampler([10.0], [4.0], low=8, high=12, seed=4), 8000)
    inside = rounded_mixture([10.0], [4.0], [1.0], np.arange(9, 12))
    tail = stats.norm.cdf(8.5, 10.0, 4.0)
    assert chi_square(sizes, 8, np.r_[tail, inside, tail]) > P_VALUE


def test_truncated_mixture_keeps_the_proportions_inside_the_bounds() -> None:
    means, stds, weights = [8.0, 20.0], [4.0, 6.0], [0.6, 0.4]
    sampler = GMMChunkSampler(means, stds, weights, low=6, high=18, truncate=True, seed=5)
    inside = rounded_mixture(means, stds, weights, np.arange(6, 19))
    sizes = draws(sampler, 12000)
    assert chi_square(sizes, 6, inside / inside.sum()) > P_VALUE
    clamped = draws(GMMChunkSampler(means, stds, weights, low=6, high=18, seed=5), 12000)
    assert chi_square(clamped, 6, inside / inside.sum()) < P_VALUE


def test_truncation_far_out_in_a_tail_is_exact() -> None:
    # Between 40 and 41 standard deviations both distribution functions are 1 in float64.
    table = truncated_mixture(np.array([0.0]), np.array([1.0]), np.array([1.0]), 40, 41)
    ratio = stats.norm.logsf(39.5) - stats.norm.logsf(40.5)
    assert np.log(table[0] / table[1]) == pytest.approx(ratio, rel=1e-6)


def test_truncated_mixture_without_mass_in_its_bounds_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="expected a mixture that reaches \\[5, 6\\]"):
        GMMChunkSampler([1e9], [1e-300], low=5, high=6, truncate=True)


def test_global_random_numbers_are_neither_used_nor_changed() -> None:
    samplers = [UniformChunkSampler(1, 100), GMMChunkSampler([50.0], [9.0])]
    before = random.getstate(), torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    first = [draws(s, 20).tolist() for s in samplers]
    assert random.getstate() == before[0]
    assert torch.equal(torch.get_rng_state(), before[1])
    assert (np.random.get_state()[1] == before[2]).all()  # noqa: NPY002
    random.seed(5)
    again = [UniformChunkSampler(1, 100), GMMChunkSampler([50.0], [9.0])]
    assert [draws(s, 20).tolist() for s in again] == first


def test_seed_and_generator_choose_the_draws() -> None:
    with_seed = [draws(UniformChunkSampler(1, 999, seed=s), 9).tolist() for s in (7, 7, 8)]
    assert with_seed[0] == with_seed[1] != with_seed[2]
    generator = torch.Generator().manual_seed(11)
    expected = torch.randint(1, 1000, (5,), generator=torch.Generator().manual_seed(11))
    sampler = UniformChunkSampler(1, 999, generator=generator)
    assert sampler() == int(expected[0])
    assert sampler.seed == 11


def test_copy_draws_from_its_own_generator_and_leaves_the_original_alone() -> None:
    sampler = GMMChunkSampler([30.0], [9.0], low=2, seed=1)
    made = sampler.copy_for(torch.Generator().manual_seed(3), 32)
    assert made.high == 32
    assert sampler.high is None
    drawn = draws(made, 50)
    assert drawn.max() == 32
    assert draws(sampler, 50).tolist() == draws(GMMChunkSampler([30.0], [9.0], seed=1), 50).tolist()
    again = sampler.copy_for(torch.Generator().manual_seed(3), 32)
    assert draws(again, 50).tolist() == drawn.tolist()


@pytest.mark.parametrize(("low", "high"), [(0, 4), (-1, 4), (5, 4), (1, 0)])
def test_uniform_bounds_out_of_order_are_refused(low: int, high: int) -> None:
    with pytest.raises(ValueError, match=r"UniformChunkSampler.*expected"):
        UniformChunkSampler(low, high)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"means": [], "stds": []}, "means: expected at least one"),
        ({"means": [1.0, 2.0], "stds": [1.0]}, "stds: expected 2 \\(one per mean\\), got 1"),
        ({"means": [1.0], "stds": [1.0], "weights": [1.0, 1.0]}, "weights: expected 1 .*got 2"),
        ({"means": [1.0], "stds": [0.0]}, "stds: expected > 0"),
        ({"means": [1.0], "stds": [float("nan")]}, "stds: expected finite numbers"),
        ({"means": [1.0, 2.0], "stds": [1.0, 1.0], "weights": [2.0, -1.0]}, "weights: expected >="),
        ({"means": [1.0], "stds": [1.0], "weights": [0.0]}, "weights: expected >="),
        ({"means": [1.0, 1.0], "stds": [1.0, 1.0], "weights": [1e308, 1e308]}, "finite sum"),
        ({"means": [1.0], "stds": [1.0], "low": 5, "high": 4}, "expected low <= high, got 5 and 4"),
        ({"means": [1.0], "stds": [1.0], "truncate": True}, "expected high with truncate=True"),
        ({"means": [True], "stds": [1.0]}, "means: expected finite numbers"),
        ({"means": [[1.0], [1.0, 2.0]], "stds": [1.0]}, "means: expected finite numbers"),
    ],
)
def test_impossible_mixtures_are_refused(arguments, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GMMChunkSampler(**arguments)


def test_two_sources_of_randomness_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="expected generator or seed, got both"):
        UniformChunkSampler(1, 2, generator=torch.Generator(), seed=1)


@pytest.mark.parametrize(
    "sampler",
    [
        UniformChunkSampler(1, 11),
        GMMChunkSampler([5.0], [1.0], low=11),
        GMMChunkSampler([5.0], [1.0], high=11),
    ],
)
def test_sizes_beyond_the_longest_episode_are_refused(sampler: ChunkSizeSampler) -> None:
    with pytest.raises(ConfigurationError, match=r"expected at most 10 .*got 11"):
        sampler.require_within(10)
    sampler.require_within(11)
