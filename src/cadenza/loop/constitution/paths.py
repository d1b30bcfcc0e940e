"""Where the paths of a command may lie, with links and ``..`` resolved.

Writing:  below the folder of the run, never what the loop keeps there itself: events, incidents,
          logs, and the files of jobs, whose locks and ends it believes. With the folder of the job
          known, in that folder alone.
Overlap:  what is written lies neither in what is read nor around it, and a result file is not the
          folder that is made.
Limits:   a link that is made after a command was cleared, and before it runs, is not seen.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cadenza.loop.constitution.flags import is_shown
from cadenza.loop.constitution.verdict import denied, quoted

#: Longest path we accept, characters; Linux's own limit.
MAX_PATH: Final = 4096
#: Names, directly in a run's folder, that begin those of the loop's own files.
_OWN_FILES: Final = ("events.jsonl", "incidents.jsonl")
_CYCLE: Final = re.compile(r"cycle_[0-9]+")


@dataclass(frozen=True, slots=True)
class Roots:
    """The folders of a run.

    Attributes:
        write: Folders below which a command may create things; usually the run's folder alone.
        read: Further folders that it may read: seed dataset, initial weights.
        job: The one folder, within one to write, that the command may create or fill; None for any.
    """

    write: tuple[Path, ...]
    read: tuple[Path, ...] = ()
    job: Path | None = None


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
        ConstitutionError: It is malformed or lies elsewhere, or is the loop's own.
    """
    if len(text) > MAX_PATH or text.startswith("~") or "://" in text or "\\" in text:
        raise denied("malformed_path", f"expected a plain path for --{key}, got {quoted(text)}")
    try:
        resolved = Path(text).resolve()
    except (OSError, RuntimeError, ValueError) as error:
        raise denied(
            "malformed_path", f"expected a path for --{key}, got {quoted(text)}: {error}"
        ) from error
    shown = str(resolved)
    if not all(map(is_shown, shown)) or shown != shown.strip():
        raise denied("malformed_path", f"expected --{key} to lead to a plain path, got {shown!a}")
    if roots is None:
        return resolved
    allowed = roots.write if write else (*roots.write, *roots.read)
    if not any(_is_below(resolved, root.resolve(), strictly=write) for root in allowed):
        raise denied(
            "path_outside_roots",
            f"expected --{key} below {' or '.join(map(str, allowed)) or 'no folder at all'}, got "
            + (quoted(text) if text == shown else f"{quoted(text)}, which is {quoted(shown)}"),
        )
    if write:
        _require_not_the_loops(key, resolved, roots)
    return resolved


def require_separate(read: Sequence[tuple[str, Path]], written: Sequence[tuple[str, Path]]) -> None:
    """Raise unless what a command writes leaves alone what it reads, and what else it writes.

    Args:
        read: Flag and path of everything that is read.
        written: The same of everything that is written.

    Raises:
        ConstitutionError: Two paths are in each other's way.
    """
    for key, path in written:
        for other, source in read:
            if path.is_relative_to(source) or source.is_relative_to(path):
                raise denied(
                    "overlapping_paths",
                    f"expected --{key} apart from --{other}, got {quoted(str(path))}, which holds "
                    f"{quoted(str(source))} or lies in it",
                )
    for number, (key, path) in enumerate(written):
        for other, second in written[number + 1 :]:
            result, folder = (path, second) if key == "result-json" else (second, path)
            if folder.is_relative_to(result):
                raise denied(
                    "overlapping_paths",
                    f"expected --{key} and --{other} at different places, got "
                    f"{quoted(str(path))} and {quoted(str(second))}",
                )


def _require_not_the_loops(key: str, path: Path, roots: Roots) -> None:
    if roots.job is not None and not path.is_relative_to(roots.job.resolve()):
        raise denied(
            "path_outside_job",
            f"expected --{key} in the folder of the job, {roots.job}, got {quoted(str(path))}",
        )
    for root in roots.write:
        if not path.is_relative_to(root.resolve()):
            continue
        first, *rest = path.relative_to(root.resolve()).parts
        of_cycle = _CYCLE.fullmatch(first) is not None
        own = first.startswith(_OWN_FILES) or (
            of_cycle and (not rest or rest[0] == "jobs" or rest[0].endswith(".log"))
        )
        if own:
            raise denied(
                "file_of_the_loop",
                f"expected --{key} at a place of its own, got {quoted(str(path))}, which the loop "
                "writes itself",
            )


def _is_below(path: Path, root: Path, *, strictly: bool) -> bool:
    return path.is_relative_to(root) and not (strictly and path == root)
