"""What cycles observed: rows in one file, whether runs agree, and the pages that are made of it.

File:        `ROWS_NAME`, shared by all runs and stores; a JSON object per line: an observation per
             (run, cycle), oldest first, then lessons by models and people, one per page. It is
             replaced as a whole, under `pages.locked`. Lines that are no rows are kept, and told by
             `lint`. Without the file, pages of the layout before it are read.
Runs:        ids are unique within a store only. The first run of an id gets the id as its name; a
             run of that id in another store gets the id and a digest of its own origin.

Difference:  p1 - p2 of independent trials lies, with 95 % confidence, in
             d - sqrt((p1 - l1)^2 + (u2 - p2)^2) .. d + sqrt((u1 - p1)^2 + (p2 - l2)^2)
             with Wilson's bounds l, u. Source: Newcombe 1998, Statist. Med. 17, 873-890, method 10.
Agreement:   the difference of the last successes is at most `MARGIN` and not significant, and the
             changes from first to last are not significant in opposite directions.
Precise:     a success whose interval is at most `MAX_WIDTH` wide. Others replicate nothing, but
             they can contradict; nor do runs of one seed, which play the same initial states.
Text:        a line for each of the newest observations, and a table of the older ones with a row
             for each run, suite and policy; lessons that are derived from the observations, or
             written by a model or a person.
Editing:     whoever edits what programs wrote loses nothing: other lessons become rows, other lines
             go below the page's marker.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, groupby
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import yaml
from pydantic import TypeAdapter, ValidationError

from cadenza.core.errors import StorageError
from cadenza.core.files import confined_path, sha256_bytes
from cadenza.core.proportions import wilson_interval
from cadenza.loop.contracts.records import Record
from cadenza.loop.knowledge.pages import (
    MARKER,
    Page,
    digest,
    head_digest,
    page_paths,
    read_bounded,
    read_page,
    save,
)
from cadenza.loop.llm.protocol import storable

#: Largest difference of success between runs that agree: few episodes have intervals so wide
#: that everything would agree.
MARGIN: Final = 0.2
#: Widest interval of a success that can replicate another one: half of it is the margin.
MAX_WIDTH: Final = 2 * MARGIN


@dataclass(frozen=True, slots=True)
class Measurement:
    """A share of successes, in [0, 1]; 0 episodes if their number is not known."""

    rate: float
    episodes: int

    def interval(self) -> tuple[float, float]:
        """Return Wilson's 95 % bounds; [0, 1] without episodes."""
        if self.episodes == 0:
            return 0.0, 1.0
        return wilson_interval(round(self.rate * self.episodes), self.episodes)

    @property
    def precise(self) -> bool:
        """Whether there are enough episodes to replicate another measurement."""
        low, high = self.interval()
        return high - low <= MAX_WIDTH


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """What one run found about one policy, from the first one that it kept, on one suite."""

    run: str
    first: Measurement
    last: Measurement
    seed: int | None = None


def difference_interval(one: Measurement, other: Measurement) -> tuple[float, float]:
    """Return Newcombe's 95 % bounds of ``one.rate - other.rate``."""
    (low_1, high_1), (low_2, high_2) = one.interval(), other.interval()
    p_1, p_2 = one.rate, other.rate
    below = math.hypot(p_1 - low_1, high_2 - p_2)
    above = math.hypot(high_1 - p_1, p_2 - low_2)
    return p_1 - p_2 - below, p_1 - p_2 + above


def direction(before: Measurement, after: Measurement) -> int:
    """Return 1 for a significant gain, -1 for a significant loss, 0 for neither."""
    low, high = difference_interval(after, before)
    return 1 if low > 0.0 else -1 if high < 0.0 else 0


def contradict(one: RunOutcome, other: RunOutcome) -> bool:
    """Return whether two runs disagree beyond their intervals."""
    opposite = direction(one.first, one.last) * direction(other.first, other.last) == -1
    return opposite or direction(one.last, other.last) != 0


def agree(one: RunOutcome, other: RunOutcome) -> bool:
    """Return whether two runs agree."""
    return not contradict(one, other) and abs(one.last.rate - other.last.rate) <= MARGIN


def independent(outcomes: list[RunOutcome]) -> list[RunOutcome]:
    """Return the newest run of each seed, and of those whose seed is not known."""
    return list({outcome.seed: outcome for outcome in outcomes}.values())


