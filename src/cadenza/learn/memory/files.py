"""The content of a table apart from the table: snapshots, states for checkpoints, files.

A table copies its content under its lock and goes on; files are written from the copy. A file is
read into one and checked before a table takes it over, completely or not at all (`contents_of`).

File:     ``<path>.safetensors`` with the tensors ``rows/<column>``, (R, *shape), rows of all
          episodes, and ``counts/<column>``, int64 (E,), rows per episode, of each stored column,
          and ``manifest``, canonical JSON of everything else in bytes. Types that safetensors does
          not know are bytes, too. Its metadata are ``format`` and ``sha256``: that of the header's
          other entries in canonical JSON, then of the data.
Deflated: ``<path>.zip`` with this file as its only entry, ``memory.safetensors``.
Pieces:   an export that writes only what is new: ``<path>.safetensors`` is an index without rows,
          whose manifest lists ``segments``, whole files in ``<path>.segments`` that never change:
          file name, its ``sha256``, and the positions of the episodes that were stored when the
          index was written.
Promise:  the index is replaced after the segments it lists are durable, and segments that it no
          longer lists are removed after that; killed at any point, the file on disk is whole.
Older:    files with other layouts, and Emote's, are read by `cadenza.learn.memory.loading`.
Axes:     E = episodes, R = rows of a column in all episodes.
"""

import logging
import re
import secrets
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import IO, Any, Final, Literal, NamedTuple, TypeAlias, TypeVar, cast

import numpy as np
import safetensors
from numpy.typing import NDArray

from cadenza.core.errors import (
    CheckpointError,
    ConfigurationError,
    InputError,
    IntegrityError,
    refuse,
)
from cadenza.core.files import atomic_writer, canonical_json, confined_path
from cadenza.core.strict_json import parse_json_object
from cadenza.learn.memory.column import (
    Column,
    IndexArray,
    TableLayout,
    VirtualColumn,
    checked_sequence,
    from_numpy,
    numpy_dtype,
    require_finite_rows,
)
from cadenza.learn.memory.ring import EpisodeContents, row_indices

T = TypeVar("T")

_LOGGER = logging.getLogger(__name__)

#: What happens to the ids of a file: kept, or replaced by fresh ones.
IdPolicy: TypeAlias = Literal["keep", "remap"]


class StoredRows(NamedTuple):
    """Rows of one stored column, (R, *shape), episode after episode, and rows per episode, (E,)."""

    rows: NDArray[Any]
    counts: NDArray[np.int64]

    def chosen(self, positions: IndexArray) -> "StoredRows":
        """Return the rows of the episodes at ``positions``."""
        first = np.cumsum(self.counts) - self.counts
        counts = self.counts[positions]
        return StoredRows(self.rows[row_indices(first[positions], counts)], counts)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)  # eq=False: array == is ambiguous
class TableSnapshot:
    """A table's episodes, from the oldest to the newest, and settings.

    Rows are there for the columns that hold data, in declared order; strategies by class name and
    ``state()``; columns by class name (``kind``) and `Column.state`. Messages call it ``source``.
    """

    length_key: str
    maxlen: int
    identities: tuple[int, ...]
    stored: Mapping[str, StoredRows]
    sampler_type: str = ""
    ejector_type: str = ""
    sampler_state: Mapping[str, Any] | None = None
    ejector_state: Mapping[str, Any] | None = None
    columns: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    source: str = "snapshot"

    def with_fresh_identities(self) -> "TableSnapshot":
        """Return the same episodes with the ids -1, -2, ..., which no collector gives out.

        The strategies' states stay behind, since they name the old ids.
        """
        identities = tuple(range(-1, -len(self.identities) - 1, -1))
        return replace(self, identities=identities, sampler_state=None, ejector_state=None)


class TableChanges(NamedTuple):
    """What came to a table from some arrival on and is there still, and what is there.

    Serials are numbers of arrival, ascending; identities go from the oldest to the newest.
    """

    added: TableSnapshot
    added_serials: NDArray[np.int64]
    identities: tuple[int, ...]
    serials: NDArray[np.int64]


