"""Did the run learn at all? A smoke alarm on the per-episode return, with plots.

Model:    return_k = intercept + slope * k + noise, k = 0 ... n-1; ordinary least squares.
Test:     one-sided t test of slope > 0 (n - 2 degrees of freedom).
Interval: neighbouring returns are correlated, which the t test ignores; the slope's interval uses
          the covariance of W. K. Newey and K. D. West, Econometrica 55(3), 1987, Bartlett weights,
          lag floor(4 (n/100)^(2/9)), times n / (n - 2).
Effect:   Cohen's d between the last and the first tenth of the episodes (at least ten each).
Limits:   necessary, never sufficient: a run may pass and still fail its task. Reports are returned,
          not raised; only complete episodes belong in the curve.
"""

import io
import json
import math
from dataclasses import asdict, dataclass
from enum import Enum
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from cadenza.aht.types import RewardCurve
from cadenza.core.arrays import FloatArray
from cadenza.core.deprecation import deprecated
from cadenza.core.extras import load_extra
from cadenza.core.files import atomic_write_bytes, finite_or_none
from cadenza.core.proportions import student_quantile

#: Moving-average window of the legacy check, episodes.
DEFAULT_WINDOW: Final = 10
#: Share of consecutive windows that must not fall, legacy check.
DEFAULT_THRESHOLD: Final = 0.8
#: Fewest episodes the slope test judges.
DEFAULT_MIN_EPISODES: Final = 20
#: One-sided significance level; the interval's coverage is one minus it, two-sided.
DEFAULT_ALPHA: Final = 0.05

#: The effect size compares windows of one tenth of the curve, at least this many episodes.
_MIN_EFFECT_WINDOW: Final = 10
_FIGURE_INCHES: Final = (8.0, 4.5)
_FIGURE_DPI: Final = 120


class CheckStatus(Enum):
    """Outcome of the slope test.

    ``PASSED``: positive and significant. ``FAILED``: not. ``INSUFFICIENT_DATA``: too few episodes
    to tell. ``INVALID``: the curve holds NaN or infinity.
    """

    PASSED = "passed"
    FAILED = "failed"
    INSUFFICIENT_DATA = "insufficient_data"
    INVALID = "invalid"


@dataclass(frozen=True, slots=True)
class GuaranteeReport:
    """Result of the legacy moving-window check.

    ``fraction`` of the consecutive window pairs do not fall; without a pair it is 1, which passes.
    """

    window: int
    threshold: float
    n_intervals: int
    n_nondecreasing: int
    fraction: float
    passed: bool


@dataclass(frozen=True, slots=True)
class SlopeReport:
    """Result of the slope test; what was not fitted is 0, 1 or None.

    Attributes:
        slope: Return per episode.
        p_value: One-sided, of ``slope <= 0``.
        passed: ``status is CheckStatus.PASSED``, whatever was given.
        slope_interval: Autocorrelation-robust interval of the slope, coverage ``1 - alpha``.
        effect_window: Episodes in each of the two windows of ``effect_size``.
        effect_size: Cohen's d, last window minus first; None also when both are constant.
    """

    slope: float
    intercept: float
    r_squared: float
    p_value: float
    alpha: float
    n_episodes: int
    status: CheckStatus
    passed: bool = False
    slope_interval: tuple[float, float] | None = None
    effect_window: int = 0
    first_window_mean: float | None = None
    last_window_mean: float | None = None
    effect_size: float | None = None

    def __post_init__(self) -> None:
        """Derive ``passed`` from ``status`` so that the two cannot differ."""
        object.__setattr__(self, "passed", self.status is CheckStatus.PASSED)


@deprecated(reason="call check_positive_learning_slope, which returns the same report")
def assert_positive_learning_slope(
    curve: RewardCurve,
    *,
    alpha: float = DEFAULT_ALPHA,
    min_episodes: int = DEFAULT_MIN_EPISODES,
) -> SlopeReport:
    """Return what `check_positive_learning_slope` does; despite its name it raises nothing."""
    return check_positive_learning_slope(curve, alpha=alpha, min_episodes=min_episodes)


