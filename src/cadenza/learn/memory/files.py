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
from typing import IO, Any, Final, Literal, NoReturn, Protocol, TypeAlias, TypeVar, cast

import numpy as np
import safetensors
import torch
from numpy.typing import NDArray

from cadenza.core.errors import CheckpointError, ConfigurationError, InputError, IntegrityError
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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)  # eq=False: array == is ambiguous
class StoredRows:
    """Rows of one stored column, (R, *shape), episode after episode, and rows per episode, (E,)."""

    rows: NDArray[Any]
    counts: NDArray[np.int64]

    def __post_init__(self) -> None:
        counts = self.counts
        total = sum(counts.tolist())  # Python's integers do not overflow
        if counts.ndim != 1 or (counts < 0).any() or total != len(self.rows):
            raise InputError(
                f"rows: expected counts >= 0 of shape (E,) that sum to {len(self.rows)} rows, got "
                f"shape {counts.shape} and sum {total}."
            )

    def chosen(self, positions: IndexArray) -> "StoredRows":
        """Return the rows of the episodes at ``positions``."""
        first = np.cumsum(self.counts) - self.counts
        counts = self.counts[positions]
        return StoredRows(rows=self.rows[row_indices(first[positions], counts)], counts=counts)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TableSnapshot:
    """A table's episodes, from the oldest to the newest, and settings.

    Rows are there for the columns that hold data, in declared order; strategies by class name and
    ``state()``; columns by class name (``kind``) and `Column.state`.
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

    def with_fresh_identities(self) -> "TableSnapshot":
        """Return the same episodes with the ids -1, -2, ..., which no collector gives out.

        The strategies' states stay behind, since they name the old ids.
        """
        identities = tuple(range(-1, -len(self.identities) - 1, -1))
        return replace(self, identities=identities, sampler_state=None, ejector_state=None)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TableChanges:
    """What came to a table from arrival ``first_serial`` on and is there still, and what is there.

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
    slots = live[serials >= first_serial]
    stored: dict[str, StoredRows] = {}
    for name in layout.stored:
        counts = contents.counts(name, slots)
        at = row_indices(rows.slots.start[slots], counts)
        stored[name] = StoredRows(rows=contents.arena.gather(name, at), counts=counts)
    sampler, ejector = strategies
    added = TableSnapshot(
        columns={column.name: _described(column) for column in layout.columns},
        length_key=layout.length_key,
        maxlen=maxlen,
        identities=tuple(rows.slots.identity[slot] for slot in cast("list[int]", slots.tolist())),
        stored=stored,
        sampler_type=type(sampler).__name__,
        ejector_type=type(ejector).__name__,
        sampler_state=sampler.state(),
        ejector_state=ejector.state(),
    )
    return TableChanges(
        added=added,
        added_serials=serials[serials >= first_serial],
        identities=tuple(rows.identities()),
        serials=serials,
    )


def _described(column: Column) -> dict[str, Any]:
    record: dict[str, Any] = {"kind": type(column).__name__, "state": column.state()}
    if isinstance(column, VirtualColumn):
        record["mapper"] = getattr(column.mapper, "__qualname__", str(column.mapper))
    return record


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
    _require_same_columns(snapshot, layout)
    for name, part in snapshot.stored.items() if finite else ():
        require_finite_rows(f"column {name!r} of the loaded rows", part.rows)
    identities = snapshot.identities
    episodes = {name: len(part.counts) for name, part in snapshot.stored.items()}
    if {len(set(identities)), *episodes.values()} != {len(identities)}:
        raise ConfigurationError(
            f"snapshot: expected {len(identities)} different ids and rows of as many episodes, got "
            f"{len(set(identities))} and {episodes}."
        )
    first = _first_kept(snapshot.stored[layout.length_key].counts, maxlen)
    contents = new_contents()
    stops = {name: np.cumsum(part.counts).tolist() for name, part in snapshot.stored.items()}
    starts = {name: [0, *ends] for name, ends in stops.items()}
    for index in range(first, len(identities)):
        rows = {
            name: part.rows[starts[name][index] : stops[name][index]]
            for name, part in snapshot.stored.items()
        }
        try:
            episode = checked_sequence(layout, rows)
        except InputError as error:
            raise ConfigurationError(f"episode {identities[index]}: {error}") from error
        contents.add(identities[index], episode)
    return contents


