"""Loggers for TensorBoard, for the terminal, for a file of JSON lines, and of the process itself.

Keys:     ``group/name`` becomes ``group_bp_step/name`` for step-indexed logs; a window length is
          dropped: ``windowed[50]:episode/reward`` is written as ``episode/reward``.
JSON:     a line has ``bp_step``, ``bp_samples``, ``scalars`` {key: number}, ``histograms`` {key:
          {mean, std, min, max, count, edges, counts}}. Numbers that are not finite are null, and
          ``non_finite`` names them.
Threads:  collectors log while loggers read, so everything is copied before it is looked at.
"""

import logging
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from cadenza.core.errors import NotReadyError
from cadenza.core.extras import load_extra
from cadenza.core.log_sinks import JsonlSink
from cadenza.core.strict_json import strict_event
from cadenza.learn.callback import Callback
from cadenza.learn.callbacks.logging_mixin import LoggingMixin, without_window
from cadenza.learn.loaded_state import require_parts

_logger = logging.getLogger(__name__)

#: Bins of a written histogram.
_BINS: Final = 20
_BYTES_PER_MIB: Final = 2**20
#: Steps between two measurements of the process.
_CYCLE: Final = 1_000


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
            given = values.cpu().double() if isinstance(values, torch.Tensor) else list(values)
            numbers = np.asarray(given, dtype=np.float64).reshape(-1)
            numbers = numbers[np.isfinite(numbers)]
            if numbers.size:
                yield without_window(key), numbers