def take_changes(
    contents: EpisodeContents, maxlen: int, strategies: Sequence[Any], first_serial: int = 0
) -> TableChanges:
    """Return copies of the episodes from arrival ``first_serial`` on, with settings."""
    layout, rows = contents.layout, contents.rows
    live = rows.live_slots()
    serials = rows.slots.serial[live]
    new = serials >= first_serial
    stored: dict[str, StoredRows] = {}
    for name in layout.stored:
        counts = contents.counts(name, live[new])
        at = row_indices(rows.slots.start[live[new]], counts)
        stored[name] = StoredRows(contents.arena.gather(name, at), counts)
    columns: dict[str, dict[str, Any]] = {}
    for column in layout.columns:
        columns[column.name] = {"kind": type(column).__name__, "state": column.state()}
        if isinstance(column, VirtualColumn):
            mapper = getattr(column.mapper, "__qualname__", str(column.mapper))
            columns[column.name]["mapper"] = mapper
    sampler, ejector = strategies
    identities = rows.identities()
    added = TableSnapshot(
        columns=columns,
        length_key=layout.length_key,
        maxlen=maxlen,
        identities=tuple(identities[index] for index in np.flatnonzero(new)),
        stored=stored,
        sampler_type=type(sampler).__name__,
        ejector_type=type(ejector).__name__,
        sampler_state=sampler.state(),
        ejector_state=ejector.state(),
    )
    return TableChanges(added, serials[new], tuple(identities), serials)


def contents_of(
    snapshot: TableSnapshot,
    layout: TableLayout,
    new_contents: Callable[[], EpisodeContents],
    maxlen: int,
    *,
    finite: bool,
) -> EpisodeContents:
    """Return the newest episodes of ``snapshot`` that fit together into ``maxlen`` transitions.

    Raises:
        ConfigurationError: The snapshot's rows do not suit the columns, or its ids the rows; or
            its newest episode alone is too long.
        InputError: They hold NaN or infinity, and must be ``finite``.
    """
    if not snapshot.identities:
        return new_contents()
    if snapshot.length_key not in layout.stored:
        wanted, got = f"the length column {layout.length_key!r}", repr(snapshot.length_key)
        refuse(ConfigurationError, snapshot.source, expected=wanted, got=got)
    rows = {name: part.rows for name, part in snapshot.stored.items()}
    _require_columns(rows, layout, ConfigurationError, snapshot.source)
    for name, array in rows.items() if finite else ():
        require_finite_rows(f"column {name!r} of the loaded rows", array)
    identities = snapshot.identities
    episodes = {name: len(part.counts) for name, part in snapshot.stored.items()}
    if {len(set(identities)), *episodes.values()} != {len(identities)}:
        wanted = f"{len(identities)} different ids and rows of as many episodes"
        got = f"{len(set(identities))} and {episodes}"
        refuse(ConfigurationError, snapshot.source, expected=wanted, got=got)
    contents = new_contents()
    split = {
        name: np.split(part.rows, np.cumsum(part.counts)[:-1])
        for name, part in snapshot.stored.items()
    }
    first = _first_kept(snapshot.stored[layout.length_key].counts, maxlen, snapshot.source)
    for index in range(first, len(identities)):
        try:
            sequence = {name: parts[index] for name, parts in split.items()}
            contents.add(identities[index], checked_sequence(layout, sequence))
        except InputError as error:
            where = f"{snapshot.source}: episode {identities[index]}"
            raise ConfigurationError(f"{where}: {error}") from error
    return contents


def _first_kept(steps: IndexArray, maxlen: int, source: str) -> int:
    """Return the index of the oldest episode that is kept: the newest that fit together stay."""
    if len(steps) and steps[-1] > maxlen:
        wanted = f"episodes of at most {maxlen} transitions, the table's maxlen"
        do = "use a larger table"
        refuse(ConfigurationError, source, expected=wanted, got=str(steps[-1]), do=do)
    dropped = len(steps) - int(np.searchsorted(np.cumsum(steps[::-1]), maxlen, side="right"))
    if dropped:
        _LOGGER.warning(
            "the table holds %d transitions at most, so the %d oldest of %d episodes stay out",
            maxlen,
            dropped,
            len(steps),
        )
    return dropped


def _require_columns(
    rows: Mapping[str, NDArray[Any]], layout: TableLayout, error: type[Exception], owner: str
) -> None:
    """Raise ``error`` unless there are ``rows`` of exactly the stored columns."""
    if rows.keys() != layout.stored.keys():
        wanted, do = (
            f"rows of the columns {sorted(layout.stored)}",
            "load it into a table with them",
        )
        refuse(error, owner, expected=wanted, got=str(sorted(rows)), do=do)
    for name, column in layout.stored.items():
        found, own = rows[name], column.field
        if found.shape[1:] != own.shape or found.dtype != own.dtype:
            wanted = f"column {name!r} of shape {own.shape} and type {own.dtype}"
            refuse(error, owner, expected=wanted, got=f"{found.shape[1:]} and {found.dtype}")


