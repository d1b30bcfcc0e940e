"""The job store: does it answer, and can this version of the package work with it."""

import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

from cadenza.loop.doctor.check import Check
from cadenza.loop.errors import StoreCorruptError, StoreOutdatedError


def store_check(location: Path | str) -> Check:
    """Return how the store at a path or URL is; nothing in it changes.

    Raises:
        CadenzaError: It does not answer, is damaged, or is of a newer version.
    """
    from cadenza.loop.store.jobstore import JobStore
    from cadenza.loop.store.locations import shown

    file = _sqlite_file(location)
    if file is not None and not file.is_file():
        return Check(
            name="store", level="ok", detail=f"none yet; the first run makes {file.absolute()}"
        )
    try:
        with JobStore.open_existing(location) as store:
            runs = len(store.list_runs())
            number = f"{runs} run{'' if runs == 1 else 's'}"
            if store.is_up_to_date:
                return Check(name="store", level="ok", detail=f"{shown(location)}: {number}")
    except StoreOutdatedError:
        pass
    if file is not None:
        _rehearse(file)
    return Check(
        name="store",
        level="ok",
        detail=f"{shown(location)}: of an older version; the next run brings it up to date",
    )


def _sqlite_file(location: Path | str) -> Path | None:
    from cadenza.loop.store.locations import url_of

    url = url_of(location)
    return Path(url.database or "") if url.get_backend_name() == "sqlite" else None


def _rehearse(file: Path) -> None:
    """Bring a copy of an SQLite store up to date."""
    from cadenza.loop.store.jobstore import JobStore

    with tempfile.TemporaryDirectory(prefix="cadenza-doctor-") as folder:
        copy = Path(folder) / file.name
        try:
            with (
                closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)) as source,
                closing(sqlite3.connect(copy)) as target,
            ):
                source.backup(target)
        except sqlite3.DatabaseError as error:
            raise StoreCorruptError(
                f"{file}: expected a sound database, got '{error}'; restore it from a copy."
            ) from error
        JobStore(copy).close()
