"""Digest of the code that can change the result of an evaluation or a job.

Covered:  every Python file of the package except the folders that only start runs or show results.
Use:      part of every cell key and job, so that results of other code are never mixed in.
"""

import hashlib
from functools import cache
from pathlib import Path
from typing import Final

import cadenza

#: Folders without influence on any episode.
_NOT_COVERED: Final = frozenset({"cli", "web", "loop", "report"})


@cache
def source_digest() -> str:
    """Return the SHA-256 over the names and bytes of the package's source files."""
    return digest_of_sources(Path(cadenza.__file__).parent)


def digest_of_sources(root: Path) -> str:
    """Return the SHA-256 over the Python files below ``root``, names and bytes, in sorted order."""
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py"), key=lambda path: path.relative_to(root).as_posix()):
        relative = path.relative_to(root)
        if _NOT_COVERED.intersection(relative.parts[:-1]):
            continue
        content = path.read_bytes()
        digest.update(f"{relative.as_posix()}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()