def contents_state(contents: EpisodeContents) -> dict[str, Any]:
    """Return episodes and places as tensors, numbers and lists.

    Equal episodes at equal places give equal bytes, whatever lay there before them.
    """
    slots = contents.rows.live_slots()
    return {
        "places": contents.rows.state_dict(),
        "columns": {
            name: from_numpy(_rows_at_places(contents, name, slots))
            for name in contents.layout.stored
        },
        "extra": from_numpy(contents.extra_rows(slots)),
    }


def _rows_at_places(contents: EpisodeContents, name: str, slots: IndexArray) -> NDArray[Any]:
    """Return a column's rows at the places of all episodes, zeros where an episode has none."""
    rows = contents.rows.slots.rows[slots]
    values = contents.arena.gather(name, row_indices(contents.rows.slots.start[slots], rows))
    if not contents.layout.stored[name].is_tag:
        counts = contents.counts(name, slots)
        values[row_indices(np.cumsum(rows) - rows + counts, rows - counts)] = 0
    return values


def load_contents_state(
    layout: TableLayout,
    state: Mapping[str, Any],
    empty_contents: Callable[[int], EpisodeContents],
) -> EpisodeContents:
    """Return the content that `contents_state` described."""
    contents = empty_contents(int(state["places"]["capacity"]))
    contents.rows.load_state_dict(state["places"])
    slots = contents.rows.live_slots()
    at = row_indices(contents.rows.slots.start[slots], contents.rows.slots.rows[slots])
    columns = {name: tensor.numpy() for name, tensor in state["columns"].items()}
    _require_columns(columns, layout, CheckpointError, "table")
    for name, values in columns.items():
        contents.arena.values(name)[at] = values.reshape(len(at), *values.shape[1:])
    extra: NDArray[np.int32] = state["extra"].numpy()
    if extra.shape != (len(slots), len(layout.flexible)):
        wanted = f"extra rows of shape {(len(slots), len(layout.flexible))}"
        refuse(CheckpointError, "table", expected=wanted, got=str(extra.shape))
    for slot, row in zip(slots.tolist(), extra.tolist(), strict=True):
        contents.set_extra(slot, row)
    return contents


