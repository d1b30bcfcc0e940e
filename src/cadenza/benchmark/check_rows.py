"""Rows of a verification: what was checked, whether it held, and what was seen."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from cadenza.core.errors import CadenzaError, MissingExtraError

#: What reading malformed data can raise; such an error is a failed row, not a traceback.
MALFORMED: Final = (
    CadenzaError,
    ArithmeticError,
    AttributeError,
    LookupError,
    OSError,
    RecursionError,
    TypeError,
    ValueError,
)
#: Longest detail of a row, characters.
_MAX_DETAIL: Final = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """One check.

    Attributes:
        name: What was checked, e.g. ``"manifest:plan.json"``.
        ok: Whether it held.
        detail: What was seen.
    """

    name: str
    ok: bool
    detail: str = ""


def guarded(name: str, check: Callable[[], Iterable[CheckResult]]) -> list[CheckResult]:
    """Return the rows of ``check``; an error on malformed data becomes one failed row ``name``."""
    rows: list[CheckResult] = []
    try:
        rows.extend(check())
    except MissingExtraError:  # says nothing of the data
        raise
    except MALFORMED as error:
        detail = " ".join(f"{type(error).__name__}: {error}".split())
        rows.append(CheckResult(name=name, ok=False, detail=detail[:_MAX_DETAIL]))
    return rows


def all_ok(rows: Sequence[CheckResult]) -> bool:
    """Return whether there is at least one row and every row holds."""
    return bool(rows) and all(row.ok for row in rows)


def render_check_table(rows: Sequence[CheckResult]) -> str:
    """Return one line per row and the verdict, for a terminal."""
    width = max((len(row.name) for row in rows), default=0)
    lines = [
        f"{'PASS' if row.ok else 'FAIL'}  {row.name:<{width}}  {row.detail}".rstrip()
        for row in rows
    ]
    passed = sum(row.ok for row in rows)
    verdict = "PASS" if all_ok(rows) else "FAIL"
    return "\n".join([*lines, f"verify: {verdict} ({passed}/{len(rows)} checks)"]) + "\n"
