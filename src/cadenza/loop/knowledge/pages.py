"""Knowledge pages: their format, their files and names, and one writer of the folder at a time.

Page:   YAML front matter between ``---`` lines, then Markdown in sections, all written by programs;
        then a line with `MARKER` and a digest of what is above, and below it a person's own text.
        Reading never fails: what is no front matter stays in the text, bytes that are no UTF-8 stay
        too, `Page.problem` says so.
Files:  a page belongs to the name in its front matter. Two names may have one slug: another name of
        the same slug gets a file with a digest of the name at its end, and keeps it.
"""

import logging
import os
import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

from cadenza.core.errors import ConfigurationError, StorageError
from cadenza.core.files import (
    atomic_write_bytes,
    confined_path,
    lock_file,
    make_folder,
    remove_temporaries,
    sha256_bytes,
)
from cadenza.core.yaml_files import has_aliases, parse_yaml_document

#: The line that has it divides a page; what is below is kept byte for byte.
MARKER: Final = "Text below this line is yours and is kept; what is above is written anew."
_MARKER: Final = re.compile(
    rb"^<!-- (?:([0-9a-f]{16}): )?%b -->[ \t\r]*(?:\n|\Z)" % re.escape(MARKER.encode()),
    re.MULTILINE,
)
#: Longest front matter that is parsed, characters: the parser is slow.
_MAX_FRONT_CHARS: Final = 1 << 16
_FRONT: Final = re.compile(r"---\n(.*?\n|)---(?:\n|\Z)", re.DOTALL)
_HEADING: Final = re.compile(r"^## (.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A page; `problem` says why the bytes are no proper one. Without front matter, no `meta`.

    Attributes:
        front: The lines of the front matter.
        sections: Headings of second level with the text below each; first the text before them,
            whose heading is empty.
        below: A person's own text.
        untouched: Whether nobody edited what programs wrote.
    """

    meta: Mapping[str, Any]
    front: tuple[str, ...] = ()
    sections: tuple[tuple[str, str], ...] = ()
    below: bytes = b""
    untouched: bool = False
    problem: str | None = field(default=None, compare=False)

    def section(self, heading: str) -> str:
        """Return the text of the first section with this heading; empty without one."""
        return next((text for name, text in self.sections if name == heading), "")


def read_page(data: bytes) -> Page:
    """Return the page that ``data`` holds, whatever it holds; odd bytes become lone surrogates."""
    divided = _MARKER.search(data)
    head, below = (
        (data, b"") if divided is None else (data[: divided.start()], data[divided.end() :])
    )
    problem: str | None = None
    try:
        head.decode("utf-8")
    except UnicodeDecodeError as error:
        problem = f"no UTF-8 at byte {error.start}"
    text = head.decode("utf-8", "surrogateescape").removeprefix("\N{BYTE ORDER MARK}")
    text = re.sub("\r\n?", "\n", text)
    front, meta, front_problem = _front_of(text)
    parts = _HEADING.split(text[len(front) :])
    sections = zip(["", *parts[1::2]], parts[::2], strict=True)
    return Page(
        meta=meta,
        front=tuple(front.rstrip("\n").split("\n")[1:-1]),
        sections=tuple((heading.rstrip(), part.strip("\n")) for heading, part in sections),
        below=below,
        untouched=divided is not None and divided[1] == head_digest(head).encode(),
        problem=problem or front_problem,
    )


def _front_of(text: str) -> tuple[str, dict[str, Any], str | None]:
    """Return the front matter with its ends, what it says, and what is wrong with it."""
    match = _FRONT.match(text)
    if match is None:
        return "", {}, "front matter without an end" if text.startswith("---\n") else None
    if len(match[1]) > _MAX_FRONT_CHARS:
        return "", {}, f"front matter longer than {_MAX_FRONT_CHARS} characters"
    try:
        front = match[1].encode("utf-8", "surrogatepass")
        if b"&" in front and has_aliases(front):
            return "", {}, "front matter that repeats a part of itself"
        meta = parse_yaml_document(front, source="front matter").content
    except ConfigurationError as error:
        return "", {}, f"front matter is no YAML: {error}"
    if not isinstance(meta, dict | None):
        return "", {}, f"front matter is no mapping but {type(meta).__name__}"
    return match[0], cast("dict[str, Any]", meta or {}), None


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
_LOCK_NAME: Final = ".lock"
_GUIDE: Final = """\
# Knowledge

What runs of the loop observed, one page per task, policy and run. Pages are advice for people and
proposers; nothing is decided by them.

- `tasks/`, `policies/`: YAML front matter between `---` lines (`name`, `type`, `status`,
  `provenance`, `updated`), then `## Observations` and `## Lessons`.
- `experiments/`: one page per run, with a table of its cycles. A run of another store whose id
  was taken has a digest behind its id.
- `status` is `observed-once`; `replicated` once two runs or more of different seeds, each with
  enough episodes, kept the same policy on the same suite and all agree; or `human-confirmed`,
  which only a person sets, and which keeps programs from changing status and lessons.
- A run keeps a policy that it blessed (`promote`) or first compared with (`provisional`). Other
  candidates are observations, not lessons; a `rollback` is a regression.
- Pages are written from `observations.jsonl`, a line per cycle of a run; remove a line there to
  forget it. Write below the last line of a page: that is kept as it is. Lessons that you edit are
  kept too, until a model rewrites them. `cadenza loop lint` checks the pages.

This file is written once and never changed by a program.
"""


@contextmanager
def locked(root: Path) -> Generator[None]:
    """Own the folder, made if missing, inside the block, or raise `StorageError`."""
    try:
        make_folder(root)
        descriptor = os.open(root / _LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise StorageError(
            error.errno,
            f"{root}: expected a folder to keep knowledge in, got '{error.strerror}'; choose "
            "another knowledge.root",
        ) from error
    try:
        if not lock_file(descriptor, wait_s=LOCK_WAIT_S):
            raise StorageError(
                f"{root}: expected the lock within {LOCK_WAIT_S:g} s, got none; end the process "
                "that holds it, or wait."
            )
        for folder in (root, *(f for f in root.iterdir() if f.is_dir() and not f.is_symlink())):
            remove_temporaries(folder)
        if not (root / GUIDE_NAME).exists():
            atomic_write_bytes(root / GUIDE_NAME, _GUIDE.encode())
        yield
    finally:
        os.close(descriptor)


def head_digest(head: bytes) -> str:
    """Return the digest of what is above the marker."""
    return sha256_bytes(head)[:16]


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


def save(path: Path, data: bytes) -> None:
    """Write a file in one durable step, unless it holds these bytes already."""
    if not path.exists() or path.read_bytes() != data:
        atomic_write_bytes(path, data)


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
    return f"{kept}-{digest(name)[:_DIGEST_DIGITS]}"


def page_path(root: Path, folder: str, name: str) -> Path:
    """Return the file, below ``folder``, of the page about ``name``.

    A link that leads outside ``root`` is a `StorageError`.
    """
    plain = confined_path(root, f"{folder}/{slug(name)}.md")
    told_apart = confined_path(root, f"{folder}/{slug(name)}-{digest(name)[:_DIGEST_DIGITS]}.md")
    if told_apart.exists():
        return told_apart
    owner = read_page(read_bounded(plain) or b"").meta.get("name")
    return told_apart if isinstance(owner, str) and owner != name else plain


def digest(text: str) -> str:
    """Return the SHA-256 of a text."""
    return sha256_bytes(text.encode("utf-8", "replace"))
