"""Error types of the package.

Every error also derives from the built-in a caller would expect, so `except ValueError` works for
people who do not know this module. Messages say what was expected, what came and what to do.
"""

import difflib
from collections.abc import Iterable
from typing import NoReturn


class CadenzaError(Exception):
    """Base of every error this package raises on purpose."""


class _PlainKeyError(KeyError):
    """A `KeyError` that shows its message itself, not its repr."""

    def __str__(self) -> str:
        """Return the message."""
        return str(self.args[0]) if self.args else ""


class InputError(CadenzaError, ValueError):
    """An array or argument is malformed: wrong shape, not finite, out of range."""


class NonFiniteError(InputError):
    """A reward, loss or other figure is NaN or infinite."""


class GroupResetError(InputError):
    """Environments that are compared with one another do not start from the same state."""


class ConfigurationError(CadenzaError, ValueError):
    """A configuration is inconsistent, out of range or names an unknown key."""


class PreconditionError(InputError, AssertionError):
    """An argument breaks a condition that older code checked with ``assert``."""


class ConfigurationTypeError(ConfigurationError, TypeError):
    """A configuration is no mapping at all."""


class ConfigurationKeyError(ConfigurationError, _PlainKeyError):
    """A configuration lacks a key; the message names it."""


class NotReadyError(CadenzaError, RuntimeError):
    """A call came before what it needs: no reset, not enough data, nothing loaded."""


class DataPendingError(NotReadyError):
    """What a call needs is not there yet, but may come from who produces data: waiting can help."""


class StaleDataError(CadenzaError, RuntimeError):
    """Stored data that a caller asked for was replaced since, or is older than allowed."""


class OnlineDataWorkerError(CadenzaError, RuntimeError):
    """A process that produces data failed; the message tells its error and traceback."""


class UnknownNameError(CadenzaError, _PlainKeyError):
    """A registry was asked for a name it does not hold; the message lists the known ones."""


class CheckpointError(CadenzaError, RuntimeError):
    """A checkpoint is missing, incomplete, tampered with or not ours."""


class CheckpointNotFoundError(CheckpointError, FileNotFoundError):
    """No checkpoint is where one was expected."""


class CheckpointKeyError(CheckpointError, _PlainKeyError):
    """A loaded state lacks a part that an object needs; the message names it."""


class IntegrityError(CadenzaError, RuntimeError):
    """Stored data does not match its recorded checksum."""


class PreregistrationError(CadenzaError, RuntimeError):
    """A registered protocol is not what its git tag locks, or a run is not the registered one."""


class StorageError(CadenzaError, OSError):
    """The file system refused a write: disk full, read-only, path outside its root."""


class MissingExtraError(CadenzaError, ImportError):
    """An optional dependency is absent; the message names the extra that installs it."""


class DeviceUnavailableError(CadenzaError, RuntimeError):
    """The compute device that was asked for is not there."""


class SinkError(CadenzaError, RuntimeError):
    """A copy of the run log could not be written; the run itself goes on."""


def refuse(
    error: type[Exception], name: str, *, expected: str, got: object, do: str = ""
) -> NoReturn:
    """Raise ``error`` with "name: expected ..., got ...; do." as its message.

    ``got`` is told as a message words it if it is a text (give a value that is one as its `repr`),
    on one line and cut after 80 characters if it is another value.
    """
    if not isinstance(got, str):
        text = " ".join(repr(got).split())
        got = text if len(text) <= 80 else f"{text[:77]}..."
    raise error(f"{name}: expected {expected}, got {got}{do and '; '}{do}.")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return " (did you mean 'x'?)" with the known name nearest to ``name``; nothing if none is."""
    near = nearest_name(name, known)
    return f" (did you mean {near!r}?)" if near else ""


def nearest_name(name: str, known: Iterable[str]) -> str | None:
    """Return the known name nearest to ``name``, its letters' case and outer spaces aside.

    None if none is near, or if ``name`` itself is known: it was refused for another reason.
    """
    names = list(known)
    plain = {one.strip().casefold(): one for one in names}
    near = difflib.get_close_matches(name.strip().casefold(), plain, n=1)
    return plain[near[0]] if near and name not in names else None
