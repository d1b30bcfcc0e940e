"""Checkpoint files of a training: names, writing, checking, deleting.

File:      ``checkpoint_<index>.tar``, a torch archive of tensors and plain values, with a JSON
           manifest ``checkpoint_<index>.tar.json`` (format, versions, SHA-256).
Content:   ``callback_state_dicts`` {name: state}, ``training_state`` {``bp_step``, ``bp_samples``,
           ``checkpoint_index``, ``latest_checkpoint``, ...}, ``generator_states``.
Promise:   a kill at any point leaves the old file or the new one; loading runs no code.
"""

import platform
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
import torch

from cadenza.core.checkpoint_series import remove_checkpoint
from cadenza.core.checkpoints import (
    LOCAL_URI_SCHEME,
    CheckpointMetadata,
    load_checkpoint,
    pending_path,
    save_checkpoint,
    sidecar_path,
)
from cadenza.core.errors import CheckpointError, CheckpointNotFoundError
from cadenza.core.provenance import GIT_SHA_UNKNOWN, RunContext
from cadenza.learn.emote_files import read_emote_checkpoint

#: Version of the content described above.
CONTENT_VERSION: Final = 1
_NAME: Final = re.compile(r"checkpoint_(\d+)\.tar")


def checkpoint_path(folder: Path, index: int) -> Path:
    """Return the path of a checkpoint."""
    return folder / f"checkpoint_{index}.tar"


def existing_indices(folder: Path) -> list[int]:
    """Return the indices of the checkpoints in ``folder``, rising; their content is unchecked."""
    names = (found.name for found in folder.glob("checkpoint_*.tar"))
    return sorted(int(match[1]) for name in names if (match := _NAME.fullmatch(name)))


def write_checkpoint(
    folder: Path, index: int, content: Mapping[str, Any], run: RunContext | None
) -> Path:
    """Write a checkpoint durably, over an older one of the same index.

    Args:
        folder: Where checkpoints are.
        index: Number of the checkpoint.
        content: As described in the module's header.
        run: Origin of the run, for the manifest.

    Raises:
        CheckpointError: ``content`` holds something other than tensors and plain values.
        StorageError: The file system refused; an older checkpoint is still loadable.
    """
    training = content["training_state"]
    metadata = CheckpointMetadata(
        run_id=folder.resolve().parent.name if run is None else run.run_id,
        seed=-1 if run is None else run.seed,  # -1: nobody said
        step=int(training["bp_step"]),
        git_sha=GIT_SHA_UNKNOWN if run is None else run.git_sha,
        pyproject_hash=GIT_SHA_UNKNOWN if run is None else run.pyproject_hash,
        extra={
            "content_version": CONTENT_VERSION,
            "bp_samples": int(training["bp_samples"]),
            "names": sorted(content["callback_state_dicts"]),
            "versions": {
                "python": platform.python_version(),
                "numpy": np.__version__,
                "torch": str(torch.__version__),
            },
        },
    )
    uri = f"{LOCAL_URI_SCHEME}{checkpoint_path(folder, index).name}"
    save_checkpoint(state_dict=content, uri=uri, metadata=metadata, artifacts_root=folder)
    return checkpoint_path(folder, index)


def read_checkpoint(
    folder: Path, index: int, *, max_bytes: int | None, require_manifest: bool
) -> dict[str, Any]:
    """Return the content of a checkpoint after checking it.

    Args:
        folder: Where checkpoints are.
        index: Number of the checkpoint.
        max_bytes: Largest file to accept, packed and unpacked. None: any size, but nothing that
            unpacks to more than it has on disk (archives of torch are not compressed).
        require_manifest: Refuse files without manifest, such as those of other programs.

    Raises:
        CheckpointNotFoundError: There is no such file.
        CheckpointError: Truncated, changed, foreign or newer than this package.
    """
    path = checkpoint_path(folder, index)
    if not path.is_file():
        raise CheckpointNotFoundError(
            f"{path}: expected a checkpoint, got no such file; there are the indices "
            f"{existing_indices(folder)}."
        )
    limit = path.stat().st_size if max_bytes is None else max_bytes
    has_manifest = sidecar_path(path).exists() or pending_path(path).exists()
    if has_manifest or require_manifest:
        uri = f"{LOCAL_URI_SCHEME}{path.name}"
        content, metadata = load_checkpoint(uri=uri, artifacts_root=folder, max_bytes=limit)
        version = metadata.extra.get("content_version")
        if version != CONTENT_VERSION:
            raise CheckpointError(
                f"{path}: expected content version {CONTENT_VERSION}, got {version!r}; load it "
                "with the release that wrote it."
            )
    else:
        content = read_emote_checkpoint(path, max_bytes=limit)
    return _checked(content, path)


def prune_checkpoints(folder: Path, newest: int, keep_last: int) -> list[int]:
    """Delete all but the last ``keep_last`` checkpoints up to ``newest``; return their indices.

    Raises:
        StorageError: The file system refused.
    """
    removed = [index for index in existing_indices(folder) if index <= newest - keep_last]
    for index in removed:
        remove_checkpoint(checkpoint_path(folder, index))
    return removed


def _checked(content: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return ``content`` if it has the parts of a checkpoint."""
    states, training = content.get("callback_state_dicts"), content.get("training_state")
    numbers = cast("dict[str, Any]", training) if isinstance(training, dict) else {}
    is_complete = isinstance(states, dict) and all(
        isinstance(numbers.get(key), int) for key in ("bp_step", "bp_samples")
    )
    if not is_complete:
        raise CheckpointError(
            f"{path}: expected 'callback_state_dicts' and 'training_state' with bp_step and "
            f"bp_samples, got {sorted(map(str, content))}; this is no checkpoint of a training."
        )
    return content
