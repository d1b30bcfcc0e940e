"""Waiting times and version lags in classes that grow with the value.

Times:  two classes per doubling from 1.024 us, the last begins at about 52 minutes.
Lags:   one class per value up to 15, then four per doubling.
Error:  a quantile lies in the class of the true one, so times are within a factor 1.42.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from cadenza.stream.layout import HISTOGRAM_CLASSES

_Ints = NDArray[np.int64]
_Floats = NDArray[np.float64]

#: Smallest waiting time with a class of its own, ns.
_FIRST_NS: Final = 1024.0
#: Lags below it have a class each.
_EXACT_LAGS: Final = 16

#: Lower edges of the classes, and the upper edge of the last.
TIME_EDGES_NS: Final[_Floats] = _FIRST_NS * 2.0 ** (np.arange(HISTOGRAM_CLASSES + 1) / 2)
LAG_EDGES: Final[_Floats] = np.concatenate(
    (
        np.arange(_EXACT_LAGS, dtype=np.float64),
        _EXACT_LAGS * 2.0 ** (np.arange(HISTOGRAM_CLASSES - _EXACT_LAGS + 1) / 4),
    )
)
#: Those between two classes; a whole number is at least an edge if it is at least the next integer.
_INNER_NS, _INNER_LAGS = (np.ceil(e[1:-1]).astype(np.int64) for e in (TIME_EDGES_NS, LAG_EDGES))


def time_classes(ages_ns: _Ints) -> _Ints:
    """Return how many of ``ages_ns`` fall into each class, shape (HISTOGRAM_CLASSES,)."""
    return _counts(ages_ns, _INNER_NS)


def lag_classes(lags: _Ints) -> _Ints:
    """Return how many of ``lags`` fall into each class, shape (HISTOGRAM_CLASSES,)."""
    return _counts(lags, _INNER_LAGS)


def time_quantile_ns(classes: _Ints, q: float) -> float:
    """Return the ``q`` quantile of waiting times, ns; 0 without any."""
    return _quantile(classes, TIME_EDGES_NS, q)


def lag_quantile(classes: _Ints, q: float) -> int:
    """Return the ``q`` quantile of lags, exact below 16; 0 without any."""
    return max(int(np.ceil(_quantile(classes, LAG_EDGES, q))) - 1, 0)


def _counts(values: _Ints, inner: _Ints) -> _Ints:
    return np.bincount(inner.searchsorted(values, side="right"), minlength=HISTOGRAM_CLASSES)


def _quantile(classes: _Ints, edges: _Floats, q: float) -> float:
    """Return the quantile, taking the values of a class as spread evenly over it."""
    sums: _Ints = np.cumsum(classes)
    if not sums[-1]:
        return 0.0
    wanted = q * sums[-1]
    index = int(np.count_nonzero(sums < wanted))
    share = (wanted - (sums[index] - classes[index])) / classes[index]
    return float(edges[index] + share * (edges[index + 1] - edges[index]))
