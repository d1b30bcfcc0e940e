"""The three tables as one immutable value."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from cadenza.core.errors import InputError
from cadenza.safety.errors import ReportError
from cadenza.safety.reporting.details import ReportDetails
from cadenza.safety.reporting.payload import (
    SCHEMA_VERSION,
    canonical_text,
    details_hash,
    text_hash,
    upgrade,
)
from cadenza.safety.reporting.rows import AssumptionRow, ConditionRow, GapRow


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
        for name in ("table_1", "table_2", "table_3"):
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
            "table_1": [row.to_jsonable() for row in self.table_1],
            "table_2": [row.to_jsonable() for row in self.table_2],
            "table_3": [row.to_jsonable() for row in self.table_3],
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

        Args:
            payload: As `to_jsonable` or `to_document` return it.
            source: How messages call it.

        Raises:
            ReportError: Unknown version or a malformed table.
            UnknownNameError: A row lacks a field.
            InputError: A field is out of range.
        """
        current = upgrade(payload, source=source)
        details = current.get("details")
        if details is not None and not isinstance(details, dict):
            raise ReportError(f"{source}: details: expected an object, got {details!r}.")
        return cls(
            table_1=tuple(AssumptionRow.from_jsonable(row) for row in current["table_1"]),
            table_2=tuple(ConditionRow.from_jsonable(row) for row in current["table_2"]),
            table_3=tuple(GapRow.from_jsonable(row) for row in current["table_3"]),
            details=None
            if details is None
            else ReportDetails.from_jsonable(cast("Mapping[str, Any]", details)),
        )