def _first_kept(steps: IndexArray, maxlen: int) -> int:
    """Return the index of the oldest episode that is kept: the newest that fit together stay."""
    if len(steps) and steps[-1] > maxlen:
        raise ConfigurationError(
            f"snapshot: expected episodes of at most {maxlen} transitions, the table's maxlen, got "
            f"{steps[-1]}; use a larger table."
        )
    dropped = len(steps) - int(np.searchsorted(np.cumsum(steps[::-1]), maxlen, side="right"))
    if dropped:
        _LOGGER.warning(
            "the table holds %d transitions at most, so the %d oldest of %d episodes stay out",
            maxlen,
            dropped,
            len(steps),
        )
    return dropped


def _require_same_columns(snapshot: TableSnapshot, layout: TableLayout) -> None:
    """Raise unless the snapshot has rows of exactly the stored columns."""
    if snapshot.length_key not in layout.stored:
        raise ConfigurationError(
            f"snapshot: expected the length column {layout.length_key!r}, got "
            f"{snapshot.length_key!r}."
        )
    if snapshot.stored.keys() != layout.stored.keys():
        raise ConfigurationError(
            f"snapshot: expected rows of the columns {sorted(layout.stored)}, got "
            f"{sorted(snapshot.stored)}; load it into a table with the same columns."
        )
    for name, column in layout.stored.items():
        rows, own = snapshot.stored[name].rows, column.field
        if rows.shape[1:] != own.shape or rows.dtype != own.dtype:
            raise ConfigurationError(
                f"snapshot: expected column {name!r} of shape {own.shape} and type {own.dtype}, "
                f"got {rows.shape[1:]} and {rows.dtype}."
            )


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
        "extra": from_numpy(
            contents.extra[slots]
            if len(contents.extra)
            else np.zeros((len(slots), len(contents.layout.flexible)), np.int32)
        ),
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
    places = read_field(state, "places")
    contents = empty_contents(int(read_field(places, "capacity")))
    contents.rows.load_state_dict(places)
    slots = contents.rows.live_slots()
    at = row_indices(contents.rows.slots.start[slots], contents.rows.slots.rows[slots])
    columns: Mapping[str, torch.Tensor] = read_field(state, "columns")
    if columns.keys() != layout.stored.keys():
        raise CheckpointError(
            f"table: expected the columns {sorted(layout.stored)}, got {sorted(columns)}; load the "
            "state into a table with the same columns."
        )
    for name, column in layout.stored.items():
        values = columns[name].numpy()
        wanted = ((len(at), *column.field.shape), column.field.dtype)
        if (values.shape, values.dtype) != wanted:
            raise CheckpointError(
                f"table: expected column {name!r} of shape {wanted[0]} and type {wanted[1]}, got "
                f"{values.shape} and {values.dtype}."
            )
        contents.arena.scatter(name, at, values)
    extra: NDArray[np.int32] = read_field(state, "extra").numpy()
    if extra.shape != (len(slots), len(layout.flexible)):
        raise CheckpointError(
            f"table: expected extra rows of shape {(len(slots), len(layout.flexible))}, got "
            f"{extra.shape}."
        )
    for slot, row in zip(slots.tolist(), extra.tolist(), strict=True):
        if row:
            contents.set_extra(slot, row)
    return contents


