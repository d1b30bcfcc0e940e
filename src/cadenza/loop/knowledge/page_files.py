"""Which files of a knowledge folder are pages, and reading them whatever they hold."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cadenza.core.files import sha256_bytes

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
