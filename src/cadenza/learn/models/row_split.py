"""Lasting random choices per transition, made from the transition itself.

A replay loader hands out the same transition again and again, in other batches and places. A choice
that must stay with a transition (is it held out? how often does it occur in the resampled data set
of ensemble member e?) is therefore drawn from a hash of its content: equal rows get equal draws in
every batch, on every machine, after every resume, with nothing to store.

Hash:    h(row) = mix(sum_j bits(row_j) * c_j mod 2^64); ``mix`` and the odd constants ``c_j`` are
         SplitMix64 (Steele, Lea, Flood, OOPSLA 2014, fig. 16).
Axes:    B = rows, E = ensemble members.
Limits:  rows that are equal in every bit share their draws; not a cryptographic hash.
"""

import math
from functools import cache
from typing import Final

import torch
from torch import Tensor

from cadenza.core.errors import InputError

_WORD: Final = 1 << 64
_GOLDEN: Final = 0x9E3779B97F4A7C15
_MIX_1: Final = 0xBF58476D1CE4E5B9
_MIX_2: Final = 0x94D049BB133111EB
#: The upper 53 bits of a word make a float64 in [0, 1).
_MANTISSA_BITS: Final = 53
#: Poisson(1) exceeds this with probability 1e-7.
_LARGEST_WEIGHT: Final = 9


def row_keys(*columns: Tensor) -> Tensor:
    """Return one 64-bit key per row, equal for equal rows.

    Args:
        columns: Arrays of shape (B, ...), read as float32; together they are the row.

    Returns:
        Shape (B,), int64.

    Raises:
        InputError: No column, or columns with different numbers of rows.
    """
    if not columns or any(c.ndim < 1 or c.shape[0] != columns[0].shape[0] for c in columns):
        raise InputError(
            "row_keys: expected arrays with one number of rows, got shapes "
            f"{[tuple(c.shape) for c in columns]}."
        )
    count = columns[0].shape[0]
    row = torch.cat([c.detach().to(torch.float32).reshape(count, -1) for c in columns], dim=1)
    bits = (row + 0.0).contiguous().view(torch.int32).to(torch.int64)  # + 0.0: -0 equals 0
    constants = torch.tensor(_odd_constants(row.shape[1]), device=row.device)
    return _mix((bits * constants).sum(dim=1))


def uniform_draws(keys: Tensor, *, stream: int) -> Tensor:
    """Return a number in [0, 1) per key, independent between streams.

    Args:
        keys: Shape (B,), int64, from `row_keys`.
        stream: Which draw of the row, any integer.

    Returns:
        Shape (B,), float64.
    """
    word = _mix(keys + _signed(_splitmix(stream)))
    return _shift_right(word, 64 - _MANTISSA_BITS).to(torch.float64) / (1 << _MANTISSA_BITS)


def holdout_mask(keys: Tensor, *, fraction: float, seed: int) -> Tensor:
    """Return which rows are held out of training, shape (B,), bool."""
    return uniform_draws(keys, stream=_stream(seed, 0)) < fraction


def bootstrap_weights(keys: Tensor, *, members: int, seed: int) -> Tensor:
    """Return how often each row occurs in each member's resampled data set.

    A row occurs Binomial(n, 1/n) times in a bootstrap sample of n rows: Poisson(1) for large n.

    Source: online bagging, Oza and Russell, AISTATS 2001.

    Args:
        keys: Shape (B,), int64, from `row_keys`.
        members: E.
        seed: Another seed gives other data sets.

    Returns:
        Shape (E, B), float32, whole numbers >= 0.
    """
    thresholds = torch.tensor(_poisson_thresholds(), dtype=torch.float64, device=keys.device)
    draws = torch.stack(
        [uniform_draws(keys, stream=_stream(seed, 1 + member)) for member in range(members)]
    )
    return torch.bucketize(draws, thresholds, right=True).to(torch.float32)


@cache
def _poisson_thresholds() -> tuple[float, ...]:
    """Return P(N <= k) for k = 0, 1, ... and N ~ Poisson(1)."""
    terms = [math.exp(-1.0) / math.factorial(k) for k in range(_LARGEST_WEIGHT)]
    return tuple(math.fsum(terms[: k + 1]) for k in range(_LARGEST_WEIGHT))


@cache
def _odd_constants(count: int) -> tuple[int, ...]:
    """Return one odd multiplier per column, as signed 64-bit integers."""
    return tuple(_signed(_splitmix(index) | 1) for index in range(count))


def _stream(seed: int, index: int) -> int:
    """Return the stream number of draw ``index`` under ``seed``."""
    return (seed << 16) + index


def _splitmix(index: int) -> int:
    """Return output ``index`` of SplitMix64 seeded with 0, in [0, 2^64)."""
    z = ((index + 1) * _GOLDEN) % _WORD
    z = ((z ^ (z >> 30)) * _MIX_1) % _WORD
    z = ((z ^ (z >> 27)) * _MIX_2) % _WORD
    return z ^ (z >> 31)


def _signed(word: int) -> int:
    """Return the 64-bit ``word`` as torch's int64 reads it."""
    return word - _WORD if word >= _WORD // 2 else word


def _shift_right(words: Tensor, bits: int) -> Tensor:
    """Shift int64 words right with zeros coming in; torch repeats the sign."""
    return (words >> bits) & ((1 << (64 - bits)) - 1)


def _mix(words: Tensor) -> Tensor:
    """Return SplitMix64's finaliser of ``words``, modulo 2^64."""
    words = words + _signed(_GOLDEN)
    words = (words ^ _shift_right(words, 30)) * _signed(_MIX_1)
    words = (words ^ _shift_right(words, 27)) * _signed(_MIX_2)
    return words ^ _shift_right(words, 31)
