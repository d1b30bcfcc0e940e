"""Recordings of a stream, read: a journal of sealed lines, and the bytes of every episode.

Layout:   ``draws.jsonl``, one JSON object per line, and ``episodes/NNNNNNNN.bin``, the fields of an
          episode one after another, in the order of the layout. ``workers/<place>`` is such a
          folder for each iterator of a loader's worker; the last line names them, and for those
          that still went on the digest of their last line by then.
Promise:  each line carries the SHA-256 of the line before it and its own body, and each episode's
          line that of its file; a changed, missing or cut part is an `IntegrityError`.
Limits:   numbers have the byte order of the machine that recorded, which the first line names.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, cast

import numpy as np
from numpy.typing import NDArray

from cadenza.core.errors import IntegrityError
from cadenza.core.files import canonical_json, confined_path, sha256_bytes
from cadenza.core.strict_json import parse_json_object

FieldKind = Literal["step", "state"]
Arrays = Mapping[str, NDArray[Any]]

#: File that lists episodes and draws.
JOURNAL_NAME: Final = "draws.jsonl"
#: Folder of the recordings of loader workers.
WORKERS_FOLDER: Final = "workers"
FORMAT_VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One array of a trajectory: shape and type of an entry, and what it belongs to.

    Dots in the name nest, as in ``"obs.robot.qpos"``.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    kind: FieldKind = "step"

    @property
    def path(self) -> tuple[str, ...]:
        """The key as a path."""
        return tuple(self.name.split("."))


def read_journal(
    folder: Path, *, allow_unfinished: bool, until: str | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the bodies of a journal's lines, checked, up to the line with the seal ``until``.

    Raises:
        IntegrityError: The journal is missing, damaged, of another format, or not finished.
    """
    path = folder / JOURNAL_NAME
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except OSError as error:
        raise damaged(folder, f"a file {JOURNAL_NAME}", f"'{error.strerror}'") from error
    seal = ""
    for number, line in enumerate(lines, 1):
        if not line.endswith(b"\n"):
            break
        where = f"line {number} of {JOURNAL_NAME}"
        entry = parse_json_object(line, source=f"recording {folder}: {where}")
        body = cast("dict[str, Any] | None", entry.get("body"))
        if not isinstance(body, dict):
            raise damaged(folder, f"an object 'body' in {where}", "none")
        seal = line_seal(seal, body)
        if entry.get("sha256") != seal:
            raise damaged(folder, f"{where} to match its SHA-256", "another digest")
        if number == 1:
            for name, expected in (("format", FORMAT_VERSION), ("byteorder", sys.byteorder)):
                if body.get(name) != expected:
                    raise damaged(folder, f"{name} {expected!r}", repr(body.get(name)))
        if body.get("kind") == "end":
            if number != len(lines):
                raise damaged(folder, f"{where} to be the last", f"{len(lines)} lines")
            yield body
            return
        yield body
        if seal == until:
            return
    if not allow_unfinished:
        raise damaged(folder, f"a last line of {JOURNAL_NAME} that ends it", "none")


def read_episode(folder: Path, body: Mapping[str, Any], fields: Sequence[Field]) -> Arrays:
    """Return the fields of the episode that a line describes, by name, in the order of ``fields``.

    Raises:
        IntegrityError: The file is missing, of another size or changed.
    """
    try:
        name, length = str(body["file"]), int(body["length"])
        path = confined_path(folder, name)
        size = path.stat().st_size
        expected = sum(_bytes(field, length) for field in fields)
        if size != expected:
            raise damaged(folder, f"{expected} bytes in {name}", f"{size}")
        data = path.read_bytes()
    except OSError as error:  # StorageError, of a path that leads outside, is one
        raise damaged(folder, "every episode's file", f"an error: {error}") from error
    if sha256_bytes(data) != body.get("file_sha256"):
        raise damaged(folder, f"{name} to match its SHA-256", "another digest")
    arrays: dict[str, NDArray[Any]] = {}
    offset = 0
    for field in fields:
        count = _entries(field, length)
        flat = np.frombuffer(data, field.dtype, count * _items(field), offset)
        arrays[field.name] = flat.reshape(count, *field.shape)
        offset += flat.nbytes
    return arrays


def damaged(folder: Path, expected: str, got: str) -> IntegrityError:
    """Return the error that says what a recording lacks."""
    return IntegrityError(
        f"recording {folder}: expected {expected}, got {got}; restore the folder or record again."
    )


def line_seal(previous: str, body: Mapping[str, Any]) -> str:
    """Return the digest of a line's ``body`` and of all lines before it, ``previous``."""
    return sha256_bytes(previous.encode() + canonical_json(body))


def _entries(field: Field, length: int) -> int:
    return length + (field.kind == "state")


def _items(field: Field) -> int:
    return int(np.prod(field.shape, dtype=np.int64))


def _bytes(field: Field, length: int) -> int:
    return _entries(field, length) * _items(field) * np.dtype(field.dtype).itemsize
