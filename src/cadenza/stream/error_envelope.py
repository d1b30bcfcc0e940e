"""Errors of producers as bounded JSON in shared memory.

Nothing is unpickled: readers get type, message and traceback as text, so an exception that cannot
be serialised is reported like any other.
"""

import json
import traceback
from dataclasses import dataclass
from typing import Any, Final

from cadenza.core.errors import ConfigurationError, InputError, OnlineDataWorkerError
from cadenza.stream.layout import ERROR_BYTES
from cadenza.stream.slots import SlotStore

#: Characters of message and traceback, tried in turn until the envelope fits.
_LENGTHS: Final = ((4096, 4096), (1024, 2048), (256, 512), (64, 128))
_OMITTED: Final = " ... "
#: Errors that a new start would only repeat.
_ALWAYS_FINAL: Final = (ConfigurationError, ImportError)
#: Errors that it would repeat as long as nothing has worked: something does not fit together.
_FINAL_AT_FIRST: Final = (InputError, TypeError, AttributeError, NameError, SyntaxError)


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorEnvelope:
    """An error of another process; a new start ends a final one the same way."""

    kind: str
    message: str
    trace: str = ""
    is_final: bool = False

    @classmethod
    def of(cls, error: BaseException, *, has_worked: bool = True) -> "ErrorEnvelope":
        """Describe ``error``, even one whose own methods fail.

        What never worked (``has_worked`` tells whether any producer published) fails the same way
        again.
        """
        final = _ALWAYS_FINAL if has_worked else (*_ALWAYS_FINAL, *_FINAL_AT_FIRST)
        return cls(
            kind=f"{type(error).__module__}.{type(error).__qualname__}",
            message=_told(error),
            trace="".join(traceback.format_tb(error.__traceback__)),
            is_final=isinstance(error, final),
        )

    def error(self, producer: int) -> OnlineDataWorkerError:
        """Return the error to raise in a process that needs the data."""
        trace = f"\n\nTraceback of the producer:\n{self.trace}" if self.trace else ""
        return OnlineDataWorkerError(
            f"producer {producer} failed with {self.kind}: {self.message}{trace}"
        )


def _told(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException as second:  # noqa: BLE001 -- code of the user's exception, of any kind
        return f"(its text could not be made: {type(second).__qualname__})"


def write_envelope(store: SlotStore, producer: int, envelope: ErrorEnvelope) -> None:
    """Put ``envelope`` into the row of ``producer``, shortened until it fits."""
    for message_length, trace_length in _LENGTHS:
        document: dict[str, Any] = {
            "type": envelope.kind[:message_length],
            "message": _shortened(envelope.message, message_length),
            "traceback": _shortened(envelope.trace, trace_length),
            "final": envelope.is_final,
        }
        data = json.dumps(document).encode("ascii")
        if len(data) <= ERROR_BYTES:
            break
    else:
        data = b""
    store.producers["error_length"][producer] = 0
    row = store.producers["error"][producer]
    row[: len(data)] = list(data)
    store.producers["error_length"][producer] = len(data)


def read_envelope(store: SlotStore, producer: int) -> ErrorEnvelope | None:
    """Return the error of ``producer``, None if it reported none."""
    length = int(store.producers["error_length"][producer])
    if not 0 < length <= ERROR_BYTES:
        return None
    try:
        document = json.loads(store.producers["error"][producer][:length].tobytes())
    except ValueError:  # killed while it wrote
        return None
    return ErrorEnvelope(
        kind=str(document["type"]),
        message=str(document["message"]),
        trace=str(document["traceback"]),
        is_final=bool(document["final"]),
    )


def clear_envelope(store: SlotStore, producer: int) -> None:
    """Forget the error of ``producer``."""
    store.producers["error_length"][producer] = 0


def _shortened(text: str, length: int) -> str:
    """Return ``text`` with its middle left out, at most ``length`` characters."""
    if len(text) <= length:
        return text
    half = (length - len(_OMITTED)) // 2
    return text[:half] + _OMITTED + text[-half:]