def all_agree(outcomes: list[RunOutcome]) -> bool:
    """Return whether two independent precise runs or more agree, and no run contradicts."""
    precise = [outcome for outcome in outcomes if outcome.last.precise]
    seeds = {outcome.seed for outcome in precise} - {None}
    return (
        len(seeds) > 1
        and all(agree(a, b) for a, b in combinations(precise, 2))
        and not any(contradict(a, b) for a, b in combinations(outcomes, 2))
    )


#: Decisions after which the candidate is the policy that later ones are compared with.
KEPT: Final = frozenset({"promote", "provisional"})
#: Observations listed one by one, and rows of the table; the oldest runs leave it.
MAX_LISTED: Final = 40
MAX_ROWS: Final = 100
#: Longest name in a line, characters, and hexadecimal digits of the digest of one that is changed.
_MAX_NAME: Final = 100
_DIGEST_DIGITS: Final = 12
_TABLE: Final = (
    "Earlier observations:\n\n"
    "| run | suite | policy | cycles | first | last | decisions | until | seed |\n"
    "|---|---|---|---|---|---|---|---|---|"
)


def plain_name(name: str) -> str:
    """Return a name as it stands in lines and rows: one line, no separators of theirs.

    A name that cannot stand there as it is, or has more than 100 characters, ends in a digest of
    the whole, so that names stay apart.
    """
    line = " ".join(name.split())
    cleaned = "".join(c if c.isprintable() and c not in "·|" else "_" for c in line)
    if cleaned == name and len(name) <= _MAX_NAME:
        return name or "unnamed"
    digest = sha256_bytes(name.encode("utf-8", "surrogatepass"))[:_DIGEST_DIGITS]
    return f"{cleaned[: _MAX_NAME - 1 - _DIGEST_DIGITS] or 'unnamed'}~{digest}"


class Observation(Record):
    """What one cycle of one run measured; names are plain, see `plain_name`.

    Attributes:
        seed: Root of the run's randomness; None if not known.
        origin: Digest that tells the run from others of its id; None if not known.
    """

    row: Literal["observation"] = "observation"
    date: str
    run: str
    cycle: int
    suite: str
    policy: str
    measured: Measurement
    decision: str
    seed: int | None = None
    origin: str | None = None

    @property
    def kept(self) -> bool:
        """Whether the policy was blessed or became the reference."""
        return self.decision in KEPT

    def line(self) -> str:
        """Return the observation as a line of a page."""
        return (
            f"- {self.date} · run {self.run} · cycle {self.cycle} · {self.suite} · policy "
            f"{self.policy} · success {self.measured.rate:.1%} · decision {self.decision}"
            + (f" · episodes {self.measured.episodes}" if self.measured.episodes else "")
            + ("" if self.seed is None else f" · seed {self.seed}")
        )

    def cells(self) -> str:
        """Return the observation as a row of its run's page."""
        return (
            f"| {self.cycle} | {self.date} | {self.suite} | {self.policy} | "
            f"{self.measured.rate:.1%} | {self.measured.episodes} | {self.decision} |"
        )


def outcomes(seen: Iterable[Observation]) -> dict[tuple[str, str], list[RunOutcome]]:
    """Return what each run found, by (suite, policy): the successes that it kept, oldest first.

    Of one suite and policy, the newest `MAX_ROWS` runs.
    """
    found: dict[tuple[str, str], dict[str, RunOutcome]] = {}
    for one in seen:
        if one.kept:
            runs = found.setdefault((one.suite, one.policy), {})
            first = runs[one.run].first if one.run in runs else one.measured
            runs[one.run] = RunOutcome(one.run, first, one.measured, one.seed)
    return {pair: list(runs.values())[-MAX_ROWS:] for pair, runs in found.items()}


def observations_text(seen: Sequence[Observation]) -> str:
    """Return the text about observations, oldest first; its length is bounded."""
    older, listed = seen[:-MAX_LISTED], seen[-MAX_LISTED:]
    groups: dict[tuple[str, str, str], list[Observation]] = {}
    for one in older:
        key = (one.run, one.suite, one.policy)
        groups[key] = group = groups.pop(key, [])  # the newest group comes last
        group.append(one)
    rows = [_row(group) for group in [*groups.values()][-MAX_ROWS:]]
    table = [_TABLE, *rows] if rows else []
    blocks = ["\n".join(table), "\n".join(one.line() for one in listed)]
    return "\n\n".join(block for block in blocks if block)


