"""What the pages of a folder are written from: one file of rows, shared by all runs and stores.

File:   `ROWS_NAME`, a JSON object per line: an observation per (run, cycle), oldest first, then
        lessons by models and people, one per page. It is replaced as a whole, under `pages.locked`.
        Lines that are no rows are kept, and told by `lint`.
Runs:   run ids are unique within a store only. The first run of an id gets the id as its name; a
        run of that id in another store gets the id and a digest of its own origin, and keeps it.
Before: pages of the layout before this file are read once, where there is no such file.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Literal, TypeAlias

from pydantic import TypeAdapter, ValidationError

from cadenza.core.errors import StorageError
from cadenza.core.files import confined_path
from cadenza.loop.contracts.records import Record
from cadenza.loop.knowledge.observations import Measurement, Observation, plain_name
from cadenza.loop.knowledge.pages import digest, page_paths, read_bounded, read_page, save

#: The file below the folder of the pages.
ROWS_NAME: Final = "observations.jsonl"
PageType: TypeAlias = Literal["task", "policy", "experiment"]
_FOLDERS: Final[Mapping[PageType, str]] = {
    "policy": "policies",
    "task": "tasks",
    "experiment": "experiments",
}
PAGE_TYPES: Final = tuple(_FOLDERS)


@dataclass(frozen=True, slots=True)
class Subject:
    """What a page is about, by its plain name."""

    page_type: PageType
    name: str

    @property
    def folder(self) -> str:
        """Folder of such pages."""
        return _FOLDERS[self.page_type]

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
        column = {"policy": "policy", "task": "suite", "experiment": "run"}[subject.page_type]
        return tuple(one for one in self.observations if getattr(one, column) == subject.name)

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
