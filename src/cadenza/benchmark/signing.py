"""Signatures of bundles: whoever holds a key vouches for every byte.

Root:       Merkle tree over the files but ``bundle.sig``, sorted by name, as in RFC 6962: a leaf is
            SHA-256(0 | name | 0 | SHA-256 of the bytes), a node SHA-256(1 | left | right), and an
            odd node moves up as it is.
Statement:  root, commit, digests of sources and dependencies, registration; its canonical JSON,
            after `_DOMAIN`, is what Ed25519 signs (RFC 8032).
Keys:       OpenSSH's files. ``allowed_signers`` has a line ``NAME ssh-ed25519 KEY`` for each
            trusted key, as ``git config gpg.ssh.allowedSignersFile`` reads it.
Limits:     a bundle without signature verifies unless one is required: removing ``bundle.sig`` is
            found only by those who expect it.
"""

import base64
import binascii
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, cast

from cadenza.core.errors import ConfigurationError, InputError, IntegrityError
from cadenza.core.extras import load_extra
from cadenza.core.files import canonical_json, sha256_bytes
from cadenza.core.strict_json import parse_json_object
from cadenza.evaluation.report.view import Check
from cadenza.evaluation.results import ResultBundle

#: The detached signature inside a bundle's folder; no checksum covers it, it covers all others.
SIGNATURE_NAME: Final = "bundle.sig"
#: Where a repository keeps the keys it trusts, unless told otherwise.
ALLOWED_SIGNERS_NAME: Final = "allowed_signers"
#: Kind and version of the signature's document; part of what is signed, so that a signature over
#: anything else never fits.
_KIND: Final = "cadenza-bundle-signature/1"
_DOMAIN: Final = b"cadenza bundle signature 1\n"
#: Fields of a bundle that the statement repeats for its readers.
_VOUCHED: Final = (
    "task_id",
    "task_version",
    "policy_id",
    "git_sha",
    "dirty",
    "lock_sha256",
    "prereg_git_tag",
    "prereg_blob_sha",
)
_KEY_TYPE: Final = "ssh-ed25519"
#: What comes before a key's 32 bytes: length and type, and their length.
_KEY_HEAD: Final = b"\0\0\0\x0b" + _KEY_TYPE.encode() + b"\0\0\0\x20"
_SERIALIZATION: Final = "cryptography.hazmat.primitives.serialization"
_ED25519: Final = "cryptography.hazmat.primitives.asymmetric.ed25519"


def merkle_root(digests: Mapping[str, str]) -> str:
    """Return the root over files by name, given the SHA-256 of their bytes in hex.

    Raises:
        InputError: There is no file.
    """
    if not digests:
        raise InputError("merkle_root: expected at least one file, got none.")
    nodes = [
        hashlib.sha256(b"\0" + name.encode() + b"\0" + bytes.fromhex(digests[name])).digest()
        for name in sorted(digests)
    ]
    while len(nodes) > 1:
        pairs = zip(nodes[::2], nodes[1::2], strict=False)
        joined = [hashlib.sha256(b"\1" + left + right).digest() for left, right in pairs]
        nodes = joined + nodes[len(nodes) - len(nodes) % 2 :]
    return nodes[0].hex()


def bundle_root(files: Mapping[str, bytes]) -> str:
    """Return the Merkle root of a bundle's files, its signature aside."""
    return merkle_root(
        {name: sha256_bytes(data) for name, data in files.items() if name != SIGNATURE_NAME}
    )


def statement_of(bundle: ResultBundle, files: Mapping[str, bytes]) -> dict[str, Any]:
    """Return what a signer vouches for."""
    places = ("code_sha256", "plan_sha256", "prereg_path", "prereg_tag_object")
    fields = bundle.model_dump(include=set(_VOUCHED))
    fields |= {name: bundle.metadata[name] for name in places if name in bundle.metadata}
    return {"kind": _KIND, "bundle_root": bundle_root(files), **fields}


def sign_statement(statement: Mapping[str, Any], key_file: Path) -> bytes:
    """Return the bytes of ``bundle.sig`` by the private key in ``key_file``.

    Raises:
        ConfigurationError: The file holds no Ed25519 key, or an encrypted one.
        MissingExtraError: cryptography is not installed.
        OSError: The file cannot be read.
    """
    key = _private_key(key_file)
    public = key.public_key().public_bytes_raw()
    document = {
        "statement": dict(statement),
        "public_key": public.hex(),
        "signature": key.sign(_DOMAIN + canonical_json(statement)).hex(),
    }
    return canonical_json(document) + b"\n"


