"""Where the paths of a command may lie, with links and ``..`` resolved.

Limits:  a link that is made after a command was cleared, and before it runs, is not seen.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cadenza.loop.constitution.verdict import denied, quoted

#: Longest path we accept, characters; Linux's own limit.
MAX_PATH: Final = 4096


@dataclass(frozen=True, slots=True)
class Roots:
    """The folders of a run.

    Attributes:
        write: Folders below which a command may create things; usually the run's folder alone.
        read: Further folders that it may read: seed dataset, initial weights.
    """

    write: tuple[Path, ...]
    read: tuple[Path, ...] = ()


def confined(key: str, text: str, roots: Roots | None, *, write: bool) -> Path:
    """Return the path that ``text`` names, absolute and without links.

    A relative path counts from the current folder. A path to write lies strictly below a root; a
    path to read may also be a root itself.

    Args:
        key: Flag that names it, for the message.
        text: The path.
        roots: Where it must lie; None checks its form alone.
        write: Whether the command creates it.

    Raises:
        ConstitutionError: It is malformed or lies elsewhere.
    """
    if len(text) > MAX_PATH or text.startswith("~") or "://" in text or "\\" in text:
        raise denied("malformed_path", f"expected a plain path for --{key}, got {quoted(text)}")
    try:
        resolved = Path(text).resolve()
    except (OSError, RuntimeError) as error:
        raise denied(
            "malformed_path", f"expected a path for --{key}, got {quoted(text)}: {error}"
        ) from error
    shown = str(resolved)
    if not shown.isprintable() or shown != shown.strip():
        raise denied("malformed_path", f"expected --{key} to lead to a plain path, got {shown!a}")
    if roots is None:
        return resolved
    allowed = roots.write if write else (*roots.write, *roots.read)
    if not any(_is_below(resolved, root.resolve(), strictly=write) for root in allowed):
        raise denied(
            "path_outside_roots",
            f"expected --{key} below {' or '.join(map(str, allowed)) or 'no folder at all'}, got "
            f"{quoted(text)}, which is {quoted(str(resolved))}",
        )
    return resolved


def _is_below(path: Path, root: Path, *, strictly: bool) -> bool:
    return path.is_relative_to(root) and not (strictly and path == root)
