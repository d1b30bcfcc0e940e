"""Policies and their digests: taken when they are made, checked whenever they are used."""

from pathlib import Path
from typing import Any

from cadenza.core.errors import IntegrityError
from cadenza.core.files import sha256_file
from cadenza.core.strict_json import parse_json_object
from cadenza.core.tree_digest import tree_digest
from cadenza.loop.config import LoopConfig
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


def initial_reference(config: LoopConfig) -> CheckpointRecord | None:
    """Return the policy that a run stands on before its first cycle; None for none.

    A run may only bless what is shown to be better than it. Names of a hub mostly mean base models
    that never learned the task, so they count only where ``reference`` names them.

    Raises:
        IntegrityError: The weights are damaged.
    """
    first = config.policy_ladder[0]
    name = config.reference or first.init
    if name is None or name == "none":
        return None
    path = Path(name)
    if path.exists():
        return CheckpointRecord(
            policy_type=_told_type(path) or first.name,
            path=str(path.absolute()),
            cycle=-1,
            blessed=True,
            sha256=weights_digest(path),
        )
    if config.reference is None:
        return None
    return CheckpointRecord(policy_type=first.name, path=name, cycle=-1, blessed=True)


def _told_type(path: Path) -> str | None:
    """Return the policy type that weights name themselves: ours beside them, LeRobot's in them."""
    told = path / "config.json" if path.is_dir() else path.with_name(f"{path.name}.json")
    if not told.is_file():
        return None
    facts: dict[str, Any] = parse_json_object(told.read_bytes(), source=str(told))
    extra: Any = facts.get("extra")
    named: Any = facts.get("type") if path.is_dir() else extra and extra.get("rung")
    return named if isinstance(named, str) else None