_FORMAT: Final = "cadenza-memory/3"
_deserialize: Final = cast("Any", safetensors).deserialize
#: Ending of a file that is not deflated, and the only entry of one that is.
ENDING: Final = ".safetensors"
MEMBER: Final = "memory.safetensors"
_SEGMENT_NAME: Final = re.compile(r"[0-9a-f]{16}\.(zip|safetensors)")
#: More segments than this, or more dead than live episodes in them, are written anew as one.
MAX_SEGMENTS: Final = 64
#: Everyone may read stored memories, whatever the umask: other users import them.
_MODE: Final = 0o644
#: Bytes written at once.
_CHUNK_BYTES: Final = 1 << 20
_CODES: Final = {
    "bool": "BOOL",
    **{f"int{bits}": f"I{bits}" for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": f"U{bits}" for bits in (8, 16, 32, 64)},
    **{f"float{bits}": f"F{bits}" for bits in (16, 32, 64)},
}


def write_snapshot(snapshot: TableSnapshot, path: str | Path, *, compress: bool = False) -> None:
    """Replace the file at ``path``, without its ending, by the content of ``snapshot``, mode 0644.

    Killed at any point, the old file or the new one is there.

    Raises:
        StorageError: The file system refused.
    """
    target, other = Path(f"{path}{ENDING}"), Path(f"{path}.zip")
    if compress:
        target, other = other, target
    _write(target, snapshot)
    other.unlink(missing_ok=True)


def _write(target: Path, snapshot: TableSnapshot, **more: Any) -> str:
    """Replace ``target``, which is deflated if a zip file, and return its SHA-256."""
    names = ("length_key", "maxlen", "identities", "sampler_type", "sampler_state")
    settings = {name: getattr(snapshot, name) for name in (*names, "ejector_type", "ejector_state")}
    columns = [{"name": name, **record} for name, record in snapshot.columns.items()]
    manifest = canonical_json({**settings, "columns": columns, **more})
    arrays: dict[str, NDArray[Any]] = {}
    for name, part in snapshot.stored.items():
        arrays |= {f"rows/{name}": part.rows, f"counts/{name}": part.counts}
    arrays["manifest"] = np.frombuffer(manifest, np.uint8)
    header: dict[str, Any] = {}
    end = 0
    for name, array in arrays.items():
        code = _CODES.get(array.dtype.name)
        shape = array.shape if code else (array.nbytes,)
        about = {"dtype": code or "U8", "shape": list(shape)}
        header[name] = {**about, "data_offsets": [end, end := end + array.nbytes]}
    data = [np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in arrays.values()]
    digest = sha256(canonical_json(header))
    for part in data:
        digest.update(part.data)
    metadata = {"format": _FORMAT, "sha256": digest.hexdigest()}
    head = canonical_json({"__metadata__": metadata, **header})
    head += b" " * (-len(head) % 8)
    with atomic_writer(target, mode=_MODE) as file:
        if target.suffix == ENDING:
            _write_parts(file, head, data)
        else:
            with (
                zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive,
                archive.open(MEMBER, "w", force_zip64=True) as entry,
            ):
                _write_parts(entry, head, data)
    return metadata["sha256"]


def _write_parts(file: IO[bytes], head: bytes, data: Sequence[NDArray[np.uint8]]) -> None:
    file.write(len(head).to_bytes(8, "little") + head)
    for part in data:
        for start in range(0, len(part), _CHUNK_BYTES):  # much faster than a large block at once
            file.write(part[start : start + _CHUNK_BYTES].data)


def read_bytes(
    data: bytes,
    source: str,
    maxlen: int,
    length_key: str,
    read_file: Callable[[str], bytes],
) -> TableSnapshot:
    """Return the content of a file; ``read_file`` returns that of a segment by its name."""
    manifest, arrays, _ = _read(data, source)
    header = read_settings(manifest, source)
    if "segments" not in manifest:
        return _with_tensors(header, arrays, source)

    def segment(name: str, digest: str) -> TableSnapshot:
        where = f"{source}: segment {name}"
        inner, parts, found = _read(read_file(name), where)
        if found != digest:
            wanted = f"the segment with SHA-256 {digest}"
            refuse(IntegrityError, where, expected=wanted, got=found)
        return _with_tensors(read_settings(inner, where), parts, where)

    records = read_records(manifest, "sha256", source)
    return joined_segments(header, records, segment, source, maxlen, length_key)


def _read(data: bytes, source: str) -> tuple[dict[str, Any], dict[str, dict[str, Any]], str]:
    """Return manifest, tensors and SHA-256 of a file that is as it was written."""
    try:
        tensors: dict[str, dict[str, Any]] = dict(_deserialize(data))
    except safetensors.SafetensorError as error:
        other = f"a damaged or another file ({error})"
        refuse(IntegrityError, source, expected="a stored memory", got=other)
    start = 8 + int.from_bytes(data[:8], "little")
    header = parse_json_object(data[8:start], source=source)
    about = header.pop("__metadata__", {})
    if about.get("format") != _FORMAT:
        wanted, got = f"the format {_FORMAT!r}", repr(about.get("format"))
        refuse(IntegrityError, source, expected=wanted, got=got)
    digest = sha256(canonical_json(header))
    digest.update(memoryview(data)[start:])
    require_digest(source, str(about.get("sha256")), digest.hexdigest())
    manifest = tensors.pop("manifest", {"data": b""})
    return parse_json_object(bytes(manifest["data"]), source=source), tensors, digest.hexdigest()


def require_digest(name: str, recorded: str, found: str) -> None:
    """Raise `IntegrityError` unless a SHA-256 is the recorded one."""
    if recorded != found:
        changed = "the file was changed after it was written"
        refuse(IntegrityError, name, expected=f"SHA-256 {recorded}", got=found, do=changed)


def _with_tensors(
    header: TableSnapshot, tensors: Mapping[str, Mapping[str, Any]], source: str
) -> TableSnapshot:
    """Return ``header`` with the rows that ``tensors`` hold."""
    names = [name for name, record in header.columns.items() if "mapper" not in record]
    if set(tensors) != {f"{part}/{name}" for name in names for part in ("rows", "counts")}:
        wanted, got = f"rows and counts of {sorted(names)}", str(sorted(tensors)[:8])
        refuse(IntegrityError, source, expected=wanted, got=got)

    stored: dict[str, StoredRows] = {}
    for name in names:
        column = Column(name, (), np.float32)
        try:
            column.load_state(header.columns[name]["state"])
            counts = np.frombuffer(tensors[f"counts/{name}"]["data"], np.int64)
            rows = np.frombuffer(tensors[f"rows/{name}"]["data"], numpy_dtype(column.dtype))
            stored[name] = StoredRows(rows.reshape(int(counts.sum()), *column.shape), counts)
        except ValueError as error:
            where, wanted = f"{source}: column {name!r}", "rows as in the manifest"
            refuse(IntegrityError, where, expected=wanted, got=f"others: {error}")
    return with_rows(header, stored, source)


def with_rows(
    header: TableSnapshot, stored: Mapping[str, StoredRows], source: str
) -> TableSnapshot:
    """Return ``header`` with the rows of a file, which are those of its episodes."""
    episodes = len(header.identities)
    for name, (rows, counts) in stored.items():
        where = f"{source}: column {name!r}"
        total = sum(counts.tolist()) if counts.shape == (episodes,) else -1  # without overflow
        if total != len(rows) or counts.dtype != np.int64 or (counts < 0).any():
            wanted = f"{episodes} counts >= 0 that sum to {len(rows)} rows"
            refuse(IntegrityError, where, expected=wanted, got=str(counts)[:80])
        if rows.dtype == np.bool_ and (rows.view(np.uint8) > 1).any():
            refuse(IntegrityError, where, expected="booleans as bytes 0 and 1", got="others")
    return replace(header, stored=stored)


def read_settings(
    record: Mapping[str, Any], source: str, *, ids: str = "identities"
) -> TableSnapshot:
    """Return what ``record``, whose key ``ids`` holds the episodes, says about a table."""
    columns: dict[str, Mapping[str, Any]] = {}
    for entry in cast("list[Any]", take(record, "columns", list, source)):
        match entry:
            case {"name": str(name), "kind": str(), "state": {**_state}} if name not in columns:
                columns[name] = cast("dict[str, Any]", entry)
            case _:
                wanted = "columns with different names, class and state"
                refuse(IntegrityError, source, expected=wanted, got=entry)
    identities = cast("list[Any]", take(record, ids, list, source))
    if not all(type(identity) is int for identity in identities):
        refuse(IntegrityError, source, expected=f"{ids!r} to hold integers only", got="others")
    if len(set(identities)) != len(identities):
        refuse(IntegrityError, source, expected=f"different ids in {ids!r}", got="repeated ones")
    names = ("sampler_state", "ejector_state")
    states: dict[str, Any] = {
        name: take(record, name, dict, source) for name in names if record.get(name) is not None
    }
    return TableSnapshot(
        columns=columns,
        length_key=take(record, "length_key", str, source),
        maxlen=take(record, "maxlen", int, source),
        identities=tuple(identities),
        stored={},
        source=source,
        sampler_type=take(record, "sampler_type", str, source),
        ejector_type=take(record, "ejector_type", str, source),
        **states,
    )


def take(record: Mapping[str, Any], key: str, kind: type[T], source: str) -> T:
    """Return ``record[key]`` if it is a ``kind``; booleans are no integers."""
    value = record.get(key)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        got = "nothing" if key not in record else f"{type(value).__name__} {str(value)[:60]!r}"
        refuse(IntegrityError, source, expected=f"{key!r} to be {kind.__name__}", got=got)
    return value


class SegmentedFile:
    """Writes one table again and again to one place.

    The first write of each object is whole, whatever is there: only the table that wrote a segment
    knows what its episodes are now.

    Args:
        path: File without its ending.
        changes_since: The table's `ArrayMemoryTable.changes_since`.
    """

    def __init__(
        self,
        path: str | Path,
        changes_since: Callable[[object, int], tuple[object, TableChanges]],
        *,
        compress: bool = False,
    ) -> None:
        self._path = Path(path)
        self._changes_since = changes_since
        self._folder = Path(f"{path}.segments")
        self._ending = ".zip" if compress else ENDING
        self._segments: list[tuple[SegmentRecord, NDArray[np.int64]]] = []  # with serials
        self._mark: object = None
        self._next_serial = 0

    def write(self) -> None:
        """Make the files hold what the table holds.

        Raises:
            StorageError: The file system refused; the files hold what they held before.
        """
        mark, changes = self._changes_since(self._mark, self._next_serial)
        written = sum(len(serials) for _, serials in self._segments)
        live = len(changes.serials) - len(changes.added_serials)
        if len(self._segments) >= MAX_SEGMENTS or written > 2 * live:
            mark, changes = self._changes_since(None, 0)
        whole = len(changes.added_serials) == len(changes.serials)
        segments = [] if whole else list(self._segments)
        if len(changes.added_serials):
            name = f"{secrets.token_hex(8)}{self._ending}"
            digest = _write(self._folder / name, changes.added)
            segments.append(((name, digest), changes.added_serials))
        segments = [one for one in segments if np.isin(one[1], changes.serials).any()]
        records = [{"file": name, "sha256": digest} for (name, digest), _ in segments]
        index = replace(changes.added, identities=changes.identities, stored={})
        _write(Path(f"{self._path}{ENDING}"), index, segments=records)
        Path(f"{self._path}.zip").unlink(missing_ok=True)
        self._segments = segments
        self._mark, self._next_serial = mark, int(changes.serials.max(initial=-1)) + 1
        names = {name for (name, _), _ in segments}
        for file in self._folder.glob("*"):
            if _SEGMENT_NAME.fullmatch(file.name) and file.name not in names:
                file.unlink(missing_ok=True)


#: File name and SHA-256 of a segment.
SegmentRecord: TypeAlias = tuple[str, str]


def read_records(manifest: Mapping[str, Any], digest: str, source: str) -> list[SegmentRecord]:
    """Return the entries of an index, whose key ``digest`` holds their SHA-256."""
    records: list[SegmentRecord] = []
    for record in cast("list[Any]", take(manifest, "segments", list, source)):
        match record:
            case {"file": str(name)} if _SEGMENT_NAME.fullmatch(name):
                records.append((name, str(record.get(digest))))
            case _:
                wanted = f"segments with file and {digest}"
                refuse(IntegrityError, source, expected=wanted, got=record)
    return records


def segment_path(path: str | Path, name: str) -> Path:
    """Return where a segment of the index at ``path``, without its ending, is."""
    file = confined_path(Path(f"{path}.segments"), name)
    if not file.is_file():
        wanted, do = f"its segment {file}", "copy the folder too"
        refuse(IntegrityError, str(path), expected=wanted, got="no such file", do=do)
    return file


def joined_segments(
    header: TableSnapshot,
    records: Sequence[SegmentRecord],
    read: Callable[[str, str], TableSnapshot],
    source: str,
    maxlen: int,
    length_key: str,
) -> TableSnapshot:
    """Return the episodes of an index, the newest segments first until ``maxlen`` is reached.

    ``read`` returns a segment by name and SHA-256.
    """
    parts: list[TableSnapshot] = []
    left = dict.fromkeys(header.identities, True)
    room = maxlen
    for name, digest in reversed(records):
        part = read(name, digest)
        kept = [place for place, one in enumerate(part.identities) if left.pop(one, False)]
        if not kept:
            wanted = f"episodes of the index in segment {name}"
            refuse(IntegrityError, source, expected=wanted, got="others")
        identities = tuple(part.identities[place] for place in kept)
        stored = {n: rows.chosen(np.array(kept, np.int64)) for n, rows in part.stored.items()}
        parts.insert(0, replace(part, identities=identities, stored=stored))
        room -= int(stored[length_key].counts.sum()) if length_key in stored else 0
        if room <= 0:
            break
    identities = tuple(identity for part in parts for identity in part.identities)
    complete = len(parts) == len(records)
    if identities != header.identities[0 if complete else len(left) :]:
        wanted = "segments with the ids of the index"
        refuse(IntegrityError, source, expected=wanted, got="others")
    try:
        stored = {
            name: StoredRows(
                np.concatenate([part.stored[name].rows for part in parts]),
                np.concatenate([part.stored[name].counts for part in parts]),
            )
            for name in (parts[0].stored if parts else ())
        }
    except (KeyError, ValueError) as error:
        wanted = "segments with the same columns"
        refuse(IntegrityError, source, expected=wanted, got=f"others: {error}")
    return replace(header, identities=identities, stored=stored)
