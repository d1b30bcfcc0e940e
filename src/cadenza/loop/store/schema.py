"""Version of the tables in a database, and the way to the present one."""

import threading
from collections.abc import Collection
from pathlib import Path
from typing import Final

from sqlalchemy import Connection, inspect, text

from cadenza.loop.errors import StoreForeignError, StoreOutdatedError, StoreVersionError
from cadenza.loop.store.locations import shown

#: Newest migration; a store at another one is migrated or refused.
HEAD: Final = "0003"
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


def version_of(connection: Connection) -> str | None:
    """Return the migration that the database is at; None without tables of ours.

    Raises:
        StoreForeignError: It has tables of other programs under our names.
    """
    names = inspect(connection).get_table_names()
    shared = connection.dialect.name == "postgresql"
    if not require_ours(names, shown(connection.engine.url), shared=shared):
        return None
    return connection.scalar(text(f"SELECT version_num FROM {_VERSION_TABLE}"))  # noqa: S608


def upgrade(connection: Connection) -> None:
    """Bring the database to `HEAD` inside the open transaction; many processes may try at once.

    Raises:
        StoreForeignError: It has tables of other programs under our names.
        StoreVersionError: The store was written by a newer version of the package.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK_KEY})
    version = version_of(connection)
    if version == HEAD:
        return
    from alembic import command
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    if version is not None and version not in known:
        raise newer_version(connection, version)
    with _ONE_AT_A_TIME:
        command.upgrade(config, "head")


def require_present(connection: Connection) -> None:
    """Raise unless the database is at `HEAD`; for readers, who change nothing.

    Raises:
        StoreForeignError: It has tables of other programs under our names.
        StoreOutdatedError: It is older, or empty.
        StoreVersionError: It is newer.
    """
    version = version_of(connection)
    if version == HEAD:
        return
    if version is None or version < HEAD:
        raise StoreOutdatedError(
            f"job store {shown(connection.engine.url)}: expected tables of version {HEAD}, got "
            f"{version or 'none'}; `cadenza loop run` or `resume` brings them up to date."
        )
    raise newer_version(connection, version)


def newer_version(connection: Connection, version: str) -> StoreVersionError:
    """Return the refusal of a store whose version this package does not know."""
    return StoreVersionError(
        f"job store {shown(connection.engine.url)}: expected version {HEAD} or older, got "
        f"{version!r}; it was written by a newer cadenza: upgrade this installation."
    )
