"""One digest for a folder of files: names, sizes and bytes."""

import hashlib
from pathlib import Path

from cadenza.core.errors import IntegrityError
from cadenza.core.files import sha256_file


def tree_digest(root: Path) -> str:
    """Return the SHA-256 over the files below ``root``: relative names, sizes, digests, sorted.

    Empty folders do not count; equal contents give equal digests wherever the folder lies.

    Raises:
        IntegrityError: ``root`` is no folder, holds no file, or holds a link, pipe or device.
    """
    if not root.is_dir():
        raise IntegrityError(f"{root}: expected a folder, got none; check the path.")
    digest = hashlib.sha256()
    count = 0
    for path in sorted(root.rglob("*"), key=lambda path: path.relative_to(root).as_posix()):
        if path.is_dir() and not path.is_symlink():
            continue
        if path.is_symlink() or not path.is_file():
            raise IntegrityError(
                f"{path}: expected plain files and folders alone, got a link or special file; "
                "copy the folder without links."
            )
        name = path.relative_to(root).as_posix()
        digest.update(f"{name}\0{path.stat().st_size}\0{sha256_file(path)}\n".encode())
        count += 1
    if not count:
        raise IntegrityError(f"{root}: expected at least one file, got an empty folder.")
    return digest.hexdigest()
