"""Requests for an export that one thread makes and another serves."""

from collections.abc import Mapping
from concurrent.futures import Future, wait
from types import TracebackType
from typing import Any, Protocol

from cadenza.core.errors import CadenzaError, InputError
from cadenza.learn.export.crud_storage import StorageItem

#: Facts about one export by name; values become text.
Metadata = Mapping[str, Any]


class MetadataKeyError(InputError, TypeError):
    """A name in the metadata is no text."""


class ExportTimeoutError(CadenzaError, TimeoutError):
    """The training thread did not serve a request in time."""


class FileWriter(Protocol):
    """What serves a request: an exporter."""

    def write(self, metadata: Mapping[str, str]) -> StorageItem[Any]:
        """Write one file and return it."""
        ...


class QueuedExport:
    """One request for an export and the place where its outcome appears.

    Args:
        metadata: Facts to store in the file beside the exporter's own.
    """

    def __init__(self, metadata: Metadata | None = None) -> None:
        self.metadata: dict[str, str] = as_text(metadata or {})
        self._outcome: Future[StorageItem[Any]] = Future()

    def process(self, storage: FileWriter) -> None:
        """Run the export on ``storage`` and wake whoever waits, with the file or the exception.

        A request that nobody waits for any more is skipped.
        """
        if self._outcome.set_running_or_notify_cancel():
            with _Delivery(self._outcome):
                self._outcome.set_result(storage.write(self.metadata))

    def reject(self, error: Exception) -> None:
        """Wake whoever waits with ``error``."""
        if self._outcome.set_running_or_notify_cancel():
            self._outcome.set_exception(error)

    def block_until_complete(self, timeout_s: float | None = None) -> StorageItem[Any]:
        """Wait for the outcome.

        Args:
            timeout_s: Longest wait, s; None waits as long as it takes.

        Returns:
            The exported file.

        Raises:
            ExportTimeoutError: No outcome in time; the request is withdrawn unless it is running.
            Exception: Whatever made the export fail.
        """
        if not wait([self._outcome], timeout_s).done:
            self._outcome.cancel()
            raise ExportTimeoutError(
                f"ONNX export: expected the training thread to serve the request within "
                f"{timeout_s} s, got nothing; check that training runs and that the exporter is "
                "among the trainer's callbacks, or wait longer."
            )
        return self._outcome.result()


class _Delivery:
    """Hands what a block raises to a future; interrupts of the process go on to the caller too."""

    def __init__(self, outcome: "Future[StorageItem[Any]]") -> None:
        self._outcome = outcome

    def __enter__(self) -> None:
        """Start the block."""

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        """Deliver the exception."""
        if exc is not None:
            self._outcome.set_exception(exc)
        return isinstance(exc, Exception)


def as_text(metadata: Metadata) -> dict[str, str]:
    """Return ``metadata`` with its values as text.

    Raises:
        MetadataKeyError: A name is no text.
    """
    for key in metadata:
        if not isinstance(key, str):  # pyright: ignore[reportUnnecessaryIsInstance] -- users err
            raise MetadataKeyError(
                f"ONNX metadata: expected names of type str, got {key!r} ({type(key).__name__}); "
                "convert it with str()."
            )
    return {key: str(value) for key, value in metadata.items()}
