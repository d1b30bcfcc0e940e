"""Checkpoints: a torch payload and a JSON sidecar that says where it comes from.

Layout:    ``local://artifacts/foo.pt`` under root R is ``R/artifacts/foo.pt`` with the sidecar
           ``R/artifacts/foo.pt.json``.
Promise:   a load gives the tensors whose SHA-256 the sidecar records, or an error; one changed
           byte in either file is an error, or does not change what is loaded. Killing a save
           at any point leaves the old checkpoint or the new one loadable, never a mixture.
How:       the new sidecar is first made durable as ``foo.pt.json.next``, then the payload is
           replaced, then the sidecar is renamed into place. In between, the payload matches one of
           the two sidecars.
"""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final, cast

import torch

from cadenza.core.errors import CheckpointError, InputError, StorageError
from cadenza.core.files import (
    atomic_write_bytes,
    atomic_write_text,
    canonical_json,
    confined_path,
    fsync_folder,
    sha256_bytes,
)
from cadenza.core.payloads import deserialise, serialise

#: The one way to address a checkpoint.
LOCAL_URI_SCHEME: Final = "local://"
#: Appended to the payload's file name.
SIDECAR_SUFFIX: Final = ".json"
#: Version of payload and sidecar; files without one are version 0.
FORMAT_VERSION: Final = 1
#: Largest payload that is loaded unless the caller says otherwise.
MAX_PAYLOAD_BYTES: Final = 4 * 2**30
#: Sidecar field with the SHA-256 of the canonical JSON of all other fields.
_SEAL: Final = "metadata_sha256"
_PENDING_SUFFIX: Final = ".next"
_MAX_SIDECAR_BYTES: Final = 2**20
#: How often a load starts anew because a writer replaced the files under it.
_MAX_READS: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointMetadata:
    """What the sidecar says about a payload; its digest, size and versions are filled in on saving.

    Attributes:
        run_id: Run that made it.
        seed: Root seed of that run.
        step: Training step, in environment frames.
        git_sha: Commit of the run's code, or ``"unknown"``.
        pyproject_hash: SHA-256 of the run's ``pyproject.toml``.
        size_bytes: Size of the payload; None in old sidecars, like ``torch_version``.
        format_version: Version of payload and sidecar; 0 in old sidecars.
        config_hash: Fingerprint of the run's configuration, if known.
        extra: Further facts that JSON can express, e.g. the length of the run log.
    """

    run_id: str
    seed: int
    step: int
    git_sha: str
    pyproject_hash: str
    sha256: str = ""
    size_bytes: int | None = None
    torch_version: str | None = None
    format_version: int = FORMAT_VERSION
    config_hash: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @classmethod
    def from_dict(cls, raw: Mapping[str, object]) -> "CheckpointMetadata":
        """Return the metadata in ``raw``; unknown keys are ignored.

        Raises:
            CheckpointError: A required field is missing or of the wrong kind, or the format is
                newer than this package.
        """
        required = ("run_id", "seed", "step", "git_sha", "pyproject_hash", "sha256")
        missing = [name for name in required if name not in raw]
        if missing:
            raise CheckpointError(
                f"sidecar: missing required field(s) {', '.join(missing)}; expected "
                f"{', '.join(required)}; restore the sidecar or save the checkpoint again."
            )
        version = _integer("format_version", raw.get("format_version", 0))
        if version > FORMAT_VERSION:
            raise CheckpointError(
                f"sidecar: expected format_version <= {FORMAT_VERSION}, got {version}; "
                "the file is from a newer release, so upgrade the package."
            )
        size, extra = raw.get("size_bytes"), raw.get("extra")
        return cls(
            run_id=str(raw["run_id"]),
            seed=_integer("seed", raw["seed"]),
            step=_integer("step", raw["step"]),
            git_sha=str(raw["git_sha"]),
            pyproject_hash=str(raw["pyproject_hash"]),
            sha256=str(raw["sha256"]),
            size_bytes=None if size is None else _integer("size_bytes", size),
            torch_version=_optional_text(raw.get("torch_version")),
            format_version=version,
            config_hash=_optional_text(raw.get("config_hash")),
            extra=cast("dict[str, Any]", extra) if isinstance(extra, dict) else {},
        )