def image_values(loggables: Iterable[LoggingMixin]) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield every image, (height, width, channels)."""
    for loggable in loggables:
        for key, image in list(loggable.image_logs.items()):
            yield key, np.asarray(image.cpu())


def video_values(loggables: Iterable[LoggingMixin]) -> Iterator[tuple[str, NDArray[Any], int]]:
    """Yield every video and its frames per second."""
    for loggable in loggables:
        for key, (frames, frames_per_second) in list(loggable.video_logs.items()):
            yield key, frames, frames_per_second


class PullingLogger(Callback):
    """Pulls what objects have logged, every ``log_interval`` steps."""

    def __init__(self, loggables: Sequence[LoggingMixin], log_interval: int) -> None:
        """Choose whose logs are written, and how often in steps."""
        super().__init__(cycle=log_interval)
        self._loggables = loggables
        self._start: tuple[float, int, int] | None = None

    def begin_training(self, bp_step: int, bp_samples: int) -> None:
        """Start the clock."""
        self._start = (time.monotonic(), bp_step, bp_samples)

    def rates(self, bp_step: int, bp_samples: int) -> dict[str, float]:
        """Return samples and steps per second since training began; empty if no time has passed."""
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


def write_events(
    writer: Any, loggables: Sequence[LoggingMixin], x: int, suffix: str | None = None
) -> None:
    """Write everything that is kept, at the step ``x``, to a `SummaryWriter`; see `with_suffix`."""
    for key, value in (*last_scalars(loggables), *window_values(loggables)):
        writer.add_scalar(with_suffix(key, suffix), value, x)
    for key, image in image_values(loggables):
        writer.add_image(with_suffix(key, suffix), image, x, dataformats="HWC")
    for key, frames, rate in video_values(loggables):
        writer.add_video(with_suffix(key, suffix), frames, x, fps=rate)
    for key, values in histogram_values(loggables):
        writer.add_histogram(with_suffix(key, suffix), values, x)


class TensorboardLogger(PullingLogger):
    """Writes what objects log to TensorBoard, every ``log_interval`` steps."""

    def __init__(
        self,
        loggables: Sequence[LoggingMixin],
        writer: Any,
        log_interval: int,
        log_by_samples: bool = False,
    ) -> None:
        """Choose a `SummaryWriter`, and whether the x axis counts samples instead of steps."""
        super().__init__(loggables, log_interval)
        self._writer = writer
        self._by_samples = log_by_samples

    def end_cycle(self, bp_step: int, bp_samples: int) -> None:
        """Write everything."""
        suffix, x = ("bp_samples", bp_samples) if self._by_samples else ("bp_step", bp_step)
        write_events(self._writer, self._loggables, x, suffix)
        for key, value in self.rates(bp_step, bp_samples).items():
            self._writer.add_scalar(key, value, x)
        self._writer.flush()


class TerminalLogger(PullingLogger):
    """Writes what objects log to the Python log, at INFO, every ``log_interval`` steps."""

    def __init__(self, callbacks: Sequence[LoggingMixin], log_interval: int) -> None:
        """Choose whose logs are written, and how often in steps."""
        super().__init__(callbacks, log_interval)

    def log_scalars(self, step: int, suffix: str | None = None) -> None:
        """Write one line per scalar: ``key@step:<tab>value``; see `with_suffix`."""
        for key, value in last_scalars(self._loggables):
            _logger.info("%s@%s:\t%.4f", with_suffix(key, suffix), step, value)

    def end_cycle(self, bp_step: int) -> None:
        """Write scalars, then means of windows, then a summary of each histogram."""
        self.log_scalars(bp_step)
        for key, value in window_values(self._loggables):
            _logger.info("%s@%s:\t%.4f", key, bp_step, value)
        for key, values in histogram_values(self._loggables):
            what = "mean %.4f, std %.4f, min %.4f, max %.4f, n %d"
            moments = (values.mean(), values.std(), values.min(), values.max(), values.size)
            _logger.info(f"%s@%s:\t{what}", key, bp_step, *moments)


class JsonlLogger(PullingLogger):
    """Appends what objects log to a JSONL file, every ``log_interval`` steps.

    As a restoree of a checkpoint it cuts, after a resume, the lines that were written behind the
    checkpoint, so the file is that of an unbroken run. A new run moves an old file aside.
    """

    def __init__(
        self, loggables: Sequence[LoggingMixin], path: str | Path, log_interval: int
    ) -> None:
        """Choose whose logs are written, where, and how often in steps."""
        super().__init__(loggables, log_interval)
        self._path = Path(path)
        self._sink: JsonlSink | None = None
        self._offset: int | None = None

    def begin_training(self, bp_step: int, bp_samples: int) -> None:
        """Open the file.

        Raises:
            StorageError: The file system refused, another process writes the file, or it is shorter
                than when the checkpoint was made.
        """
        super().begin_training(bp_step, bp_samples)
        self._sink = JsonlSink(self._path, resume_offset=self._offset)

    def end_cycle(self, bp_step: int, bp_samples: int) -> None:
        """Append one line.

        Raises:
            NotReadyError: `begin_training` has not opened the file.
            StorageError: The file system refused.
        """
        if self._sink is None:
            raise NotReadyError("JsonlLogger: expected begin_training before end_cycle; call it.")
        scalars = {
            **dict(last_scalars(self._loggables)),
            **dict(window_values(self._loggables)),
            **self.rates(bp_step, bp_samples),
        }
        histograms = {key: _summary(values) for key, values in histogram_values(self._loggables)}
        line = {"bp_step": bp_step, "bp_samples": bp_samples, "scalars": scalars}
        self._sink.write(strict_event({**line, "histograms": histograms}))

    def end_training(self) -> None:
        """Make the file durable and close it."""
        if self._sink is not None:
            self._offset = self._sink.offset()
            self._sink.close()
            self._sink = None

    def state_dict(self) -> dict[str, Any]:
        """Return the length of the file, after making it durable."""
        return {"offset": self._offset if self._sink is None else self._sink.offset()}

    def _load_rest(self, state: Mapping[str, Any]) -> None:
        """Take over the length; the file is cut when training begins."""
        require_parts(self.name, state, ("offset",))
        self._offset = state["offset"]


def _summary(values: NDArray[Any]) -> dict[str, Any]:
    """Return the moments and the counted bins of finite values."""
    moments = {name: getattr(values, name)() for name in ("mean", "std", "min", "max")}
    counts, edges = np.histogram(values, bins=_BINS)
    return {"count": values.size, **moments, "edges": edges, "counts": counts}


class SystemLogger(LoggingMixin, Callback):
    """Logs resident memory (MiB), its growth per step, and processor load (percent of one core)."""

    def __init__(self) -> None:
        super().__init__(cycle=_CYCLE)
        self._process = load_extra("psutil").Process()
        self._last: tuple[int, float] | None = None

    def end_cycle(self, bp_step: int) -> None:
        """Measure."""
        used_mib = self._process.memory_info().rss / _BYTES_PER_MIB
        self.log_scalar("system/ram_usage_mb", used_mib)
        if self._last is not None and bp_step > self._last[0]:
            step, before_mib = self._last
            growth = (used_mib - before_mib) / (bp_step - step)
            self.log_scalar("system/ram_usage_growth_mb_step", growth)
        self._last = (bp_step, used_mib)
        # The load since the last call; the first call has nothing to compare with and gives 0.
        self.log_scalar("system/cpu_load", self._process.cpu_percent())
