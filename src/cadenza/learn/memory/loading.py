"""Reading memories: files of any layout, an earlier run's export, the dumps of an older tool.

Version 3, which we write, is described in `cadenza.learn.memory.files`. The others, ``<path>.zip``,
are only read. An archive is never extracted; its entries are read by exact name. Whatever is wrong
with it is one `IntegrityError` that names the file and the entry.

Version 2 has ``version`` (ASCII ``2``); per stored column i ``columns/<i>.counts.npy``, int64 (E,),
rows per episode, and ``columns/<i>.npy``, (R, *shape); ``manifest.json``, canonical JSON of
everything else, with the SHA-256 of each entry; ``manifest.sha256``, its SHA-256 in hex. With
``index`` (``1``) instead of rows it lists segments, whole files in ``<path>.segments``.

Version 1, of Emote, has ``version`` (``1``), ``configuration.json`` (strategy types and states,
length key, maxlen, ids, columns, part keys) and per stored column ``<name>.ranges.npy``, int64
(E, 3): id, first row, number of rows, and ``<name>.npy``, (R, *shape): the rows of all.

The legacy format before it has ``data.pickle`` (strategies, length key, maxlen, columns, lengths by
id, filled flag) and, per column, ``<name>.npy``: a pickled dictionary from id to rows, bare or in
the object array that ``np.save`` makes of it. Pickles can name any code, so `load_plain_pickle`
runs none: only containers, numbers, text and numpy arrays come alive. Objects of the package that
wrote them become `Inert`; any other class or function is refused before it is imported. Even so,
pickles are only read if the caller allows them.
"""

import enum
import io
import itertools
import pickle
import struct
import warnings
import zipfile
import zlib
from collections import OrderedDict, defaultdict, deque
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, Final, NoReturn, Protocol, cast

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from cadenza.core.errors import ConfigurationError, IntegrityError
from cadenza.core.files import confined_path, sha256_bytes
from cadenza.core.strict_json import MAX_JSON_BYTES, parse_json_object
from cadenza.learn.callback import Callback
from cadenza.learn.memory.column import TableLayout, UnknownKeyError
from cadenza.learn.memory.files import (
    ENDING,
    MEMBER,
    IdPolicy,
    StoredRows,
    TableSnapshot,
    joined_segments,
    read_bytes,
    read_field_type,
    read_records,
    read_settings,
    refuse,
    require_booleans,
    require_rows,
    segment_path,
    take,
)


class TableSerializationVersion(enum.Enum):
    """The version of the memory serialization format.

    We write `V3`; `V2`, which we wrote before, and `V1` and `Legacy`, which Emote writes, are only
    read.
    """

    Legacy = 0
    V1 = 1
    V2 = 2
    V3 = 3
    LATEST = V3


def read_snapshot(
    path: str | Path,
    layout: TableLayout,
    maxlen: int,
    override_version: TableSerializationVersion | None = None,
    *,
    allow_pickle: bool = False,
    max_unpacked_bytes: int | None = None,
) -> TableSnapshot:
    """Return the content of the file at ``path``, without its ending, in any format.

    Of an index, only the newest segments that fit into ``maxlen`` are read. ``override_version`` is
    the format of a zip file to assume, instead of the one that it names.

    Raises:
        FileNotFoundError: There is no such file.
        IntegrityError: The file is damaged, cut off, tampered with or hostile.
        ConfigurationError: It is a pickle and those are not allowed.
    """

    def read_file(file: Path) -> bytes:
        if file.suffix == ENDING:
            return file.read_bytes()
        with open_archive(file, max_unpacked_bytes) as archive:
            return archive.read(MEMBER)

    key = layout.length_key
    plain, file = Path(f"{path}{ENDING}"), Path(f"{path}.zip")

    def read_v3(file: Path) -> TableSnapshot:
        data = read_file(file)
        return read_bytes(
            data, str(file), maxlen, key, lambda name: read_file(segment_path(path, name))
        )

    if plain.is_file():
        return read_v3(plain)
    with open_archive(file, max_unpacked_bytes) as archive:
        match _version_of(archive) if override_version is None else override_version:
            case TableSerializationVersion.V1:
                return read_v1(archive)
            case TableSerializationVersion.V2 if _INDEX in archive.entries:
                return _read_index(archive, path, maxlen, key, max_unpacked_bytes)
            case TableSerializationVersion.V2:
                return read_v2(archive, _read_manifest(archive))
            case TableSerializationVersion.V3:
                return read_v3(file)
            case TableSerializationVersion.Legacy:
                warnings.warn(
                    "The legacy memory format is a pickle; store the memory again.",
                    DeprecationWarning,
                    stacklevel=3,
                )
                if allow_pickle:
                    return read_legacy(archive, layout)
                raise ConfigurationError(
                    f"{file}: expected a file of version V1 or later, got a legacy one, which is a "
                    "pickle; pass allow_pickle=True if you trust it, then store it again."
                )
            case _:
                names = [known.name for known in TableSerializationVersion]
                raise ConfigurationError(
                    f"version: expected one of {names}, got {override_version!r}."
                )


