"""Logging from code that `torch.compile` traces: calls are noted there, and done afterwards.

Stores of logs change from call to call, and what is traced must not depend on them.
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar, cast

import torch

from cadenza.learn.callbacks.logging_mixin import LoggingMixin

Method = TypeVar("Method", bound=Callable[..., None])


def _deferrable(method: Method) -> Method:
    """Return a method of `LoggingMixin` that notes its call while calls wait."""

    @wraps(method)
    def log(self: "DeferredLogging", key: str, value: Any) -> None:
        if self._waiting is None:  # pyright: ignore[reportPrivateUsage] -- of the class below
            method(self, key, value)
            return
        if isinstance(value, torch.Tensor):  # as it is now: the traced code may change it
            value = value.detach().clone()
        self._waiting.append((method, key, value))  # pyright: ignore[reportPrivateUsage]

    return cast("Method", log)


class DeferredLogging(LoggingMixin):
    """A `LoggingMixin` whose calls can wait, in their order, until a block has ended."""

    #: Method, key and value of the calls that wait; None: calls are done at once.
    _waiting: list[tuple[Callable[..., None], str, Any]] | None = None

    @contextmanager
    def logs_deferred(self) -> Generator[None]:
        """Do the log calls of the block after it; none of them if it raises.

        Raises:
            InputError: A value does not fit its call.
        """
        waiting: list[tuple[Callable[..., None], str, Any]] = []
        self._waiting = waiting
        try:
            yield
        finally:
            self._waiting = None
        for method, key, value in waiting:
            method(self, key, value)

    log_scalar = _deferrable(LoggingMixin.log_scalar)
    log_mean = _deferrable(LoggingMixin.log_mean)
    log_windowed_scalar = _deferrable(LoggingMixin.log_windowed_scalar)
    log_image = _deferrable(LoggingMixin.log_image)
    log_video = _deferrable(LoggingMixin.log_video)
    log_histogram = _deferrable(LoggingMixin.log_histogram)
