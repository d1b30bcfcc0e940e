"""Running moments against numpy over everything seen; reward scaling by hand."""

import numpy as np

from cadenza.learn.nn.running_normalizer import RewardScaler, RunningNormalizer


def test_moments_of_batches_are_those_of_all_rows():
    rng = np.random.default_rng(0)
    rows = rng.normal(3.0, 2.0, size=(50, 2)) + 1e3
    normalizer = RunningNormalizer(2)
    for batch in np.split(rows, [1, 8, 30]):
        normalizer.update(batch)
    np.testing.assert_allclose(normalizer.mean, rows.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(normalizer.variance, rows.var(axis=0), rtol=1e-9)
    scaled = normalizer.normalize(rows)
    np.testing.assert_allclose(scaled.mean(axis=0), 0.0, atol=1e-5)
    np.testing.assert_allclose(scaled.std(axis=0), 1.0, atol=1e-5)


def test_outliers_are_clipped_at_ten():
    normalizer = RunningNormalizer(1)
    normalizer.update(np.array([[-1.0], [1.0]]))
    assert normalizer.normalize(np.array([[1e6]])).tolist() == [[10.0]]


def test_reward_scale_is_the_spread_of_discounted_returns():
    scaler = RewardScaler(gamma=0.5)
    running = np.array([1.0, 3.0])  # after the first step
    first = scaler.scale(np.array([1.0, 3.0]), np.array([False, True]))
    np.testing.assert_allclose(first, np.array([1.0, 3.0]) / np.std(running), rtol=1e-5)
    seen = np.array([1.0, 3.0, 0.5 * 1.0 + 2.0, 2.0])  # the second environment began anew
    second = scaler.scale(np.array([2.0, 2.0]), np.array([False, False]))
    np.testing.assert_allclose(second, 2.0 / np.std(seen), rtol=1e-5)


def test_stored_statistics_go_on_alike():
    one, other = RewardScaler(0.9), RewardScaler(0.9)
    one.scale(np.array([4.0]), np.array([False]))
    other.load_state_dict(one.state_dict())
    flags = np.array([False])
    assert one.scale(np.array([1.0]), flags) == other.scale(np.array([1.0]), flags)
