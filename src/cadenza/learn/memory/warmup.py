"""Waits before training until a collector in another thread has filled the memory."""

import time
from collections.abc import Callable
from typing import Final, Protocol

from cadenza.core.errors import NotReadyError
from cadenza.learn.callback import Callback
from cadenza.learn.trainer import TrainingShutdownException

#: How often the loader is asked, s.
_POLL_S: Final = 0.1
#: After all callbacks that start collecting.
_ORDER: Final = 100


class Readiness(Protocol):
    """What can be waited for: every memory loader."""

    def is_ready(self) -> bool:
        """Return whether a batch can be made."""
        ...


class PendingExports(Protocol):
    """Who answers export requests of other threads: `OnnxExporter`."""

    def process_pending_exports(self) -> None:
        """Do what other threads have asked for."""
        ...


class MemoryWarmup(Callback):
    """Blocks the start of training until a loader is ready.

    For collectors that run in a thread of their own. With a collector that runs inside the training
    loop nothing would ever arrive: give ``timeout_s`` to get an error instead of a standstill.

    Args:
        loader: Must become ready.
        exporter: Its pending exports are done while waiting, since the training loop cannot.
        shutdown_signal: Training ends when it returns true.
        timeout_s: Longest wait, s; None waits for ever.
    """

    def __init__(
        self,
        loader: Readiness,
        exporter: PendingExports | None,
        shutdown_signal: Callable[[], bool] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> None:
        super().__init__()
        self._order = _ORDER
        self._loader = loader
        self._exporter = exporter
        self._shutdown_signal = shutdown_signal
        self._timeout_s = timeout_s

    def begin_training(self) -> None:
        """Wait.

        Raises:
            TrainingShutdownException: The shutdown signal came first.
            NotReadyError: The loader is not ready after ``timeout_s``.
        """
        started = time.monotonic()
        while not self._loader.is_ready():
            if self._shutdown_signal is not None and self._shutdown_signal():
                raise TrainingShutdownException("shutdown was asked for while the memory warmed up")
            if self._timeout_s is not None and time.monotonic() - started >= self._timeout_s:
                raise NotReadyError(
                    f"MemoryWarmup: expected a ready loader within {self._timeout_s} s, got none; "
                    "check that a collector runs in its own thread and stores episodes long enough."
                )
            if self._exporter is not None:
                self._exporter.process_pending_exports()
            time.sleep(_POLL_S)
