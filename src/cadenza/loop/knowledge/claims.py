"""Which run a name in the pages stands for, where stores share a folder of pages.

Run ids are unique within a store only. The first run of an id gets the id as its name; a run of
that id in another store gets the id and a digest of its own origin, and keeps it. Who was first is
kept in a hidden file of the folder.
"""

from pathlib import Path
from typing import Final

from cadenza.core.files import atomic_write_text, confined_path, sha256_bytes
from cadenza.loop.knowledge.page_files import read_bounded

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
