"""Quantiles of the three distributions that intervals need, as typed scalars.

`scipy.special` holds the functions behind `scipy.stats` without the half second that importing the
latter takes.
"""

from typing import Any

from cadenza.core.extras import load_extra


def normal_quantile(level: float) -> float:
    """Return the standard normal quantile of ``level`` in (0, 1)."""
    return float(_special().ndtri(level))


def normal_level(quantile: float) -> float:
    """Return the standard normal probability below ``quantile``."""
    return float(_special().ndtr(quantile))


def student_quantile(level: float, degrees: float) -> float:
    """Return Student's quantile of ``level`` in (0, 1) with ``degrees`` > 0 of freedom."""
    return float(_special().stdtrit(degrees, level))


def beta_quantile(level: float, a: float, b: float) -> float:
    """Return the beta quantile of ``level`` in (0, 1) for shapes ``a`` and ``b`` > 0."""
    return float(_special().betaincinv(a, b, level))


def _special() -> Any:
    """Return `scipy.special`, which not every installation has."""
    return load_extra("scipy.special")
