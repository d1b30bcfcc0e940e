"""What one observation changes in a page: pure functions from page to page.

An observation that the page has changes nothing, so repeating an ingest leaves the same bytes.
"""

import re
from dataclasses import dataclass, replace
from typing import Any, Final

from cadenza.loop.knowledge.front_matter import (
    DERIVED_KEY,
    HUMAN_CONFIRMED,
    PageType,
    after_observation,
    repaired,
)
from cadenza.loop.knowledge.lessons import bounded_lessons, derived_lessons, digest
from cadenza.loop.knowledge.observations import Observation, plain_name, read_observations
from cadenza.loop.knowledge.page import Page

OBSERVATIONS: Final = "Observations"
LESSONS: Final = "Lessons"
CYCLES: Final = "Cycles"
_TITLES: Final = {"policy": "Policy", "task": "Task", "experiment": "Experiment"}
_TABLE: Final = (
    "| cycle | date | suite | policy | success | episodes | decision |\n"
    "|---|---|---|---|---|---|---|"
)
_TABLE_ROW: Final = re.compile(r"\| (\d{1,9}) \| .* \|")


@dataclass(frozen=True, slots=True)
class Subject:
    """What a page is about.

    Attributes:
        page_type: Kind of page.
        name: Its name, as the run gives it.
    """

    page_type: PageType
    name: str

    @property
    def folder(self) -> str:
        """Folder of such pages."""
        return {"policy": "policies", "task": "tasks", "experiment": "experiments"}[self.page_type]


def has_observation(page: Page, subject: Subject, seen: Observation) -> bool:
    """Return whether the page holds the observation of this cycle of this run."""
    if subject.page_type == "experiment":
        return seen.cycle in _cycle_rows(page.section(CYCLES))
    return read_observations(page.section(OBSERVATIONS)).has(seen.run, seen.cycle)


def has_derived_lessons(page: Page) -> bool:
    """Return whether the lessons were derived from the observations and not edited since."""
    return page.meta.get(DERIVED_KEY) == digest(page.section(LESSONS))


def takes_lessons(page: Page) -> bool:
    """Return whether a language model may rewrite the lessons: not where a person confirmed."""
    return page.meta.get("status") != HUMAN_CONFIRMED


def updated_page(page: Page, subject: Subject, seen: Observation, reply: str) -> Page:
    """Return the page after an observation.

    Args:
        page: The page so far; an empty one for a new page.
        subject: What it is about.
        seen: The observation.
        reply: Lessons by a language model; without bullets, lessons that were derived before are
            derived again, and others stay.
    """
    if has_observation(page, subject, seen):
        return page
    page = _with_frame(page, subject)
    if subject.page_type == "experiment":
        return _updated_experiment(page, seen)
    observations = read_observations(page.section(OBSERVATIONS)).with_observation(seen)
    meta = after_observation(page.meta, seen.run, seen.cycle, seen.date, observations)
    page = replace(page, meta=meta).with_section(OBSERVATIONS, observations.text())
    lessons = bounded_lessons(reply) if takes_lessons(page) else ""
    if lessons:
        without = {key: value for key, value in meta.items() if key != DERIVED_KEY}
        return replace(page, meta=without).with_section(LESSONS, lessons)
    derived = derived_lessons(observations, compare=subject.page_type == "task")
    return _with_derived(page, derived)


def _updated_experiment(page: Page, seen: Observation) -> Page:
    rows = _cycle_rows(page.section(CYCLES))
    rows[seen.cycle] = (
        f"| {seen.cycle} | {seen.date} | {seen.suite} | {seen.policy} | "
        f"{seen.measured.rate:.1%} | {seen.measured.episodes} | {seen.decision} |"
    )
    alone = read_observations("").with_observation(seen)
    meta = after_observation(page.meta, seen.run, seen.cycle, seen.date, alone)
    table = "\n".join([_TABLE, *(rows[cycle] for cycle in sorted(rows))])
    return replace(page, meta=meta).with_section(CYCLES, table)


def _cycle_rows(text: str) -> dict[int, str]:
    matches = (_TABLE_ROW.fullmatch(line.rstrip()) for line in text.split("\n"))
    return {int(match[1]): match[0] for match in matches if match is not None}


def _with_frame(page: Page, subject: Subject) -> Page:
    """Return the page with front matter of the right shape, title and sections."""
    meta: dict[str, Any] = repaired(page.meta, subject.name, subject.page_type)
    title = f"# {_TITLES[subject.page_type]}: {plain_name(subject.name)}"
    page = replace(page, meta=meta, preamble=page.preamble or title)
    wanted = (CYCLES,) if subject.page_type == "experiment" else (OBSERVATIONS, LESSONS)
    for heading in wanted:
        if all(section.heading != heading for section in page.sections):
            page = page.with_section(heading, "")
    return page


def _with_derived(page: Page, derived: str) -> Page:
    """Return the page with derived lessons, unless its lessons are someone's own."""
    present = page.section(LESSONS)
    if present.strip() and not has_derived_lessons(page):
        return page
    page = page.with_section(LESSONS, derived)
    return replace(page, meta={**page.meta, DERIVED_KEY: digest(derived)})
