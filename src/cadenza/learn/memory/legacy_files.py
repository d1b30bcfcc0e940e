"""The oldest file format: pickles in a zip file. Read it once, then store again as V1 or V2.

Layout: ``data.pickle`` (strategies, length key, maxlen, columns, lengths by id, filled flag) and,
per column, ``<name>.npy``: a pickled dictionary from id to rows, bare or, as Emote writes it,
in the object array that ``np.save`` makes of it.

Pickles can name any code. Ours are read by `restricted_pickle`, which imports none, and still only
if the caller allows pickles.
"""

import io
import pickle
from typing import IO, Any, Final, cast

import numpy as np
from numpy.lib.format import MAGIC_PREFIX, read_array_header_1_0, read_magic
from numpy.typing import NDArray

from cadenza.core.errors import ConfigurationError
from cadenza.learn.memory.column import Column, numpy_dtype
from cadenza.learn.memory.restricted_pickle import load_plain_pickle
from cadenza.learn.memory.serialisation_archive import ArchiveReader, ArchiveWriter
from cadenza.learn.memory.serialisation_checks import ReadOptions, first_kept
from cadenza.learn.memory.snapshot import StoredRows, TableSnapshot

_DATA: Final = "data.pickle"
_PROTOCOL: Final = 4
#: Largest pickle that is read, bytes: it is held in memory while it is read.
_MAX_PICKLE_BYTES: Final = 1 << 34


def write_legacy(snapshot: TableSnapshot, file: IO[bytes]) -> None:
    """Write ``snapshot`` as pickles of plain values; strategies and columns by class name."""
    data = {
        "ejector": snapshot.ejector_type,
        "sampler": snapshot.sampler_type,
        "length_key": snapshot.length_key,
        "maxlen": snapshot.maxlen,
        "columns": {c.name: [type(c).__name__, c.state()] for c in snapshot.columns},
        "lengths": dict(zip(snapshot.identities, snapshot.lengths().tolist(), strict=True)),
        "filled": False,
    }
    episodes = list(snapshot.episodes())
    with ArchiveWriter(file) as archive:
        archive.add_bytes(_DATA, pickle.dumps(data, protocol=_PROTOCOL))
        for name in snapshot.stored:
            rows = {identity: np.array(columns[name]) for identity, columns in episodes}
            archive.add_bytes(f"{name}.npy", pickle.dumps(rows, protocol=_PROTOCOL))


def read_legacy(archive: ArchiveReader, options: ReadOptions) -> TableSnapshot:
    """Return the content of a legacy file.

    Every id becomes ``-id - 1``, so that it cannot meet the id of a new agent; episodes that have
    a negative id were themselves imported and stay out.

    Raises:
        ConfigurationError: Pickles are not allowed.
        IntegrityError: The file is damaged, does not suit the table, or holds more than data.
    """
    if not options.allow_pickle:
        raise ConfigurationError(
            f"{archive.source}: expected a file of version V1 or V2, got a legacy one, which is a "
            "pickle; pass allow_pickle=True if you trust it, then store it again."
        )
    data = _load(archive, _DATA)
    lengths, maxlen = data.get("lengths"), data.get("maxlen")
    if not isinstance(lengths, dict) or not isinstance(maxlen, int):
        archive.refuse(f"entry {_DATA!r}: expected lengths and maxlen, got {list(data)[:8]}.")
    identities = cast("dict[object, object]", lengths)
    old = [i for i in identities if isinstance(i, int) and i >= 0]
    stored = {
        name: _rows(archive, column, old) for name, column in options.stored_columns().items()
    }
    dropped = first_kept(
        np.array([len(rows) for rows in stored[options.length_key]], np.int64),
        options.maxlen,
        archive.source,
    )
    return TableSnapshot(
        columns=tuple(options.columns),
        length_key=options.length_key,
        maxlen=maxlen,
        identities=tuple(-identity - 1 for identity in old[dropped:]),
        stored={
            name: _joined(options.stored_columns()[name], rows[dropped:])
            for name, rows in stored.items()
        },
        sampler_type="",
        ejector_type="",
    )


def _load(archive: ArchiveReader, entry: str) -> dict[Any, Any]:
    stream = io.BytesIO(archive.read_bytes(entry, max_bytes=_MAX_PICKLE_BYTES))
    if stream.getvalue().startswith(MAGIC_PREFIX):
        read_magic(stream)
        read_array_header_1_0(stream)  # the pickle of the array follows
    return load_plain_pickle(stream, source=f"{archive.source}: entry {entry!r}")


def _rows(archive: ArchiveReader, column: Column, identities: list[int]) -> list[NDArray[Any]]:
    """Return the rows of each episode of one column."""
    entry = f"{column.name}.npy"
    storage = _load(archive, entry)
    dtype, shape = numpy_dtype(column.dtype), tuple(column.shape)
    rows: list[NDArray[Any]] = []
    for identity in identities:
        found = storage.get(identity)
        if not isinstance(found, np.ndarray):
            archive.refuse(f"entry {entry!r}: expected an array for id {identity}, got none.")
        array = cast("NDArray[Any]", found)
        if array.dtype != dtype or array.shape[1:] != shape or array.ndim == 0:
            archive.refuse(
                f"entry {entry!r}: expected {dtype} of shape {('any', *shape)} for id {identity}, "
                f"got {array.dtype} of shape {array.shape}."
            )
        rows.append(array)
    return rows


def _joined(column: Column, rows: list[NDArray[Any]]) -> StoredRows:
    empty = np.empty((0, *column.shape), numpy_dtype(column.dtype))
    counts = np.array([len(array) for array in rows], np.int64)
    return StoredRows(rows=np.concatenate([empty, *rows]), counts=counts)
