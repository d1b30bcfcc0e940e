"""Results below a folder: bundles, evaluations, spikes, trainings, matrices, streams, films.

Search:  breadth first, bounded in depth, entries and time; links and hidden folders are not
         followed, and nothing is read but the heads of small files that may be of a stream.
Told by: the names that `aht.run`, `evaluation_run`, `zoo.matrix`, `training_seeds` and the stream
         give to their files.
"""

import hashlib
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final, Literal, TypeAlias

from cadenza.core.errors import CadenzaError
from cadenza.core.strict_json import parse_json_object

Kind: TypeAlias = Literal[
    "evaluation", "bundle", "spike", "matrix", "seeds", "training", "stream", "recording", "film"
]
#: Folders deep, entries looked at, and s of a search.
MAX_DEPTH, MAX_ENTRIES, MAX_SEARCH_S = 9, 50_000, 5.0
#: Largest file that may be a stream's status, and most files of JSON beside it.
MAX_STATUS_BYTES, MAX_JSON = 1 << 18, 50
#: Files that tell what a folder is, and endings of files that are findings by themselves; named
#: here, as the modules that write them take seconds to import.
_MARKS: Final[dict[str, Kind]] = {
    "bundle.json": "bundle",
    "matrix.json": "matrix",
    "draws.jsonl": "recording",
}
_ENDINGS: Final[dict[str, Kind]] = {".mp4": "film", ".gif": "film", ".run.json": "training"}
_SPIKE: Final = "spike_run.json"
_TOLD_BY: Final = (*_MARKS, *_ENDINGS, ".json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """How files are read, and where tags and trusted keys are looked up.

    Attributes:
        read: Returns the bytes of a file, if it is one that may be read.
        repo_root: Git repository with the tags of registrations and the file of trusted keys;
            None: the one around a bundle, or around the current folder, that holds the tag.
            Keys are trusted by the current folder only: what lies around a bundle came with it.
        allowed_signers: Trusted keys; None: those of the repository.
    """

    read: Callable[[Path], bytes]
    repo_root: Path | None = None
    allowed_signers: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A file or folder: ``path`` is absolute, ``place`` relative to the folder of the search."""

    kind: Kind
    path: Path
    place: str
    changed: float
    is_spike: bool = False

    @property
    def identity(self) -> str:
        """Name in addresses: a digest of kind and place."""
        told = f"{self.kind}:{self.place}".encode("utf-8", "replace")
        return hashlib.sha256(told).hexdigest()[:16]

    @property
    def home(self) -> str:
        """The folder of what it is part of: an evaluation, a training with seeds, a spike."""
        parts = Path(self.place).parts
        if self.kind in ("film", "stream"):
            parts = parts[:-1]
        elif self.kind == "training" and "training" in parts[:-3]:
            parts = parts[: len(parts) - 1 - parts[::-1].index("training")]
        elif self.kind == "bundle" and parts[-2:-1] == ("bundles",):
            parts = parts[:-2]
        return str(Path(*(parts[:-1] if parts[-1:] == ("evaluation",) else parts)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """Findings, newest first, and whether the search ended before all was looked at."""

    findings: tuple[Finding, ...]
    is_partial: bool

    def of(self, *kinds: Kind) -> list[Finding]:
        """Return all of some kinds."""
        return [one for one in self.findings if one.kind in kinds]

    def below(self, kind: Kind, place: str) -> list[Finding]:
        """Return all of one kind within a folder."""
        return [x for x in self.of(kind) if place == "." or x.place.startswith(f"{place}/")]

    def members(self, found: Finding) -> list[Finding]:
        """Return what a group consists of, by place; of anything else, itself."""
        members = [found]
        if found.kind == "evaluation":
            members = self.below("bundle", str(Path(found.place, "bundles")))
        elif found.kind == "spike":
            members = [one for one in self.below("bundle", found.place) if one.is_spike]
        elif found.kind == "seeds":
            members = self.below("training", str(Path(found.place, "training")))
        return sorted(members, key=lambda one: one.place)

    def related(self, found: Finding) -> list[Finding]:
        """Return the other groups that belong to the same home."""
        groups = self.of("evaluation", "spike", "matrix", "seeds")
        return [one for one in groups if one.home == found.home and one != found]


@lru_cache(maxsize=1000)
def claimed(read: Callable[[Path], bytes], bundle: Finding) -> tuple[str, str]:
    """Return the task and policy that a bundle names, unchecked; nothing of a damaged one."""
    try:
        told = parse_json_object(read(bundle.path / "bundle.json"), source="bundle.json")
    except CadenzaError:
        return "", ""
    return str(told.get("task_id", ""))[:80], str(told.get("policy_id", ""))[:80]


def search(root: Path) -> Search:
    """Return what lies below ``root``."""
    root = root.resolve()
    found: list[Finding] = []
    until, entries, is_partial = time.monotonic() + MAX_SEARCH_S, 0, False
    folders: deque[tuple[str, int]] = deque([(".", 0)])
    while folders:
        place, depth = folders.popleft()
        files: dict[str, float] = {}
        inner: list[str] = []
        try:
            with os.scandir(root / place) as listed:
                for entry in listed:
                    entries += 1
                    if entry.is_symlink() or entry.name[0] == "." or not entry.name.isprintable():
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        inner.append(entry.name)
                    elif entry.name.endswith(_TOLD_BY) and entry.is_file(follow_symlinks=False):
                        files[entry.name] = entry.stat(follow_symlinks=False).st_mtime
                    if entries > MAX_ENTRIES or time.monotonic() > until:
                        break
        except OSError:  # gone since, or not ours to read
            continue
        found += _of_folder(root, place, files)
        if entries > MAX_ENTRIES or time.monotonic() > until:
            is_partial = True
            break
        if files.keys() & {"bundle.json", "draws.jsonl"} or {"meta", "data"} <= set(inner):
            continue  # nothing of ours is deeper in bundles, recordings and datasets
        if "plan.json" in files and "cells" in inner:  # thousands of files of an evaluation
            inner.remove("cells")
        if depth < MAX_DEPTH:
            folders += [(str(Path(place, name)), depth + 1) for name in sorted(inner)]
        is_partial = is_partial or (depth == MAX_DEPTH and bool(inner))
    found += _groups(root, found)
    found.sort(key=lambda one: (-one.changed, one.place))
    return Search(findings=tuple(found), is_partial=is_partial)


def _of_folder(root: Path, place: str, files: dict[str, float]) -> Iterator[Finding]:
    """Yield the findings of one folder, without those deeper."""
    has_few = sum(name.endswith(".json") for name in files) <= MAX_JSON
    for name, changed in files.items():
        path = root / place / name
        kind: Kind | None = _MARKS.get(name)
        if kind is not None:
            spike = kind == "bundle" and _SPIKE in files
            yield Finding(kind=kind, path=path.parent, place=place, changed=changed, is_spike=spike)
            continue
        kind = next((_ENDINGS[end] for end in _ENDINGS if name.endswith(end)), None)
        if kind is None and has_few and name.endswith(".json") and _is_status(path, changed):
            kind = "stream"
        if kind is not None:
            yield Finding(kind=kind, path=path, place=str(Path(place, name)), changed=changed)


@lru_cache(maxsize=8192)
def _is_status(path: Path, _changed: float) -> bool:
    """Return whether a file that changed then looks like the status of a stream."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            head = file.read(MAX_STATUS_BYTES + 1)
    except OSError:
        return False
    return len(head) <= MAX_STATUS_BYTES and b'"producers"' in head and b'"replay_ratio"' in head


def _groups(root: Path, found: list[Finding]) -> Iterator[Finding]:
    """Yield folders that hold several: evaluations, spikes, trainings with several seeds."""
    groups: dict[tuple[Kind, str], list[Finding]] = {}
    for one in found:
        above = [str(parent) for parent in Path(one.place).parents]
        if one.kind == "bundle" and Path(one.place).parent.name == "bundles":
            groups.setdefault(("evaluation", above[1]), []).append(one)
            if one.is_spike:
                groups.setdefault(("spike", above[min(2, len(above) - 1)]), []).append(one)
        elif one.kind == "training" and one.home != one.place:
            groups.setdefault(("seeds", one.home), []).append(one)
    for (kind, place), members in groups.items():
        if kind == "spike" or len(members) > 1:
            changed = max(one.changed for one in members)
            yield Finding(kind=kind, path=root / place, place=place, changed=changed)
