"""The programs that stand on the pages of the documentation."""

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"


def text(page: str) -> str:
    return (DOCS / page).read_text(encoding="utf-8")


def blocks(page: str, language: str = "python") -> list[str]:
    return re.findall(rf"```{language}[^\n]*\n(.*?)```", text(page), flags=re.DOTALL)


def block(page: str, start: str) -> str:
    """Return the program of the page that contains ``start``."""
    return next(found for found in blocks(page) if start in found)


def execute(page: str, *programs: str) -> dict[str, Any]:
    """Run ``programs``, or all of the page, as one; return the names they leave."""
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile("\n".join(programs or blocks(page)), page, "exec"), names)  # noqa: S102
    return names