def read_field(state: Mapping[str, Any], key: str) -> Any:
    """Return ``state[key]``, or raise `CheckpointError` if it is missing."""
    try:
        return state[key]
    except (KeyError, TypeError) as error:
        raise CheckpointError(
            f"table: expected the field {key!r} in a saved state, got "
            f"{sorted(state) if isinstance(state, Mapping) else type(state).__name__}."  # pyright: ignore[reportUnnecessaryIsInstance]
        ) from error


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
    _write(target, _manifest(snapshot), snapshot.stored)
    other.unlink(missing_ok=True)


def _manifest(snapshot: TableSnapshot, **more: Any) -> dict[str, Any]:
    names = ("length_key", "maxlen", "identities", "sampler_type", "sampler_state")
    settings = {name: getattr(snapshot, name) for name in (*names, "ejector_type", "ejector_state")}
    columns = [{"name": name, **record} for name, record in snapshot.columns.items()]
    return {**settings, "columns": columns, **more}


def _write(target: Path, manifest: Mapping[str, Any], stored: Mapping[str, StoredRows]) -> str:
    """Replace ``target``, which is deflated if a zip file, and return its SHA-256."""
    arrays: dict[str, NDArray[Any]] = {}
    for name, part in stored.items():
        arrays |= {f"rows/{name}": part.rows, f"counts/{name}": part.counts}
    arrays["manifest"] = np.frombuffer(canonical_json(manifest), np.uint8)
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
    header = read_settings(manifest, source, ids="identities")
    if "segments" not in manifest:
        return _with_rows(header, arrays, source)

    def segment(name: str, digest: str) -> TableSnapshot:
        where = f"{source}: segment {name}"
        inner, parts, found = _read(read_file(name), where)
        if found != digest:
            refuse(where, f"expected the segment with SHA-256 {digest}, got {found}.")
        return _with_rows(read_settings(inner, where, ids="identities"), parts, where)

    records = read_records(manifest, "sha256", source)
    return joined_segments(header, records, segment, source, maxlen, length_key)


def _read(data: bytes, source: str) -> tuple[dict[str, Any], dict[str, dict[str, Any]], str]:
    """Return manifest, tensors and SHA-256 of a file that is as it was written."""
    try:
        tensors: dict[str, dict[str, Any]] = dict(_deserialize(data))
    except safetensors.SafetensorError as error:
        refuse(source, f"expected a stored memory, got a damaged or another file ({error}).")
    start = 8 + int.from_bytes(data[:8], "little")
    header = parse_json_object(data[8:start], source=source)
    about = header.pop("__metadata__", {})
    if about.get("format") != _FORMAT:
        refuse(source, f"expected the format {_FORMAT!r}, got {about.get('format')!r}.")
    digest = sha256(canonical_json(header))
    digest.update(memoryview(data)[start:])
    if about.get("sha256") != digest.hexdigest():
        refuse(
            source,
            f"expected SHA-256 {about.get('sha256')}, got {digest.hexdigest()}; the file was "
            "changed after it was written.",
        )
    manifest = tensors.pop("manifest", {"data": b""})
    return parse_json_object(bytes(manifest["data"]), source=source), tensors, digest.hexdigest()


def _with_rows(
    header: TableSnapshot, tensors: Mapping[str, Mapping[str, Any]], source: str
) -> TableSnapshot:
    """Return ``header`` with the rows that ``tensors`` hold."""
    stored: dict[str, StoredRows] = {}
    for name in [name for name in header.columns if f"rows/{name}" in tensors]:
        dtype, shape = read_field_type(header.columns[name]["state"], name, source)
        try:
            counts = np.frombuffer(tensors[f"counts/{name}"]["data"], np.int64)
            require_rows(name, counts, len(header.identities), source)
            rows = np.frombuffer(tensors[f"rows/{name}"]["data"], dtype)
            rows = rows.reshape(int(counts.sum()), *shape)
        except (KeyError, ValueError) as error:
            refuse(source, f"column {name!r}: expected rows of {dtype}, got others: {error}.")
        require_booleans(name, rows, source)
        stored[name] = StoredRows(rows=rows, counts=counts)
    if len(tensors) != 2 * len(stored):
        refuse(source, f"expected rows and counts of {sorted(stored)}, got {sorted(tensors)[:8]}.")
    return replace(header, stored=stored)


