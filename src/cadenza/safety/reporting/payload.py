"""The stored form of a report: canonical text, hashes, versions.

Document:      ``schema_version``, ``table_1`` ... ``table_3``, ``content_hash``, and, where the
               report has details, ``details`` and ``details_hash``.
content_hash:  SHA-256 of the canonical text of the document without its last three keys, exactly as
               stored: a file of version 1 is checked as version 1, and upgraded only then.
details_hash:  SHA-256 of the canonical text of ``content_hash`` and ``details``, so details cannot
               be moved to another report.
Versions:      1: without slack in table 2. 2: with it. 3: lambda telemetry by pair; same tables.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from cadenza.safety.errors import ReportError

#: Version that is written.
SCHEMA_VERSION: Final = 3

_TABLES: Final = ("table_1", "table_2", "table_3")
_OUTSIDE_CONTENT: Final = ("content_hash", "details", "details_hash")


def canonical_text(payload: Mapping[str, Any]) -> str:
    """Return ``payload`` as JSON: sorted keys, indent 2, ASCII; equal values, equal text.

    Raises:
        ValueError: It holds NaN or an infinity.
    """
    return json.dumps(
        payload,
        sort_keys=True,
        indent=2,
        separators=(",", ": "),
        ensure_ascii=True,
        allow_nan=False,
    )


def text_hash(payload: Mapping[str, Any]) -> str:
    """Return the SHA-256 of the canonical text, lower-case hex."""
    return hashlib.sha256(canonical_text(payload).encode("utf-8")).hexdigest()


def details_hash(content_hash: str, details: Mapping[str, Any]) -> str:
    """Return the hash that ties details to the report with ``content_hash``."""
    return text_hash({"content_hash": content_hash, "details": details})


def require_intact(document: Mapping[str, Any], *, require_hash: bool, source: str) -> None:
    """Raise unless the document is of a known version and its hashes hold.

    Args:
        document: As stored.
        require_hash: Whether a missing hash is an error.
        source: How messages call it.

    Raises:
        ReportError: Unknown version, or a hash that is missing or does not match.
    """
    _require_version(document, source)
    content = {key: value for key, value in document.items() if key not in _OUTSIDE_CONTENT}
    stored = document.get("content_hash")
    _compare("content_hash", stored, text_hash(content), require_hash, source)
    if "details" in document:
        expected = details_hash(text_hash(content), document["details"])
        _compare("details_hash", document.get("details_hash"), expected, require_hash, source)
    elif "details_hash" in document:
        raise ReportError(
            f"{source}: expected the details that details_hash belongs to, got none; they were "
            "removed after the report was written."
        )


def upgrade(payload: Mapping[str, Any], *, source: str) -> dict[str, Any]:
    """Return the payload in version `SCHEMA_VERSION`; the one given is not changed.

    Raises:
        ReportError: Unknown version, or a table is missing or no list of objects.
    """
    version = _require_version(payload, source)
    for name in _TABLES:
        table = payload.get(name)
        if not isinstance(table, list) or not all(isinstance(row, dict) for row in table):  # pyright: ignore[reportUnknownVariableType] -- checked here
            raise ReportError(f"{source}: {name}: expected a list of objects, got {table!r}.")
    upgraded = dict(payload)
    while version < SCHEMA_VERSION:
        upgraded = _MIGRATIONS[version](upgraded)
        version += 1
        upgraded["schema_version"] = version
    return upgraded


def _require_version(payload: Mapping[str, Any], source: str) -> int:
    version = payload.get("schema_version")
    known = sorted({*_MIGRATIONS, SCHEMA_VERSION})
    if isinstance(version, bool) or not isinstance(version, int) or version not in known:
        raise ReportError(
            f"{source}: schema_version: expected one of {known}, got {version!r}; a newer file "
            "needs a newer version of this package."
        )
    return version


def _compare(name: str, stored: object, expected: str, require_hash: bool, source: str) -> None:
    if stored is None and not require_hash:
        return
    if stored is None:
        raise ReportError(
            f"{source}: expected a {name}, got none: nothing shows that the numbers are those that "
            "were written; pass require_hash=False to read it all the same."
        )
    if stored != expected:
        raise ReportError(
            f"{source}: {name} mismatch: expected {expected} for what the file holds, got "
            f"{stored!r}; it was changed after it was written."
        )


def _add_slack(payload: dict[str, Any]) -> dict[str, Any]:
    """Version 1 to 2: the inner filter was not recorded; its slack is 0."""
    rows = [{"max_slack": 0.0, "slack_l2": 0.0, **row} for row in payload["table_2"]]
    return {**payload, "table_2": rows}


def _keep_tables(payload: dict[str, Any]) -> dict[str, Any]:
    """Version 2 to 3: only telemetry outside the tables changed."""
    return dict(payload)


_MIGRATIONS: Final[Mapping[int, Callable[[dict[str, Any]], dict[str, Any]]]] = {
    1: _add_slack,
    2: _keep_tables,
}
