"""What a training of a clone leaves on disk: its state between two updates, and the policy.

The bytes of both follow from the request and the code alone. What is damaged or of another request
is not taken: the training starts over.
"""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, cast

import torch

from cadenza.benchmark.jobs.cloning import Clone
from cadenza.benchmark.jobs.job_folder import JobFolder
from cadenza.core.checkpoints import (
    LOCAL_URI_SCHEME,
    CheckpointMetadata,
    load_checkpoint,
    pending_path,
    read_metadata,
    save_checkpoint,
)
from cadenza.core.errors import CheckpointError
from cadenza.core.files import sha256_bytes
from cadenza.core.provenance import GIT_SHA_UNKNOWN
from cadenza.core.source_identity import source_digest
from cadenza.learn.nn.mlp_policy import MLP_POLICY_KEY, MlpPolicy

_LOGGER = logging.getLogger(__name__)

#: The trained policy inside the job's folder.
POLICY: Final = "policy.pt"
_STATE: Final = "state.pt"
#: What the sidecar of a policy says about it, and the result repeats.
_FACTS: Final = ("rung", "task", "features", "loss", "frames", "dataset_episodes")


def load_initial(path: Path | None) -> tuple[MlpPolicy | None, str | None]:
    """Return the policy to start from and its digest; None twice for none.

    Raises:
        CheckpointError: It is missing or damaged, or no policy that a training wrote.
    """
    if path is None:
        return None, None
    payload, metadata = load_checkpoint(
        uri=LOCAL_URI_SCHEME + path.name, artifacts_root=path.parent
    )
    portable = payload.get(MLP_POLICY_KEY)
    if not isinstance(portable, dict):
        raise CheckpointError(
            f"{path}: expected a policy that this command trained, got the keys "
            f"{sorted(payload)}; name another --init."
        )
    return MlpPolicy.from_state_dict(cast("dict[str, Any]", portable)), metadata.sha256


def save_state(clone: Clone, optimizer: torch.optim.Adam, folder: JobFolder, done: int) -> None:
    """Save the training after ``done`` updates.

    Raises:
        StorageError: The file system refused.
    """
    state = {
        "weights": [p.detach() for p in clone.ordered_parameters()],
        "optimizer": optimizer.state_dict(),
    }
    _save(state, _STATE, folder, root=folder.work, step=done, seed=0, extra={})


def restore_state(clone: Clone, optimizer: torch.optim.Adam, folder: JobFolder) -> int:
    """Load the last save of this job and return the updates done; 0 without a usable one."""
    if not (folder.work / _STATE).exists():
        return 0
    try:
        state, metadata = load_checkpoint(uri=LOCAL_URI_SCHEME + _STATE, artifacts_root=folder.work)
    except CheckpointError as error:
        _LOGGER.warning("training starts over: %s", error)
        return 0
    if metadata.config_hash != folder.request_sha256:
        _LOGGER.warning("training starts over: %s is of another job", folder.work / _STATE)
        return 0
    clone.load_parameters(state["weights"])
    optimizer.load_state_dict(state["optimizer"])
    return metadata.step


def save_policy(
    policy: MlpPolicy, folder: JobFolder, *, step: int, seed: int, facts: Mapping[str, Any]
) -> None:
    """Save the trained policy.

    Args:
        policy: The policy.
        folder: Folder of the job.
        step: Updates that made it.
        seed: Seed of the training.
        facts: What describes it, as JSON values.

    Raises:
        StorageError: The file system refused.
    """
    state = {MLP_POLICY_KEY: policy.state_dict()}
    _save(state, POLICY, folder, root=folder.root, step=step, seed=seed, extra=facts)


def finished_policy(folder: JobFolder) -> dict[str, Any] | None:
    """Return the facts of the trained policy; None if there is none, or a damaged one."""
    path = folder.root / POLICY
    if not path.exists() or pending_path(path).exists():  # else killed while it was saved
        return None
    try:
        metadata = read_metadata(uri=LOCAL_URI_SCHEME + POLICY, artifacts_root=folder.root)
    except CheckpointError as error:
        _LOGGER.warning("training starts over: %s", error)
        return None
    if metadata.config_hash != folder.request_sha256:
        _LOGGER.warning("training starts over: %s is of another job", path)
        return None
    return {
        **{name: metadata.extra.get(name) for name in _FACTS},
        "policy": {"file": POLICY, "sha256": metadata.sha256},
        "updates": metadata.step,
        "seeds": {"training": metadata.seed},
    }


def _save(
    state: Mapping[str, Any],
    name: str,
    folder: JobFolder,
    *,
    root: Path,
    step: int,
    seed: int,
    extra: Mapping[str, Any],
) -> None:
    """Save a checkpoint whose bytes follow from the request and the code alone."""
    metadata = CheckpointMetadata(
        run_id=folder.request_sha256[:16],
        seed=seed,
        step=step,
        git_sha=GIT_SHA_UNKNOWN,
        pyproject_hash=sha256_bytes(b""),
        config_hash=folder.request_sha256,
        extra={**extra, "code_sha256": source_digest()},
    )
    save_checkpoint(
        state_dict=state, uri=LOCAL_URI_SCHEME + name, metadata=metadata, artifacts_root=root
    )