def resolve_uri(uri: str, *, artifacts_root: Path) -> Path:
    """Return the payload's path, which need not exist.

    Raises:
        CheckpointError: Another scheme, no file name, or a path that leads out of
            ``artifacts_root``.
    """
    if not uri.startswith(LOCAL_URI_SCHEME):
        raise CheckpointError(
            f"Unsupported URI scheme in {uri!r}: expected '{LOCAL_URI_SCHEME}<path>', the only one "
            "since Phase-0; download the file and use its local path."
        )
    relative = uri.removeprefix(LOCAL_URI_SCHEME)
    try:
        path = confined_path(artifacts_root, relative)
    except StorageError as error:
        raise CheckpointError(f"checkpoint {uri!r}: {error}") from error
    if path == artifacts_root.resolve():
        raise CheckpointError(
            f"checkpoint {uri!r}: expected a file name after '{LOCAL_URI_SCHEME}', got none; "
            "name the payload, e.g. 'local://artifacts/foo.pt'."
        )
    return path


def save_checkpoint(
    *,
    state_dict: Mapping[str, Any],
    uri: str,
    metadata: CheckpointMetadata,
    artifacts_root: Path,
) -> Path:
    """Write ``state_dict`` and its sidecar, durably, over any older pair; return its path.

    Equal states give equal payload bytes under every name. The fields of ``metadata`` that describe
    the payload (digest, size, versions) are filled in here.

    Args:
        state_dict: Tensors and plain values by name, nested as needed.
        uri: Where to write, e.g. ``"local://artifacts/foo.pt"``.
        metadata: Where the state comes from.
        artifacts_root: Folder that URIs are relative to.

    Raises:
        CheckpointError: Bad URI, or a state or metadata that could not be read back.
        StorageError: The file system refused; an older checkpoint is still loadable.
    """
    path = resolve_uri(uri, artifacts_root=artifacts_root)
    payload = serialise(state_dict)
    complete = replace(
        metadata,
        sha256=sha256_bytes(payload),
        size_bytes=len(payload),
        torch_version=str(torch.__version__),
        format_version=FORMAT_VERSION,
    )
    pending = pending_path(path)
    atomic_write_text(pending, _sidecar_text(complete))
    atomic_write_bytes(path, payload)
    _publish(pending, sidecar_path(path))
    return path


def load_checkpoint(
    *, uri: str, artifacts_root: Path, max_bytes: int = MAX_PAYLOAD_BYTES
) -> tuple[dict[str, Any], CheckpointMetadata]:
    """Return the state and metadata behind ``uri``; the bytes that were hashed are those loaded.

    Args:
        uri: Where the checkpoint is.
        artifacts_root: Folder that URIs are relative to.
        max_bytes: Largest payload to accept, packed and unpacked.

    Raises:
        CheckpointError: Payload or sidecar missing, damaged, too large, or not matching.
    """
    path = resolve_uri(uri, artifacts_root=artifacts_root)
    payload, metadata = _read_matching(path, max_bytes)
    try:
        return deserialise(payload, max_bytes=max_bytes), metadata
    except CheckpointError as error:
        raise CheckpointError(f"checkpoint {path}: {error}") from error


def load_weights_file(
    *, uri: str, artifacts_root: Path
) -> tuple[dict[str, Any], CheckpointMetadata | None, str]:
    """Return the state, metadata and SHA-256 behind ``uri``.

    A file that another library wrote with `torch.save` has no sidecar, and so no metadata; none is
    written beside it.

    Raises:
        CheckpointError: As `load_checkpoint`.
    """
    path = resolve_uri(uri, artifacts_root=artifacts_root)
    if not is_foreign(path):
        payload, metadata = load_checkpoint(uri=uri, artifacts_root=artifacts_root)
        return payload, metadata, metadata.sha256
    data, _ = _read_bounded(path, "weights", MAX_PAYLOAD_BYTES)
    try:
        return deserialise(data, max_bytes=MAX_PAYLOAD_BYTES), None, sha256_bytes(data)
    except CheckpointError as error:
        why = str(error).partition(";")[0]
        raise CheckpointError(
            f"weights {path}: {why}; save a state dict: torch.save(module.state_dict(), path)."
        ) from error


