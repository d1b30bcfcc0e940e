"""The knowledge folder: one writer at a time, whole files, and a guide for people."""

import fcntl
import logging
import os
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from cadenza.core.errors import StorageError
from cadenza.core.files import atomic_write_bytes, make_folder, remove_temporaries
from cadenza.loop.knowledge.page import Page, read_page, write_page
from cadenza.loop.knowledge.page_files import GUIDE_NAME, MAX_PAGE_BYTES, read_bounded

_LOGGER: Final = logging.getLogger(__name__)
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
        _LOGGER.warning("%s is longer than %d bytes: kept as %s", path, MAX_PAGE_BYTES, aside)
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
