"""Values of any kind as strict JSON: no NaN, no infinity, no tensors written as text."""

import json
import math
from collections.abc import Mapping
from typing import Any, Final, Protocol, cast, runtime_checkable

#: Nesting beyond this is written as text; a value that contains itself would never end.
_MAX_DEPTH: Final = 16


@runtime_checkable
class _Array(Protocol):
    """What numpy and torch arrays and scalars have in common."""

    def tolist(self) -> Any:
        """Return plain numbers, in lists if there are axes."""
        ...


def strict_value(value: object, place: str, non_finite: list[str]) -> Any:
    """Return ``value`` as something strict JSON can express.

    NaN and infinities become None. Arrays and tensors become numbers or lists, mappings get text
    keys, and anything unknown becomes ``str(value)``.

    Args:
        value: Anything.
        place: Where the value stands, e.g. ``"losses[2]"``.
        non_finite: Gets the places whose number was not finite.
    """
    return _strict(value, place, non_finite, 0)


def _strict(value: object, place: str, non_finite: list[str], depth: int) -> Any:
    match value:
        case None | bool() | str():
            return value
        case int():
            return int(value)
        case float():
            if math.isfinite(value):
                return float(value)
            non_finite.append(place)
            return None
        case _ if depth >= _MAX_DEPTH:
            return str(type(value))
        case Mapping():
            entries = cast("Mapping[object, object]", value)
            return {
                str(key): _strict(item, f"{place}.{key}", non_finite, depth + 1)
                for key, item in entries.items()
            }
        case list() | tuple():
            items = cast("list[object]", value)
            return [
                _strict(item, f"{place}[{index}]", non_finite, depth + 1)
                for index, item in enumerate(items)
            ]
        case _Array():
            return _strict(value.tolist(), place, non_finite, depth + 1)
        case _:
            return str(value)


def strict_event(event: Mapping[str, object]) -> dict[str, Any]:
    """Return ``event`` in strict JSON values; ``non_finite`` names the fields set to None."""
    non_finite: list[str] = []
    strict = {key: strict_value(value, key, non_finite) for key, value in event.items()}
    return strict | {"non_finite": non_finite} if non_finite else strict


def json_line(event: Mapping[str, Any]) -> bytes:
    """Return strict values as one line of ASCII JSON with sorted keys, newline included."""
    return json.dumps(event, sort_keys=True, allow_nan=False).encode("ascii") + b"\n"