def is_foreign(path: Path) -> bool:
    """Return whether ``path`` is a file without a sidecar, so none of `save_checkpoint`."""
    return path.is_file() and not (sidecar_path(path).exists() or pending_path(path).exists())


def read_metadata(*, uri: str, artifacts_root: Path) -> CheckpointMetadata:
    """Return the metadata of ``uri`` after checking the payload's digest, without loading it.

    Raises:
        CheckpointError: As `load_checkpoint`.
    """
    path = resolve_uri(uri, artifacts_root=artifacts_root)
    return _read_matching(path, MAX_PAYLOAD_BYTES)[1]


def stated_metadata(payload: Path) -> CheckpointMetadata:
    """Return what the sidecar says of ``payload``, which is only read after a killed save.

    Raises:
        CheckpointError: As `load_checkpoint`.
    """
    if pending_path(payload).is_file():
        return _read_matching(payload, payload.stat().st_size)[1]
    return _read_sidecar(sidecar_path(payload))


def sidecar_path(payload: Path) -> Path:
    """Return where the sidecar of ``payload`` is."""
    return payload.with_name(payload.name + SIDECAR_SUFFIX)


def pending_path(payload: Path) -> Path:
    """Return where the sidecar of ``payload`` waits while the payload is replaced."""
    return payload.with_name(payload.name + SIDECAR_SUFFIX + _PENDING_SUFFIX)


def _sidecar_text(metadata: CheckpointMetadata) -> str:
    """Return the sidecar's JSON; its last fact is the checksum of the others."""
    try:
        facts = asdict(metadata)
        sealed = {**facts, _SEAL: sha256_bytes(canonical_json(facts))}
        return json.dumps(sealed, sort_keys=True, indent=2)
    except (TypeError, ValueError) as error:
        raise CheckpointError(
            f"checkpoint metadata: expected values that JSON can express, got {error}; "
            "convert the values of 'extra'."
        ) from error


def _check_seal(facts: Mapping[str, object]) -> None:
    """Raise if the sidecar's facts are not those that were written; version 0 has no checksum."""
    others = {name: value for name, value in facts.items() if name != _SEAL}
    is_sealed = _SEAL in facts or facts.get("format_version", 0) != 0
    if is_sealed and facts.get(_SEAL) != sha256_bytes(canonical_json(others)):
        raise CheckpointError(
            "sidecar: integrity check failed: expected the facts that its own checksum covers, "
            "got others; restore the sidecar or use another checkpoint."
        )


def _publish(pending: Path, sidecar: Path) -> None:
    """Rename the new sidecar into place, durably."""
    try:
        pending.replace(sidecar)
        fsync_folder(sidecar.parent)
    except OSError as error:
        raise StorageError(
            error.errno,
            f"{sidecar}: expected to rename {pending.name} to it, got '{error.strerror}'; "
            "the checkpoint is complete and loads under that name",
        ) from error


def _read_matching(path: Path, max_bytes: int) -> tuple[bytes, CheckpointMetadata]:
    """Return the payload and the metadata that matches it."""
    reads = 0
    while True:
        reads += 1
        payload, identity = _read_bounded(path, "payload", max_bytes)
        try:
            return payload, _matching_metadata(path, payload)
        except CheckpointError:
            # A writer may have replaced the payload meanwhile; then the pair is read anew.
            if reads >= _MAX_READS or _is_same_file(path, identity):
                raise


def _matching_metadata(path: Path, payload: bytes) -> CheckpointMetadata:
    """Return the metadata, published or pending, that records the digest of ``payload``."""
    try:
        return _checked(_read_sidecar(sidecar_path(path)), path, payload)
    except CheckpointError:
        pending = pending_path(path)
        if pending.is_file():
            found = _read_sidecar(pending)
            if found.sha256 == sha256_bytes(payload):
                return found
        raise


