"""The checkpoints of one run: their names, and which to keep."""

import logging
import re
from pathlib import Path
from typing import Final

from cadenza.core.checkpoints import (
    LOCAL_URI_SCHEME,
    pending_path,
    resolve_uri,
    sidecar_path,
)
from cadenza.core.errors import InputError, StorageError

_logger = logging.getLogger(__name__)

_RUN_ID: Final = re.compile(r"[A-Za-z0-9_-]+")


def checkpoint_uri(run_id: str, step: int) -> str:
    """Return the URI under which a run keeps its checkpoint of ``step``.

    Raises:
        InputError: ``run_id`` cannot be part of a file name, or ``step`` is negative.
    """
    if not _RUN_ID.fullmatch(run_id) or step < 0:
        raise InputError(
            "checkpoint_uri: expected a run_id of letters, digits, '_' and '-' and a step >= 0, "
            f"got {run_id!r} and {step}."
        )
    return f"{LOCAL_URI_SCHEME}artifacts/{run_id}_step{step}.pt"


def list_checkpoints(run_id: str, *, artifacts_root: Path) -> dict[int, str]:
    """Return the URIs of a run's checkpoints by step, in rising order; unchecked."""
    prefix = Path(checkpoint_uri(run_id, 0).removeprefix(LOCAL_URI_SCHEME)).parent
    pattern = re.compile(rf"{re.escape(run_id)}_step(\d+)\.pt")
    names = (found.name for found in (artifacts_root / prefix).glob(f"{run_id}_step*.pt"))
    steps = sorted(int(match[1]) for name in names if (match := pattern.fullmatch(name)))
    return {step: checkpoint_uri(run_id, step) for step in steps}


def prune_checkpoints(
    run_id: str, *, artifacts_root: Path, keep_last: int, keep_every: int | None = None
) -> list[str]:
    """Delete a run's older checkpoints, each sidecar before its payload.

    Args:
        run_id: Whose checkpoints.
        artifacts_root: Folder that URIs are relative to.
        keep_last: How many of the newest stay, >= 1.
        keep_every: Steps divisible by this stay too.

    Returns:
        URIs that were deleted, oldest first.

    Raises:
        InputError: ``keep_last`` or ``keep_every`` is smaller than 1.
        StorageError: The file system refused.
    """
    if keep_last < 1 or (keep_every is not None and keep_every < 1):
        raise InputError(
            "prune_checkpoints: expected keep_last >= 1 and keep_every >= 1 or None, "
            f"got {keep_last} and {keep_every}."
        )
    by_step = list_checkpoints(run_id, artifacts_root=artifacts_root)
    kept = set(list(by_step)[-keep_last:])
    kept |= {step for step in by_step if keep_every is not None and step % keep_every == 0}
    removed = [uri for step, uri in by_step.items() if step not in kept]
    for uri in removed:
        remove_checkpoint(resolve_uri(uri, artifacts_root=artifacts_root))
    return removed


def remove_checkpoint(path: Path) -> None:
    """Delete the payload at ``path`` and its sidecars.

    Raises:
        StorageError: The file system refused.
    """
    try:
        for file in (pending_path(path), sidecar_path(path), path):
            file.unlink(missing_ok=True)
    except OSError as error:
        raise StorageError(
            error.errno, f"{path}: expected to delete it, got '{error.strerror}'"
        ) from error
