"""Judging what a job left: its result file, its log, the folder that it may replace."""

import shutil
from pathlib import Path
from typing import Final

from cadenza.core.errors import InputError, IntegrityError
from cadenza.core.files import sha256_bytes
from cadenza.core.strict_json import parse_json_object
from cadenza.loop.contracts.records import JobSpec

#: How much of a log's end people are shown.
_TAIL_BYTES: Final = 4096
_TAIL_LINES: Final = 15


def result_digest(path: Path) -> str:
    """Return the digest of a result file.

    Raises:
        IntegrityError: The file is missing or holds no JSON object.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise IntegrityError(
            f"{path}: expected the result of the job, got '{error.strerror}'."
        ) from error
    parse_json_object(data, source=str(path))
    return sha256_bytes(data)


def require_unchanged(path: Path, recorded: str | None) -> None:
    """Raise unless a result file is the one that was recorded.

    Raises:
        IntegrityError: It is missing or was changed.
    """
    found = result_digest(path)
    if found != recorded:
        raise IntegrityError(
            f"{path}: expected the result with SHA-256 {recorded}, got {found}; it was changed "
            "after the job ended: restore it, or start a new run."
        )


def last_lines(log_path: Path) -> str:
    """Return the last lines of a log, at most 15, fit for a terminal; empty if there are none."""
    try:
        with log_path.open("rb") as log:
            size = log.seek(0, 2)
            log.seek(max(0, size - _TAIL_BYTES))
            text = log.read().decode(errors="replace")
    except FileNotFoundError:
        return ""
    lines = text.splitlines()[-_TAIL_LINES:]
    return "\n".join("".join(c if c.isprintable() else " " for c in line) for line in lines)


def remove_output(spec: JobSpec) -> None:
    """Remove the output folder that an earlier attempt left.

    Raises:
        InputError: It lies outside the folder of the job's log, or is a link.
    """
    cycle = spec.log_path.absolute().parent.resolve()
    folder = spec.output_dir.absolute()
    inside = folder.resolve().is_relative_to(cycle) and folder.resolve() != cycle
    if folder.is_symlink() or not inside:
        raise InputError(
            f"output folder {folder}: expected a plain folder inside {cycle} that may be removed "
            "before another attempt."
        )
    if folder.exists():
        shutil.rmtree(folder)
