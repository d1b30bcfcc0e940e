"""Version of the tables in a database, and the way to the present one."""

import threading
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final

from sqlalchemy import Connection, inspect, select, text

from cadenza.loop.errors import (
    LeaseHeldError,
    StoreCorruptError,
    StoreForeignError,
    StoreOutdatedError,
    StoreVersionError,
)
from cadenza.loop.processes import is_gone, readable
from cadenza.loop.store.models import Run

#: Newest migration; a store at another one is migrated or refused.
HEAD: Final = "0003"
#: Oldest one with the tables of the newest: later ones changed rows alone. Who migrates nothing can
#: work with all of them, so that a run of an older version can be watched, answered and stopped.
OLDEST_USABLE: Final = "0001"
_MIGRATIONS: Final = Path(__file__).parent / "migrations"
#: Alembic keeps the migration that runs in a global variable.
_ONE_AT_A_TIME: Final = threading.Lock()
_VERSION_TABLE: Final = "alembic_version"
#: Tables that a job store of any version has; LeAgents and MLflow have some of them.
_TABLES: Final = frozenset({_VERSION_TABLE, "runs", "cycles", "checkpoints", "jobs", "events"})
#: Tables of other programs that a message names.
_MOST_NAMED: Final = 5
#: Key of PostgreSQL's lock that lets one process at a time migrate: "cadenza" as a number.
_LOCK_KEY: Final = int.from_bytes(b"cadenza", "big")


def require_ours(names: Collection[str], place: str, *, shared: bool) -> bool:
    """Return whether tables of these names are a job store; False if there is room for one.

    Args:
        names: Tables of the database.
        place: What messages call it.
        shared: Whether tables of other names may be another program's, as on a server; a file is
            one program's alone.

    Raises:
        StoreForeignError: The database is another program's.
    """
    if names and _TABLES.issubset(names):
        return True
    foreign = _TABLES.intersection(names) if shared else names
    if not foreign:
        return False
    shown_names = ", ".join(sorted(foreign)[:_MOST_NAMED])
    raise StoreForeignError(
        f"job store {place}: expected a job store, got another program's database (with tables "
        f"{shown_names}), which was left as it is; name another one."
    )


def version_of(connection: Connection, place: str) -> str | None:
    """Return the migration that the database is at; None without tables of ours.

    Args:
        connection: Open transaction.
        place: What messages call the database.

    Raises:
        StoreForeignError: It has tables of other programs under our names.
        StoreCorruptError: It has ours, but does not say of which version.
    """
    names = inspect(connection).get_table_names()
    shared = connection.dialect.name == "postgresql"
    if not require_ours(names, place, shared=shared):
        return None
    version = connection.scalar(text(f"SELECT version_num FROM {_VERSION_TABLE}"))  # noqa: S608
    if version is None:
        raise StoreCorruptError(
            f"job store {place}: expected its version in the table {_VERSION_TABLE}, got no row; "
            "restore the database from a copy, or name another one."
        )
    return version


def upgrade(connection: Connection, place: str, now: Callable[[Connection], float]) -> str:
    """Bring the database to `HEAD` inside the open transaction; many processes may try at once.

    Args:
        connection: Open transaction.
        place: What messages call the database.
        now: Returns the time by the database's clock, Unix seconds.

    Returns:
        `HEAD`.

    Raises:
        StoreForeignError: It has tables of other programs under our names.
        StoreVersionError: The store was written by a newer version of the package.
        LeaseHeldError: A controller of the older version works on one of its runs.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK_KEY})
    version = version_of(connection, place)
    if version == HEAD:
        return HEAD
    from alembic import command
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    if version is not None and version not in known:
        raise _newer_version(place, version)
    if version is not None:
        _require_idle(connection, place, version, now(connection))
    with _ONE_AT_A_TIME:
        command.upgrade(config, "head")
    return HEAD


def require_usable(connection: Connection, place: str) -> str:
    """Return the migration of a database whose tables are those of `HEAD`; nothing is changed.

    Args:
        connection: Open transaction.
        place: What messages call the database.

    Raises:
        StoreForeignError: It has tables of other programs under our names.
        StoreOutdatedError: Its tables are older, or it has none.
        StoreVersionError: It is newer.
    """
    version = version_of(connection, place)
    if version is None or version < OLDEST_USABLE:
        raise StoreOutdatedError(
            f"job store {place}: expected tables of version {OLDEST_USABLE} or newer, got "
            f"{version or 'none'}; `cadenza loop run` or `resume` brings them up to date."
        )
    if version > HEAD:
        raise _newer_version(place, version)
    return version


def _require_idle(connection: Connection, place: str, version: str, moment: float) -> None:
    """Raise if somebody works on a run of a store that is about to be migrated.

    Raises:
        LeaseHeldError: Somebody does.
    """
    statement = select(Run.id, Run.lease_owner).where(Run.lease_expires_at > moment)
    for run_id, owner in connection.execute(statement.order_by(Run.id)):
        if owner is not None and not is_gone(owner):
            raise LeaseHeldError(
                f"job store {place}: expected no run at work before it is brought from version "
                f"{version} to {HEAD}, got {run_id!r}, which {readable(owner)} works on; let that "
                "run end, or end it with `cadenza loop stop`, then try again. `status`, `stop` and "
                "`approve` work meanwhile."
            )


def _newer_version(place: str, version: str) -> StoreVersionError:
    return StoreVersionError(
        f"job store {place}: expected version {HEAD} or older, got {version!r}; it was written by "
        "a newer cadenza: upgrade this installation."
    )
