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
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final, NoReturn, cast

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from cadenza.core.errors import ConfigurationError, IntegrityError, refuse
from cadenza.core.files import confined_path, sha256_bytes
from cadenza.core.strict_json import parse_json_object
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
    read_records,
    read_settings,
    require_digest,
    segment_path,
    take,
    with_rows,
)
from cadenza.learn.memory.ring import row_indices


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

    def read_file(name: str) -> bytes:
        file = segment_path(path, name)
        return file.read_bytes() if file.suffix == ENDING else opened(file).entry(MEMBER)

    def opened(file: Path) -> Archive:
        return Archive(file, max_unpacked_bytes)

    key = layout.length_key
    plain, file = Path(f"{path}{ENDING}"), Path(f"{path}.zip")
    if plain.is_file():
        return read_bytes(plain.read_bytes(), str(plain), maxlen, key, read_file)
    archive = opened(file)
    match _version_of(archive) if override_version is None else override_version:
        case TableSerializationVersion.V1:
            return _read_v1(archive)
        case TableSerializationVersion.V2 if _INDEX in archive:

            def segment(name: str) -> Archive:
                return opened(segment_path(path, name))

            return _read_v2_index(archive, segment, maxlen, key)
        case TableSerializationVersion.V2:
            return _read_v2(archive)
        case TableSerializationVersion.V3:
            return read_bytes(archive.entry(MEMBER), str(file), maxlen, key, read_file)
        case TableSerializationVersion.Legacy:
            warnings.warn(
                "The legacy memory format is a pickle; store the memory again.",
                DeprecationWarning,
                stacklevel=3,
            )
            _require_allowed(allow_pickle, file)
            return _read_legacy(archive, layout)
        case _:
            names = [known.name for known in TableSerializationVersion]
            raise ConfigurationError(f"version: expected one of {names}, got {override_version!r}.")


def _require_allowed(allow_pickle: bool, file: Path) -> None:
    if not allow_pickle:
        wanted = "allow_pickle=True for a file that is a pickle"
        trust = "pass allow_pickle=True if you trust it"
        refuse(ConfigurationError, str(file), expected=wanted, got="False", do=trust)


def _version_of(archive: "Archive") -> TableSerializationVersion:
    """Return the version that the file names; the oldest files name none."""
    if MEMBER in archive:
        return TableSerializationVersion.V3
    if _VERSION not in archive:
        return TableSerializationVersion.Legacy
    text = archive.entry(_VERSION)[:16].strip()
    versions = {b"1": TableSerializationVersion.V1, b"2": TableSerializationVersion.V2}
    if text not in versions:
        archive.refuse("version 1 or 2", text, "is it from a newer release?")
    return versions[text]


#: Files may always unpack to this much, and to this multiple of their size on disk. Images of one
#: colour reach about 1000; sensor data rarely exceeds 10.
_FREE_UNPACKED_BYTES: Final = 1 << 30
_MAX_RATIO: Final = 64
#: What zipfile, numpy and pickle raise on files that are foreign, hostile or damaged.
_DAMAGE: Final = (
    *(zipfile.BadZipFile, zlib.error, struct.error, pickle.UnpicklingError),
    *(ArithmeticError, AttributeError, EOFError, ImportError, LookupError, MemoryError),
    *(OSError, RuntimeError, TypeError, ValueError),
)


@contextmanager
def _readable(name: str, expected: str = "readable data") -> Generator[None]:
    """Turn whatever goes wrong inside the block into an `IntegrityError`."""
    try:
        yield
    except IntegrityError:
        raise
    except _DAMAGE as error:
        refuse(IntegrityError, name, expected=expected, got=f"an error: {error}")


