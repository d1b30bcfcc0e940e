"""What one observation changes in a page: front matter, observations and lessons.

Pure functions from page to page. An observation that the page has changes nothing, so repeating an
ingest leaves the same bytes. Front matter that does not say what it must is repaired. Lessons are
derived from the observations, or written by a language model, bounded.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypeAlias, cast

from cadenza.core.files import sha256_bytes
from cadenza.loop.knowledge.observations import (
    MAX_LISTED,
    MAX_ROWS,
    Measurement,
    Observation,
    Observations,
    RunOutcome,
    all_agree,
    direction,
    independent,
    plain_name,
    read_observations,
)
from cadenza.loop.knowledge.pages import Page
from cadenza.loop.llm.protocol import storable

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


#: Bullets of a page, and characters of each.
MAX_BULLETS: Final = 12
MAX_BULLET_CHARS: Final = 300
#: Regressions that are listed, the newest.
_MAX_REGRESSIONS: Final = 3
#: Decision after which a candidate is a regression.
ROLLED_BACK: Final = "rollback"
_BULLET: Final = re.compile(r"\s{0,8}(?:[-*•+]|\d{1,2}[.)])\s+(?P<text>\S.*)")
_TAG: Final = re.compile(r"<[^<>]{0,500}>")
_FENCE: Final = re.compile(r"`{3,}|~{3,}")
LESSONS_REQUEST: Final = (
    "You maintain one page of notes about robot policies. Given the page and a new observation, "
    "rewrite only its lessons: a short Markdown list of durable, actionable bullets, one line "
    "each. No heading, no preamble, no HTML."
)


def bounded_lessons(reply: str) -> str:
    """Return the bullets of a model's reply as a list of bounded length; empty without any.

    Headings, front matter, fences and all other lines are dropped, and so are tags: what stays
    can neither end its section nor run in a browser.
    """
    bullets: list[str] = []
    for line in storable(reply).replace("\r", "\n").split("\n"):
        match = _BULLET.fullmatch(line.rstrip())
        text = "" if match is None else _plain(match["text"])
        if text and len(bullets) < MAX_BULLETS:
            bullets.append(f"- {text[:MAX_BULLET_CHARS].rstrip()}")
    return "\n".join(bullets)


def digest(lessons: str) -> str:
    """Return the digest that tells derived lessons from edited ones."""
    return sha256_bytes(lessons.strip().encode("utf-8", "replace"))[:16]


def derived_lessons(seen: Observations, *, compare: bool) -> str:
    """Return the lessons of the observations themselves; ``compare`` says which policy is best.

    A policy stands where runs last kept it; what they refused is told apart, and what was rolled
    back is a regression.
    """
    pooled = {pair: _pooled(runs) for pair, runs in seen.outcomes().items()}
    bullets = _standings(seen, pooled, compare=compare)
    for (suite, policy), runs in seen.outcomes().items():
        bullets += [_change(suite, policy, run) for run in runs if direction(run.first, run.last)]
    bullets += [_refused("Not kept", o, o.decision) for o in _newest_refused(seen)]
    regressions = [o for o in seen.listed if o.decision == ROLLED_BACK][-_MAX_REGRESSIONS:]
    bullets += [_refused("Regression", o, "rolled back") for o in regressions]
    return "\n".join(f"- {bullet}" for bullet in bullets[:MAX_BULLETS])


def _standings(
    seen: Observations, pooled: dict[tuple[str, str], Measurement], *, compare: bool
) -> list[str]:
    bullets: list[str] = []
    runs = seen.outcomes()
    for suite in dict.fromkeys(suite for suite, _ in pooled):
        policies = [policy for s, policy in pooled if s == suite]
        ranked = sorted(policies, key=lambda policy: -pooled[suite, policy].rate)
        for place, policy in enumerate(ranked):
            title = f"Best policy on {suite}: {policy}" if compare and place == 0 else None
            measured = _percent(pooled[suite, policy])
            kept = runs[suite, policy]
            again = ", of one seed the newest" if len(independent(kept)) < len(kept) else ""
            bullets.append(
                f"{title or f'{policy} on {suite}'}, {measured} when last kept by "
                f"{len(kept)} run{'s' if len(kept) > 1 else ''}{again}."
            )
    return bullets


def _pooled(runs: list[RunOutcome]) -> Measurement:
    """Return the last successes that independent runs kept, together."""
    runs = independent(runs)
    episodes = sum(run.last.episodes for run in runs)
    if episodes == 0:
        return Measurement(sum(run.last.rate for run in runs) / len(runs), 0)
    return Measurement(sum(run.last.rate * run.last.episodes for run in runs) / episodes, episodes)


def _change(suite: str, policy: str, run: RunOutcome) -> str:
    word = "rose" if direction(run.first, run.last) > 0 else "fell"
    return (
        f"{policy} on {suite} {word} from {run.first.rate:.1%} to {run.last.rate:.1%} within run "
        f"{run.run}."
    )


def _newest_refused(seen: Observations) -> list[Observation]:
    """Return the newest candidate of every policy that no run kept, without regressions."""
    kept = seen.outcomes()
    newest = {(o.suite, o.policy): o for o in seen.listed if (o.suite, o.policy) not in kept}
    return [o for o in newest.values() if o.decision != ROLLED_BACK]


def _refused(what: str, seen: Observation, decision: str) -> str:
    return (
        f"{what}: {seen.policy} on {seen.suite} at {_percent(seen.measured)}, {decision} in "
        f"cycle {seen.cycle} of run {seen.run}."
    )


def _percent(measured: Measurement) -> str:
    if measured.episodes == 0:
        return f"{measured.rate:.1%} of an unknown number of episodes"
    low, high = measured.interval()
    interval = f"95% interval {low:.1%} to {high:.1%}"
    return f"{measured.rate:.1%} of {measured.episodes} episodes ({interval})"


def _plain(text: str) -> str:
    """Return one line without tags, fences and what does not print."""
    previous = None
    while previous != text:  # a tag inside a tag leaves a tag
        previous, text = text, _TAG.sub("", text)
    text = re.sub(r"<(?=[A-Za-z/!?])", "< ", _FENCE.sub("", text))
    return "".join(c for c in " ".join(text.split()) if c.isprintable())


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
    """What a page is about, by its name as the run gives it."""

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
    """Return the page after an observation; an empty page becomes a new one.

    ``reply`` has lessons by a language model; without bullets, lessons that were derived before are
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
