"""State of a numpy generator as JSON scalars, and back.

The words are wider than 64 bits, so they travel as decimal strings.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from cadenza.core.errors import CheckpointError


def generator_state(rng: np.random.Generator) -> dict[str, Any]:
    """Return the state of a PCG64 generator, JSON scalars only."""
    state = rng.bit_generator.state
    return {
        "bit_generator": str(state["bit_generator"]),
        "state": str(state["state"]["state"]),
        "inc": str(state["state"]["inc"]),
        "has_uint32": int(state["has_uint32"]),
        "uinteger": int(state["uinteger"]),
    }


def set_generator_state(rng: np.random.Generator, state: Mapping[str, Any]) -> None:
    """Make ``rng`` continue where `generator_state` was taken.

    Raises:
        CheckpointError: ``state`` is incomplete or of another kind of generator.
    """
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
