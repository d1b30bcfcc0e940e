"""Verification of a result bundle: one row per check, never a traceback.

Bytes:    the files are read once, so what is checked is what was hashed. Every file but
          ``SHA256SUMS.txt`` is hashed there, and that file must equal, byte for byte, the one that
          the folder implies: any single changed byte fails.
Content:  plan, journals, numbers, partners and registration must agree with each other; see
          `cadenza.benchmark.bundle_checks`.
Limits:   who can change a file can also write new checksums; only a signature proves an author.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from cadenza.benchmark.builders import code_digest
from cadenza.benchmark.bundle import BUNDLE_NAME, SUMS_NAME, encode_sums
from cadenza.benchmark.bundle_checks import BundleUnderTest, content_checks
from cadenza.benchmark.check_rows import MALFORMED, CheckResult, all_ok, guarded, render_check_table
from cadenza.benchmark.tasks import get_task
from cadenza.core.errors import IntegrityError
from cadenza.core.files import sha256_bytes
from cadenza.core.provenance import GIT_SHA_UNKNOWN
from cadenza.core.strict_json import MAX_JSON_BYTES, parse_json_object
from cadenza.evaluation.results import ResultBundle

__all__ = ["CheckResult", "all_ok", "render_check_table", "verify_bundle_dir"]

#: Name of the check that the sources behind a bundle are known.
ELIGIBILITY: Final = "bundle:eligibility"
#: Name of the only row when there is no bundle to check.
UNREADABLE: Final = "bundle"
#: File names a bundle may hold: plain, visible, confined to the folder.
_PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
#: One line of ``SHA256SUMS.txt``, newline excluded.
_SUMS_LINE: Final = re.compile(r"([0-9a-f]{64})  ([A-Za-z0-9][A-Za-z0-9._-]*)")
#: More files than any bundle holds: one journal per seed and a handful of others.
_MAX_FILES: Final = 10_000


def verify_bundle_dir(
    folder: Path, *, repo_path: Path | None = None, allow_dirty: bool = False
) -> list[CheckResult]:
    """Check the bundle in ``folder``.

    Args:
        folder: Bundle folder.
        repo_path: Git repository that holds the registration tag; needed only by bundles with one.
        allow_dirty: Accept a bundle made from changed sources, or from others than these without
            a commit.

    Returns:
        One row per check; the bundle passes iff all hold (`all_ok`).
    """
    try:
        files = _read_files(folder)
    except MALFORMED as error:
        return [CheckResult(name=UNREADABLE, ok=False, detail=str(error))]
    rows = guarded("sha256sums", lambda: _check_sums(files))
    try:
        content = parse_json_object(files[BUNDLE_NAME], source=BUNDLE_NAME)
        bundle = ResultBundle.model_validate(content)
    except MALFORMED as error:
        detail = " ".join(str(error).split())[:300]
        return [*rows, CheckResult(name="bundle:schema", ok=False, detail=detail)]
    rows.append(
        CheckResult(name="bundle:schema", ok=True, detail=f"version {bundle.schema_version}")
    )
    case = BundleUnderTest(bundle=bundle, files=files, repo_path=repo_path)
    rows += guarded(ELIGIBILITY, lambda: _check_eligibility(case, allow_dirty))
    rows += guarded("manifest", lambda: _check_manifest(bundle, files))
    rows += content_checks(case)
    return rows


def _read_files(folder: Path) -> dict[str, bytes]:
    """Return every file of ``folder``; anything but plain files is refused.

    Raises:
        IntegrityError: No bundle, or an entry that no bundle holds.
        OSError: The file system refused.
    """
    if not folder.is_dir():
        raise IntegrityError(f"{folder}: expected a bundle folder, got none.")
    paths = sorted(folder.iterdir())
    if len(paths) > _MAX_FILES:
        raise IntegrityError(f"{folder}: expected at most {_MAX_FILES} files, got {len(paths)}.")
    files: dict[str, bytes] = {}
    for path in paths:
        if path.is_symlink() or not path.is_file() or not _PLAIN_NAME.fullmatch(path.name):
            raise IntegrityError(f"{path.name!r}: expected plain files only, got another entry.")
        if path.stat().st_size > MAX_JSON_BYTES:
            raise IntegrityError(f"{path.name}: expected at most {MAX_JSON_BYTES} bytes, got more.")
        files[path.name] = path.read_bytes()
    if BUNDLE_NAME not in files:
        raise IntegrityError(f"{folder}: expected {BUNDLE_NAME}, got {sorted(files)}.")
    return files


def _check_sums(files: Mapping[str, bytes]) -> Iterator[CheckResult]:
    if SUMS_NAME not in files:
        yield CheckResult(name="sha256sums", ok=False, detail=f"{SUMS_NAME} is missing")
        return
    stated = dict(_parse_sums(files[SUMS_NAME]))
    actual = {name: sha256_bytes(data) for name, data in files.items() if name != SUMS_NAME}
    for name in sorted(stated.keys() | actual.keys()):
        if name not in actual:
            detail = "listed, but the file is missing"
        elif name not in stated:
            detail = "the file is not listed"
        else:
            detail = "" if stated[name] == actual[name] else "the bytes have changed"
        yield CheckResult(name=f"sha256sums:{name}", ok=not detail, detail=detail)
    exact = files[SUMS_NAME] == encode_sums(actual)
    yield CheckResult(
        name="sha256sums:form",
        ok=exact,
        detail="" if exact else "not byte for byte the list that the files imply",
    )


def _parse_sums(data: bytes) -> Iterator[tuple[str, str]]:
    """Yield (name, digest) per line.

    Raises:
        IntegrityError: A line is malformed or a name repeats.
    """
    lines = data.split(b"\n")  # not splitlines: it also breaks at VT, FF, CR
    if lines.pop() != b"":
        raise IntegrityError(f"{SUMS_NAME}: expected the last line to end, got a torn line.")
    seen: set[str] = set()
    for number, line in enumerate(lines, start=1):
        match = _SUMS_LINE.fullmatch(line.decode("ascii"))
        if match is None or match[2] in seen:
            raise IntegrityError(
                f"{SUMS_NAME} line {number}: expected '<64 hex digits>  <new name>', got {line!r}."
            )
        seen.add(match[2])
        yield match[2], match[1]


def _check_eligibility(case: BundleUnderTest, allow_dirty: bool) -> Iterator[CheckResult]:
    """Pass a clean commit and, without a commit as in a release, the very sources that verify."""
    bundle = case.bundle
    ok, detail = not bundle.dirty, f"commit {bundle.git_sha[:12]}, clean"
    if bundle.dirty and bundle.git_sha == GIT_SHA_UNKNOWN:
        partners = (entry.partner.class_name for entry in case.plan.partners)
        ours = code_digest(get_task(case.plan.env.task), partners)
        ok = bundle.metadata.get("code_sha256") == ours
        detail = f"no commit, sources {'equal' if ok else 'differ from'} those that verify"
    elif bundle.dirty:
        detail = f"commit {bundle.git_sha[:12]}, sources changed"
    if not ok:
        detail += (
            " (accepted on request)"
            if allow_dirty
            else "; `cadenza eval verify --allow-dirty` accepts it"
        )
    yield CheckResult(name=ELIGIBILITY, ok=ok or allow_dirty, detail=detail)


def _check_manifest(bundle: ResultBundle, files: Mapping[str, bytes]) -> Iterator[CheckResult]:
    for name, digest in sorted(bundle.manifest.items()):
        if name not in files:
            detail = "the file is missing"
        else:
            detail = "" if sha256_bytes(files[name]) == digest else "the bytes have changed"
        yield CheckResult(name=f"manifest:{name}", ok=not detail, detail=detail)
    unlisted = sorted(files.keys() - bundle.manifest.keys() - {BUNDLE_NAME, SUMS_NAME})
    yield CheckResult(
        name="manifest:membership",
        ok=not unlisted,
        detail=f"not listed: {unlisted}" if unlisted else "",
    )
