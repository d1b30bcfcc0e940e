"""Digests of policies: taken when they are made, checked whenever they are used."""

from pathlib import Path

from cadenza.core.errors import IntegrityError
from cadenza.core.files import sha256_file
from cadenza.core.tree_digest import tree_digest
from cadenza.loop.contracts.records import CheckpointRecord


def weights_digest(path: Path) -> str:
    """Return the digest of weights: of a file's bytes, or of a folder's files.

    Raises:
        IntegrityError: There is nothing, or a folder with links or without files.
    """
    if path.is_file():
        return sha256_file(path)
    if not path.exists():
        raise IntegrityError(f"{path}: expected the weights of a policy, got nothing.")
    return tree_digest(path)


def require_intact(checkpoint: CheckpointRecord) -> CheckpointRecord:
    """Return ``checkpoint`` if its weights are those that were recorded.

    A checkpoint without a digest, as a dry run makes, has no weights to check.

    Raises:
        IntegrityError: They are missing or were changed.
    """
    if checkpoint.sha256 is None:
        return checkpoint
    found = weights_digest(Path(checkpoint.path))
    if found != checkpoint.sha256:
        raise IntegrityError(
            f"{checkpoint.path}: expected the weights of cycle {checkpoint.cycle} with SHA-256 "
            f"{checkpoint.sha256}, got {found}, so they were changed; restore them."
        )
    return checkpoint