def _checked(metadata: CheckpointMetadata, path: Path, payload: bytes) -> CheckpointMetadata:
    """Return ``metadata`` if it describes ``payload``."""
    size, digest = metadata.size_bytes, sha256_bytes(payload)
    if size is not None and size != len(payload):
        raise CheckpointError(
            f"{path}: integrity check failed: expected {size} bytes as in the sidecar, got "
            f"{len(payload)}; the file is truncated or replaced, use another checkpoint."
        )
    if metadata.sha256 != digest:
        raise CheckpointError(
            f"{path}: integrity check failed: expected SHA-256 {metadata.sha256} as in the "
            f"sidecar, got {digest}; the file was changed, use another checkpoint."
        )
    return metadata


def _read_sidecar(path: Path) -> CheckpointMetadata:
    """Return the metadata in a sidecar file."""
    text, _ = _read_bounded(path, "sidecar", _MAX_SIDECAR_BYTES)
    try:
        raw: object = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{path}: malformed sidecar: expected JSON, got {error}; restore it or save the "
            "checkpoint again."
        ) from error
    if not isinstance(raw, dict):
        raise CheckpointError(
            f"{path}: malformed sidecar: expected a JSON object, got {type(raw).__name__}; "
            "restore it or save the checkpoint again."
        )
    facts = cast("dict[str, object]", raw)
    try:
        metadata = CheckpointMetadata.from_dict(facts)
        _check_seal(facts)
    except (CheckpointError, ValueError) as error:  # ValueError: text or numbers we never write
        raise CheckpointError(f"{path}: {error}") from error
    return metadata


def _read_bounded(path: Path, role: str, max_bytes: int) -> tuple[bytes, tuple[int, int]]:
    """Return the bytes of ``path`` and the identity of the file that held them."""
    if not path.exists():
        raise CheckpointError(
            f"{path}: {role} not found; check the name and the artifacts folder; a checkpoint of "
            "this package is a payload and its sidecar, FILE.json."
        )
    if not path.is_file() and not path.is_dir():  # a pipe or device would make the read wait
        raise CheckpointError(
            f"{path}: expected a plain {role} file, got a pipe, socket or device; check the path."
        )
    try:
        with path.open("rb") as file:
            data = file.read(max_bytes + 1)
            identity = _identity(os.fstat(file.fileno()))
    except OSError as error:
        raise CheckpointError(
            f"{path}: expected a readable {role} file, got '{error.strerror}'; check the path."
        ) from error
    if len(data) > max_bytes:
        raise CheckpointError(
            f"{path}: expected a {role} of at most {max_bytes} bytes, got more; "
            "raise max_bytes if you trust the file."
        )
    return data, identity


def _identity(stat: os.stat_result) -> tuple[int, int]:
    return stat.st_ino, stat.st_mtime_ns


def _is_same_file(path: Path, identity: tuple[int, int]) -> bool:
    """Return whether ``path`` is still the file that was read, not a newer one."""
    try:
        return _identity(path.stat()) == identity
    except FileNotFoundError:
        return True  # deleted: reading again cannot help


def _integer(name: str, value: object) -> int:
    """Return ``value`` as an integer without loss; digits in a string count."""
    try:
        number = int(cast("Any", value))
    except (TypeError, ValueError, OverflowError) as error:
        raise CheckpointError(
            f"sidecar: malformed integer in {name!r}: expected digits, got {value!r}; "
            "restore the sidecar."
        ) from error
    if isinstance(value, float) and not value.is_integer():
        raise CheckpointError(
            f"sidecar: malformed integer in {name!r}: expected a whole number, got {value!r}; "
            "restore the sidecar."
        )
    return number


def _optional_text(value: object) -> str | None:
    return None if value is None else str(value)


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


def prune_checkpoints(run_id: str, *, artifacts_root: Path, keep_last: int) -> list[str]:
    """Delete a run's checkpoints but the newest ``keep_last``, each sidecar before its payload.

    Returns:
        URIs that were deleted, oldest first.

    Raises:
        InputError: ``keep_last`` is smaller than 1.
        StorageError: The file system refused.
    """
    if keep_last < 1:
        raise InputError(f"prune_checkpoints: expected keep_last >= 1, got {keep_last}.")
    by_step = list_checkpoints(run_id, artifacts_root=artifacts_root)
    kept = set(list(by_step)[-keep_last:])
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
