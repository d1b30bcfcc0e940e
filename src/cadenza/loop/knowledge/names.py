"""From the name of a policy, task or run to the file of its page, inside the folder for any name.

Two names may have one slug. The page belongs to the name in its front matter; another name of the
same slug gets a file with a digest of the name at its end, and keeps it.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from cadenza.core.files import confined_path, sha256_bytes

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
    return f"{kept}-{_digest(name)}"


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
    told_apart = confined_path(root, f"{folder}/{slug(name)}-{_digest(name)}.md")
    if told_apart.exists():
        return told_apart
    return plain if owner(plain) in (None, name) else told_apart


def _digest(name: str) -> str:
    return sha256_bytes(name.encode("utf-8", "replace"))[:_DIGEST_DIGITS]
