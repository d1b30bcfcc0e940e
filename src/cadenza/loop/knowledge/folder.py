"""The knowledge folder: its pages as files, their names, and one writer at a time.

Files:  a page belongs to the name in its front matter. Two names may have one slug: another name of
        the same slug gets a file with a digest of the name at its end, and keeps it.
Runs:   run ids are unique within a store only. The first run of an id gets the id as its name; a
        run of that id in another store gets the id and a digest of its own origin, and keeps it.
        Who was first is kept in a hidden file of the folder.
"""

import fcntl
import logging
import os
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cadenza.core.errors import StorageError
from cadenza.core.files import (
    atomic_write_bytes,
    atomic_write_text,
    confined_path,
    make_folder,
    remove_temporaries,
    sha256_bytes,
)
from cadenza.loop.knowledge.page import Page, read_page, write_page

#: The guide to the folder; people edit it, programs never do.
GUIDE_NAME: Final = "KNOWLEDGE.md"
#: Longest file that is taken for a page, bytes: a hundred times what ingesting makes of it.
MAX_PAGE_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class PageFile:
    """A page as it is on disk.

    Attributes:
        path: Its path below the folder, with ``/``.
        sha256: Digest of its bytes.
        text: Its text; bytes that are no UTF-8 are replaced.
    """

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
    """Own the folder inside the block; it is created, with its guide, if it is missing.

    Raises:
        StorageError: Another process owns it for too long.
        StorageError: The file system refused.
    """
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
    """Return the page at ``path``; an empty one if there is no file.

    Raises:
        StorageError: The file is longer than a page, or unreadable.
    """
    if not path.exists():
        return Page(meta={})
    data = read_bounded(path)
    if data is None:
        raise StorageError(
            f"{path}: expected a readable page of at most {MAX_PAGE_BYTES} bytes, got another "
            "file; move it away."
        )
    return read_page(data)


def load_or_set_aside(path: Path) -> Page:
    """Return the page at ``path``; a file longer than a page is renamed, and a new page begins.

    Raises:
        StorageError: The file is unreadable.
    """
    if path.is_file() and path.stat().st_size > MAX_PAGE_BYTES:
        aside = path.with_suffix(".oversized")
        _logger.warning("%s is longer than %d bytes: kept as %s", path, MAX_PAGE_BYTES, aside)
        path.replace(aside)
    return load_page(path)


def save_page(path: Path, page: Page) -> None:
    """Write a page in one durable step, unless the file holds these bytes already.

    Raises:
        StorageError: The file system refused; the file is unchanged.
    """
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
    """Return the file of a page.

    Args:
        root: Knowledge folder.
        folder: Folder below it, for the type of page.
        name: What the page is about.
        owner: Returns the name that a file's front matter gives; None if there is none.

    Raises:
        StorageError: A link leads outside ``root``.
    """
    plain = confined_path(root, f"{folder}/{slug(name)}.md")
    told_apart = confined_path(root, f"{folder}/{slug(name)}-{_digits(name)}.md")
    if told_apart.exists():
        return told_apart
    return plain if owner(plain) in (None, name) else told_apart


def _digits(name: str) -> str:
    return _digest(name)[:_DIGEST_DIGITS]


#: Folder of the claims, below the folder of the pages.
_CLAIMS: Final = ".runs"
#: What claims a name for pages that were written by nobody known.
_UNKNOWN: Final = "-"
#: Hexadecimal digits of a file's name, and of an origin in a run's name.
_FILE_DIGITS: Final = 32
_ORIGIN_DIGITS: Final = 8


def claimed_name(root: Path, run_id: str, origin: str, *, taken: bool) -> str:
    """Return the name of a run in the pages, claiming its id if nobody did; call under the lock.

    Args:
        root: Knowledge folder.
        run_id: Id of the run.
        origin: What tells the run from others of its id; equal whenever it goes on.
        taken: Whether the pages hold what this run is about to tell; without a claim, another run
            of its id wrote them.

    Raises:
        StorageError: The file system refused, or a link leads out of the folder.
    """
    path = confined_path(root, f"{_CLAIMS}/{_digest(run_id)[:_FILE_DIGITS]}")
    own = _digest(origin)
    data = read_bounded(path)
    if data is None:
        claim = _UNKNOWN if taken else own
        atomic_write_text(path, f"{claim}\n")
    else:
        claim = data.decode("utf-8", "replace").strip()
    return run_id if claim == own else f"{run_id}~{own[:_ORIGIN_DIGITS]}"


def _digest(text: str) -> str:
    return sha256_bytes(text.encode("utf-8", "replace"))
