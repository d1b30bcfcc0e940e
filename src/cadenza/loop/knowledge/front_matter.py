"""The front matter of a page: what it must say, and repairing what does not say it."""

import re
from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias, cast

from cadenza.loop.knowledge.agreement import all_agree
from cadenza.loop.knowledge.observations import MAX_LISTED, MAX_ROWS, Observations

PageType: TypeAlias = Literal["task", "policy", "experiment"]
PAGE_TYPES: Final = ("task", "policy", "experiment")
#: A person's word; no program changes it, or the lessons below it.
HUMAN_CONFIRMED: Final = "human-confirmed"
STATUSES: Final = ("observed-once", "replicated", HUMAN_CONFIRMED)
#: Most entries of the provenance: those of the listed observations, and one per rolled-up run.
MAX_PROVENANCE: Final = MAX_LISTED + MAX_ROWS
#: Digest of lessons that were derived from observations; they may be derived again.
DERIVED_KEY: Final = "derived_lessons"
_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d")


def repaired(meta: Mapping[str, Any], name: str, page_type: PageType) -> dict[str, Any]:
    """Return front matter of the right shape; a person's further keys are kept, after ours."""
    status = meta.get("status")
    ours: dict[str, Any] = {
        "name": name,
        "type": page_type,
        "status": status if status in STATUSES else STATUSES[0],
        "provenance": [{"run": run, "cycle": cycle} for run, cycle in provenance(meta)],
        "updated": updated(meta) or "",
    }
    return ours | {str(key): value for key, value in meta.items() if key not in ours}


def provenance(meta: Mapping[str, Any]) -> list[tuple[str, int]]:
    """Return the (run, cycle) entries that can be read, in order, each once."""
    entries = meta.get("provenance")
    found: list[tuple[str, int]] = []
    for entry in cast("list[object]", entries) if isinstance(entries, list) else []:
        match entry:
            case {"run": str(run), "cycle": int(cycle)} if not isinstance(cycle, bool):
                found.append((run, cycle))
            case _:
                continue
    return list(dict.fromkeys(found))


def updated(meta: Mapping[str, Any]) -> str | None:
    """Return the day of the last change; None if there is none that can be read."""
    text = str(meta.get("updated"))  # YAML makes a date of an unquoted day
    return text if _DATE.fullmatch(text) else None


def after_observation(
    meta: Mapping[str, Any], run: str, cycle: int, date: str, seen: Observations
) -> dict[str, Any]:
    """Return front matter with one more entry, and the status that the observations deserve."""
    entries = [*provenance(meta), (run, cycle)][-MAX_PROVENANCE:]
    changed: dict[str, Any] = {
        "provenance": [{"run": r, "cycle": c} for r, c in dict.fromkeys(entries)],
        "updated": max(date, updated(meta) or ""),
    }
    if meta.get("status") != HUMAN_CONFIRMED:
        changed["status"] = status_of(seen)
    return {**meta, **changed}


def status_of(seen: Observations) -> str:
    """Return ``replicated`` if independent runs measured the same pair and all of them agree."""
    outcomes = seen.outcomes().values()
    return STATUSES[1] if any(all_agree(runs) for runs in outcomes) else STATUSES[0]
