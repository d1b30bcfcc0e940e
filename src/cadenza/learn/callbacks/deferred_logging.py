"""Logging from code that `torch.compile` traces: calls are noted there, and done afterwards.

Stores of logs change from call to call, and what is traced must not depend on them.
"""

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import Any

import torch
from numpy.typing import NDArray

from cadenza.learn.callbacks.logging_mixin import LoggingMixin, Scalar


class DeferredLogging(LoggingMixin):
    """A `LoggingMixin` whose calls can wait, in their order, until a block has ended."""

    #: Method, key and value of the calls that wait; None: calls are done at once.
    _waiting: list[tuple[str, str, Any]] | None = None

    @contextmanager
    def logs_deferred(self) -> Generator[None]:
        """Do the log calls of the block after it; none of them if it raises.

        Raises:
            InputError: A value does not fit its call.
        """
        waiting: list[tuple[str, str, Any]] = []
        self._waiting = waiting
        try:
            yield
        finally:
            self._waiting = None
        for method, key, value in waiting:
            getattr(super(), method)(key, value)

    def log_scalar(self, key: str, value: Scalar) -> None:
        """As in `LoggingMixin`, later if calls wait."""
        if self._waiting is None:
            super().log_scalar(key, value)
        else:
            self._waiting.append(("log_scalar", key, _copy(value)))

    def log_mean(self, key: str, values: torch.Tensor) -> None:
        """As in `LoggingMixin`, later if calls wait."""
        if self._waiting is None:
            super().log_mean(key, values)
        else:
            self._waiting.append(("log_mean", key, values.detach()))

    def log_windowed_scalar(self, key: str, value: Scalar | Iterable[Scalar]) -> None:
        """As in `LoggingMixin`, later if calls wait."""
        if self._waiting is None:
            super().log_windowed_scalar(key, value)
        else:
            self._waiting.append(("log_windowed_scalar", key, _copy(value)))

    def log_image(self, key: str, value: torch.Tensor) -> None:
        """As in `LoggingMixin`, later if calls wait."""
        if self._waiting is None:
            super().log_image(key, value)
        else:
            self._waiting.append(("log_image", key, _copy(value)))

    def log_video(self, key: str, value: tuple[NDArray[Any], int]) -> None:
        """As in `LoggingMixin`, later if calls wait."""
        if self._waiting is None:
            super().log_video(key, value)
        else:
            self._waiting.append(("log_video", key, value))

    def log_histogram(self, key: str, value: Scalar | Iterable[Scalar]) -> None:
        """As in `LoggingMixin`, later if calls wait."""
        if self._waiting is None:
            super().log_histogram(key, value)
        else:
            self._waiting.append(("log_histogram", key, _copy(value)))


def _copy(value: Any) -> Any:
    """Return a tensor's values as they are now, other values as they are."""
    return value.detach().clone() if isinstance(value, torch.Tensor) else value