def _version_of(archive: "ArchiveReader") -> TableSerializationVersion:
    """Return the version that the file names; the oldest files name none."""
    if MEMBER in archive.entries:
        return TableSerializationVersion.V3
    if _VERSION not in archive.entries:
        return TableSerializationVersion.Legacy
    text = archive.read(_VERSION, max_bytes=16).strip()
    versions = {b"1": TableSerializationVersion.V1, b"2": TableSerializationVersion.V2}
    if text not in versions:
        archive.refuse(f"expected version 1 or 2, got {text!r}; is it from a newer release?")
    return versions[text]


#: Files may always unpack to this much, and to this multiple of their size on disk. Images of one
#: colour reach about 1000; sensor data rarely exceeds 10.
_FREE_UNPACKED_BYTES: Final = 1 << 30
_MAX_RATIO: Final = 64
#: What zipfile raises on archives that are foreign, hostile or damaged.
_ZIP_ERRORS: Final = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    OSError,  # an offset before the start of the file
    NotImplementedError,
    RuntimeError,
    ValueError,
    OverflowError,
    MemoryError,
)


class ArchiveReader:
    """Reads the entries of a zip file by name; made by `open_archive`."""

    def __init__(self, archive: zipfile.ZipFile, source: str) -> None:
        self._archive = archive
        #: How messages call the file.
        self.source = source
        self.entries: dict[str, zipfile.ZipInfo] = {
            info.filename: info for info in archive.infolist()
        }

    def refuse(self, reason: str) -> NoReturn:
        """Raise `IntegrityError` about this file."""
        refuse(self.source, reason)

    def require_entries(self, expected: Iterable[str]) -> None:
        """Raise `IntegrityError` unless the entries are exactly the ``expected``."""
        names = set(expected)
        if names != self.entries.keys():
            missing = sorted(names - self.entries.keys())[:5]
            extra = sorted(self.entries.keys() - names)[:5]
            self.refuse(
                f"expected {len(names)} entries, got missing ones {missing} and unknown ones "
                f"{extra}; the file is damaged or no memory of this package."
            )

    def read(self, name: str, *, max_bytes: int | None = None) -> bytes:
        """Return the content of an entry, of at most ``max_bytes``."""
        if name not in self.entries:
            self.refuse(f"expected an entry {name!r}, got {sorted(self.entries)[:8]}.")
        promised = self.entries[name].file_size
        if max_bytes is not None and promised > max_bytes:
            self.refuse(f"entry {name!r}: expected at most {max_bytes} bytes, got more.")
        with self._reading(name):
            data = self._archive.read(name)
            if len(data) < promised:
                raise EOFError(f"the data end {promised - len(data)} bytes too early")
            return data

    def read_array(
        self,
        name: str,
        dtype: np.dtype[Any],
        shape: tuple[int, ...],
        sha256: str | None = None,
    ) -> NDArray[Any]:
        """Return an array of exactly this type and shape; ``sha256`` is that of its whole entry."""
        data = self.read(name)
        if sha256 is not None and sha256_bytes(data) != sha256:
            self.refuse(
                f"entry {name!r}: expected SHA-256 {sha256}, got {sha256_bytes(data)}; the file "
                "was changed after it was written."
            )
        stream = io.BytesIO(data)
        with self._reading(name):
            version = npy.read_magic(stream)
            if version not in ((1, 0), (2, 0)):
                self.refuse(f"entry {name!r}: expected npy version 1.0 or 2.0, got {version}.")
            read_header = getattr(npy, f"read_array_header_{version[0]}_0")
            found, fortran_order, found_dtype = read_header(stream)
        if found_dtype != dtype or found != shape or (fortran_order and len(found) > 1):
            order = " in Fortran order" if fortran_order else ""
            self.refuse(
                f"entry {name!r}: expected {dtype} of shape {shape}, got {found_dtype} of shape "
                f"{found}{order}."
            )
        size = dtype.itemsize * int(np.prod(shape, dtype=object))
        rest = memoryview(data)[stream.tell() :]
        if len(rest) != size:
            self.refuse(
                f"entry {name!r}: expected {size} bytes for shape {shape} of {dtype}, got "
                f"{len(rest)}."
            )
        array = np.frombuffer(rest, dtype).reshape(shape)
        require_booleans(f"entry {name}", array, self.source)
        return array

    @contextmanager
    def _reading(self, name: str) -> Generator[None]:
        """Turn whatever goes wrong inside the block into an `IntegrityError`."""
        try:
            yield
        except IntegrityError:
            raise
        except _ZIP_ERRORS as error:
            raise IntegrityError(
                f"{self.source}: entry {name!r}: expected readable data, got an error: {error}."
            ) from error


