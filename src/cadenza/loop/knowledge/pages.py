"""Knowledge pages: their format, their files and names, and one writer of the folder at a time.

Page:   YAML front matter between ``---`` lines, then Markdown in sections. Reading never fails:
        what is no front matter stays in the text, what is no UTF-8 is replaced, and `Page.problem`
        says so. Writing and reading again gives the same page.
Files:  a page belongs to the name in its front matter. Two names may have one slug: another name of
        the same slug gets a file with a digest of the name at its end, and keeps it.
Runs:   run ids are unique within a store only. The first run of an id gets the id as its name; a
        run of that id in another store gets the id and a digest of its own origin, and keeps it.
        Who was first is kept in a hidden file of the folder.
"""

import fcntl
import logging
import os
import re
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, cast

import yaml

from cadenza.core.errors import StorageError
from cadenza.core.files import (
    atomic_write_bytes,
    atomic_write_text,
    confined_path,
    make_folder,
    remove_temporaries,
    sha256_bytes,
)

#: Longest front matter that is parsed, characters, and its deepest nesting: the parser is slow, and
#: its time grows with the square of the depth.
_MAX_FRONT_CHARS: Final = 1 << 16
_MAX_DEPTH: Final = 20
#: What the parser of YAML raises on text that people and models wrote, beside its own errors:
#: its constructors trust the tags ``!!int``, ``!!bool`` and ``!!timestamp``.
_YAML_ERRORS: Final = (
    yaml.YAMLError,
    ValueError,
    TypeError,
    AttributeError,
    LookupError,
    OverflowError,
    RecursionError,
)
#: Line ends of Unicode, and the byte order mark, which come back from YAML as something else.
_FOLDED: Final = re.compile("[\x85\u2028\u2029\ufeff]")
#: Lines of front matter are not broken.
_ANY_WIDTH: Final = 1_000_000
_HEADING: Final = re.compile(r"^## (.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Section:
    """A second-level heading and the text below it, up to the next one."""

    heading: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A page; `problem` says why the bytes are no proper one. Without front matter, no `meta`."""

    meta: Mapping[str, Any]
    preamble: str = ""
    sections: tuple[Section, ...] = ()
    problem: str | None = field(default=None, compare=False)

    def section(self, heading: str) -> str:
        """Return the text of the first section with this heading; empty without one."""
        return next((s.text for s in self.sections if s.heading == heading), "")

    def with_section(self, heading: str, text: str) -> "Page":
        """Return the page with this section's text replaced, or the section added at the end."""
        sections = list(self.sections)
        place = next((i for i, s in enumerate(sections) if s.heading == heading), len(sections))
        sections[place : place + 1] = [Section(heading, text.strip("\n"))]
        return replace(self, sections=tuple(sections))


def read_page(data: bytes) -> Page:
    """Return the page that ``data`` holds, whatever it holds."""
    problem: str | None = None
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        text = data.decode("utf-8", "replace")
        problem = f"no UTF-8 at byte {error.start}"
    text = text.removeprefix("\N{BYTE ORDER MARK}")
    text = re.sub("\r\n?", "\n", text)
    meta, body, front_problem = _split(text)
    parts = _HEADING.split(body)
    sections = tuple(
        Section(heading.rstrip(), content.strip("\n"))
        for heading, content in zip(parts[1::2], parts[2::2], strict=True)
    )
    return Page(
        meta=meta,
        preamble=parts[0].strip("\n"),
        sections=sections,
        problem=problem or front_problem,
    )


def write_page(page: Page) -> bytes:
    """Return the bytes of a page; equal pages give equal bytes."""
    front = _dumped(dict(page.meta)).strip()
    blocks = [f"---\n{front}\n---", page.preamble.strip("\n")]
    for section in page.sections:
        blocks += [f"## {section.heading}", section.text.strip("\n")]
    text = "\n\n".join(block for block in blocks if block)
    return f"{text}\n".encode("utf-8", "replace")


def _split(text: str) -> tuple[dict[str, Any], str, str | None]:
    """Return front matter, body, and what is wrong with the front matter."""
    if not text.startswith("---\n"):
        return {}, text, None
    end = text.find("\n---\n", len("---"))
    if end < 0:
        end = len(text) - len("\n---") if text.endswith("\n---") else -1
    if end < 0:
        return {}, text, "front matter without an end"
    front, body = text[len("---\n") : end + 1], text[end + len("\n---\n") :]
    if len(front) > _MAX_FRONT_CHARS:
        return {}, text, f"front matter longer than {_MAX_FRONT_CHARS} characters"
    try:
        meta = _loaded(front)
    except _YAML_ERRORS as error:
        reason = " ".join(str(error).split())[:200]
        return {}, text, f"front matter is no YAML: {type(error).__name__}: {reason}"
    if meta is None:
        return {}, body, None
    if not isinstance(meta, dict):
        return {}, text, f"front matter is no mapping but {type(meta).__name__}"
    return cast("dict[str, Any]", meta), body, None


def _loaded(front: str) -> Any:
    """Return plain values that can be written again; no aliases, which multiply what they hold."""
    if _bracket_depth(front) > _MAX_DEPTH:
        raise yaml.YAMLError(f"expected at most {_MAX_DEPTH} brackets within one another")
    loaded = yaml.load(front, _Loader)  # noqa: S506  # a SafeLoader
    _require_shallow(loaded, 0)
    return loaded


def _require_shallow(value: object, depth: int) -> None:
    if depth > _MAX_DEPTH:
        raise yaml.YAMLError(f"expected at most {_MAX_DEPTH} levels")
    if isinstance(value, dict):
        value = list(cast("dict[object, object]", value).values())
    if isinstance(value, list | tuple):
        for item in cast("list[object]", value):
            _require_shallow(item, depth + 1)


def _bracket_depth(text: str) -> int:
    """Return how deep brackets nest, those in quotes included."""
    depth = deepest = 0
    for bracket in re.findall(r"[\[\]{}]", text):
        depth = depth + 1 if bracket in "[{" else max(0, depth - 1)
        deepest = max(deepest, depth)
    return deepest


def _dumped(value: Any) -> str:
    """Return ``value`` as YAML: readable, or escaped where it has line ends that YAML folds."""
    for allow_unicode in (True, False):
        text = yaml.dump(
            value,
            Dumper=_Dumper,
            sort_keys=False,
            allow_unicode=allow_unicode,
            width=_ANY_WIDTH,
        )
        if not _FOLDED.search(text):
            break
    return text


class _Loader(yaml.SafeLoader):
    """Plain values, each written out where it stands."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Return the next node."""
        if cast("Any", self).check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases are not supported")
        return super().compose_node(parent, index)


class _Dumper(yaml.SafeDumper):
    """Plain values, each written out where it stands."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002  # every value
        """Return that no alias is written."""
        return True


#: The guide to the folder; people edit it, programs never do.
GUIDE_NAME: Final = "KNOWLEDGE.md"
#: Longest file that is taken for a page, bytes: a hundred times what ingesting makes of it.
MAX_PAGE_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class PageFile:
    """A page on disk: its path below the folder, the digest of its bytes, and its text."""

    path: str
    sha256: str
    text: str


def page_paths(root: Path) -> list[Path]:
    """Return the files that may be pages, sorted: Markdown inside ``root``, without the guide."""
    resolved = root.resolve()
    return [
        path
        for path in sorted(root.rglob("*.md"))
        if path.name != GUIDE_NAME
        and not path.name.startswith(".")
        and path.is_file()
        and path.resolve().is_relative_to(resolved)
    ]


def newest_pages(root: Path, limit: int) -> list[PageFile]:
    """Return the ``limit`` pages written last, newest first, equally old ones by path.

    Files that are unreadable or longer than `MAX_PAGE_BYTES` are left out.
    """
    dated: list[tuple[int, Path]] = []
    for path in page_paths(root):
        try:
            dated.append((-path.stat().st_mtime_ns, path))
        except OSError:
            continue  # it went away meanwhile
    pages: list[PageFile] = []
    for _, path in sorted(dated):
        if len(pages) >= limit:
            break
        data = read_bounded(path)
        if data is not None:
            text = data.decode("utf-8", "replace").replace("\r\n", "\n")
            relative = path.relative_to(root).as_posix()
            pages.append(PageFile(relative, sha256_bytes(data), text))
    return pages


def read_bounded(path: Path) -> bytes | None:
    """Return the bytes of a file; None if it is unreadable or longer than `MAX_PAGE_BYTES`."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_PAGE_BYTES + 1)
    except OSError:
        return None
    return data if len(data) <= MAX_PAGE_BYTES else None


_logger = logging.getLogger(__name__)
#: Seconds we wait for another writer, who needs milliseconds.
LOCK_WAIT_S: Final = 60.0
#: Seconds between two tries for the lock.
_POLL_S: Final = 0.01
_LOCK_NAME: Final = ".lock"
_GUIDE: Final = """\
# Knowledge

What runs of the loop observed, one page per task, policy and run. Pages are advice for people and
proposers; nothing is decided by them.

- `tasks/`, `policies/`: YAML front matter between `---` lines (`name`, `type`, `status`,
  `provenance`, `updated`), then `## Observations` and `## Lessons`.
- `experiments/`: one page per run, with a table of its cycles. A run of another store whose id
  was taken has a digest behind its id; `.runs/` holds who was first.
- `status` is `observed-once`; `replicated` once two runs or more of different seeds, each with
  enough episodes, kept the same policy on the same suite and all agree; or `human-confirmed`,
  which only a person sets, and which keeps programs from changing status and lessons.
- A run keeps a policy that it blessed (`promote`) or first compared with (`provisional`). Other
  candidates are observations, not lessons; a `rollback` is a regression.
- Lines of your own in any section are kept. `cadenza loop lint` checks the pages.

This file is written once and never changed by a program.
"""


@contextmanager
def locked(root: Path) -> Generator[None]:
    """Own the folder, made if missing, inside the block, or raise `StorageError`."""
    descriptor = _open_lock(root)
    try:
        _wait_for(descriptor, root)
        for folder in (root, *(f for f in root.iterdir() if f.is_dir() and not f.is_symlink())):
            remove_temporaries(folder)
        if not (root / GUIDE_NAME).exists():
            atomic_write_bytes(root / GUIDE_NAME, _GUIDE.encode())
        yield
    finally:
        os.close(descriptor)


def load_page(path: Path) -> Page:
    """Return the page at ``path``, or an empty one; a file longer than a page is renamed."""
    if path.is_file() and path.stat().st_size > MAX_PAGE_BYTES:
        aside = path.with_suffix(".oversized")
        _logger.warning("%s is longer than %d bytes: kept as %s", path, MAX_PAGE_BYTES, aside)
        path.replace(aside)
    if not path.exists():
        return Page(meta={})
    data = read_bounded(path)
    if data is None:
        raise StorageError(
            f"{path}: expected a readable page of at most {MAX_PAGE_BYTES} bytes, got another "
            "file; move it away."
        )
    return read_page(data)


def save_page(path: Path, page: Page) -> None:
    """Write a page in one durable step, unless the file holds these bytes already."""
    data = write_page(page)
    if not path.exists() or read_bounded(path) != data:
        atomic_write_bytes(path, data)


def _open_lock(root: Path) -> int:
    try:
        make_folder(root)
        return os.open(root / _LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise StorageError(
            error.errno,
            f"{root}: expected a folder to keep knowledge in, got '{error.strerror}'; choose "
            "another knowledge.root",
        ) from error


def _wait_for(descriptor: int, root: Path) -> None:
    deadline = time.monotonic() + LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if time.monotonic() >= deadline:
                raise StorageError(
                    f"{root}: expected the lock within {LOCK_WAIT_S:g} s, got none; end the "
                    "process that holds it, or wait."
                ) from error
            time.sleep(_POLL_S)
        else:
            return


#: Longest slug, bytes of UTF-8: leaves room for digest, suffix and temporary names in 255.
_MAX_SLUG_BYTES: Final = 100
#: Hexadecimal digits that tell names of one slug apart.
_DIGEST_DIGITS: Final = 8
#: Characters of file names beside letters and digits.
_KEPT: Final = frozenset("._-+")


def slug(name: str) -> str:
    """Return the file name of a page without its ending: lower case, ``-`` for all else."""
    lowered = "".join(c if c.isalnum() or c in _KEPT else "-" for c in name.lower())
    plain = lowered.lstrip(".") or "unnamed"
    if len(plain.encode()) <= _MAX_SLUG_BYTES:
        return plain
    kept = plain.encode()[: _MAX_SLUG_BYTES - _DIGEST_DIGITS - 1].decode("utf-8", "ignore")
    return f"{kept}-{_digits(name)}"


def page_path(root: Path, folder: str, name: str, owner: Callable[[Path], str | None]) -> Path:
    """Return the file, below ``folder``, of the page about ``name``.

    ``owner`` returns the name that a file's front matter gives; None if there is none. A link that
    leads outside ``root`` is a `StorageError`.
    """
    plain = confined_path(root, f"{folder}/{slug(name)}.md")
    told_apart = confined_path(root, f"{folder}/{slug(name)}-{_digits(name)}.md")
    if told_apart.exists():
        return told_apart
    return plain if owner(plain) in (None, name) else told_apart


def _digits(name: str) -> str:
    return _digest(name)[:_DIGEST_DIGITS]


def _digest(text: str) -> str:
    return sha256_bytes(text.encode("utf-8", "replace"))


#: Folder of the claims, below the folder of the pages.
_CLAIMS: Final = ".runs"
#: What claims a name for pages that were written by nobody known.
_UNKNOWN: Final = "-"
#: Hexadecimal digits of a claim's file name.
_FILE_DIGITS: Final = 32


def claimed_name(root: Path, run_id: str, origin: str, *, taken: bool) -> str:
    """Return the name of a run in the pages, claiming its id if nobody did; call under the lock.

    ``origin`` tells the run from others of its id, and is equal whenever it goes on. ``taken`` says
    that the pages hold what this run is about to tell: without a claim, another run of its id
    wrote them. A link that leads out of the folder is a `StorageError`.
    """
    path = confined_path(root, f"{_CLAIMS}/{_digest(run_id)[:_FILE_DIGITS]}")
    own = _digest(origin)
    data = read_bounded(path)
    if data is None:
        claim = _UNKNOWN if taken else own
        atomic_write_text(path, f"{claim}\n")
    else:
        claim = data.decode("utf-8", "replace").strip()
    return run_id if claim == own else f"{run_id}~{_digits(origin)}"