def check_positive_learning_slope(
    curve: RewardCurve,
    *,
    alpha: float = DEFAULT_ALPHA,
    min_episodes: int = DEFAULT_MIN_EPISODES,
) -> SlopeReport:
    """Test whether the per-episode return of at least ``min_episodes`` rose."""
    rewards = np.asarray(curve.per_episode_ego_rewards, dtype=np.float64)
    n = int(rewards.size)
    if n > 0 and not np.isfinite(rewards).all():
        return SlopeReport(0.0, 0.0, 0.0, 1.0, alpha, n, CheckStatus.INVALID)
    if n < min_episodes:
        return SlopeReport(0.0, 0.0, 0.0, 1.0, alpha, n, CheckStatus.INSUFFICIENT_DATA)
    if float(rewards.std()) == 0.0:
        return SlopeReport(0.0, float(rewards[0]), 0.0, 1.0, alpha, n, CheckStatus.FAILED)
    fit: Any = load_extra("scipy.stats").linregress(np.arange(n, dtype=np.float64), rewards)
    slope, two_sided = float(fit.slope), float(fit.pvalue)
    p_value = two_sided / 2.0 if slope > 0.0 else 1.0 - two_sided / 2.0
    passed = slope > 0.0 and p_value < alpha
    window = min(max(_MIN_EFFECT_WINDOW, n // 10), n // 2)
    first, last = rewards[:window], rewards[-window:]
    return SlopeReport(
        slope=slope,
        intercept=float(fit.intercept),
        r_squared=float(fit.rvalue) ** 2,
        p_value=p_value,
        alpha=alpha,
        n_episodes=n,
        status=CheckStatus.PASSED if passed else CheckStatus.FAILED,
        slope_interval=_slope_interval(rewards, slope, float(fit.intercept), alpha),
        effect_window=window,
        first_window_mean=float(first.mean()),
        last_window_mean=float(last.mean()),
        effect_size=cohens_d(first, last),
    )


def newey_west_slope_error(rewards: FloatArray, slope: float, intercept: float) -> float:
    """Return the autocorrelation-robust standard error of a slope fitted to (n,) > 2 values."""
    n = rewards.size
    centred = np.arange(n, dtype=np.float64) - (n - 1) / 2.0
    scores = centred * (rewards - intercept - slope * np.arange(n))  # (n,)
    lags = int(4.0 * (n / 100.0) ** (2.0 / 9.0))
    total = float(scores @ scores)
    for lag in range(1, lags + 1):
        weight = 1.0 - lag / (lags + 1.0)
        total += 2.0 * weight * float(scores[lag:] @ scores[:-lag])
    return math.sqrt(max(total, 0.0) * n / (n - 2.0)) / float(centred @ centred)


def cohens_d(first: FloatArray, last: FloatArray) -> float | None:
    """Return (mean of ``last`` - mean of ``first``) / pooled standard deviation.

    None when both are constant or shorter than two, so that no deviation exists.
    """
    degrees = first.size + last.size - 2
    if degrees < 1:
        return None
    squares = float(((first - first.mean()) ** 2).sum() + ((last - last.mean()) ** 2).sum())
    if squares == 0.0:
        return None
    return float(last.mean() - first.mean()) / math.sqrt(squares / degrees)


def assert_non_decreasing_window(
    curve: RewardCurve,
    *,
    window: int = DEFAULT_WINDOW,
    threshold: float = DEFAULT_THRESHOLD,
) -> GuaranteeReport:
    """Return the share of consecutive moving means that do not fall (legacy statistic).

    On noisy returns the share sits near one half whether or not the policy improves; use
    `check_positive_learning_slope`. A curve shorter than the window, or a window <= 0, passes.
    """
    rewards = [float(value) for value in curve.per_episode_ego_rewards]
    if window <= 0 or len(rewards) <= window:
        return GuaranteeReport(window, threshold, 0, 0, 1.0, passed=True)
    means = moving_means(rewards, window)
    n_nondecreasing = sum(later >= earlier for earlier, later in pairwise(means))
    n_intervals = len(means) - 1
    fraction = n_nondecreasing / n_intervals
    return GuaranteeReport(
        window, threshold, n_intervals, n_nondecreasing, fraction, passed=fraction >= threshold
    )


def moving_means(rewards: list[float], window: int) -> list[float]:
    """Return the means of every ``window`` consecutive entries, by a running sum."""
    running = sum(rewards[:window])
    means = [running / window]
    for newest, oldest in zip(rewards[window:], rewards, strict=False):
        running += newest - oldest
        means.append(running / window)
    return means


def plot_slope_curve(
    curve: RewardCurve, *, report: SlopeReport, out_dir: Path
) -> tuple[Path, Path]:
    """Draw the curve with its regression line.

    Returns:
        Absolute paths of ``<run_id>.png`` and ``<run_id>.json`` (curve and report) in ``out_dir``.

    Raises:
        StorageError: The folder cannot be written.
    """
    line = None
    if report.status in (CheckStatus.PASSED, CheckStatus.FAILED):
        ends = np.array([0.0, max(report.n_episodes - 1, 0)])
        line = ("trend", ends, report.intercept + report.slope * ends)
    title = f"slope {report.slope:+.3g} per episode, p {report.p_value:.1e}, {report.status.value}"
    return _write_plot(curve, asdict(report), title, line, out_dir)


def plot_reward_curve(
    curve: RewardCurve, *, report: GuaranteeReport, out_dir: Path
) -> tuple[Path, Path]:
    """Draw the curve with its moving mean; arguments and files as `plot_slope_curve`."""
    rewards, line = [float(value) for value in curve.per_episode_ego_rewards], None
    if 0 < report.window <= len(rewards):
        means = np.array(moving_means(rewards, report.window))
        centres = np.arange(len(means)) + (report.window - 1) / 2.0
        line = (f"mean of {report.window}", centres, means)
    verdict = "passed" if report.passed else "failed"
    title = f"{report.fraction:.0%} of windows do not fall (need {report.threshold:.0%}), {verdict}"
    return _write_plot(curve, asdict(report), title, line, out_dir)


_ACCENT: Final = "#c2410c"
_FAINT: Final = "#94a3b8"


def _slope_interval(
    rewards: FloatArray, slope: float, intercept: float, alpha: float
) -> tuple[float, float] | None:
    """Return the two-sided interval of the slope, t quantile with n - 2 degrees of freedom."""
    if rewards.size <= 2:
        return None
    quantile = student_quantile(1.0 - alpha / 2.0, rewards.size - 2)
    half = quantile * newey_west_slope_error(rewards, slope, intercept)
    return slope - half, slope + half


def _write_plot(
    curve: RewardCurve,
    report: dict[str, Any],
    title: str,
    line: tuple[str, NDArray[Any], NDArray[Any]] | None,
    out_dir: Path,
) -> tuple[Path, Path]:
    """Write ``<run_id>.png`` and ``<run_id>.json`` and return their absolute paths."""
    figures = load_extra("matplotlib.figure")
    rewards = [float(value) for value in curve.per_episode_ego_rewards]
    figure: Any = figures.Figure(figsize=_FIGURE_INCHES, dpi=_FIGURE_DPI, layout="constrained")
    axes: Any = figure.subplots()
    axes.plot(np.arange(len(rewards)), rewards, color=_FAINT, lw=0.8, label="episode return")
    if line is not None:
        label, places, values = line
        axes.plot(places, values, color=_ACCENT, lw=2, label=label)
    axes.set(xlabel="episode", ylabel="return", title=f"run {curve.run_id}\n{title}")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", alpha=0.3)
    if rewards:
        figure.legend(frameon=False, loc="outside lower center", ncols=2)
    else:
        axes.text(0.5, 0.5, "no episodes", transform=axes.transAxes, ha="center", va="center")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    folder = out_dir.resolve()
    png, sidecar = folder / f"{curve.run_id}.png", folder / f"{curve.run_id}.json"
    content = {
        "run_id": curve.run_id,
        "per_episode_ego_rewards": [finite_or_none(value) for value in rewards],
        "report": {name: _json_value(value) for name, value in report.items()},
    }
    atomic_write_bytes(png, buffer.getvalue())
    text = json.dumps(content, sort_keys=True, indent=2, allow_nan=False)
    atomic_write_bytes(sidecar, text.encode("utf-8"))
    return png, sidecar


def _json_value(value: object) -> object:
    """Return ``value`` as strict JSON: enums as their value, NaN and infinity as null."""
    if isinstance(value, Enum):
        return value.value
    return finite_or_none(value) if isinstance(value, float) else value
