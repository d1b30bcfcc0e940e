"""What lies below the folder of all runs beside the runs: results, trainings, streams, films.

Search:    breadth first, bounded in depth, entries and time; links and hidden folders are not
           followed. A visitor names a finding by a digest of its place, never by a path.
Computing: once per state of the files, in few threads of its own; a page that would wait long says
           so instead. What was computed last is kept.
"""

import hashlib
import os
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, TypeVar

from cadenza.core.errors import NotReadyError

Kind: TypeAlias = Literal[
    "evaluation", "bundle", "spike", "matrix", "seeds", "training", "stream", "recording", "film"
]
#: Folders deep, entries looked at, s of a search, and s for which its answer is used again.
MAX_DEPTH, MAX_ENTRIES, MAX_SEARCH_S, FRESH_S = 9, 50_000, 5.0, 2.0
#: Computations at once, results kept, and s that a page waits for one.
_THREADS, _KEPT, WAIT_S = 2, 64, 20.0
#: Files that tell what a folder is.
_MARKS: Final[dict[str, Kind]] = {
    "bundle.json": "bundle",
    "matrix.json": "matrix",
    "draws.jsonl": "recording",
}
#: Endings of files that are findings by themselves, and largest file that may be a stream's status.
_FILMS, _CARD, MAX_STATUS = (".mp4", ".gif"), ".run.json", 1 << 18
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A file or folder that a page shows; ``path`` is absolute, ``place`` relative to the root."""

    kind: Kind
    path: Path
    place: str
    changed: float

    @property
    def identity(self) -> str:
        """What stands in addresses."""
        return hashlib.sha256(f"{self.kind}:{self.place}".encode("utf-8", "replace")).hexdigest()[
            :16
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """Findings, newest first, and whether the search ended before all was looked at."""

    findings: tuple[Finding, ...]
    is_partial: bool

    def of(self, kind: Kind) -> list[Finding]:
        """Return all of one kind."""
        return [one for one in self.findings if one.kind == kind]

    def below(self, kind: Kind, place: str) -> list[Finding]:
        """Return those of one kind within a folder."""
        return [one for one in self.of(kind) if place == "." or one.place.startswith(f"{place}/")]


class Findings:
    """Looks for results below one folder, and keeps what was computed of them."""

    def __init__(self, root: Path) -> None:
        """Look below ``root``."""
        self._root = root
        self._lock = threading.Lock()
        self._search: tuple[float, Search] | None = None
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="results")
        self._computed: OrderedDict[Hashable, Future[Any]] = OrderedDict()

    def search(self) -> Search:
        """Return what is there now, or was a moment ago."""
        with self._lock:
            if self._search is None or self._search[0] < time.monotonic() - FRESH_S:
                found = search(self._root)
                self._search = time.monotonic(), found
            return self._search[1]

    def get(self, identity: str, *kinds: Kind) -> Finding | None:
        """Return the finding of one of ``kinds`` with this identity."""
        found = self.search().findings
        one = next((x for x in found if x.identity == identity and x.kind in kinds), None)
        # between the search and now, a folder may have become a link that leads elsewhere
        return one if one is not None and one.path.resolve() == one.path else None

    def computed(
        self, name: str, state: Hashable, compute: Callable[[], T], *, anew: bool = False
    ) -> T:
        """Return what ``compute`` gives for this state of files, computed once or ``anew``.

        Raises:
            NotReadyError: It takes long and goes on; ask again.
        """
        key = name, state
        with self._lock:
            future = self._computed.get(key)
            if future is None or (anew and future.done()):
                future = self._computed[key] = self._pool.submit(compute)
            self._computed.move_to_end(key)
            while len(self._computed) > _KEPT:
                self._computed.popitem(last=False)[1].cancel()
        try:
            return future.result(WAIT_S)
        except TimeoutError as error:
            raise NotReadyError(
                "This is still being computed; load the page again in a moment."
            ) from error

    def close(self) -> None:
        """Compute nothing more."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def search(root: Path) -> Search:
    """Return what lies below ``root``."""
    found: list[Finding] = []
    until, entries, partial = time.monotonic() + MAX_SEARCH_S, 0, False
    folders: deque[tuple[Path, str, int]] = deque([(root.resolve(), "", 0)])
    while folders:
        folder, place, depth = folders.popleft()
        files: dict[str, float] = {}
        inner: list[str] = []
        try:
            with os.scandir(folder) as listed:
                for entry in listed:
                    entries += 1
                    if entries > MAX_ENTRIES or time.monotonic() > until:
                        partial = True
                        break
                    if entry.is_symlink() or not _is_shown(entry.name):
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        inner.append(entry.name)
                    elif entry.is_file(follow_symlinks=False):
                        files[entry.name] = entry.stat(follow_symlinks=False).st_mtime
        except OSError:  # gone since, or not ours to read
            continue
        found += _of_folder(folder, place, files)
        if partial:
            break
        if _is_closed(files, inner):
            continue
        if depth == MAX_DEPTH:
            partial = partial or bool(inner)
            continue
        prefix = f"{place}/" if place else ""
        folders += [(folder / name, f"{prefix}{name}", depth + 1) for name in sorted(inner)]
    found += _groups(root.resolve(), found)
    found.sort(key=lambda one: (-one.changed, one.place))
    return Search(findings=tuple(found), is_partial=partial)


