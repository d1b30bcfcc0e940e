"""Checks that a loaded state is of the kind that an object saves."""

from collections.abc import Collection, Generator, Mapping
from contextlib import contextmanager
from typing import Any

from cadenza.core.errors import CheckpointError, CheckpointKeyError


def require_parts(owner: str, state: Mapping[str, Any], parts: Collection[str]) -> None:
    """Raise unless ``state`` has every part.

    Args:
        owner: Who loads, for the message.
        state: What is loaded.
        parts: Keys it has to have.

    Raises:
        CheckpointKeyError: A part is missing.
    """
    missing = [part for part in parts if part not in state]
    if missing:
        raise CheckpointKeyError(
            f"{owner}: expected a state with {', '.join(parts)}, got {sorted(state)} without "
            f"{missing}; load what an object of the same kind saved."
        )


def require_version(owner: str, state: Mapping[str, Any], version: int) -> None:
    """Raise unless ``state`` has the layout ``version``.

    Raises:
        CheckpointError: It is of another version, or of something else.
    """
    if state.get("version") != version:
        raise CheckpointError(
            f"{owner}: expected a state of version {version}, got {state.get('version')!r}; load "
            "what an object of the same kind and version saved."
        )


@contextmanager
def complete_state(owner: str, kind: str) -> Generator[None]:
    """Load within it; what an incomplete or foreign state raises becomes one error.

    Args:
        owner: Who loads, for the message.
        kind: What the state has to be of, for the message.

    Raises:
        CheckpointError: Something was missing or of other sizes.
    """
    try:
        yield
    except CheckpointError:
        raise
    except (KeyError, RuntimeError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{owner}: expected a complete state of {kind}, got one with {error!r}."
        ) from error