@contextmanager
def open_archive(path: Path, max_unpacked_bytes: int | None = None) -> Generator[ArchiveReader]:
    """Open a zip file for reading after checking its directory.

    Entries may unpack to ``max_unpacked_bytes``; None allows 1 GiB or 64 times the size on disk,
    whichever is more.
    """
    if not path.is_file():
        raise FileNotFoundError(
            f"{path.with_suffix(ENDING)}: expected a stored memory, got no such file, and no "
            f"{path.name}; check folder and name, or export it first."
        )
    try:
        archive = zipfile.ZipFile(path)
    except _ZIP_ERRORS as error:
        raise IntegrityError(
            f"{path}: expected a zip file of a stored memory, got none ({error}); the file is cut "
            "off or foreign."
        ) from error
    with archive:
        reader = ArchiveReader(archive, str(path))
        _check_directory(reader, path.stat().st_size, archive.infolist(), max_unpacked_bytes)
        yield reader


def _check_directory(
    reader: ArchiveReader,
    size: int,
    infos: list[zipfile.ZipInfo],
    max_unpacked_bytes: int | None,
) -> None:
    """Refuse repeated names, overlapping entries and bombs."""
    if len(infos) != len(reader.entries):
        reader.refuse("expected different names for its entries, got a name twice.")
    if sum(info.compress_size for info in infos) > size:
        reader.refuse(
            f"expected entries of together at most {size} bytes, the file's size, got "
            f"{sum(info.compress_size for info in infos)}: they overlap."
        )
    unpacked = sum(info.file_size for info in infos)
    methods = {info.compress_type for info in infos}
    if not methods <= {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
        reader.refuse(f"expected entries stored or deflated, got compression {sorted(methods)}.")
    stored = all(info.compress_type == zipfile.ZIP_STORED for info in infos)
    if stored and any(info.file_size != info.compress_size for info in infos):
        reader.refuse("expected equal sizes packed and unpacked of stored entries, got others.")
    limit = max_unpacked_bytes
    if limit is None:
        limit = size if stored else max(_FREE_UNPACKED_BYTES, _MAX_RATIO * size)
    if unpacked > limit:
        reader.refuse(
            f"expected at most {limit} bytes unpacked, got {unpacked}; raise max_unpacked_bytes "
            "if you trust the file."
        )


_VERSION: Final = "version"
_INDEX: Final = "index"
_MANIFEST: Final = "manifest.json"
_SEAL: Final = "manifest.sha256"


def _read_manifest(archive: ArchiveReader) -> dict[str, Any]:
    """Return the manifest of a version 2 file, whose checksum is right."""
    data = archive.read(_MANIFEST, max_bytes=MAX_JSON_BYTES)
    seal = archive.read(_SEAL, max_bytes=64)
    if seal != sha256_bytes(data).encode():
        archive.refuse(
            f"entry {_MANIFEST!r}: expected the SHA-256 that {_SEAL!r} holds, got "
            f"{sha256_bytes(data)}; the file was changed after it was written."
        )
    manifest = parse_json_object(data, source=f"{archive.source}: {_MANIFEST}")
    found = manifest.get("format"), manifest.get("version")
    if found != ("cadenza-memory", 2):
        archive.refuse(
            f"expected format 'cadenza-memory' version 2, got {found[0]!r} version {found[1]!r}."
        )
    return manifest


def read_v2(archive: ArchiveReader, manifest: Mapping[str, Any]) -> TableSnapshot:
    """Return the content of a version 2 file that holds its rows itself."""
    header = read_settings(manifest, archive.source, ids="identities")
    stored = {name: r["stored"] for name, r in header.columns.items() if r.get("stored")}
    entries = [(f"columns/{i}.counts.npy", f"columns/{i}.npy") for i in range(len(stored))]
    archive.require_entries([_VERSION, _MANIFEST, _SEAL, *itertools.chain(*entries)])
    parts: dict[str, StoredRows] = {}
    for (name, digests), (counts_entry, rows_entry) in zip(stored.items(), entries, strict=True):
        match digests:
            case {"counts_sha256": str(of_counts), "rows_sha256": str(of_rows)}:
                pass
            case _:
                archive.refuse(f"column {name!r}: expected checksums, got {str(digests)[:80]!r}.")
        episodes = len(header.identities)
        counts = archive.read_array(counts_entry, np.dtype(np.int64), (episodes,), of_counts)
        require_rows(name, counts, episodes, archive.source)
        dtype, shape = read_field_type(header.columns[name]["state"], name, archive.source)
        rows = archive.read_array(rows_entry, dtype, (int(counts.sum()), *shape), of_rows)
        parts[name] = StoredRows(rows=rows, counts=counts)
    return replace(header, stored=parts)


def _read_index(
    archive: ArchiveReader,
    path: str | Path,
    maxlen: int,
    length_key: str,
    max_unpacked_bytes: int | None,
) -> TableSnapshot:
    """Return the content of a version 2 index and its segments."""
    manifest = _read_manifest(archive)
    header = read_settings(manifest, archive.source, ids="identities")
    archive.require_entries([_VERSION, _INDEX, _MANIFEST, _SEAL])

    def read(name: str, digest: str) -> TableSnapshot:
        with open_archive(segment_path(path, name), max_unpacked_bytes) as segment:
            inner = _read_manifest(segment)
            found = sha256_bytes(segment.read(_MANIFEST))
            if found != digest:
                segment.refuse(
                    f"expected the segment whose manifest has SHA-256 {digest}, got {found}."
                )
            return read_v2(segment, inner)

    records = read_records(manifest, "manifest_sha256", archive.source)
    return joined_segments(header, records, read, archive.source, maxlen, length_key)


_CONFIGURATION: Final = "configuration.json"


def read_v1(archive: ArchiveReader) -> TableSnapshot:
    """Return the content of a version 1 file."""
    source = archive.source
    data = archive.read(_CONFIGURATION, max_bytes=MAX_JSON_BYTES)
    record = parse_json_object(data, source=f"{source}: {_CONFIGURATION}")
    keys = [str(key) for key in cast("list[Any]", take(record, "part_keys", list, source))]
    columns: list[Any] = []
    for entry in cast("list[Any]", take(record, "columns", list, source)):
        match entry:
            case [str(name), str(kind), {**state}]:
                columns.append({"name": name, "kind": kind, "state": state})
            case _:
                archive.refuse(
                    f"expected columns as [name, class, state], got {str(entry)[:80]!r}."
                )
    header = read_settings({**record, "columns": columns}, source, ids="ids")
    if not set(keys) <= header.columns.keys():
        archive.refuse(f"expected part_keys among {sorted(header.columns)}, got {keys}.")
    names = [name for name in header.columns if name in keys]
    entries = [entry for name in names for entry in (f"{name}.ranges.npy", f"{name}.npy")]
    archive.require_entries([_VERSION, _CONFIGURATION, *entries])
    stored = {name: _read_v1_rows(archive, name, header) for name in names}
    return replace(header, stored=stored)


def _read_v1_rows(archive: ArchiveReader, name: str, header: TableSnapshot) -> StoredRows:
    """Return the rows of a column, in the order of the header's episodes."""
    entry, ids = f"{name}.ranges.npy", header.identities
    ranges = archive.read_array(entry, np.dtype(np.int64), (len(ids), 3))
    position = {identity: index for index, identity in enumerate(ranges[:, 0].tolist())}
    if position.keys() != set(ids):
        archive.refuse(f"entry {entry!r}: expected one range for each of the ids, got others.")
    order = np.array([position[identity] for identity in ids], np.int64)
    starts, counts = ranges[order, 1], ranges[order, 2]
    require_rows(name, counts, len(ids), archive.source)
    total = int(counts.sum())
    dtype, shape = read_field_type(header.columns[name]["state"], name, archive.source)
    rows = archive.read_array(f"{name}.npy", dtype, (total, *shape))
    spans = list(zip(starts.tolist(), counts.tolist(), strict=True))
    if any(start < 0 or start + count > total for start, count in spans):
        archive.refuse(f"entry {name!r}: expected ranges within {total} rows, got others.")
    parts = [rows[start : start + count] for start, count in spans]
    return StoredRows(rows=np.concatenate([rows[:0], *parts]), counts=counts)


#: Package whose objects become inert.
_FOREIGN: Final = "emote"
_BUILTINS: Final = (bool, int, float, complex, str, bytes, list, tuple, dict, set, frozenset, slice)
_CONTAINERS: Final = (OrderedDict, defaultdict, deque)
_NUMPY_MODULES: Final = ("numpy.core", "numpy._core")
_NUMPY_FUNCTIONS: Final = {
    ("multiarray", "_reconstruct"),
    ("multiarray", "scalar"),
    ("numeric", "_frombuffer"),
}
#: What unpickling raises on data that are damaged or hostile.
_ERRORS: Final = (
    pickle.UnpicklingError,
    ArithmeticError,
    AttributeError,
    EOFError,
    ImportError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
    struct.error,
)


class Inert(dict[Any, Any]):
    """An object of another package, reduced to its items and state."""

    inert_state: Any = None

    def __setstate__(self, state: Any) -> None:
        """Keep the state."""
        self.inert_state = state


def _inert_attribute(owner: object, name: str) -> type[Inert]:
    """Stand in for ``getattr``, which pickles use to name methods of classes."""
    del name
    if not (isinstance(owner, type) and issubclass(owner, Inert)):
        raise pickle.UnpicklingError(f"an attribute of {owner!r} is asked for")
    return owner


class _RestrictedUnpickler(pickle.Unpickler):
    """Knows the harmless types only."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        """Return the type or function that a pickle names, if it is harmless."""
        if module_name == _FOREIGN or module_name.startswith(f"{_FOREIGN}."):
            return type(global_name, (Inert,), {})
        for known in (*_BUILTINS, *_CONTAINERS):
            if (known.__module__, known.__name__) == (module_name, global_name):
                return known
        if (module_name, global_name) == ("builtins", "getattr"):
            return _inert_attribute
        package, _, module = module_name.rpartition(".")
        if package in _NUMPY_MODULES and (module, global_name) in _NUMPY_FUNCTIONS:
            return super().find_class(f"numpy._core.{module}", global_name)
        found: Any = getattr(np, global_name, None) if module_name == "numpy" else None
        if isinstance(found, type) and issubclass(found, np.ndarray | np.dtype | np.generic):
            return cast("Any", found)
        raise pickle.UnpicklingError(f"{module_name}.{global_name} is not plain data")


def load_plain_pickle(stream: IO[bytes], *, source: str) -> dict[Any, Any]:
    """Return the dictionary that a pickle holds."""
    try:
        value: object = _RestrictedUnpickler(stream).load()
    except _ERRORS as error:
        raise IntegrityError(
            f"{source}: expected a pickle of plain data, got an error: {error}."
        ) from error
    if isinstance(value, np.ndarray):
        array = cast("NDArray[Any]", value)
        value = array.item() if array.shape == () else array  # `np.save` of a dictionary
    if not isinstance(value, dict):
        raise IntegrityError(f"{source}: expected a dictionary, got {type(value).__name__}.")
    return cast("dict[Any, Any]", value)


_LEGACY_DATA: Final = "data.pickle"


def read_legacy(archive: ArchiveReader, layout: TableLayout) -> TableSnapshot:
    """Return the content of a legacy file.

    Every id becomes ``-id - 1``, so that it cannot meet the id of a new agent; episodes that have
    a negative id were themselves imported and stay out.
    """
    data = _legacy_entry(archive, _LEGACY_DATA)
    lengths, maxlen = data.get("lengths"), data.get("maxlen")
    if not isinstance(lengths, dict) or not isinstance(maxlen, int):
        archive.refuse(
            f"entry {_LEGACY_DATA!r}: expected lengths and maxlen, got {list(data)[:8]}."
        )
    identities = cast("dict[object, object]", lengths)
    old = [i for i in identities if isinstance(i, int) and i >= 0]
    return TableSnapshot(
        length_key=layout.length_key,
        maxlen=maxlen,
        identities=tuple(-identity - 1 for identity in old),
        stored={name: _legacy_rows(archive, layout, name, old) for name in layout.stored},
    )


def _legacy_entry(archive: ArchiveReader, entry: str) -> dict[Any, Any]:
    stream = io.BytesIO(archive.read(entry))
    if stream.getvalue().startswith(npy.MAGIC_PREFIX):
        npy.read_magic(stream)
        npy.read_array_header_1_0(stream)  # the pickle of the array follows
    return load_plain_pickle(stream, source=f"{archive.source}: entry {entry!r}")


def _legacy_rows(
    archive: ArchiveReader, layout: TableLayout, name: str, identities: list[int]
) -> StoredRows:
    """Return the rows of each episode of one column."""
    entry, field = f"{name}.npy", layout.stored[name].field
    storage = _legacy_entry(archive, entry)
    rows: list[NDArray[Any]] = [np.empty((0, *field.shape), field.dtype)]
    for identity in identities:
        found = storage.get(identity)
        if not isinstance(found, np.ndarray):
            archive.refuse(f"entry {entry!r}: expected an array for id {identity}, got none.")
        array = cast("NDArray[Any]", found)
        if array.dtype != field.dtype or array.shape[1:] != field.shape or array.ndim == 0:
            archive.refuse(
                f"entry {entry!r}: expected {field.dtype} of shape {('any', *field.shape)} for id "
                f"{identity}, got {array.dtype} of shape {array.shape}."
            )
        rows.append(array)
    counts = np.array([len(array) for array in rows[1:]], np.int64)
    return StoredRows(rows=np.concatenate(rows), counts=counts)


class RestorableTable(Protocol):
    """What filling a memory needs of it: `ArrayMemoryTable` has it."""

    def restore(self, path: str, *, id_policy: IdPolicy) -> bool:
        """Replace the content by that of a file."""
        ...

    def identities(self) -> list[int]:
        """Return the ids of the stored episodes."""
        ...

    def add_sequence(self, identity: int, sequence: Mapping[str, Any]) -> None:
        """Add a finished episode."""
        ...


#: Before the checkpoint loader and every callback that collects.
_ORDER: Final = -1


class MemoryImporterCallback(Callback):
    """Restores a table from the file that a `MemoryExporterProxyWrapper` wrote.

    The callback has order -1, so the file is read before any collector adds to the table. It is
    checked completely before it replaces what the table holds.

    Args:
        target_memory_name: Name the exporter was given; the file is ``<name>_export.zip``.
        experiment_load_dir: Folder of the file.
        load_fname_override: File name to use instead, without ``.zip``; it stays inside the folder.
        id_policy: ``remap`` gives the episodes the ids -1, -2, ..., which no agent has; ``keep``
            leaves them as they are, for a run that goes on with higher ones.
    """

    def __init__(
        self,
        memory_table: RestorableTable,
        target_memory_name: str,
        experiment_load_dir: str,
        load_fname_override: str | None = None,
        *,
        id_policy: IdPolicy = "remap",
    ) -> None:
        super().__init__()
        self._order = _ORDER
        self.memory_table = memory_table
        self._id_policy: IdPolicy = id_policy
        self._folder = Path(experiment_load_dir)
        self._file_name = load_fname_override or f"{target_memory_name}_export"

    def restore_state(self) -> None:
        """Restore the table.

        Raises:
            StorageError: The file name leads out of the folder.
            FileNotFoundError: There is no such file.
            IntegrityError: The file is damaged or does not fit the table, which is unchanged.
        """
        path = confined_path(self._folder, self._file_name)
        self.memory_table.restore(str(path), id_policy=self._id_policy)


_KEYS: Final = ("dones", "actions", "rewards", "next_obs", "obs")
#: Shorter runs are noise at the seams of the dump.
_MIN_STEPS: Final = 10
_SUFFIX: Final = ".pickle"


def fill_table_from_legacy_file(
    memory_table: RestorableTable,
    path: str,
    *,
    read_obs: bool = False,
    read_actions: bool = False,
    read_rewards: bool = False,
    allow_pickle: bool = False,
) -> None:
    """Add the episodes of a dump to a table.

    The dump is a pickled dictionary of arrays ``dones``, ``actions``, ``rewards``, ``next_obs`` and
    ``obs``, one entry per step in their leading axes. An episode ends at each true ``dones``; what
    comes after the last one is left out, and so are episodes of fewer than 10 steps. Each gets a
    negative id, below every id in the table.

    Args:
        memory_table: Gets the columns that are read, and must have no others that store data.
        path: The dump; ``.pickle`` is added if it is missing.
        read_obs: Fill the column ``obs``; the last state of an episode comes from ``next_obs``.
        read_actions: Fill the column ``actions``.
        read_rewards: Fill the column ``rewards``.
        allow_pickle: Must be true: the dump is a pickle. Only plain data in it is read.

    Raises:
        ConfigurationError: Pickles are not allowed.
        OSError: There is no such file.
        IntegrityError: The file is damaged, or its arrays differ in their number of steps.
        UnknownKeyError: The table has other columns, or the file lacks an array (a `KeyError`).
    """
    file = Path(path if path.endswith(_SUFFIX) else f"{path}{_SUFFIX}")
    if not allow_pickle:
        raise ConfigurationError(
            f"{file}: expected allow_pickle=True for a dump, which is a pickle, got False; pass it "
            "if you trust the file."
        )
    with file.open("rb") as stream:
        arrays = _step_arrays(load_plain_pickle(stream, source=str(file)), str(file))
    wanted = {"obs": read_obs, "actions": read_actions, "rewards": read_rewards}
    ends = np.flatnonzero(arrays["dones"].reshape(-1)) + 1
    identities = itertools.count(min([0, *memory_table.identities()]) - 1, -1)
    for start, stop in itertools.pairwise([0, *ends.tolist()]):
        if stop - start < _MIN_STEPS:
            continue
        sequence = {name: arrays[name][start:stop] for name, read in wanted.items() if read}
        if read_obs:
            last = arrays["next_obs"][stop - 1 : stop]
            sequence["obs"] = np.concatenate([sequence["obs"], last])
        memory_table.add_sequence(next(identities), sequence)


def _step_arrays(data: dict[Any, Any], source: str) -> dict[str, NDArray[Any]]:
    """Return the arrays of a dump with one row per step, (N, ...)."""
    missing = [key for key in _KEYS if not isinstance(data.get(key), np.ndarray)]
    if missing:
        raise UnknownKeyError(
            f"{source}: expected the arrays {list(_KEYS)}, got none called {missing}."
        )
    steps = data["dones"].size
    uneven = [key for key in _KEYS if steps == 0 or data[key].size % steps]
    if uneven:
        raise IntegrityError(
            f"{source}: expected a multiple of the {steps} entries of 'dones' in every array, and "
            f"at least one, got { ({key: data[key].size for key in uneven}) }."
        )
    return {key: data[key].reshape(steps, -1) for key in _KEYS}
