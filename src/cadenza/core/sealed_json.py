"""JSON documents that carry a checksum of themselves: changed on disk means refused.

Layout:   one object; its key ``seal`` holds the SHA-256 of the canonical JSON of all other keys,
          ``kind`` says what it is and ``schema_version`` how it is laid out.
Limits:   whoever can recompute a SHA-256 can forge one; the seal tells damage, not malice.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from cadenza.core.errors import IntegrityError
from cadenza.core.files import atomic_write_json, canonical_json, sha256_bytes
from cadenza.core.strict_json import MAX_JSON_BYTES, parse_json_object

_SEAL: Final = "seal"


def write_sealed_json(
    path: Path, facts: Mapping[str, Any], *, kind: str, schema_version: int = 1
) -> None:
    """Replace ``path`` by ``facts`` and their seal in one durable step.

    Args:
        path: Where to write.
        facts: What JSON can express; without ``kind``, ``schema_version`` and ``seal``.
        kind: What the document is.
        schema_version: Version of its layout.

    Raises:
        StorageError: The file system refused; ``path`` is unchanged.
    """
    full = {**facts, "kind": kind, "schema_version": schema_version}
    atomic_write_json(path, {**full, _SEAL: sha256_bytes(canonical_json(full))})


def read_sealed_json(path: Path, *, kind: str, schema_version: int = 1) -> dict[str, Any]:
    """Return the facts of a document that `write_sealed_json` wrote.

    Raises:
        IntegrityError: It is missing, unreadable, changed, of another kind or another version.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_JSON_BYTES + 1)
    except OSError as error:
        raise IntegrityError(
            f"{path}: expected a readable {kind} document, got '{error.strerror}'; run the command "
            "that writes it again."
        ) from error
    full = parse_json_object(data, source=str(path))
    seal = full.pop(_SEAL, None)
    if seal != sha256_bytes(canonical_json(full)):
        raise IntegrityError(
            f"{path}: expected the document that its seal covers, got another one; the file was "
            "changed, so run the command that writes it again."
        )
    found = (full.pop("kind", None), full.pop("schema_version", None))
    if found != (kind, schema_version):
        raise IntegrityError(
            f"{path}: expected a document of kind {kind!r}, version {schema_version}, got "
            f"{found[0]!r}, version {found[1]!r}."
        )
    return full
