"""Numbers as a reader wants them: few digits, honest ends, no negative zero."""

from typing import Final

from cadenza.evaluation.statistics.estimate import Estimate

#: Keeps a number and its unit on one line.
NBSP: Final = "\u00a0"

#: Shown where a statistic is undefined or was not recorded.
MISSING: Final = "–"


def percent(rate: float | None, *, digits: int = 1) -> str:
    """Return ``0.975`` as ``"97.5 %"``.

    A rate that is not exactly 0 or 1 never prints as 0 % or 100 %: it keeps a sign of the rest.
    """
    return MISSING if rate is None else f"{_percentage(rate, digits)}{NBSP}%"


def percent_interval(estimate: Estimate, *, digits: int = 1) -> str:
    """Return the bounds of a rate as ``"[94.2, 99.2]"``."""
    if estimate.low is None or estimate.high is None:
        return MISSING
    return f"[{_percentage(estimate.low, digits)}, {_percentage(estimate.high, digits)}]"


def points(difference: float | None, *, digits: int = 1) -> str:
    """Return a difference of rates as signed percentage points, ``"+3.5"``."""
    return MISSING if difference is None else signed(100.0 * difference, digits=digits)


def points_interval(estimate: Estimate, *, digits: int = 1) -> str:
    """Return the bounds of a difference of rates as ``"[+1.2, +5.8]"``."""
    return f"[{points(estimate.low, digits=digits)}, {points(estimate.high, digits=digits)}]"


def signed(value: float, *, digits: int = 1) -> str:
    """Return ``value`` with its sign; zero has none, minus is the typographic one."""
    text = f"{value:+.{digits}f}"
    if float(text) == 0.0:
        return f"{0.0:.{digits}f}"
    return text.replace("-", "−")


def number(value: float | None, *, digits: int = 2, unit: str = "") -> str:
    """Return ``value`` with ``digits`` decimals and its unit."""
    if value is None:
        return MISSING
    text = f"{value:.{digits}f}"
    text = text.lstrip("-") if float(text) == 0.0 else text.replace("-", "−")
    return f"{text}{NBSP}{unit}" if unit else text


def number_interval(estimate: Estimate, *, digits: int = 2) -> str:
    """Return the bounds of a mean as ``"[1.20, 1.48]"``."""
    if estimate.low is None or estimate.high is None:
        return MISSING
    return f"[{number(estimate.low, digits=digits)}, {number(estimate.high, digits=digits)}]"


def count(value: int | None) -> str:
    """Return ``12345`` as ``"12 345"``, with spaces that do not break."""
    return MISSING if value is None else f"{value:,}".replace(",", "\u202f")


def plural(value: int, noun: str) -> str:
    """Return ``"1 episode"`` or ``"12 episodes"``."""
    return f"{count(value)}{NBSP}{noun}" + ("" if value == 1 else "s")


def _percentage(rate: float, digits: int) -> str:
    """Return ``rate`` in percent without the sign; 99.97 stays below 100."""
    text = f"{100.0 * rate:.{digits}f}"
    step = 10.0**-digits
    if rate > 0.0 and float(text) == 0.0:
        return f"<{step:.{digits}f}"
    if rate < 1.0 and float(text) == 100.0:
        return f">{100.0 - step:.{digits}f}"
    return text
