"""Strict JSON: reading what this package wrote, values of any kind, documents with a checksum.

Refused:  text that is not UTF-8, NaN and infinities, repeated keys, anything after the value, and
          sizes beyond what this package ever writes.
Sealed:   one object; its key ``seal`` holds the SHA-256 of the canonical JSON of all other keys,
          ``kind`` says what it is and ``schema_version`` how it is laid out. Whoever can recompute
          a SHA-256 can forge one; the seal tells damage, not malice.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NoReturn, Protocol, cast, runtime_checkable

from cadenza.core.errors import IntegrityError
from cadenza.core.files import atomic_write_json, canonical_json, sha256_bytes

#: Largest document we read, bytes: a thousand times the largest one we write.
MAX_JSON_BYTES: Final = 1 << 28


def parse_json_object(data: bytes, *, source: str, finite: bool = True) -> dict[str, Any]:
    """Return the JSON object that ``data`` holds; ``source`` is how messages call it.

    Without ``finite``, NaN and infinities are read too, as some tools write them.

    Raises:
        IntegrityError: ``data`` is too long, not strict JSON or not an object.
    """
    if len(data) > MAX_JSON_BYTES:
        raise IntegrityError(
            f"{source}: expected at most {MAX_JSON_BYTES} bytes of JSON, got {len(data)}."
        )
    try:
        value = (_DECODER if finite else _LENIENT).decode(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise IntegrityError(f"{source}: expected strict JSON, got an error: {error}.") from error
    if not isinstance(value, dict):
        raise IntegrityError(f"{source}: expected a JSON object, got {type(value).__name__}.")
    return cast("dict[str, Any]", value)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"the number {name} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"the number {text} is too large")
    return number


def _refuse_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError(f"a key is repeated among {[key for key, _ in pairs]}")
    return result


_DECODER: Final = json.JSONDecoder(
    parse_constant=_refuse_constant,
    parse_float=_finite,
    object_pairs_hook=_refuse_repeated_keys,
)

_LENIENT: Final = json.JSONDecoder(object_pairs_hook=_refuse_repeated_keys)

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

    NaN and infinities become None and their places, below ``place``, are added to ``non_finite``.
    Arrays and tensors become numbers or lists, mappings get text keys, and anything unknown becomes
    ``str(value)``.
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


_SEAL: Final = "seal"


def write_sealed_json(
    path: Path, facts: Mapping[str, Any], *, kind: str, schema_version: int = 1
) -> None:
    """Replace ``path`` by ``facts``, of what ``kind`` they are, and their seal in one durable step.

    Raises:
        StorageError: The file system refused; ``path`` is unchanged.
    """
    full = {**facts, "kind": kind, "schema_version": schema_version}
    atomic_write_json(path, {**full, _SEAL: sha256_bytes(canonical_json(full))})


def read_sealed_json(path: Path, *, kind: str, schema_version: int = 1) -> dict[str, Any]:
    """Return the facts of a document that `write_sealed_json` wrote.

    Raises:
        IntegrityError: It is missing, unreadable, changed, of another kind or another version.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_JSON_BYTES + 1)
    except OSError as error:
        raise IntegrityError(
            f"{path}: expected a readable {kind} document, got '{error.strerror}'; run the command "
            "that writes it again."
        ) from error
    return parse_sealed_json(data, source=str(path), kind=kind, schema_version=schema_version)


def parse_sealed_json(
    data: bytes, *, source: str, kind: str, schema_version: int = 1
) -> dict[str, Any]:
    """Return the facts of a document whose bytes `write_sealed_json` wrote.

    Raises:
        IntegrityError: It was changed, or is of another kind or another version.
    """
    full = parse_json_object(data, source=source)
    seal = full.pop(_SEAL, None)
    if seal != sha256_bytes(canonical_json(full)):
        raise IntegrityError(
            f"{source}: expected the content that its seal covers, got different content; the file "
            "was changed, so run the command that writes it again."
        )
    found = (full.pop("kind", None), full.pop("schema_version", None))
    if found != (kind, schema_version):
        raise IntegrityError(
            f"{source}: expected a document of kind {kind!r}, version {schema_version}, got "
            f"{found[0]!r}, version {found[1]!r}."
        )
    return full
