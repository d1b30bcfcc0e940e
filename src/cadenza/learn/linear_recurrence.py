"""Discounted sums from the end of a rollout to its start, for many environments at once.

Equation:  x_t = b_t + c_t x_{t+1},   x past the end = 0
Scan:      after round k, x_t holds the terms of 2^k steps and p_t the product of their c:
           x_t += p_t x_{t + 2^k},   p_t *= p_{t + 2^k}
Source:    W. D. Hillis and G. L. Steele, Data parallel algorithms, CACM 29(12), 1986.
Axes:      T = step, N = column.
Limits:    |c| <= 1: products then never grow, and nothing is divided by them. The two ways round
           differently, 1e-15 of the largest sum; equal inputs give equal bytes in each.

Milliseconds for float64, one core, medians (scan / one operation per step):

    N, T:         32               128              512              2048
    1      0.009 / 0.040    0.013 / 0.162    0.028 / 0.685    0.034 / 3.00
    16     0.011 / 0.026    0.021 / 0.105    0.054 / 0.445    0.51  / 1.82
    64     0.015 / 0.026    0.041 / 0.105    0.46  / 0.43     1.9   / 2.1
    256    0.029 / 0.031    0.13  / 0.12     0.90  / 0.64     13    / 4.1
    4096   0.45  / 0.09     3.0   / 0.49     44    / 4.1      235   / 22

Wide rows fill an operation on their own, and log2(T) passes over a table that is larger than the
cache cost more than they save.
"""

from typing import Final

from cadenza.core.arrays import FloatArray

#: Columns up to which the scan is the faster way, or as fast, at every T measured above.
SCAN_MAX_COLUMNS: Final = 64


def reverse_linear_recurrence(terms: FloatArray, factors: FloatArray) -> FloatArray:
    """Return x with x_t = b_t + c_t x_{t+1}, shape (T, N) float64.

    Args:
        terms: b, shape (T, N) float64; unchanged.
        factors: c, shape (T, N) float64, in [-1, 1]; a 0 cuts off what follows. The last row
            multiplies nothing.
    """
    if terms.shape[1] <= SCAN_MAX_COLUMNS:
        return scan_backwards(terms, factors)
    return step_backwards(terms, factors)


def scan_backwards(terms: FloatArray, factors: FloatArray) -> FloatArray:
    """Return what `reverse_linear_recurrence` returns, in ceil(log2 T) passes over all steps."""
    sums, products = terms.copy(), factors.copy()
    steps, reach = len(terms), 1
    while reach < steps:
        sums[:-reach] += products[:-reach] * sums[reach:]
        products[:-reach] *= products[reach:]
        reach *= 2
    return sums


def step_backwards(terms: FloatArray, factors: FloatArray) -> FloatArray:
    """Return what `reverse_linear_recurrence` returns, one row after another."""
    sums = terms.copy()
    for t in range(len(terms) - 2, -1, -1):
        sums[t] += factors[t] * sums[t + 1]
    return sums
