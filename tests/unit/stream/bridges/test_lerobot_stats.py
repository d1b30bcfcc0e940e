"""Statistics of a dataset against numpy over all of its frames."""

import numpy as np
import pytest

from cadenza.stream.bridges.lerobot_stats import (
    QUANTILES,
    ImageStatistics,
    NumberStatistics,
    ThinnedRows,
)


def assert_statistics(found: dict, values: np.ndarray, frames: int, shape: tuple[int, ...]) -> None:
    """Compare with numpy over the rows of ``values``."""
    expected = {
        "min": values.min(axis=0),
        "max": values.max(axis=0),
        "mean": values.mean(axis=0, dtype=np.float64),
        "std": values.std(axis=0, dtype=np.float64),
    }
    expected |= {
        name: np.quantile(values.astype(np.float64), share, axis=0)
        for name, share in QUANTILES.items()
    }
    assert set(found) == {*expected, "count"}
    assert found["count"] == [frames]
    for name, value in expected.items():
        assert np.shape(found[name]) == shape
        np.testing.assert_allclose(np.ravel(found[name]), np.ravel(value), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("shape", [(1,), (3,), (2, 3)])
def test_numbers_match_numpy_per_episode_and_in_total(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(5)
    # Far from zero, where sums of squares would lose the deviation.
    episodes = [(1e4 + rng.standard_normal((n, *shape))).astype(np.float32) for n in (1, 7, 30)]
    statistics = NumberStatistics(shape)
    for episode in episodes:
        assert_statistics(statistics.add(episode), episode, len(episode), shape)
    assert_statistics(statistics.total(), np.concatenate(episodes), 38, shape)


def test_integers_and_booleans_keep_their_kind_at_the_extremes() -> None:
    statistics = NumberStatistics((1,))
    statistics.add(np.array([[3], [9]]))
    assert statistics.total()["min"] == [3]
    assert isinstance(statistics.total()["max"][0], int)
    flags = NumberStatistics((1,)).add(np.array([[False], [True], [True], [True]]))
    assert (flags["min"], flags["max"], flags["mean"]) == ([False], [True], [0.75])


def test_images_match_numpy_per_channel() -> None:
    rng = np.random.default_rng(6)
    episodes = [rng.integers(10, 200, (n, 4, 5, 3), dtype=np.uint8) for n in (1, 6)]
    statistics = ImageStatistics(3)
    for episode in episodes:
        levels = episode.reshape(-1, 3) / 255.0
        assert_statistics(statistics.add(episode), levels, len(episode), (3, 1, 1))
    levels = np.concatenate(episodes).reshape(-1, 3) / 255.0
    assert_statistics(statistics.total(), levels, 7, (3, 1, 1))


def test_kept_rows_thin_out_evenly() -> None:
    rows = ThinnedRows(4)
    for first in range(0, 12, 3):
        rows.add(np.arange(first, first + 3))
    # 0..3 fit; five rows keep every second; eight or nine of them every fourth of 0..11.
    assert rows.rows().tolist() == [0, 4, 8]
    rows.add(np.arange(12, 21))
    assert rows.rows().tolist() == [0, 8, 16]


def test_quantiles_of_many_numbers_are_those_of_evenly_spaced_frames() -> None:
    values = np.arange(64.0)[:, None]
    statistics = NumberStatistics((1,), kept_numbers=40)
    statistics.add(values[:20])
    statistics.add(values[20:])
    total = statistics.total()
    assert total["q50"] == [np.quantile(np.arange(0, 64, 2), 0.5)]
    assert (total["max"], total["mean"], total["count"]) == ([63.0], [31.5], [64])
