"""Checks that a loaded state is of the kind that an object saves; numpy generators as states."""

from collections.abc import Collection, Generator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np
import torch

from cadenza.core.errors import CheckpointError, CheckpointKeyError


def require_parts(owner: str, state: Mapping[str, Any], parts: Collection[str]) -> None:
    """Raise `CheckpointKeyError` unless ``state`` has every part."""
    missing = [part for part in parts if part not in state]
    if missing:
        raise CheckpointKeyError(
            f"{owner}: expected a state with {', '.join(parts)}, got {sorted(state)} without "
            f"{missing}; load what an object of the same kind saved."
        )


def require_version(owner: str, state: Mapping[str, Any], version: int) -> None:
    """Raise `CheckpointError` unless ``state`` has the layout ``version``."""
    if state.get("version") != version:
        raise CheckpointError(
            f"{owner}: expected a state of version {version}, got {state.get('version')!r}; load "
            "what an object of the same kind and version saved."
        )


@contextmanager
def complete_state(owner: str, kind: str) -> Generator[None]:
    """Load within it; what an incomplete or foreign state raises becomes a `CheckpointError`."""
    try:
        yield
    except CheckpointError:
        raise
    except (KeyError, RuntimeError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{owner}: expected a complete state of {kind}, got one with {error!r}."
        ) from error


def generator_state(rng: np.random.Generator) -> dict[str, Any]:
    """Return the state of a PCG64 generator, JSON scalars only; wide words are decimal strings."""
    state = rng.bit_generator.state
    return {
        "bit_generator": str(state["bit_generator"]),
        "state": str(state["state"]["state"]),
        "inc": str(state["state"]["inc"]),
        "has_uint32": int(state["has_uint32"]),
        "uinteger": int(state["uinteger"]),
    }


def set_generator_state(rng: np.random.Generator, state: Mapping[str, Any]) -> None:
    """Make ``rng`` continue where `generator_state` was taken, or raise `CheckpointError`."""
    expected = type(rng.bit_generator).__name__
    try:
        if state["bit_generator"] != expected:
            raise CheckpointError(
                f"generator state: expected {expected}, got {state['bit_generator']!r}."
            )
        rng.bit_generator.state = {
            "bit_generator": expected,
            "state": {"state": int(state["state"]), "inc": int(state["inc"])},
            "has_uint32": int(state["has_uint32"]),
            "uinteger": int(state["uinteger"]),
        }
    except (KeyError, ValueError) as error:
        raise CheckpointError(
            f"generator state: expected the fields of {expected}, got {sorted(state)}: {error}"
        ) from error


#: What random numbers are drawn from.
RandomSource: TypeAlias = torch.Generator | np.random.Generator


class OwnStream:
    """Draws that leave no trace in the generators that they come from."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._position: Any = None

    @contextmanager
    def instead_of(self, source: RandomSource) -> Generator[None]:
        """Let ``source`` draw from this stream; afterwards it goes on where it was."""
        before = _position(source)
        if self._position is None:
            fresh = torch.Generator() if isinstance(source, torch.Generator) else None
            self._position = _position(
                np.random.default_rng(self._seed)
                if fresh is None
                else fresh.manual_seed(self._seed)
            )
        _move(source, self._position)
        try:
            yield
        finally:
            self._position = _position(source)
            _move(source, before)


def _position(source: RandomSource) -> Any:
    return source.get_state() if isinstance(source, torch.Generator) else source.bit_generator.state


def _move(source: RandomSource, position: Any) -> None:
    if isinstance(source, torch.Generator):
        source.set_state(position)
    else:
        source.bit_generator.state = position
