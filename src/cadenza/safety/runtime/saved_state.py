"""What the safety runtime saves, and how it takes it back: all of it, or nothing.

Every part reads its record into a copy of itself; only when all succeeded do the parts take over
what was read. A part's ``load_state_dict`` therefore assigns whole attributes and never changes
the objects behind them.
"""

import copy
from collections.abc import Mapping
from typing import Any, Final, Protocol, cast

import numpy as np

from cadenza.core.arrays import FloatArray
from cadenza.core.errors import InputError
from cadenza.safety.filters.arguments import require_action
from cadenza.safety.runtime.observation import require_array

#: Version of `SafetyRuntime.state_dict`; a reader refuses any other.
RUNTIME_STATE_VERSION: Final = 2

#: What errors call a part whose name alone would not say it.
_WORDS: Final = {
    "adaptation": "adaptation state",
    "forecaster": "forecasts",
    "ages": "packet ages",
    "last": "last state",
    "previous_action": "previous action",
    "brakes": "braking pairs",
}
#: What reading a malformed record may raise.
_MALFORMED: Final = (
    KeyError,
    IndexError,
    TypeError,
    AttributeError,
    ValueError,
    ArithmeticError,
)


class Stateful(Protocol):
    """A part of the runtime with a memory."""

    def state_dict(self) -> Any:
        """Return the memory as JSON-able values."""
        ...

    def load_state_dict(self, payload: Any) -> None:
        """Take the memory back, by assigning whole attributes."""
        ...


def save(parts: Mapping[str, Stateful]) -> dict[str, Any]:
    """Return the records of all parts, with the version."""
    records: dict[str, Any] = {"version": RUNTIME_STATE_VERSION}
    for name, part in parts.items():
        records[name] = part.state_dict()
    return records


def load(parts: Mapping[str, Stateful], payload: object) -> None:
    """Let all parts take back their records.

    Raises:
        InputError: Unknown version or malformed content; no part has changed then.
    """
    if not isinstance(payload, Mapping):
        raise InputError(f"SafetyRuntime state: expected a mapping, got {type(payload).__name__}.")
    records = cast("Mapping[str, Any]", payload)
    if records.get("version") != RUNTIME_STATE_VERSION:
        raise InputError(
            f"SafetyRuntime state: expected version {RUNTIME_STATE_VERSION}, "
            f"got {records.get('version')!r}."
        )
    missing = sorted(parts.keys() - records.keys())
    if missing:
        raise InputError(f"SafetyRuntime state: expected a complete record, missing {missing}.")
    loaded = {name: copy.copy(part) for name, part in parts.items()}
    for name, part in loaded.items():
        try:
            part.load_state_dict(records[name])
        except InputError:
            raise
        except _MALFORMED as error:
            words = _WORDS.get(name, name)
            raise InputError(f"{words}: expected a complete record: {error!r}") from error
    for name, part in parts.items():
        vars(part).update(vars(loaded[name]))


class ExecutedAction:
    """The action executed in the last step, from which the rate limit starts.

    Args:
        size: Number of action components.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self.value: FloatArray | None = None

    def note(self, action: object) -> None:
        """Take in an action that was executed, shape (size,).

        Raises:
            InputError: Malformed; what was known stays.
        """
        array = require_array(action, "executed action")
        require_action(array, self._size, "executed action")
        self.value = np.array(array, dtype=np.float64)

    def state_dict(self) -> list[float] | None:
        """Return the action's numbers."""
        return None if self.value is None else self.value.tolist()

    def load_state_dict(self, payload: Any) -> None:
        """Continue from `state_dict`.

        Raises:
            InputError: Malformed.
        """
        if payload is None:
            self.value = None
        else:
            self.note(np.array(payload, dtype=np.float64))