#: Most rows of one column in a file: far beyond any memory, and sums of it fit 64 bits.
MAX_ROWS: Final = 1 << 48


def refuse(source: str, reason: str) -> NoReturn:
    """Raise `IntegrityError` about a file."""
    raise IntegrityError(f"{source}: {reason}")


def require_rows(name: str, counts: NDArray[np.int64], episodes: int, source: str) -> None:
    """Refuse a file unless ``counts`` are rows of as many ``episodes``."""
    if counts.shape != (episodes,):
        refuse(source, f"column {name!r}: expected {episodes} counts, got {len(counts)}.")
    if (counts < 0).any() or sum(counts.tolist()) > MAX_ROWS:
        refuse(
            source,
            f"column {name!r}: expected counts >= 0 and at most {MAX_ROWS} rows, got others.",
        )


def require_booleans(name: str, array: NDArray[Any], source: str) -> None:
    """Refuse a file whose ``array`` of booleans holds other bytes."""
    if array.dtype == np.bool_ and (array.view(np.uint8) > 1).any():
        refuse(source, f"{name!r}: expected booleans as bytes 0 and 1, got others.")


def read_field_type(state: Any, name: str, source: str) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Return dtype and shape that a file gives for a column."""
    column = Column(name, (), np.float32)
    try:
        column.load_state(state)
    except InputError as error:
        refuse(source, str(error))
    return numpy_dtype(column.dtype), column.shape


def read_settings(record: Mapping[str, Any], source: str, *, ids: str) -> TableSnapshot:
    """Return what ``record``, whose key ``ids`` holds the episodes, says about a table."""
    columns: dict[str, Mapping[str, Any]] = {}
    for entry in cast("list[Any]", take(record, "columns", list, source)):
        match entry:
            case {"name": str(name), "kind": str(), "state": {**_state}} if name not in columns:
                columns[name] = cast("dict[str, Any]", entry)
            case _:
                refuse(
                    source,
                    "expected columns with different names, class and state, got "
                    f"{str(entry)[:80]!r}.",
                )
    states = ("sampler_state", "ejector_state")
    identities = cast("list[Any]", take(record, ids, list, source))
    if not all(type(identity) is int for identity in identities):
        refuse(source, f"expected {ids!r} to hold integers only, got others.")
    if len(set(identities)) != len(identities):
        refuse(source, f"expected different ids in {ids!r}, got repeated ones.")
    return TableSnapshot(
        columns=columns,
        length_key=take(record, "length_key", str, source),
        maxlen=take(record, "maxlen", int, source),
        identities=tuple(identities),
        stored={},
        sampler_type=take(record, "sampler_type", str, source),
        ejector_type=take(record, "ejector_type", str, source),
        **{
            name: None if record.get(name) is None else _mapping(record, name, source)
            for name in states
        },
    )


def _mapping(record: Mapping[str, Any], key: str, source: str) -> dict[str, Any]:
    return cast("dict[str, Any]", take(record, key, dict, source))


def take(record: Mapping[str, Any], key: str, kind: type[T], source: str) -> T:
    """Return ``record[key]`` if it is a ``kind``; booleans are no integers."""
    value = record.get(key)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        got = "nothing" if key not in record else f"{type(value).__name__} {str(value)[:60]!r}"
        refuse(source, f"expected {key!r} to be {kind.__name__}, got {got}.")
    return value


class ChangingTable(Protocol):
    """What a table must tell: `ArrayMemoryTable` does."""

    def changes_since(self, mark: object, next_serial: int) -> tuple[object, TableChanges]:
        """Return a mark for what is stored, and the episodes since ``next_serial``.

        They are all that are stored if ``mark`` is not that of the present content.
        """
        ...


class SegmentedFile:
    """Writes one table again and again to one place.

    The first write of each object is whole, whatever is there: only the table that wrote a segment
    knows what its episodes are now.
    """

    def __init__(self, path: str | Path, *, compress: bool = False) -> None:
        self._path = Path(path)
        self._folder = Path(f"{path}.segments")
        self._ending = ".zip" if compress else ENDING
        self._segments: list[tuple[SegmentRecord, NDArray[np.int64]]] = []  # with serials
        self._mark: object = None
        self._next_serial = 0

    def write(self, table: ChangingTable) -> None:
        """Make the files hold what ``table`` holds, which must be the same at each call.

        Raises:
            StorageError: The file system refused; the files hold what they held before.
        """
        mark, changes = table.changes_since(self._mark, self._next_serial)
        written = sum(len(serials) for _, serials in self._segments)
        live = len(changes.serials) - len(changes.added_serials)
        if len(self._segments) >= MAX_SEGMENTS or written > 2 * live:
            mark, changes = table.changes_since(None, 0)
        whole = len(changes.added_serials) == len(changes.serials)
        segments = [] if whole else list(self._segments)
        if len(changes.added_serials):
            name = f"{secrets.token_hex(8)}{self._ending}"
            digest = _write(self._folder / name, _manifest(changes.added), changes.added.stored)
            segments.append(((name, digest), changes.added_serials))
        segments = [one for one in segments if np.isin(one[1], changes.serials).any()]
        records = [{"file": name, "sha256": digest} for (name, digest), _ in segments]
        index = replace(changes.added, identities=changes.identities)
        _write(Path(f"{self._path}{ENDING}"), _manifest(index, segments=records), {})
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
                refuse(source, f"expected segments with file and {digest}, got {str(record)[:80]}.")
    return records


def segment_path(path: str | Path, name: str) -> Path:
    """Return where a segment of the index at ``path``, without its ending, is."""
    file = confined_path(Path(f"{path}.segments"), name)
    if not file.is_file():
        refuse(str(path), f"expected its segment {file}, got no such file; copy the folder too.")
    return file


def joined_segments(
    header: TableSnapshot,
    records: Sequence[SegmentRecord],
    read: Callable[[str, str], TableSnapshot],
    source: str,
    maxlen: int,
    length_key: str,
) -> TableSnapshot:
    """Return the episodes of an index, the newest segments first until ``maxlen`` is reached."""
    columns = {
        name: read_field_type(record["state"], name, source)
        for name, record in header.columns.items()
        if "mapper" not in record
    }
    parts: list[TableSnapshot] = []
    left = {identity: place for place, identity in enumerate(header.identities)}
    room = maxlen
    for name, digest in reversed(records):
        part = read(name, digest)
        found = {n: (r.rows.dtype, r.rows.shape[1:]) for n, r in part.stored.items()}
        if found != columns or length_key not in columns:
            refuse(source, f"expected segments with the columns {columns}, got {found}.")
        kept = [place for place, one in enumerate(part.identities) if left.pop(one, -1) >= 0]
        if not kept:
            refuse(source, f"expected episodes of the index in segment {name}, got others.")
        identities = tuple(part.identities[place] for place in kept)
        stored = {n: rows.chosen(np.array(kept, np.int64)) for n, rows in part.stored.items()}
        parts.insert(0, replace(part, identities=identities, stored=stored))
        room -= int(stored[length_key].counts.sum())
        if room <= 0:
            break
    identities = tuple(identity for part in parts for identity in part.identities)
    complete = len(parts) == len(records)
    if identities != header.identities[0 if complete else len(left) :]:
        refuse(source, "expected segments with the ids of the index, got others.")
    stored = {
        name: StoredRows(
            rows=np.concatenate([np.empty((0, *s), d), *(p.stored[name].rows for p in parts)]),
            counts=np.concatenate([np.zeros(0, np.int64), *(p.stored[name].counts for p in parts)]),
        )
        for name, (d, s) in columns.items()
    }
    return replace(header, identities=identities, stored=stored)
