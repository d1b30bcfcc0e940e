"""A page as the rows of the folder make it, and what of its present text a person wrote.

Whoever edits what programs wrote loses nothing: other lessons become rows, other lines go below the
marker. Lessons are derived from the observations, or written by a model or a person.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import yaml

from cadenza.loop.knowledge.observations import (
    MAX_LISTED,
    MAX_ROWS,
    Measurement,
    Observation,
    Rows,
    RunOutcome,
    Subject,
    all_agree,
    direction,
    independent,
    observations_text,
    observed,
    outcomes,
)
from cadenza.loop.knowledge.pages import MARKER, Page, digest, head_digest
from cadenza.loop.llm.protocol import storable

#: A person's word; no program changes it, or the lessons below it.
HUMAN_CONFIRMED: Final = "human-confirmed"
STATUSES: Final = ("observed-once", "replicated", HUMAN_CONFIRMED)
#: Most entries of the provenance.
MAX_PROVENANCE: Final = MAX_LISTED + MAX_ROWS
#: Digest of lessons that were derived from observations; they may be derived again.
DERIVED_KEY: Final = "derived_lessons"
#: Without it, as in the layout before, YAML takes some digests for numbers.
_PREFIX: Final = "sha256:"
OBSERVATIONS: Final = "Observations"
LESSONS: Final = "Lessons"
CYCLES: Final = "Cycles"
_CYCLES_HEAD: Final = (
    "| cycle | date | suite | policy | success | episodes | decision |\n"
    "|---|---|---|---|---|---|---|"
)
#: Lines of front matter that follow from the others.
_ANEW: Final = re.compile(f"status: |updated: |{DERIVED_KEY}: |- run: |  cycle: ")
#: Lines of front matter are not broken.
_ANY_WIDTH: Final = 1_000_000


def with_own_lessons(rows: Rows, subject: Subject, page: Page) -> Rows:
    """Return the rows with the lessons of a page, where neither they nor observations made them."""
    text = page.section(LESSONS).encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    own, known = text.strip(), rows.lessons.get(subject, "").strip()
    made = own in ("", known) or has_derived_lessons(page) or bool(known and page.untouched)
    if made or subject.page_type == "experiment":
        return rows
    return rows.with_lessons({subject: own})


def own_text(page: Page, subject: Subject, rows: Rows) -> bytes:
    """Return what is below the marker, and below that what a person wrote above it.

    That is what the ``rows``, which the page was written from, do not tell.
    """
    if page.untouched:
        return page.below
    head, known = _head(page, subject, rows).split("\n"), rows.places()
    ours, own = {*head} - {"", "---"}, [line for line in page.front if not _ANEW.match(line)]
    parts = list(page.sections)
    if subject.page_type != "experiment":
        parts = [part for part in parts if part != (LESSONS, page.section(LESSONS))]
    for heading, text in parts:
        own += [*([f"## {heading}"] if heading else ()), "", *text.split("\n"), ""]
    kept = [one for one in own if one.rstrip() not in ours and observed(one) not in known]
    moved = re.sub(r"\n{3,}", "\n\n", "\n".join(kept)).strip("\n")
    if not moved:
        return page.below
    gap = b"\n" if not page.below or page.below.endswith(b"\n") else b"\n\n"
    return page.below + gap + moved.encode("utf-8", "surrogateescape") + b"\n"


def page_bytes(page: Page, subject: Subject, rows: Rows, own: bytes) -> bytes:
    """Return the page of a subject as the rows make it, above a person's text."""
    head = _head(page, subject, rows).encode("utf-8", "replace")
    return head + f"<!-- {head_digest(head)}: {MARKER} -->\n".encode() + own


def _head(page: Page, subject: Subject, rows: Rows) -> str:
    seen = rows.of(subject)
    confirmed = page.meta.get("status") == HUMAN_CONFIRMED
    told = seen[-MAX_PROVENANCE:]
    front: dict[str, Any] = {
        "name": subject.name,
        "type": subject.page_type,
        "status": HUMAN_CONFIRMED if confirmed else _status_of(seen),
        "provenance": [{"run": one.run, "cycle": one.cycle} for one in told],
        "updated": max((one.date for one in seen), default=""),
    }
    if subject.page_type == "experiment":
        by_cycle = sorted(seen, key=lambda one: one.cycle)
        body = [f"## {CYCLES}", "\n".join([_CYCLES_HEAD, *(one.cells() for one in by_cycle)])]
    else:
        lessons = rows.lessons.get(subject)
        if lessons is None:
            lessons = derived_lessons(seen, compare=subject.page_type == "task")
            front[DERIVED_KEY] = _lessons_digest(lessons)
        body = [f"## {OBSERVATIONS}", observations_text(seen), f"## {LESSONS}", lessons.strip()]
    meta = yaml.safe_dump(front, sort_keys=False, allow_unicode=True, width=_ANY_WIDTH)
    blocks = [f"---\n{meta}---", subject.title, *body]
    return "".join(f"{block}\n\n" for block in blocks if block)


def _status_of(seen: Sequence[Observation]) -> str:
    """Return ``replicated`` if independent runs measured the same pair and all of them agree."""
    return STATUSES[1] if any(map(all_agree, outcomes(seen).values())) else STATUSES[0]


def has_derived_lessons(page: Page) -> bool:
    """Return whether the lessons were derived from the observations and not edited since."""
    made = _lessons_digest(page.section(LESSONS))
    return page.meta.get(DERIVED_KEY) in (made, made.removeprefix(_PREFIX))


def _lessons_digest(lessons: str) -> str:
    return _PREFIX + digest(lessons.strip())[:16]


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


def derived_lessons(seen: Sequence[Observation], *, compare: bool) -> str:
    """Return the lessons of the observations themselves; ``compare`` says which policy is best.

    A policy stands where runs last kept it; what they refused is told apart, and what was rolled
    back is a regression.
    """
    found = outcomes(seen)
    bullets = _standings(found, compare=compare)
    for (suite, policy), runs in found.items():
        bullets += [_change(suite, policy, run) for run in runs if direction(run.first, run.last)]
    listed = seen[-MAX_LISTED:]
    refused = {(o.suite, o.policy): o for o in listed if (o.suite, o.policy) not in found}
    bullets += [
        _refused("Not kept", o, o.decision) for o in refused.values() if o.decision != ROLLED_BACK
    ]
    regressions = [o for o in listed if o.decision == ROLLED_BACK][-_MAX_REGRESSIONS:]
    bullets += [_refused("Regression", o, "rolled back") for o in regressions]
    return "\n".join(f"- {bullet}" for bullet in bullets[:MAX_BULLETS])


def _standings(found: Mapping[tuple[str, str], list[RunOutcome]], *, compare: bool) -> list[str]:
    bullets: list[str] = []
    pooled = {pair: _pooled(runs) for pair, runs in found.items()}
    for suite in dict.fromkeys(suite for suite, _ in pooled):
        policies = [policy for s, policy in pooled if s == suite]
        ranked = sorted(policies, key=lambda policy: -pooled[suite, policy].rate)
        for place, policy in enumerate(ranked):
            best = compare and place == 0
            title = f"Best policy on {suite}: {policy}" if best else f"{policy} on {suite}"
            kept = found[suite, policy]
            again = ", of one seed the newest" if len(independent(kept)) < len(kept) else ""
            bullets.append(
                f"{title}, {_percent(pooled[suite, policy])} when last kept by "
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