def _row(group: Sequence[Observation]) -> str:
    last = group[-1]
    kept = [one.measured for one in group if one.kept]
    first_kept, last_kept = (_cell(kept[0]), _cell(kept[-1])) if kept else ("-", "-")
    decisions = Counter(one.decision for one in group)
    counted = ", ".join(f"{name} {count}" for name, count in decisions.items())
    return (
        f"| {last.run} | {last.suite} | {last.policy} | {_ranges(one.cycle for one in group)} | "
        f"{first_kept} | {last_kept} | {counted} | {last.date} | "
        f"{'' if last.seed is None else last.seed} |"
    )


def _ranges(cycles: Iterable[int]) -> str:
    """Return numbers with consecutive ones joined, as in ``0-3, 7``."""
    parts: list[str] = []
    for _, numbered in groupby(enumerate(sorted(cycles)), key=lambda pair: pair[1] - pair[0]):
        run = [cycle for _, cycle in numbered]
        parts.append(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}")
    return ", ".join(parts)


def _cell(measured: Measurement) -> str:
    return f"{measured.rate:.1%}" + (f" of {measured.episodes}" if measured.episodes else "")


#: The file below the folder of the pages.
ROWS_NAME: Final = "observations.jsonl"
PageType: TypeAlias = Literal["task", "policy", "experiment"]
#: By the kind of a page: its folder, and the field of observations that names it.
_KINDS: Final[Mapping[PageType, tuple[str, str]]] = {
    "policy": ("policies", "policy"),
    "task": ("tasks", "suite"),
    "experiment": ("experiments", "run"),
}
PAGE_TYPES: Final = tuple(_KINDS)


@dataclass(frozen=True, slots=True)
class Subject:
    """What a page is about, by its plain name."""

    page_type: PageType
    name: str

    @property
    def folder(self) -> str:
        """Folder of such pages."""
        return _KINDS[self.page_type][0]

    @property
    def title(self) -> str:
        """The page's heading."""
        return f"# {self.page_type.capitalize()}: {self.name}"


class Lessons(Record):
    """Lessons that a model or a person wrote for a page."""

    row: Literal["lessons"] = "lessons"
    page: PageType
    name: str
    text: str


_ROW: Final = TypeAdapter[Observation | Lessons](Observation | Lessons)


@dataclass(frozen=True, slots=True)
class Rows:
    """Observations, oldest first, lessons, and lines that are neither."""

    observations: tuple[Observation, ...] = ()
    lessons: dict[Subject, str] = field(default_factory=dict[Subject, str])
    strange: tuple[str, ...] = ()

    def of(self, subject: Subject) -> tuple[Observation, ...]:
        """Return what a page is written from."""
        _, field_name = _KINDS[subject.page_type]
        return tuple(o for o in self.observations if getattr(o, field_name) == subject.name)

    def places(self) -> set[tuple[str, int]]:
        """Return the runs and cycles that were observed."""
        return {(one.run, one.cycle) for one in self.observations}

    def has(self, seen: Observation) -> bool:
        """Return whether its cycle of its run was observed."""
        return (seen.run, seen.cycle) in self.places()

    def with_observation(self, new: Observation) -> "Rows":
        """Return these and one more."""
        return replace(self, observations=(*self.observations, new))

    def with_lessons(self, lessons: Mapping[Subject, str]) -> "Rows":
        """Return these with lessons of some pages in place of earlier ones."""
        return replace(self, lessons={**self.lessons, **lessons})

    def named(self, seen: Observation) -> Observation:
        """Return an observation under the name that its run has here."""
        same = [one for one in self.observations if one.run == seen.run]
        known = {one.origin for one in same} - {None}
        first = not known and all(one.cycle != seen.cycle for one in same)
        if seen.origin is None or seen.origin in known or first:
            return seen
        return seen.model_copy(update={"run": f"{seen.run}~{seen.origin[:8]}"})


def read_rows(root: Path) -> Rows:
    """Return the rows of a folder; without the file, those that its pages hold."""
    path = confined_path(root, ROWS_NAME)
    try:
        lines = path.read_bytes().decode("utf-8", "replace").split("\n")
    except FileNotFoundError:
        return Rows(tuple(sorted(_from_pages(root), key=lambda o: (o.date, o.run, o.cycle))))
    except OSError as error:
        raise StorageError(
            f"{path}: expected a readable file of rows, got '{error.strerror}'; move it away."
        ) from error
    observations: list[Observation] = []
    lessons: dict[Subject, str] = {}
    strange: list[str] = []
    for line in filter(None, lines):
        try:
            row = _ROW.validate_json(line)
        except ValidationError:
            strange.append(line)
            continue
        if isinstance(row, Observation):
            observations.append(row)
        else:
            lessons[Subject(row.page, row.name)] = row.text
    return Rows(tuple(observations), lessons, tuple(strange))