def _is_shown(name: str) -> bool:
    return not name.startswith(".") and name.isprintable()


def _is_closed(files: dict[str, float], inner: list[str]) -> bool:
    """Return whether nothing of ours lies deeper: in bundles, recordings and datasets."""
    return "bundle.json" in files or "draws.jsonl" in files or {"meta", "data"} <= set(inner)


def _of_folder(folder: Path, place: str, files: dict[str, float]) -> Iterable[Finding]:
    """Yield what one folder holds."""
    prefix = f"{place}/" if place else ""
    for name, kind in _MARKS.items():
        if name in files:
            yield Finding(kind=kind, path=folder, place=place or ".", changed=files[name])
    for name, changed in files.items():
        kind: Kind | None = None
        if name.endswith(_FILMS):
            kind = "film"
        elif name.endswith(_CARD):
            kind = "training"
        elif name.endswith(".json") and _is_status(folder / name, changed):
            kind = "stream"
        if kind is not None:
            yield Finding(kind=kind, path=folder / name, place=f"{prefix}{name}", changed=changed)


@lru_cache(maxsize=8192)
def _is_status(path: Path, _changed: float) -> bool:
    """Return whether a file that changed then looks like the status of a stream."""
    try:
        with path.open("rb") as file:
            head = file.read(MAX_STATUS + 1)
    except OSError:
        return False
    return len(head) <= MAX_STATUS and b'"producers"' in head and b'"replay_ratio"' in head


def _groups(root: Path, found: list[Finding]) -> Iterable[Finding]:
    """Yield folders that hold several: evaluations, spikes, trainings with several seeds."""
    groups: dict[tuple[Kind, str], list[Finding]] = {}
    for one in found:
        parts = one.place.split("/")
        if one.kind == "bundle" and len(parts) > 1 and parts[-2] == "bundles":
            groups.setdefault(("evaluation", "/".join(parts[:-2]) or "."), []).append(one)
            if (one.path / "spike_run.json").is_file():
                groups.setdefault(("spike", "/".join(parts[:-3]) or "."), []).append(one)
        elif one.kind == "training" and "training" in parts[:-3]:
            above = parts[: len(parts) - 1 - parts[::-1].index("training")]
            groups.setdefault(("seeds", "/".join(above) or "."), []).append(one)
    for (kind, place), members in groups.items():
        if kind == "spike" or len(members) > 1:
            changed = max(one.changed for one in members)
            yield Finding(kind=kind, path=root / place, place=place, changed=changed)


def state_of(paths: Iterable[Path]) -> Hashable:
    """Return what changes when one of the files does."""
    told: list[tuple[str, int, int, int]] = []
    for path in paths:
        try:
            status = path.stat()
            told.append((str(path), status.st_ctime_ns, status.st_size, status.st_ino))
        except OSError:
            told.append((str(path), 0, 0, 0))
    return tuple(sorted(told))
