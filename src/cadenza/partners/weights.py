"""Where a partner's weights are: ``local://artifacts/<name>`` under the artifacts folder.

The folder is named by ``CADENZA_ARTIFACTS_ROOT`` (or its older name, ``CONCERTO_ARTIFACTS_ROOT``),
looked up at every load, and is ``./artifacts`` without them.
"""

from pathlib import Path
from typing import Any

from cadenza.core.errors import CheckpointError, InputError
from cadenza.core.files import tree_digest
from cadenza.partners.spec import (
    ARTIFACTS_SCHEME,
    ARTIFACTS_VARIABLES,
    PartnerSpec,
    artifacts_folder,
    file_digest,
)


def require_weights_uri(owner: str, spec: PartnerSpec) -> str:
    """Return the address of the weights."""
    if spec.weights_uri is None:
        raise InputError(
            f"{owner}: expected PartnerSpec.weights_uri, got None; name the weights, e.g. "
            f"'{ARTIFACTS_SCHEME}policy.pt'."
        )
    return spec.weights_uri


def require_uid(owner: str, spec: PartnerSpec) -> str:
    """Return the robot the partner drives."""
    uid = spec.extra.get("uid", "")
    if not uid:
        raise InputError(
            f"{owner}: expected a non-empty option 'uid', got {uid!r}; name the robot it drives in "
            "PartnerSpec.extra."
        )
    return uid


def require_digest(owner: str, spec: PartnerSpec, digest: str) -> None:
    """Raise unless the weights are those that the spec names, if it names any."""
    if spec.weights_sha256 not in (None, digest):
        raise CheckpointError(
            f"{owner}: expected weights with SHA-256 {spec.weights_sha256}, got {digest} at "
            f"{spec.weights_uri}; restore the file or correct the spec."
        )


def weights_path(uri: str, *, artifacts_root: Path | None = None) -> Path:
    """Return the file or folder behind ``uri``, which need not exist.

    Without ``artifacts_root`` it lies where `load_weights` looks for it.
    """
    from cadenza.core.checkpoints import resolve_uri  # imports torch

    if artifacts_root is None:
        uri, artifacts_root = _relative(uri), artifacts_folder()
    return resolve_uri(uri, artifacts_root=artifacts_root)


def load_weights(owner: str, spec: PartnerSpec) -> tuple[dict[str, Any], bool]:
    """Return what ``spec.weights_uri`` names, and whether another library wrote it.

    Raises:
        CheckpointError: Payload missing, damaged, not what its sidecar says, or not the one that
            the spec names.
    """
    from cadenza.core.checkpoints import load_weights_file  # imports torch

    uri = _relative(require_weights_uri(owner, spec))
    payload, metadata, digest = load_weights_file(uri=uri, artifacts_root=artifacts_folder())
    require_digest(owner, spec, digest)
    return payload, metadata is None


def local_folder(owner: str, spec: PartnerSpec) -> Path:
    """Return the folder behind ``spec.weights_uri``, checked against the spec's digest."""
    folder = weights_path(require_weights_uri(owner, spec)).resolve()
    if not folder.is_dir():
        raise CheckpointError(
            f"{owner}: {folder}: folder not found; expected a saved policy, so check the name and "
            "the artifacts folder."
        )
    if spec.weights_sha256 is not None:
        require_digest(owner, spec, tree_digest(folder))
    return folder


def weights_digest(uri: str, *, artifacts_root: Path | None = None) -> str | None:
    """Return the digest of the weights behind ``uri``; None for a repository.

    It is the content id of a policy file, the SHA-256 of the bytes of others; for
    ``artifacts_root`` see `weights_path`.
    """
    from cadenza.core.checkpoints import LOCAL_URI_SCHEME, is_foreign, read_metadata

    if not uri.startswith(LOCAL_URI_SCHEME):
        return None
    path = weights_path(uri, artifacts_root=artifacts_root)
    if path.is_dir():
        return tree_digest(path)
    if is_foreign(path):
        return file_digest(path)
    return read_metadata(uri=LOCAL_URI_SCHEME + path.name, artifacts_root=path.parent).sha256


def _relative(uri: str) -> str:
    """Return ``uri`` as an address below the artifacts folder."""
    if not uri.startswith(ARTIFACTS_SCHEME):
        raise CheckpointError(
            f"weights {uri!r}: expected an address '{ARTIFACTS_SCHEME}<name>'; put the file into "
            f"the artifacts folder, which {ARTIFACTS_VARIABLES[0]} names."
        )
    return "local://" + uri.removeprefix(ARTIFACTS_SCHEME)
