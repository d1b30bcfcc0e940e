"""What is wrong with the pages: shape, contradictions, staleness.

Contradictions:  runs that kept one policy on one suite and disagree beyond their intervals; a
                 lesson that says the opposite of the newest significant change within a run, or
                 calls a policy best where another one's last success is significantly higher; two
                 lessons of one page that say opposite things of the same name.
Staleness:       a page without an observation for `STALE_DAYS` before the newest of all pages; a
                 day of change before its newest observation; runs that do not exist.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from itertools import combinations
from pathlib import Path
from reprlib import repr as shown
from typing import Final, cast

from cadenza.loop.knowledge.observations import (
    LESSONS,
    PAGE_TYPES,
    ROWS_NAME,
    STATUSES,
    Observation,
    RunOutcome,
    Subject,
    contradict,
    direction,
    has_derived_lessons,
    outcomes,
    plain_name,
    read_rows,
)
from cadenza.loop.knowledge.pages import MAX_PAGE_BYTES, Page, page_paths, read_bounded, read_page

#: Days without an observation after which a page is stale.
STALE_DAYS: Final = 30
_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d")
_GAINS: Final = re.compile(
    r"\b(improv\w*|ris(?:es|ing)|rose|better|increas\w*|gain\w*|helps?)\b", re.IGNORECASE
)
_LOSSES: Final = re.compile(
    r"\b(regress\w*|worse\w*|fell|falls?|drop\w*|degrad\w*|decreas\w*|hurts?)\b", re.IGNORECASE
)
_BEST: Final = re.compile(r"\bbest\b", re.IGNORECASE)
_NEGATED: Final = re.compile(r"\b(not|never|no longer|without|does ?n[o']t|avoid)\b", re.IGNORECASE)


def findings(root: Path) -> list[dict[str, str]]:
    """Return ``{"page", "problem"}`` for every problem, sorted by page."""
    if not root.is_dir():
        return []
    rows = read_rows(root)
    newest = max((one.date for one in rows.observations), default=None)
    found = [
        {"page": str(root / ROWS_NAME), "problem": f"unparseable: {shown(line)}"}
        for line in rows.strange
    ]
    read = {path: read_bounded(path) for path in page_paths(root)}
    pages = {path: read_page(data) for path, data in read.items() if data is not None}
    named = (p.meta.get("name") for p in pages.values() if p.meta.get("type") == "experiment")
    runs = {plain_name(name) for name in named if isinstance(name, str)}
    for path in read:
        page = pages.get(path)
        if page is None:
            problems = [f"unparseable: unreadable, or longer than {MAX_PAGE_BYTES} bytes"]
        else:
            kind, name = page.meta.get("type"), plain_name(str(page.meta.get("name")))
            seen = rows.of(Subject(kind, name)) if kind == "policy" or kind == "task" else ()
            problems = [
                *_shape(page),
                *_contradictions(page, seen),
                *_staleness(page, seen, newest, runs),
            ]
        found += [{"page": str(path), "problem": problem} for problem in problems]
    return sorted(found, key=lambda one: one["page"])


def _shape(page: Page) -> Iterator[str]:
    if page.problem is not None:
        yield f"unparseable: {page.problem}"
    if page.meta.get("type") not in PAGE_TYPES:
        yield f"bad type {shown(page.meta.get('type'))}"
    if page.meta.get("status") not in STATUSES:
        yield f"bad status {shown(page.meta.get('status'))}"
    if not page.meta.get("provenance"):
        yield "missing provenance"
    elif not _runs_of(page):
        yield "bad provenance: expected a list of {run, cycle}"


def _contradictions(page: Page, seen: Sequence[Observation]) -> Iterator[str]:
    found = outcomes(seen)
    for (suite, policy), runs in found.items():
        for one, other in combinations(runs, 2):
            if contradict(one, other):
                yield (
                    f"contradiction: runs {one.run} and {other.run} disagree on {policy} on "
                    f"{suite} ({_path_of(one)}; {_path_of(other)})"
                )
    if has_derived_lessons(page):
        return  # they are the observations themselves
    lessons = [line for line in page.section(LESSONS).split("\n") if line.strip()]
    for lesson in lessons:
        yield from _contradicted_by_observations(lesson, found)
    for name in sorted({name for one in seen for name in (one.suite, one.policy)}):
        claims = {claim for lesson in lessons if _names(lesson, name) and (claim := _claim(lesson))}
        if len(claims) > 1:
            yield f"contradiction: lessons say that {name} gains and that it loses"


def _contradicted_by_observations(
    lesson: str, found: Mapping[tuple[str, str], list[RunOutcome]]
) -> Iterator[str]:
    claim = _claim(lesson)
    for (suite, policy), runs in found.items():
        if not (_names(lesson, policy) or _names(lesson, suite)):
            continue
        newest = runs[-1]
        if claim and direction(newest.first, newest.last) == -claim:
            yield (
                f"contradiction: lesson {lesson.strip()[:100]!r}, but in run {newest.run} {policy} "
                f"on {suite} went {_path_of(newest)}"
            )
        if _BEST.search(lesson) and not _NEGATED.search(lesson) and _names(lesson, policy):
            for (other_suite, other), rivals in found.items():
                better = direction(newest.last, rivals[-1].last) > 0
                if other_suite == suite and better and not _names(lesson, other):
                    yield (
                        f"contradiction: lesson {lesson.strip()[:100]!r}, but {other} was at "
                        f"{rivals[-1].last.rate:.1%} on {suite}, {policy} at "
                        f"{newest.last.rate:.1%}"
                    )


def _staleness(
    page: Page, seen: Sequence[Observation], newest: str | None, runs: set[str]
) -> Iterator[str]:
    own = max((one.date for one in seen), default=None)
    if own is not None and newest is not None and _days(own, newest) > STALE_DAYS:
        yield f"stale: no observation for {_days(own, newest)} days before {newest}"
    changed = str(page.meta.get("updated"))  # YAML makes a date of an unquoted day
    if own is not None and _DATE.fullmatch(changed) and changed < own:
        yield f"stale: updated {changed}, but observed {own}"
    named = [*_runs_of(page), *(one.run for one in seen)]
    for run in dict.fromkeys(named):
        if run not in runs:
            yield f"missing run: refers to {run}, which is not known"


def _runs_of(page: Page) -> list[str]:
    """Return the runs that the provenance names, where it can be read."""
    entries = page.meta.get("provenance")
    found: list[str] = []
    for entry in cast("list[object]", entries) if isinstance(entries, list) else []:
        match entry:
            case {"run": str(run), "cycle": int()}:
                found.append(run)
            case _:
                pass
    return found


def _claim(lesson: str) -> int:
    """Return 1 if a lesson tells a gain, -1 for a loss, 0 for neither, both or a negation."""
    if _NEGATED.search(lesson):
        return 0
    return bool(_GAINS.search(lesson)) - bool(_LOSSES.search(lesson))


def _names(lesson: str, name: str) -> bool:
    return re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", lesson, re.IGNORECASE) is not None


def _path_of(outcome: RunOutcome) -> str:
    return f"{outcome.first.rate:.1%} to {outcome.last.rate:.1%}"


def _days(earlier: str, later: str) -> int:
    try:
        return (date.fromisoformat(later) - date.fromisoformat(earlier)).days
    except ValueError:  # a day that no calendar has
        return 0
