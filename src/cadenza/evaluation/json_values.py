"""Values that JSON can express exactly; the check behind free-form ``metadata`` fields."""

import math
from typing import Any, cast


def require_json_object(name: str, value: dict[str, Any]) -> None:
    """Raise unless ``value`` survives a round trip through strict JSON.

    Args:
        name: How the message calls the value.
        value: A mapping of strings to anything.

    Raises:
        ValueError: A key is not text, a number is not finite, or a type has no JSON form.
    """
    unnamed = [key for key in cast("dict[object, object]", value) if not isinstance(key, str)]
    if unnamed:
        raise ValueError(f"{name}: expected text keys, got {unnamed[0]!r}.")
    for key, item in value.items():
        _require_json(f"{name}[{key!r}]", item)


def _require_json(name: str, value: object) -> None:
    """Raise unless ``value`` has an exact JSON form."""
    if value is None or isinstance(value, bool | int | str):
        return
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{name}: expected a finite number, got {value}.")
        return
    if isinstance(value, dict):
        require_json_object(name, cast("dict[str, Any]", value))
        return
    if isinstance(value, list | tuple):
        for index, item in enumerate(cast("list[object]", value)):
            _require_json(f"{name}[{index}]", item)
        return
    raise ValueError(
        f"{name}: expected a value JSON can express, got {type(value).__name__}; convert it first."
    )
