"""What loggers read from objects with a `LoggingMixin`, in the form in which they write it.

Keys:  ``group/name`` becomes ``group_bp_step/name`` for step-indexed logs; a window length is
       dropped: ``windowed[50]:episode/reward`` is written as ``episode/reward``.
Threads:  collectors log while loggers read, so everything is copied before it is looked at.
"""

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from cadenza.learn.callbacks.logging_mixin import LoggingMixin, without_window


def with_suffix(key: str, suffix: str | None) -> str:
    """Return ``key`` with ``_suffix`` behind its first component: ``a/b`` -> ``a_suffix/b``."""
    if suffix is None:
        return key
    first, slash, rest = key.partition("/")
    return f"{first}_{suffix}{slash}{rest}"


def last_scalars(loggables: Iterable[LoggingMixin]) -> Iterator[tuple[str, float]]:
    """Yield key and last value of every scalar."""
    for loggable in loggables:
        for key in list(loggable.scalar_logs):
            yield key, loggable.scalar_logs[key]


def window_values(loggables: Iterable[LoggingMixin]) -> Iterator[tuple[str, float]]:
    """Yield the mean of every window that is not empty, and its ``/cumulative`` sum."""
    for loggable in loggables:
        for key, window in list(loggable.windowed_scalar.items()):
            if values := list(window):
                yield without_window(key), math.fsum(values) / len(values)
        for key, total in list(loggable.windowed_scalar_cumulative.items()):
            yield f"{without_window(key)}/cumulative", total


def histogram_values(loggables: Iterable[LoggingMixin]) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield the finite values of every histogram that has any, as one axis of float64."""
    for loggable in loggables:
        for key, values in list(loggable.hist_logs.items()):
            numbers = _flat(values)
            numbers = numbers[np.isfinite(numbers)]
            if numbers.size:
                yield without_window(key), numbers


def image_values(loggables: Iterable[LoggingMixin]) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield every image, (height, width, channels)."""
    for loggable in loggables:
        for key, image in list(loggable.image_logs.items()):
            yield key, cast("NDArray[Any]", cast("Any", image.cpu()).numpy())


def video_values(loggables: Iterable[LoggingMixin]) -> Iterator[tuple[str, NDArray[Any], int]]:
    """Yield every video and its frames per second."""
    for loggable in loggables:
        for key, (frames, frames_per_second) in list(loggable.video_logs.items()):
            yield key, frames, frames_per_second


def _flat(values: torch.Tensor | Sequence[float] | Iterable[float]) -> NDArray[np.float64]:
    if isinstance(values, torch.Tensor):
        return np.asarray(cast("Any", values.cpu().double().reshape(-1)).numpy(), dtype=np.float64)
    return np.asarray(list(values), dtype=np.float64)


class Throughput:
    """Steps and samples per second since training began in this process."""

    def __init__(self) -> None:
        self._start: tuple[float, int, int] | None = None

    def begin(self, bp_step: int, bp_samples: int) -> None:
        """Start the clock at these counts."""
        self._start = (time.monotonic(), bp_step, bp_samples)

    def rates(self, bp_step: int, bp_samples: int) -> dict[str, float]:
        """Return samples and steps per second; empty before `begin` or while no time has passed."""
        if self._start is None:
            return {}
        start, first_step, first_samples = self._start
        elapsed_s = time.monotonic() - start
        if elapsed_s <= 0.0:
            return {}
        return {
            "performance/bp_samples_per_sec": (bp_samples - first_samples) / elapsed_s,
            "performance/bp_steps_per_sec": (bp_step - first_step) / elapsed_s,
        }