class Archive(dict[str, bytes]):
    """The entries of a zip file, read after its directory was checked.

    They may unpack to ``max_unpacked_bytes``; None allows 1 GiB or 64 times the size on disk,
    whichever is more.
    """

    def __init__(self, path: Path, max_unpacked_bytes: int | None = None) -> None:
        super().__init__()
        #: How messages call the file.
        self.source = str(path)
        if not path.is_file():
            raise FileNotFoundError(
                f"{path.with_suffix(ENDING)}: expected a stored memory, got no such file, and no "
                f"{path.name}; check folder and name, or export it first."
            )
        with (
            _readable(self.source, "a zip file of a stored memory"),
            zipfile.ZipFile(path) as archive,
        ):
            infos = archive.infolist()
            self._check_directory(infos, path.stat().st_size, max_unpacked_bytes)
            for info in infos:
                with _readable(self._place(info.filename)):
                    data = self[info.filename] = archive.read(info)
                    if len(data) < info.file_size:
                        missing = info.file_size - len(data)
                        raise EOFError(f"the data end {missing} bytes too early")

    def _check_directory(
        self, infos: list[zipfile.ZipInfo], size: int, max_unpacked_bytes: int | None
    ) -> None:
        """Refuse repeated names, other compression and bombs, of overlapping entries or others."""
        if len({info.filename for info in infos}) < len(infos):
            self.refuse("different names for its entries", "a name twice")
        methods = {info.compress_type for info in infos}
        if not methods <= {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
            self.refuse("entries stored or deflated", f"compression {sorted(methods)}")
        limit = max_unpacked_bytes
        if limit is None:
            deflated = zipfile.ZIP_DEFLATED in methods
            limit = max(_FREE_UNPACKED_BYTES, _MAX_RATIO * size) if deflated else size
        if (unpacked := sum(info.file_size for info in infos)) > limit:
            trusted = "raise max_unpacked_bytes if you trust the file"
            self.refuse(f"at most {limit} bytes unpacked", unpacked, trusted)

    def _place(self, entry: str) -> str:
        return f"{self.source}: entry {entry!r}"

    def refuse(self, expected: str, got: object, do: str = "") -> NoReturn:
        """Raise `IntegrityError` about this file."""
        refuse(IntegrityError, self.source, expected=expected, got=got, do=do)

    def require_entries(self, expected: Iterable[str]) -> None:
        """Raise `IntegrityError` unless the entries are exactly the ``expected``."""
        names = set(expected)
        if names != self.keys():
            missing, extra = sorted(names - self.keys())[:5], sorted(self.keys() - names)[:5]
            got = f"missing ones {missing} and unknown ones {extra}"
            damaged = "the file is damaged or no memory of this package"
            self.refuse(f"{len(names)} entries", got, damaged)

    def entry(self, name: str) -> bytes:
        """Return the content of an entry."""
        if name not in self:
            self.refuse(f"an entry {name!r}", str(sorted(self)[:8]))
        return self[name]

    def json(self, name: str) -> dict[str, Any]:
        """Return the JSON object that an entry holds."""
        return parse_json_object(self.entry(name), source=f"{self.source}: {name}")

    def array(self, name: str, digest: str | None = None) -> NDArray[Any]:
        """Return the array of an entry; ``digest`` is the SHA-256 of the entry."""
        data = self.entry(name)
        if digest is not None:
            require_digest(self._place(name), digest, sha256_bytes(data))
        with _readable(self._place(name)):
            return npy.read_array(io.BytesIO(data), allow_pickle=False)


_VERSION: Final = "version"
_INDEX: Final = "index"
_MANIFEST: Final = "manifest.json"
_SEAL: Final = "manifest.sha256"


def _read_v2_manifest(archive: Archive) -> dict[str, Any]:
    """Return the manifest of a version 2 file, whose checksum is right."""
    seal, found = archive.entry(_SEAL), sha256_bytes(archive.entry(_MANIFEST))
    require_digest(f"{archive.source}: entry {_MANIFEST!r}", seal.decode("latin-1"), found)
    manifest = archive.json(_MANIFEST)
    kind = manifest.get("format"), manifest.get("version")
    if kind != ("cadenza-memory", 2):
        archive.refuse("format 'cadenza-memory' version 2", f"{kind[0]!r} version {kind[1]!r}")
    return manifest


def _read_v2(archive: Archive) -> TableSnapshot:
    """Return the content of a version 2 file that holds its rows itself."""
    header = read_settings(_read_v2_manifest(archive), archive.source)
    columns = {n: r["stored"] for n, r in header.columns.items() if r.get("stored")}
    files = [f"columns/{i}{part}.npy" for i in range(len(columns)) for part in (".counts", "")]
    archive.require_entries([_VERSION, _MANIFEST, _SEAL, *files])
    stored: dict[str, StoredRows] = {}
    for index, (name, digests) in enumerate(columns.items()):
        match digests:
            case {"counts_sha256": str(of_counts), "rows_sha256": str(of_rows)}:
                counts = archive.array(f"columns/{index}.counts.npy", of_counts)
                stored[name] = StoredRows(archive.array(f"columns/{index}.npy", of_rows), counts)
            case _:
                archive.refuse(f"checksums of column {name!r}", digests)
    return with_rows(header, stored, archive.source)


def _read_v2_index(
    archive: Archive, segment: Callable[[str], Archive], maxlen: int, length_key: str
) -> TableSnapshot:
    """Return the content of an index and its segments, which ``segment`` opens by name."""
    manifest = _read_v2_manifest(archive)
    header = read_settings(manifest, archive.source)
    archive.require_entries([_VERSION, _INDEX, _MANIFEST, _SEAL])

    def read(name: str, digest: str) -> TableSnapshot:
        opened = segment(name)
        found = sha256_bytes(opened.entry(_MANIFEST))
        if found != digest:
            opened.refuse(f"the segment whose manifest has SHA-256 {digest}", found)
        return _read_v2(opened)

    records = read_records(manifest, "manifest_sha256", archive.source)
    return joined_segments(header, records, read, archive.source, maxlen, length_key)


_CONFIGURATION: Final = "configuration.json"


def _read_v1(archive: Archive) -> TableSnapshot:
    """Return the content of a version 1 file."""
    source, record = archive.source, archive.json(_CONFIGURATION)
    columns: list[Any] = []
    for entry in cast("list[Any]", take(record, "columns", list, source)):
        match entry:
            case [str(name), str(kind), {**state}]:
                columns.append({"name": name, "kind": kind, "state": state})
            case _:
                archive.refuse("columns as [name, class, state]", entry)
    header = read_settings({**record, "columns": columns}, source, ids="ids")
    keys = cast("list[Any]", take(record, "part_keys", list, source))
    names = [name for name in header.columns if name in keys]
    if len(names) != len(keys):
        archive.refuse(f"part_keys among {sorted(header.columns)}", keys)
    files = [f"{name}{part}.npy" for name in names for part in (".ranges", "")]
    archive.require_entries([_VERSION, _CONFIGURATION, *files])
    stored = {name: _read_v1_rows(archive, name, header.identities) for name in names}
    return with_rows(header, stored, source)


def _read_v1_rows(archive: Archive, name: str, identities: tuple[int, ...]) -> StoredRows:
    """Return the rows of a column, in the order of the episodes ``identities``."""
    ranges, rows = archive.array(f"{name}.ranges.npy"), archive.array(f"{name}.npy")
    if ranges.shape != (len(identities), 3) or ranges.dtype != np.int64 or rows.ndim == 0:
        wanted = f"column {name!r} as rows, and id, first row and count of each episode"
        archive.refuse(wanted, f"arrays of shapes {rows.shape} and {ranges.shape}")
    places = {identity: place for place, identity in enumerate(ranges[:, 0].tolist())}
    if places.keys() != set(identities):
        archive.refuse(f"one range of column {name!r} for each of the ids", "others")
    order = [places[identity] for identity in identities]
    _, starts, counts = ranges[np.array(order, np.int64)].T
    outside = (counts < 0) | (starts < 0) | (starts > len(rows) - counts)
    if outside.any() or int(counts.sum()) != len(rows):
        archive.refuse(f"ranges of column {name!r} within {len(rows)} rows", "others")
    return StoredRows(rows[row_indices(starts, counts)], counts)


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
    with _readable(source, "a pickle of plain data"):
        value: object = _RestrictedUnpickler(stream).load()
    if isinstance(value, np.ndarray):
        array = cast("NDArray[Any]", value)
        value = array.item() if array.shape == () else array  # `np.save` of a dictionary
    if not isinstance(value, dict):
        refuse(IntegrityError, source, expected="a dictionary", got=type(value).__name__)
    return cast("dict[Any, Any]", value)


_LEGACY_DATA: Final = "data.pickle"


def _read_legacy(archive: Archive, layout: TableLayout) -> TableSnapshot:
    """Return the content of a legacy file.

    Every id becomes ``-id - 1``, so that it cannot meet the id of a new agent; episodes that have
    a negative id were themselves imported and stay out.
    """
    data = _legacy_entry(archive, _LEGACY_DATA)
    lengths, maxlen = data.get("lengths"), data.get("maxlen")
    if not isinstance(lengths, dict) or not isinstance(maxlen, int):
        archive.refuse(f"lengths and maxlen in {_LEGACY_DATA!r}", list(data)[:8])
    identities = [
        identity
        for identity in cast("dict[object, object]", lengths)
        if isinstance(identity, int) and identity >= 0
    ]
    header = TableSnapshot(
        length_key=layout.length_key,
        maxlen=maxlen,
        identities=tuple(-identity - 1 for identity in identities),
        stored={},
        source=archive.source,
    )
    stored = {name: _legacy_rows(archive, f"{name}.npy", identities) for name in layout.stored}
    return with_rows(header, stored, archive.source)


def _legacy_entry(archive: Archive, entry: str) -> dict[Any, Any]:
    stream = io.BytesIO(archive.entry(entry))
    if stream.getvalue().startswith(npy.MAGIC_PREFIX):
        npy.read_magic(stream)
        npy.read_array_header_1_0(stream)  # the pickle of the array follows
    return load_plain_pickle(stream, source=f"{archive.source}: entry {entry!r}")


def _legacy_rows(archive: Archive, entry: str, identities: list[int]) -> StoredRows:
    """Return the rows of each episode of one column."""
    storage = _legacy_entry(archive, entry)
    missing = [i for i in identities if not isinstance(storage.get(i), np.ndarray)]
    if missing:
        archive.refuse(f"arrays in {entry!r}", f"none for the ids {missing[:8]}")
    parts: list[NDArray[Any]] = [storage[identity] for identity in identities]
    with _readable(f"{archive.source}: entry {entry!r}", "arrays of one shape per step"):
        rows = np.concatenate(parts) if parts else np.zeros(0)
    return StoredRows(rows, np.array([len(part) for part in parts], np.int64))


#: Before the checkpoint loader and every callback that collects.
_ORDER: Final = -1


class MemoryImporterCallback(Callback):
    """Restores a table from the file that a `MemoryExporterProxyWrapper` wrote.

    The callback has order -1, so the file is read before any collector adds to the table. It is
    checked completely before it replaces what the table holds.

    Args:
        memory_table: The `ArrayMemoryTable` that gets the episodes.
        target_memory_name: Name the exporter was given; the file is ``<name>_export.zip``.
        experiment_load_dir: Folder of the file.
        load_fname_override: File name to use instead, without ``.zip``; it stays inside the folder.
        id_policy: ``remap`` gives the episodes the ids -1, -2, ..., which no agent has; ``keep``
            leaves them as they are, for a run that goes on with higher ones.
    """

    def __init__(
        self,
        memory_table: Any,
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
    memory_table: Any,
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
        memory_table: The `ArrayMemoryTable` that gets the columns that are read; it must have no
            others that store data.
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
    _require_allowed(allow_pickle, file)
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
        wanted, got = f"the arrays {list(_KEYS)}", f"none called {missing}"
        refuse(UnknownKeyError, source, expected=wanted, got=got)
    steps = data["dones"].size
    uneven = [key for key in _KEYS if steps == 0 or data[key].size % steps]
    if uneven:
        wanted = f"a multiple of the {steps} entries of 'dones' in every array, and at least one"
        refuse(IntegrityError, source, expected=wanted, got={k: data[k].size for k in uneven})
    return {key: data[key].reshape(steps, -1) for key in _KEYS}
