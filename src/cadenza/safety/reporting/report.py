"""The three tables as one value and as a document with hashes.

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
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from cadenza.core.errors import InputError
from cadenza.safety.errors import ReportError
from cadenza.safety.reporting.rows import AssumptionRow, ConditionRow, GapRow, ReportDetails

#: Version that is written; older ones are upgraded when they are read.
SCHEMA_VERSION: Final = 3
_VERSIONS: Final = [1, 2, 3]
_TABLES: Final = ("table_1", "table_2", "table_3")
_OUTSIDE_CONTENT: Final = ("content_hash", "details", "details_hash")


@dataclass(frozen=True, slots=True)
class ThreeTableReport:
    """A safety result.

    Attributes:
        table_1: Assumptions.
        table_2: Conditions.
        table_3: Conservativeness gap.
        schema_version: `SCHEMA_VERSION`; older files are upgraded when they are read.
        details: Where the numbers come from; None without.

    Raises:
        InputError: Another version, or details of other conditions than those of table 2.
    """

    table_1: tuple[AssumptionRow, ...]
    table_2: tuple[ConditionRow, ...]
    table_3: tuple[GapRow, ...]
    schema_version: int = SCHEMA_VERSION
    details: ReportDetails | None = None

    def __post_init__(self) -> None:
        for name in _TABLES:
            object.__setattr__(self, name, tuple(getattr(self, name)))
        if self.schema_version != SCHEMA_VERSION:
            raise InputError(
                f"ThreeTableReport: expected schema_version {SCHEMA_VERSION}, got "
                f"{self.schema_version!r}; parse_three_tables upgrades older files."
            )
        described = 0 if self.details is None else len(self.details.conditions)
        if described not in (0, len(self.table_2)):
            raise InputError(
                "ThreeTableReport: expected details of each of the "
                f"{len(self.table_2)} conditions of table 2 or of none, got {described}."
            )

    def to_jsonable(self) -> dict[str, Any]:
        """Return version and tables as JSON values, without details and hashes."""
        return {
            "schema_version": self.schema_version,
            **{name: [row.to_jsonable() for row in getattr(self, name)] for name in _TABLES},
        }

    def to_canonical_json(self) -> str:
        """Return version and tables as canonical text: sorted keys, indent 2, ASCII."""
        return canonical_text(self.to_jsonable())

    def content_hash(self) -> str:
        """Return the SHA-256 of `to_canonical_json`, hex."""
        return text_hash(self.to_jsonable())

    def to_document(self) -> dict[str, Any]:
        """Return everything that a file holds, hashes included."""
        content_hash = self.content_hash()
        document = {**self.to_jsonable(), "content_hash": content_hash}
        if self.details is not None:
            details = self.details.to_jsonable()
            document["details"] = details
            document["details_hash"] = details_hash(content_hash, details)
        return document

    @classmethod
    def from_jsonable(
        cls, payload: Mapping[str, Any], *, source: str = "three-table report"
    ) -> "ThreeTableReport":
        """Return the report of a payload of any known version; hashes are not looked at.

        Raises:
            ReportError: Unknown version or a malformed table.
            UnknownNameError: A row lacks a field.
            InputError: A field is out of range.
        """
        version = _require_version(payload, source)
        for name in _TABLES:
            table = payload.get(name)
            if not isinstance(table, list) or not all(isinstance(row, dict) for row in table):  # pyright: ignore[reportUnknownVariableType] -- checked here
                raise ReportError(f"{source}: {name}: expected a list of objects, got {table!r}.")
        conditions = payload["table_2"]
        if version == 1:  # the inner filter was not recorded; its slack is 0
            conditions = [{"max_slack": 0.0, "slack_l2": 0.0, **row} for row in conditions]
        details = payload.get("details")
        if details is not None and not isinstance(details, dict):
            raise ReportError(f"{source}: details: expected an object, got {details!r}.")
        return cls(
            table_1=tuple(AssumptionRow.from_jsonable(row) for row in payload["table_1"]),
            table_2=tuple(ConditionRow.from_jsonable(row) for row in conditions),
            table_3=tuple(GapRow.from_jsonable(row) for row in payload["table_3"]),
            details=None
            if details is None
            else ReportDetails.from_jsonable(cast("Mapping[str, Any]", details)),
        )


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
    """Raise ReportError unless the document is of a known version and its hashes hold.

    ``require_hash``: a missing hash is an error, too; ``source`` is how messages call the document.
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


def _require_version(payload: Mapping[str, Any], source: str) -> int:
    version = payload.get("schema_version")
    if isinstance(version, bool) or not isinstance(version, int) or version not in _VERSIONS:
        raise ReportError(
            f"{source}: schema_version: expected one of {_VERSIONS}, got {version!r}; a newer file "
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
