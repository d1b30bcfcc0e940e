"""Reading and writing the files of memory tables.

Every file is ``<path>.zip``. Writing replaces it in one durable step. Reading checks the whole
file against the table that asks before it hands anything over, so a bad file never half-replaces a
table.
"""

import enum
import warnings
from pathlib import Path
from typing import Final

from cadenza.core.errors import ConfigurationError
from cadenza.core.files import atomic_writer
from cadenza.learn.memory.emote_formats import read_legacy, read_v1
from cadenza.learn.memory.serialisation_archive import ArchiveReader, open_archive
from cadenza.learn.memory.serialisation_checks import ReadOptions
from cadenza.learn.memory.snapshot import TableSnapshot
from cadenza.learn.memory.v2_files import VERSION_ENTRY, read_v2, write_v2
from cadenza.learn.memory.v2_segments import is_index, read_index


class TableSerializationVersion(enum.Enum):
    """The version of the memory serialization format.

    We write `V2`, which has checksums and ids of any size; `V1` and `Legacy`, which Emote writes,
    are only read.
    """

    Legacy = 0
    V1 = 1
    V2 = 2
    LATEST = V2


#: Everyone may read stored memories, whatever the umask: other users import them.
_MODE: Final = 0o644


def write_snapshot(
    snapshot: TableSnapshot,
    path: str | Path,
    version: TableSerializationVersion | None = TableSerializationVersion.LATEST,
    *,
    compress: bool = False,
) -> None:
    """Replace ``<path>.zip`` by a file with the content of ``snapshot``, mode 0644.

    Killed at any point, the old file is still there.

    Args:
        snapshot: What to write.
        path: File without its extension.
        version: Format; None means the latest.
        compress: Deflate the rows.

    Raises:
        ConfigurationError: ``version`` is not the latest.
        StorageError: The file system refused.
    """
    if version not in (None, TableSerializationVersion.LATEST):
        raise ConfigurationError(
            f"version: expected V2 to write a memory, got {version}; the others are only read."
        )
    with atomic_writer(Path(f"{path}.zip"), mode=_MODE) as file:
        write_v2(snapshot, file, compress=compress)


def read_snapshot(
    path: str | Path,
    options: ReadOptions,
    override_version: TableSerializationVersion | None = None,
) -> TableSnapshot:
    """Return the content of ``<path>.zip``, checked completely.

    Args:
        path: File without its extension.
        options: What the table accepts.
        override_version: Format to assume; None looks into the file.

    Raises:
        FileNotFoundError: There is no such file.
        IntegrityError: The file is damaged, cut off, tampered with or hostile.
        ConfigurationError: It does not suit the table, or is a pickle and those are not allowed.
    """
    file = Path(f"{path}.zip")
    with open_archive(file, max_unpacked_bytes=options.max_unpacked_bytes) as archive:
        match _version_of(archive) if override_version is None else override_version:
            case TableSerializationVersion.V1:
                return read_v1(archive, options)
            case TableSerializationVersion.V2 if is_index(archive):
                return read_index(archive, options, file)
            case TableSerializationVersion.V2:
                return read_v2(archive, options)
            case TableSerializationVersion.Legacy:
                warnings.warn(
                    "The legacy memory format is a pickle; store the memory again.",
                    DeprecationWarning,
                    stacklevel=3,
                )
                return read_legacy(archive, options)
            case _:
                names = [known.name for known in TableSerializationVersion]
                raise ConfigurationError(
                    f"version: expected one of {names}, got {override_version!r}."
                )


def _version_of(archive: ArchiveReader) -> TableSerializationVersion:
    """Return the version that the file names; the oldest files name none."""
    if VERSION_ENTRY not in archive.entries:
        return TableSerializationVersion.Legacy
    text = archive.read_bytes(VERSION_ENTRY, max_bytes=16).strip()
    versions = {b"1": TableSerializationVersion.V1, b"2": TableSerializationVersion.V2}
    if text not in versions:
        archive.refuse(f"expected version 1 or 2, got {text!r}; is it from a newer release?")
    return versions[text]
