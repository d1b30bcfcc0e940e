"""The output folder of a long job: checked before the first episode, locked while it runs."""

import fcntl
import os
import shutil
from collections.abc import Collection, Generator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Final, Literal, TypeAlias

from cadenza.core.errors import ConfigurationError, NotReadyError, StorageError
from cadenza.core.files import atomic_write_bytes, make_folder

#: Lock file of a job's output folder; the operating system frees it when the job dies.
_LOCK_NAME: Final = ".lock"
#: Marks a folder as ours, so that starting over never deletes anything else.
_MARKER_NAME: Final = ".cadenza-output"

#: Says which run a folder holds, for jobs that put another run's results aside.
_IDENTITY_NAME: Final = ".cadenza-identity"

#: ``"new"`` wants an empty folder, ``"resume"`` goes on, ``"overwrite"`` starts over.
OutputMode: TypeAlias = Literal["new", "resume", "overwrite"]


@contextmanager
def open_output_folder(folder: Path, *, mode: OutputMode) -> Generator[None]:
    """Create or check ``folder``, prove it writable, and hold its lock for the body.

    Args:
        folder: Output folder of one job.
        mode: What may already be in it.

    Raises:
        ConfigurationError: The folder is a file, holds something although ``mode`` is ``"new"``, or
            holds something that is not the output of such a job.
        NotReadyError: Another process works in the folder.
        StorageError: The file system refused.
    """
    if folder.exists() and not folder.is_dir():
        raise ConfigurationError(f"{folder}: expected a folder, got a file; choose another name.")
    _check_content(folder, mode)
    atomic_write_bytes(folder / _MARKER_NAME, b"Output folder of cadenza.\n")
    with locked(folder, _LOCK_NAME):
        if mode == "overwrite":
            empty(folder, keep=(_LOCK_NAME, _MARKER_NAME))
        yield


def _check_content(folder: Path, mode: OutputMode) -> None:
    names = {path.name for path in folder.iterdir()} if folder.exists() else set[str]()
    if not names - {_LOCK_NAME, _MARKER_NAME}:
        return
    if _MARKER_NAME not in names:
        raise ConfigurationError(
            f"{folder}: expected a new or empty folder or the output of an earlier run, got a "
            f"folder with {sorted(names)[:5]}; choose another one."
        )
    if mode == "new":
        raise ConfigurationError(
            f"{folder}: expected a new or empty folder, got one with results; pass --resume to go "
            "on, --overwrite to start over, or choose another folder."
        )


def set_aside_other_run(folder: Path, identity: str) -> Path | None:
    """Move the content of ``folder`` next to it unless it is of the run ``identity``.

    Call it inside `open_output_folder`. Nothing is deleted: the content goes to the first free of
    ``<folder>.1``, ``<folder>.2``, ...

    Returns:
        Where the content went; None if the folder was empty or holds this run already.

    Raises:
        StorageError: The file system refused; what was not moved is still in ``folder``.
    """
    marker, wanted = folder / _IDENTITY_NAME, f"{identity}\n".encode()
    if marker.is_file() and marker.read_bytes() == wanted:
        return None
    content = [path for path in folder.iterdir() if path.name not in {_LOCK_NAME, _MARKER_NAME}]
    aside: Path | None = None
    if content:
        numbered = (folder.with_name(f"{folder.name}.{number}") for number in count(1))
        aside = next(path for path in numbered if not path.exists())
        atomic_write_bytes(aside / _MARKER_NAME, (folder / _MARKER_NAME).read_bytes())
        for path in sorted(content, key=lambda path: path.name == _IDENTITY_NAME):
            path.replace(aside / path.name)
    atomic_write_bytes(marker, wanted)
    return aside


@contextmanager
def locked(folder: Path, name: str) -> Generator[None]:
    """Hold a folder's lock; the system lets go of it when the process ends, however it ends.

    Args:
        folder: The folder; made if it does not exist.
        name: File of the lock in it.

    Raises:
        NotReadyError: Another process works in the folder.
        StorageError: The file system refused.
    """
    try:
        make_folder(folder)
        descriptor = os.open(folder / name, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise StorageError(
            error.errno,
            f"{folder}: expected a folder to write to, got '{error.strerror}'; choose another one",
        ) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise NotReadyError(
                f"{folder}: expected no other process in this folder, got one at work; wait for it "
                "or choose another folder."
            ) from error
        yield
    finally:
        os.close(descriptor)


def empty(folder: Path, *, keep: Collection[str]) -> None:
    """Remove everything in a folder but the files to keep."""
    for path in folder.iterdir():
        if path.name in keep:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
