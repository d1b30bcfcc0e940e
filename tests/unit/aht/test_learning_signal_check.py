"""Slope test, legacy window check, plots."""

import json
import math

import numpy as np
import pytest
from PIL import Image

from cadenza.aht.learning_signal_check import (
    CheckStatus,
    GuaranteeReport,
    assert_non_decreasing_window,
    assert_positive_learning_slope,
    check_positive_learning_slope,
    cohens_d,
    moving_means,
    newey_west_slope_error,
    plot_reward_curve,
    plot_slope_curve,
)
from cadenza.aht.types import RewardCurve


def curve(values) -> RewardCurve:
    return RewardCurve("run0123", per_episode_ego_rewards=[float(v) for v in values])


def test_slope_of_the_reference_curve():
    report = check_positive_learning_slope(curve(i + i % 3 for i in range(30)))
    assert report.slope == pytest.approx(1.0088987764182424, rel=1e-12)
    assert report.intercept == pytest.approx(0.870967741935484, rel=1e-12)
    assert report.r_squared == pytest.approx(0.9914097402073087, rel=1e-12)
    assert report.p_value == pytest.approx(8.939031721196968e-31, rel=1e-9)
    assert report.status is CheckStatus.PASSED
    assert report.passed


def test_slope_alpha_is_strict():
    values = [math.sin(9 * i) + 0.01 * i for i in range(40)]
    p = check_positive_learning_slope(curve(values)).p_value
    assert 0.0 < p < 1.0
    assert not check_positive_learning_slope(curve(values), alpha=p).passed
    assert check_positive_learning_slope(curve(values), alpha=p * 1.001).passed


@pytest.mark.parametrize(
    ("values", "status", "intercept"),
    [
        ([], CheckStatus.INSUFFICIENT_DATA, 0.0),
        (range(19), CheckStatus.INSUFFICIENT_DATA, 0.0),
        ([*range(5), math.nan], CheckStatus.INVALID, 0.0),
        ([*range(30), math.inf], CheckStatus.INVALID, 0.0),
        ([-3.5] * 25, CheckStatus.FAILED, -3.5),
    ],
)
def test_slope_without_a_fit_reports_why(values, status, intercept):
    report = check_positive_learning_slope(curve(values))
    assert (report.status, report.passed) == (status, False)
    assert (report.slope, report.p_value, report.intercept) == (0.0, 1.0, intercept)
    assert (report.slope_interval, report.effect_size) == (None, None)


def test_slope_min_episodes_can_be_lowered_to_two():
    report = check_positive_learning_slope(curve([1.0, 2.0]), min_episodes=2)
    assert report.slope == pytest.approx(1.0)
    assert report.slope_interval is None
    assert report.effect_window == 1


def test_newey_west_error_equals_the_sandwich_formula():
    rng = np.random.default_rng(0)
    n = 150
    y = 0.1 * np.arange(n) + np.convolve(rng.normal(size=n + 4), np.ones(5), "valid")
    slope, intercept = np.polyfit(np.arange(n), y, 1)
    # (X'X)^-1 S (X'X)^-1 with S the weighted autocovariance of X'u; lag floor(4 * 1.5^(2/9)) = 4
    design = np.column_stack([np.ones(n), np.arange(n)])
    moments = design * (y - design @ [intercept, slope])[:, None]
    middle = moments.T @ moments
    for lag in range(1, 5):
        gamma = moments[lag:].T @ moments[:-lag]
        middle += (1 - lag / 5) * (gamma + gamma.T)
    bread = np.linalg.inv(design.T @ design)
    expected = math.sqrt((bread @ middle @ bread)[1, 1] * n / (n - 2))
    assert newey_west_slope_error(y, slope, intercept) == pytest.approx(expected, rel=1e-9)


def test_interval_narrows_with_alpha():
    values = [i + 3 * math.sin(i) for i in range(60)]
    wide = check_positive_learning_slope(curve(values), alpha=0.01).slope_interval
    narrow = check_positive_learning_slope(curve(values), alpha=0.2).slope_interval
    assert wide[0] < narrow[0] < narrow[1] < wide[1]


def test_effect_size_counts_pooled_deviations_and_is_none_without():
    # means 1 and 4; squares 2 + 2 over 2 + 2 - 2 + 2 = 4 degrees: pooled deviation 1
    assert cohens_d(np.array([0.0, 1.0, 2.0]), np.array([3.0, 4.0, 5.0])) == pytest.approx(3.0)
    assert cohens_d(np.array([1.0, 1.0]), np.array([2.0, 2.0])) is None
    assert cohens_d(np.array([1.0]), np.array([2.0])) is None


def test_effect_windows_are_the_first_and_last_tenth():
    values = [0.0] * 100 + [5.0] * 800 + [10.0] * 100
    report = check_positive_learning_slope(curve(values))
    assert report.effect_window == 100
    assert (report.first_window_mean, report.last_window_mean) == (0.0, 10.0)


def test_moving_means_of_a_hand_example():
    assert moving_means([1.0, 2.0, 6.0, 4.0], 2) == [1.5, 4.0, 5.0]


@pytest.mark.parametrize(("values", "window"), [([], 10), (range(10), 10), (range(30), 0)])
def test_window_check_of_too_few_episodes_passes_vacuously(values, window):
    report = assert_non_decreasing_window(curve(values), window=window)
    assert (report.n_intervals, report.fraction, report.passed) == (0, 1.0, True)


def read_plot(paths):
    png, sidecar = paths
    with Image.open(png) as image:
        pixels = np.asarray(image.convert("RGB"))
    return pixels, json.loads(sidecar.read_text())


def test_slope_plot_shows_curve_and_trend(tmp_path):
    noisy = curve([i + 20 * math.sin(i) for i in range(200)])
    report = check_positive_learning_slope(noisy)
    paths = plot_slope_curve(noisy, report=report, out_dir=tmp_path / "new")
    assert [path.name for path in paths] == ["run0123.png", "run0123.json"]
    assert all(path.is_absolute() for path in paths)
    pixels, content = read_plot(paths)
    assert pixels.shape == (540, 960, 3)  # 4.5 in and 8 in at 120 dots per inch
    accent = (pixels == [0xC2, 0x41, 0x0C]).all(axis=2)
    assert accent.any(axis=0).mean() > 0.5  # the trend line spans most of the width
    rows, columns = np.nonzero(accent)
    assert np.polyfit(columns, rows, 1)[0] < -0.2  # and rises; rows are counted from the top
    assert content["run_id"] == "run0123"
    assert content["per_episode_ego_rewards"] == noisy.per_episode_ego_rewards
    assert content["report"]["status"] == "passed"
    assert content["report"]["slope"] == report.slope


@pytest.mark.parametrize("values", [[], range(50)])
def test_reward_plot_of_any_curve_is_written(tmp_path, values):
    report = assert_non_decreasing_window(curve(values))
    assert isinstance(report, GuaranteeReport)
    pixels, content = read_plot(plot_reward_curve(curve(values), report=report, out_dir=tmp_path))
    has_mean_line = (pixels == [0xC2, 0x41, 0x0C]).all(axis=2).any()
    assert has_mean_line == (len(values) > 0)
    assert content["report"]["window"] == 10


def test_old_name_of_the_slope_test_warns_and_returns_the_same_report():
    flat = curve([1.0, 2.0] * 20)
    with pytest.warns(DeprecationWarning, match="call check_positive_learning_slope"):
        report = assert_positive_learning_slope(flat, alpha=0.01)
    assert report == check_positive_learning_slope(flat, alpha=0.01)
    assert report.status is CheckStatus.FAILED