def read_allowed_signers(path: Path) -> dict[bytes, str]:
    """Return the names of trusted signers by their public keys, 32 bytes each.

    Raises:
        ConfigurationError: There is no such file, or a line is of another form.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f"{path}: expected the keys that are trusted, got '{error}'; name the file with "
            "--allowed-signers."
        ) from error
    signers: dict[bytes, str] = {}
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        key = _public_key(words[2]) if len(words) > 2 and words[1] == _KEY_TYPE else None
        if key is None:
            raise ConfigurationError(
                f"{path}, line {number}: expected 'NAME {_KEY_TYPE} KEY', got {line[:80]!r}."
            )
        signers[key] = words[0]
    return signers


def signature_checks(
    bundle: ResultBundle,
    files: Mapping[str, bytes],
    *,
    signers: Mapping[bytes, str] | None,
    required: bool,
) -> Iterator[Check]:
    """Yield whether the signature fits these files, and whether its key is one of ``signers``.

    Raises:
        IntegrityError: The document is no signature.
        MissingExtraError: There is a signature, but cryptography is not installed.
    """
    if SIGNATURE_NAME not in files:
        yield Check(name="signature:absent", ok=not required, detail="not signed")
        return
    document = parse_json_object(files[SIGNATURE_NAME], source=SIGNATURE_NAME)
    form = canonical_json(document) + b"\n" == files[SIGNATURE_NAME]
    fields = {"statement", "public_key", "signature"}
    if not form or document.keys() != fields:
        raise IntegrityError(f"{SIGNATURE_NAME}: expected the canonical form, got another.")
    same = document["statement"] == statement_of(bundle, files)
    detail = "" if same else "vouches for another bundle"
    yield Check(name="signature:statement", ok=same, detail=detail)
    try:
        public, signature = _bytes(document["public_key"]), _bytes(document["signature"])
        key = load_extra(_ED25519).Ed25519PublicKey.from_public_bytes(public)
    except (TypeError, ValueError) as error:
        raise IntegrityError(f"{SIGNATURE_NAME}: expected a key and a signature in hex.") from error
    try:
        key.verify(signature, _DOMAIN + canonical_json(document["statement"]))
        ok, detail = True, f"key {_fingerprint(public)}"
    except load_extra("cryptography.exceptions").InvalidSignature:
        ok, detail = False, "not by the key it names, or of another statement"
    yield Check(name="signature:valid", ok=ok, detail=detail)
    if signers is not None:
        name = signers.get(public)
        detail = name or f"key {_fingerprint(public)} is not among the allowed signers"
        yield Check(name="signature:signer", ok=name is not None, detail=detail)
    elif required:
        detail = "no list of trusted keys; pass --allowed-signers"
        yield Check(name="signature:signer", ok=False, detail=detail)


def signed_by(checks: Iterable[Check]) -> str:
    """Return who vouches for a bundle, by the checks of its verification, as words."""
    found = {check.name: check for check in checks if check.name.startswith("signature")}
    if not found or "signature:absent" in found:
        return "not signed"
    signer = found.pop("signature:signer", None)
    if not all(check.ok for check in found.values()):
        return "its signature does not fit"
    if signer is not None:
        return f"signed by {signer.detail}" if signer.ok else signer.detail
    return f"signed with {found['signature:valid'].detail}; there is no list of trusted keys"


def _bytes(text: object) -> bytes:
    """Return what lower-case hex stands for: other spellings of the same bytes are changes, too."""
    data = bytes.fromhex(cast("str", text))
    if data.hex() != text:
        raise ValueError("not in lower-case hex")
    return data


def _private_key(path: Path) -> Any:
    serialization, ed25519 = load_extra(_SERIALIZATION), load_extra(_ED25519)
    data = path.read_bytes()
    try:
        key = serialization.load_ssh_private_key(data, password=None)
    except (TypeError, ValueError, load_extra("cryptography.exceptions").UnsupportedAlgorithm):
        key = None
    if not isinstance(key, ed25519.Ed25519PrivateKey):
        raise ConfigurationError(
            f"{path}: expected an Ed25519 private key of OpenSSH without passphrase, got another "
            "file; `ssh-keygen -t ed25519 -N '' -f FILE` makes one."
        )
    return key


def _public_key(text: str) -> bytes | None:
    """Return the 32 bytes of a key as OpenSSH writes it."""
    try:
        data = base64.b64decode(text, validate=True)
    except binascii.Error:
        return None
    key = data.removeprefix(_KEY_HEAD)
    return key if len(key) == 32 and len(data) > len(key) else None


def _fingerprint(public: bytes) -> str:
    """Return the fingerprint that ``ssh-keygen -l`` shows."""
    digest = base64.b64encode(hashlib.sha256(_KEY_HEAD + public).digest())
    return f"SHA256:{digest.decode().rstrip('=')}"
