"""Reading JSON that this package wrote, and nothing looser.

Refused: text that is not UTF-8, NaN and infinities, repeated keys, anything after the value, and
sizes beyond what this package ever writes.
"""

import json
from typing import Any, Final, NoReturn, cast

from cadenza.core.errors import IntegrityError

#: Largest document we read, bytes: a thousand times the largest one we write.
MAX_JSON_BYTES: Final = 1 << 28


def parse_json_object(data: bytes, *, source: str) -> dict[str, Any]:
    """Return the JSON object that ``data`` holds.

    Args:
        data: UTF-8 JSON.
        source: How messages call the data, e.g. a file name.

    Raises:
        IntegrityError: ``data`` is too long, not strict JSON or not an object.
    """
    if len(data) > MAX_JSON_BYTES:
        raise IntegrityError(
            f"{source}: expected at most {MAX_JSON_BYTES} bytes of JSON, got {len(data)}."
        )
    try:
        value = json.loads(
            data.decode("utf-8"),
            parse_constant=_refuse_constant,
            object_pairs_hook=_refuse_repeated_keys,
        )
    except (ValueError, RecursionError) as error:
        raise IntegrityError(f"{source}: expected strict JSON, got an error: {error}.") from error
    if not isinstance(value, dict):
        raise IntegrityError(f"{source}: expected a JSON object, got {type(value).__name__}.")
    return cast("dict[str, Any]", value)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"the number {name} is not JSON")


def _refuse_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError(f"a key is repeated among {[key for key, _ in pairs]}")
    return result