def write_rows(root: Path, rows: Rows) -> None:
    """Replace the rows of a folder in one durable step."""
    lessons = [
        Lessons(page=subject.page_type, name=subject.name, text=text)
        for subject, text in rows.lessons.items()
    ]
    lines = [row.model_dump_json() for row in (*rows.observations, *lessons)]
    text = "".join(f"{line}\n" for line in (*lines, *rows.strange))
    save(confined_path(root, ROWS_NAME), text.encode())


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


# The layout before: pages held their observations themselves, as lines that `Observation.line` and
# `cells` still write; hidden files below ``.runs`` said which run was the first of an id.

_LINE: Final = re.compile(
    r"- (?P<date>\d{4}-\d\d-\d\d) · run (?P<run>[^·\n]+) · cycle (?P<cycle>\d{1,9})"
    r" · (?P<suite>[^·\n]+) · policy (?P<policy>[^·\n]+) · success (?P<success>\d{1,3}\.\d)%"
    r" · decision (?P<decision>[^·\n]+?)(?: · episodes (?P<episodes>\d{1,9}))?"
    r"(?: · seed (?P<seed>\d{1,10}))?"
)
_CELLS: Final = re.compile(
    r"\| (?P<cycle>\d{1,9}) \| (?P<date>\d{4}-\d\d-\d\d) \| (?P<suite>[^|\n]+) "
    r"\| (?P<policy>[^|\n]+) \| (?P<success>\d{1,3}\.\d)% \| (?P<episodes>\d{1,9}) "
    r"\| (?P<decision>[^|\n]*) \|"
)
_EARLIER: Final = re.compile(r"\| (?P<run>[^|\n]+) \|(?: [^|\n]* \|){7} (?P<seed>\d{1,10}) \|")


def observed(line: str) -> tuple[str, int] | None:
    """Return the run and cycle of an observation's line; None for any other line."""
    match = _LINE.fullmatch(line.rstrip())
    return None if match is None else (match["run"].strip(), int(match["cycle"]))


def _from_pages(root: Path) -> Iterator[Observation]:
    """Return what the lines of pages hold; a run's table has no seeds, the others tell them."""
    found: dict[tuple[str, int], Observation] = {}
    tables: list[tuple[str, re.Match[str]]] = []
    seeds: dict[str, int] = {}
    for path in page_paths(root) if root.is_dir() else ():
        page = read_page(read_bounded(path) or b"")
        run = plain_name(str(page.meta.get("name")))
        for line in (one.rstrip() for _, text in page.sections for one in text.split("\n")):
            if (match := _LINE.fullmatch(line)) is not None:
                one = _observation(root, match["run"].strip(), match)
                found[one.run, one.cycle] = one
            elif page.meta.get("type") == "experiment" and (match := _CELLS.fullmatch(line)):
                tables.append((run, match))
            else:
                match = _EARLIER.fullmatch(line)
            if match is not None and match.groupdict().get("seed"):
                seeds[match["run"].strip()] = int(match["seed"])
    for run, match in tables:
        one = _observation(root, run, match)
        one = one.model_copy(update={"seed": seeds.get(run)})
        found.setdefault((one.run, one.cycle), one)
    yield from found.values()


def _observation(root: Path, run: str, match: re.Match[str]) -> Observation:
    parts = match.groupdict()
    claim = read_bounded(confined_path(root, f".runs/{digest(run)[:32]}"))
    origin = "" if claim is None else claim.decode("utf-8", "replace").strip()
    return Observation(
        date=parts["date"],
        run=run,
        cycle=int(parts["cycle"]),
        suite=parts["suite"].strip(),
        policy=parts["policy"].strip(),
        measured=Measurement(
            min(1.0, float(parts["success"]) / 100.0), int(parts["episodes"] or 0)
        ),
        decision=parts["decision"].strip(),
        seed=int(parts["seed"]) if parts.get("seed") else None,
        origin=origin or None,
    )
