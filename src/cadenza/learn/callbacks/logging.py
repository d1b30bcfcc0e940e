"""Loggers for TensorBoard and for the terminal."""

import logging
from collections.abc import Sequence
from typing import Any, Final, Protocol

from cadenza.learn.callback import Callback
from cadenza.learn.callbacks.log_reading import (
    Throughput,
    histogram_values,
    image_values,
    last_scalars,
    video_values,
    window_values,
    with_suffix,
)
from cadenza.learn.callbacks.logging_mixin import LoggingMixin

_logger = logging.getLogger(__name__)

#: Suffixes of keys, by what the x axis counts.
_STEPS: Final = "bp_step"
_SAMPLES: Final = "bp_samples"


class EventWriter(Protocol):
    """The part of ``torch.utils.tensorboard.SummaryWriter`` that logging needs."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int, /) -> Any:
        """Write a number."""
        ...

    def add_histogram(self, tag: str, values: Any, global_step: int, /) -> Any:
        """Write a histogram of numbers."""
        ...

    def add_image(self, tag: str, img_tensor: Any, global_step: int, /, *, dataformats: str) -> Any:
        """Write an image."""
        ...

    def add_video(self, tag: str, vid_tensor: Any, global_step: int, /, *, fps: int) -> Any:
        """Write a video."""
        ...

    def flush(self) -> Any:
        """Hand over what is buffered."""
        ...


class TensorboardLogger(Callback):
    """Writes what objects log to TensorBoard, every ``log_interval`` steps."""

    def __init__(
        self,
        loggables: Sequence[LoggingMixin],
        writer: EventWriter,
        log_interval: int,
        log_by_samples: bool = False,
    ) -> None:
        """Choose what is written and where.

        Args:
            loggables: Whose logs are written.
            writer: A ``SummaryWriter``.
            log_interval: Steps between writes.
            log_by_samples: Let the x axis count samples instead of steps.
        """
        super().__init__(cycle=log_interval)
        self._loggables = loggables
        self._writer = writer
        self._by_samples = log_by_samples
        self._throughput = Throughput()

    def begin_training(self, bp_step: int, bp_samples: int) -> None:
        """Start the clock."""
        self._throughput.begin(bp_step, bp_samples)

    def end_cycle(self, bp_step: int, bp_samples: int) -> None:
        """Write everything."""
        suffix, x = (_SAMPLES, bp_samples) if self._by_samples else (_STEPS, bp_step)
        for key, value in last_scalars(self._loggables):
            self._writer.add_scalar(with_suffix(key, suffix), value, x)
        for key, value in window_values(self._loggables):
            self._writer.add_scalar(with_suffix(key, suffix), value, x)
        for key, image in image_values(self._loggables):
            self._writer.add_image(with_suffix(key, suffix), image, x, dataformats="HWC")
        for key, frames, rate in video_values(self._loggables):
            self._writer.add_video(with_suffix(key, suffix), frames, x, fps=rate)
        for key, values in histogram_values(self._loggables):
            self._writer.add_histogram(with_suffix(key, suffix), values, x)
        for key, value in self._throughput.rates(bp_step, bp_samples).items():
            self._writer.add_scalar(key, value, x)
        self._writer.flush()


class TerminalLogger(Callback):
    """Writes what objects log to the Python log, at INFO, every ``log_interval`` steps."""

    def __init__(self, callbacks: Sequence[LoggingMixin], log_interval: int) -> None:
        """Choose whose logs are written, and how often in steps."""
        super().__init__(cycle=log_interval)
        self._loggables = callbacks

    def log_scalars(self, step: int, suffix: str | None = None) -> None:
        """Write one line per scalar: ``key@step:<tab>value``.

        Args:
            step: Number behind the key.
            suffix: Goes behind the first component of the key: ``a/b`` -> ``a_suffix/b``.
        """
        for key, value in last_scalars(self._loggables):
            _logger.info("%s@%s:\t%.4f", with_suffix(key, suffix), step, value)

    def end_cycle(self, bp_step: int) -> None:
        """Write scalars, then means of windows, then a summary of each histogram."""
        self.log_scalars(bp_step)
        for key, value in window_values(self._loggables):
            _logger.info("%s@%s:\t%.4f", key, bp_step, value)
        for key, values in histogram_values(self._loggables):
            _logger.info(
                "%s@%s:\tmean %.4f, std %.4f, min %.4f, max %.4f, n %d",
                key,
                bp_step,
                values.mean(),
                values.std(),
                values.min(),
                values.max(),
                values.size,
            )
