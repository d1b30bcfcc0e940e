import numpy as np
import torch
from scipy import stats

from cadenza.learn.models.ensemble import bootstrap_weights, holdout_mask, row_keys, uniform_draws

ROWS = torch.randn(20_000, 4, generator=torch.Generator().manual_seed(0))
KEYS = row_keys(ROWS)


def splitmix(z: int) -> int:
    """Return SplitMix64's finaliser with unbounded integers, modulo 2^64."""
    mask = (1 << 64) - 1
    z = (z + 0x9E3779B97F4A7C15) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return z ^ (z >> 31)


def test_key_is_splitmix_of_the_weighted_bits():
    row = torch.tensor([[1.5, -2.0]])
    bits = [int(np.array(x, dtype=np.float32).view(np.int32)) for x in (1.5, -2.0)]
    weights = [splitmix(j * 0x9E3779B97F4A7C15) | 1 for j in (0, 1)]
    word = sum(b * w for b, w in zip(bits, weights, strict=True)) % (1 << 64)
    assert int(row_keys(row)) % (1 << 64) == splitmix(word)


def test_key_depends_on_content_and_not_on_place_or_batch():
    order = torch.randperm(len(ROWS), generator=torch.Generator().manual_seed(1))
    assert torch.equal(row_keys(ROWS[order]), KEYS[order])
    assert torch.equal(row_keys(ROWS[:, :1], ROWS[:, 1:]), KEYS)
    assert len(torch.unique(KEYS)) == len(ROWS)


def test_columns_are_not_interchangeable_and_minus_zero_is_zero():
    assert row_keys(torch.tensor([[1.0, 2.0]])) != row_keys(torch.tensor([[2.0, 1.0]]))
    assert row_keys(torch.tensor([[-0.0]])) == row_keys(torch.tensor([[0.0]]))


def test_draws_are_uniform_and_independent_between_streams():
    first, second = uniform_draws(KEYS, stream=0), uniform_draws(KEYS, stream=1)
    for draws in (first, second):
        assert float(draws.min()) >= 0.0
        assert float(draws.max()) < 1.0
        assert stats.kstest(draws.numpy(), "uniform").pvalue > 1e-3
    assert abs(stats.pearsonr(first.numpy(), second.numpy()).statistic) < 0.03


def test_weights_follow_poisson_one_for_every_member():
    weights = bootstrap_weights(KEYS, members=3, seed=0).numpy()
    assert weights.shape == (3, len(ROWS))
    expected = stats.poisson(1.0).pmf(np.arange(5)) * len(ROWS)
    for member in weights:
        observed = np.bincount(member.astype(int), minlength=5)[:5]
        assert (
            stats.chisquare(
                np.append(observed, len(ROWS) - observed.sum()),
                np.append(expected, len(ROWS) - expected.sum()),
            ).pvalue
            > 1e-3
        )
    assert np.abs(np.corrcoef(weights) - np.eye(3)).max() < 0.03


def test_seed_changes_weights_and_holdout():
    one, two = (bootstrap_weights(KEYS, members=1, seed=seed) for seed in (0, 1))
    assert not torch.equal(one, two)
    held = [holdout_mask(KEYS, fraction=0.2, seed=seed) for seed in (0, 1)]
    assert abs(float(held[0].float().mean()) - 0.2) < 0.02
    both = float((held[0] & held[1]).float().mean())
    assert abs(both - 0.04) < 0.01  # independent choices
