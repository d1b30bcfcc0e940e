"""One database, SQLite file or PostgreSQL server, behind two kinds of transaction.

SQLite:      write-ahead log, every commit synced, foreign keys enforced, one writer at a time; a
             writer waits for the other up to `BUSY_TIMEOUT_S`.
PostgreSQL:  read committed; whoever changes a run first locks its row.
Passwords:   are used for connecting and go nowhere else. Whoever goes on with a run gives them
             anew: in the URL, or where libpq looks (``PGPASSWORD``, ``~/.pgpass``, a service file).
             A URL that was shown or kept has `HIDDEN` in place of the password, so it names none.
             Source: https://www.postgresql.org/docs/current/libpq-connect.html
"""

import json
import sqlite3
import time
from collections.abc import Collection, Generator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import quote

from sqlalchemy import Connection, Engine, create_engine, event, inspect, select, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import (
    ArgumentError,
    DatabaseError,
    DBAPIError,
    OperationalError,
    ProgrammingError,
)
from sqlalchemy.pool import ConnectionPoolEntry

from cadenza.core.errors import CadenzaError, ConfigurationError, InputError, MissingExtraError
from cadenza.core.files import make_folder, require_room_for
from cadenza.core.strict_json import parse_json_object
from cadenza.loop.errors import (
    LeaseHeldError,
    StaleLeaseError,
    StoreAccessError,
    StoreCorruptError,
    StoreForeignError,
    StoreNotFoundError,
    StoreOutdatedError,
    StoreUnavailableError,
    StoreVersionError,
    UnknownRowError,
)
from cadenza.loop.processes import is_gone, readable
from cadenza.loop.store.rows import Lease, Row
from cadenza.loop.store.schema import HEAD, PREVIOUS, VERSION, runs, upgrade

_Refusal = TypeVar("_Refusal", bound=CadenzaError)
#: Tables that a job store of any layout has; LeAgents and MLflow have some of them.
_TABLES: Final = frozenset({VERSION.name, "runs", "cycles", "checkpoints", "jobs", "events"})
#: Tables of other programs that a message names.
_MOST_NAMED: Final = 5
#: Key of PostgreSQL's lock that lets one process at a time migrate: "cadenza" as a number.
_LOCK_KEY: Final = int.from_bytes(b"cadenza", "big")


def _refusal(kind: type[_Refusal], place: object, expected: str, got: str, advice: str) -> _Refusal:
    return kind(f"job store {place}: expected {expected}, got {got}; {advice}.")


def _is_ours(names: Collection[str], place: object, *, shared: bool) -> bool:
    """Return whether tables of these names are a job store; False if there is room for one.

    A file is one program's alone; on a ``shared`` server, tables of other names are allowed. A
    `StoreForeignError` if the database is another program's.
    """
    if names and _TABLES.issubset(names):
        return True
    foreign = _TABLES.intersection(names) if shared else names
    if not foreign:
        return False
    some = ", ".join(sorted(foreign)[:_MOST_NAMED])
    got = f"another program's database (with tables {some}), which was left as it is"
    raise _refusal(StoreForeignError, place, "a job store", got, "name another one")


def _usable_version(connection: Connection, place: str, *, create: bool) -> str:
    """Return the layout to work with: with ``create`` `HEAD`, which the database is brought to.

    Many processes may try at once; nothing is changed under a run at work.
    """
    shared = connection.dialect.name == "postgresql"
    if create and shared:
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK_KEY})
    if not _is_ours(inspect(connection).get_table_names(), place, shared=shared):
        if not create:
            expected = f"tables of version {PREVIOUS} or {HEAD}"
            advice = "`cadenza loop run` or `resume` brings them up to date"
            raise _refusal(StoreOutdatedError, place, expected, "none", advice)
        upgrade(connection, None)
        return HEAD
    version = connection.scalar(select(VERSION.c.version_num))
    if version is None:
        expected = f"its version in the table {VERSION.name}"
        advice = "restore the database from a copy, or name another one"
        raise _refusal(StoreCorruptError, place, expected, "no row", advice)
    if version not in (PREVIOUS, HEAD):
        advice = (
            "it was written by a newer cadenza: upgrade this installation"
            if version > HEAD
            else "it was written before the first release: end its runs with the version that "
            "began them, and name another store"
        )
        expected = f"version {PREVIOUS} or {HEAD}"
        raise _refusal(StoreVersionError, place, expected, repr(version), advice)
    if create and version != HEAD:
        _require_idle(connection, place)
        upgrade(connection, version)
        return HEAD
    return version


def _require_idle(connection: Connection, place: str) -> None:
    """Raise if somebody works on a run of a store that is about to be migrated."""
    leased = select(runs.c.id, runs.c.lease_owner).where(runs.c.lease_expires_at > now(connection))
    for run_id, owner in connection.execute(leased.order_by(runs.c.id)):
        if owner is not None and not is_gone(owner):
            raise _refusal(
                LeaseHeldError,
                place,
                f"no run at work before it is brought from version {PREVIOUS} to {HEAD}",
                f"{run_id!r}, which {readable(owner)} works on",
                "let that run end, or end it with `cadenza loop stop`, then try again. `status`, "
                "`stop` and `approve` work meanwhile",
            )


def plain_text(text: str) -> str:
    r"""Return ``text`` with what a database refuses as escapes, e.g. ``\x00`` or ``\udc80``."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8").replace("\0", "\\x00")


def require_plain(place: str, text: str) -> None:
    """Raise `InputError` for text that is blank, holds NUL or is no valid Unicode."""
    if not text.strip():
        raise InputError(f"{place}: expected text that is not blank, got {text!r}.")
    if plain_text(text) != text:
        raise InputError(f"{place}: expected text without NUL and stray bytes, got {text!r}.")


#: What is shown in place of a password; SQLAlchemy shows the same.
HIDDEN: Final = "***"
#: Keys behind the question mark of a URL that hold passwords, too.
_SECRET_KEYS: Final = (
    "password",
    "sslpassword",
    "oauth_client_secret",
    "scram_client_key",
    "scram_server_key",
)


def url_of(location: Path | str) -> URL:
    """Return the URL to connect to; a `ConfigurationError` for one of another kind."""
    url = _parsed(location)
    if url.drivername not in ("sqlite", "postgresql", "postgresql+psycopg"):
        raise ConfigurationError(
            f"store {shown(url)}: expected sqlite:///... or postgresql+psycopg://..., "
            f"got {url.drivername!r}; use one of these."
        )
    if url.drivername == "sqlite":
        return url
    url = url.set(drivername="postgresql+psycopg").difference_update_query(
        [key for key in _SECRET_KEYS if url.query.get(key) == HIDDEN]
    )
    return url._replace(password=None) if url.password == HIDDEN else url


def shown(location: Path | str | URL) -> str:
    """Return a location as it may be shown and kept: every password in it is `HIDDEN`."""
    url = location if isinstance(location, URL) else _parsed(location)
    secrets = [key for key in _SECRET_KEYS if key in url.query]
    if url.password is None and not secrets and not isinstance(location, URL):
        return str(location)
    masked = url.update_query_dict(dict.fromkeys(secrets, HIDDEN))
    return masked.render_as_string(hide_password=True).replace(quote(HIDDEN), HIDDEN)


def config_to_keep(config_json: str) -> str:
    """Return a configuration's document as it may be kept: its ``store`` without passwords.

    A document without one is returned as it is.
    """
    document = parse_json_object(config_json.encode(), source="config_json")
    store = document.get("store")
    if not isinstance(store, str):
        return config_json
    kept = shown(store)
    return config_json if kept == store else json.dumps({**document, "store": kept})


def _parsed(location: Path | str) -> URL:
    """Return the URL of a location; what cannot be read is not quoted, it may hold a password."""
    if isinstance(location, Path) or "://" not in location:
        return URL.create("sqlite", database=str(location))
    try:
        return make_url(location)
    except (ArgumentError, ValueError):  # the latter: a port that is no number
        kind = location.partition("://")[0]
        raise ConfigurationError(
            f"store {kind}://...: expected a path or an SQLAlchemy URL such as "
            "postgresql+psycopg://user@host:5432/database, got one that cannot be read; write "
            "'@', ':' and '/' in a name or password as %40, %3A and %2F."
        ) from None  # the cause quotes parts of the URL


def _refused_by_server(name: str, error: DBAPIError) -> CadenzaError | None:
    """Return what to say of a password, option or right that PostgreSQL refused; None of others."""
    if isinstance(error.orig, sqlite3.Error):
        return None
    from psycopg import Error

    told = error.orig
    if not isinstance(told, Error):
        return None
    if isinstance(error, OperationalError):
        needed = told.pgconn is not None and told.pgconn.needs_password
        if not needed and "password authentication failed" not in str(told):  # it has no code
            return None
        got = "none" if needed else "a wrong one"
        advice = "set PGPASSWORD, add a line to ~/.pgpass, or write it into the URL of --store or "
        advice += "CADENZA_STORE (no run keeps it)"
        return _refusal(StoreAccessError, name, "this user's password", got, advice)
    if told.sqlstate is None:  # nothing that a server said
        expected = "options that the driver knows"
        return _refusal(ConfigurationError, name, expected, f"'{told}'", "correct the URL")
    expected = "a user who may create and change its tables"
    advice = "grant that, or name a database that this user owns"
    return _refusal(StoreAccessError, name, expected, f"'{told}'", advice)


#: Seconds a writer waits for another before it gives up; commits take milliseconds.
BUSY_TIMEOUT_S: Final = 60.0
#: Execution option that says how a transaction on SQLite begins.
_BEGIN: Final = "cadenza_begin"
_SECONDS_NOW: Final = {
    "sqlite": text("SELECT (julianday('now') - 2440587.5) * 86400.0"),
    "postgresql": text("SELECT extract(epoch FROM clock_timestamp())::float8"),
}


class Database:
    """Connections to a job store; `name` is where it is, `version` its layout."""

    def __init__(self, location: Path | str, *, create: bool) -> None:
        """Open the store at a path (SQLite) or an SQLAlchemy URL.

        ``create`` makes the file and migrates the tables; readers do neither.

        Raises:
            ConfigurationError: The URL is malformed, has an unknown option, or names another kind
                of database.
            MissingExtraError: PostgreSQL's driver is not installed.
            StoreNotFoundError: ``create`` is off and there is no such file.
            StoreForeignError: The database is another program's; it was not touched.
            StoreVersionError: The tables are of a version that this one cannot use; or there are
                none, and ``create`` is off.
            LeaseHeldError: ``create`` is on, the store is older, and a run is at work.
            StoreAccessError: The password is wrong or missing, or the user may not do this.
            StoreUnavailableError: The database does not answer.
            StoreCorruptError: The file is no database, or a damaged one.
        """
        url = url_of(location)
        self.name: str = shown(location)
        self._engine = _engine_of(url, create=create)
        try:
            with self.write() if create else self.read() as connection:
                self.version: str = _usable_version(connection, self.name, create=create)
        except BaseException as error:
            self.close()
            refused = isinstance(error, ProgrammingError) and _refused_by_server(self.name, error)
            if not refused:
                raise
            raise refused from error

    @contextmanager
    def write(self, run: Lease | str | None = None) -> Generator[Connection]:
        """Open a transaction that is committed when the block ends without an error.

        Until then it alone changes ``run``, which is an id, or a lease that must still hold.

        Raises:
            UnknownRowError: There is no such run.
            StaleLeaseError: Another controller took the run over.
            StoreUnavailableError: The database does not answer, stayed locked, or refuses us.
            StoreCorruptError: The file is damaged.
        """
        with self._transaction("BEGIN IMMEDIATE") as connection:
            if run is not None:
                _lock_run(connection, run)
            yield connection

    @contextmanager
    def read(self) -> Generator[Connection]:
        """Open a transaction that only reads; errors as `write`."""
        with self._transaction("BEGIN") as connection:
            yield connection

    def rows(self, statement: Any) -> list[Row]:
        """Return what a query finds, read in a transaction of its own; errors as `write`."""
        with self.read() as connection:
            return [dict(row) for row in connection.execute(statement).mappings()]

    @contextmanager
    def _transaction(self, begin: str) -> Generator[Connection]:
        try:
            with (
                self._engine.connect().execution_options(**{_BEGIN: begin}) as connection,
                connection.begin(),
            ):
                yield connection
        except OperationalError as error:
            advice = "see that the database runs, its disk has room and no other program holds a "
            advice += "lock on it, then try again; a run that ended of it can be resumed"
            raise _refused_by_server(self.name, error) or _refusal(
                StoreUnavailableError, self.name, "an answer", f"'{error.orig}'", advice
            ) from error
        except DatabaseError as error:
            if type(error) is not DatabaseError:  # its subclasses tell of other things
                raise
            raise _damaged(self.name, error.orig) from error

    def close(self) -> None:
        """Close all connections; using the store again would open new ones."""
        self._engine.dispose()


def now(connection: Connection) -> float:
    """Return the time by the database's clock, Unix seconds; SQLite's has a grain of 1 ms."""
    seconds = connection.scalar(_SECONDS_NOW[connection.dialect.name])
    return float(seconds or 0.0)


def _lock_run(connection: Connection, run: Lease | str) -> None:
    """Lock a run until the transaction ends; refuse one that is not there, or a lost lease."""
    run_id = run.run_id if isinstance(run, Lease) else run
    held = select(runs.c.lease_owner, runs.c.lease_epoch).filter_by(id=run_id)
    row = connection.execute(held.with_for_update()).one_or_none()
    if row is None:
        raise unknown_run(run_id)
    if isinstance(run, Lease) and (row.lease_owner, row.lease_epoch) != (run.owner, run.epoch):
        raise StaleLeaseError(
            f"run {run_id!r}: expected the lease of epoch {run.epoch}, got epoch "
            f"{row.lease_epoch} of {row.lease_owner or 'nobody'}; this controller was replaced "
            "and must end."
        )


def unknown_run(run_id: str) -> UnknownRowError:
    """Return the refusal of a run that the store does not hold."""
    return UnknownRowError(
        f"run {run_id!r}: expected a run of this store, got none; `cadenza loop status` lists them."
    )


def _engine_of(url: URL, *, create: bool) -> Engine:
    if url.get_backend_name() == "sqlite":
        return _sqlite_engine(url, create=create)
    try:
        return create_engine(
            url,
            pool_pre_ping=True,
            isolation_level="READ COMMITTED",
            # a database in SQL_ASCII has no encoding of its own, and its driver would give bytes
            connect_args={"client_encoding": "UTF8"},
        )
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"store {shown(url)}: expected PostgreSQL's driver, got '{error}'; install "
            "'cadenza[postgresql]'."
        ) from error


def require_openable(location: Path | str) -> None:
    """Raise as `Database` would when it makes the store or brings it up to date; change nothing."""
    url = url_of(location)
    if url.get_backend_name() == "sqlite":
        path = _file_of(url)
        _require_room(path)
        require_room_for(path.absolute().parent)
        if not path.is_file():
            return
    with suppress(StoreOutdatedError):
        Database(location, create=False).close()


def _file_of(url: URL) -> Path:
    if not url.database or url.database == ":memory:":
        raise ConfigurationError(
            f"store {shown(url)}: expected a file, got a database in memory, which a restart "
            "would lose; name a file."
        )
    return Path(url.database)


def _sqlite_engine(url: URL, *, create: bool) -> Engine:
    path = _file_of(url)
    if path.is_file():
        _is_ours(table_names(path), path, shared=False)
    elif create:
        _require_room(path)
        make_folder(path.absolute().parent)
    else:
        raise StoreNotFoundError(
            f"{path}: expected a job store, got no file; start a run first, or name its folder."
        )
    mode = "rwc" if create else "rw"
    file = URL.create("sqlite", database=path.absolute().as_uri(), query={"mode": mode, "uri": "1"})
    engine = create_engine(file, connect_args={"timeout": BUSY_TIMEOUT_S})
    event.listen(engine, "connect", _prepare_sqlite)
    if create:
        event.listen(engine, "connect", _use_write_ahead_log)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _require_room(path: Path) -> None:
    """Raise if a file, or a link to nothing, is in the place of the folder of a store."""
    folder = path.absolute().parent
    while not folder.is_dir():
        if folder.exists() or folder.is_symlink():
            got, advice = f"the file {folder}", "name another workdir, or store"
            expected = "a folder for it, or room for one"
            raise _refusal(ConfigurationError, path.absolute(), expected, got, advice)
        folder = folder.parent


def _prepare_sqlite(raw: Any, _entry: ConnectionPoolEntry) -> None:
    raw.isolation_level = None  # transactions begin where we say, not at the first change
    for pragma in ("foreign_keys = ON", "synchronous = FULL"):
        raw.execute(f"PRAGMA {pragma}")


def _use_write_ahead_log(raw: Any, _entry: ConnectionPoolEntry) -> None:
    """Switch to the write-ahead log; SQLite does not wait for other switchers, so we do."""
    deadline = time.monotonic() + BUSY_TIMEOUT_S
    while raw.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
        try:
            raw.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def _begin_sqlite(connection: Connection) -> None:
    connection.exec_driver_sql(connection.get_execution_options()[_BEGIN])


# Whose an SQLite file is, found out without changing a byte of it or leaving a file beside it: an
# ordinary connection switches on the write-ahead log if asked to, and brings what a killed program
# left in the log into the file. Source: https://www.sqlite.org/fileformat.html and uri.html.


def table_names(path: Path) -> frozenset[str]:
    """Return the names of the tables in a file, or raise a `StoreError`; an empty one has none.

    With a write-ahead log, a reader creates the log's files if there are none, and leaves them
    behind. Without them nobody has the file open and it is complete: then it is read as it is, and
    once more with locks if somebody opened it meanwhile.
    """
    log = path.with_name(f"{path.name}-wal")
    try:
        if not log.exists():
            with suppress(sqlite3.DatabaseError):
                names = _read_names(path, "mode=ro&immutable=1")
                if not log.exists():
                    return names
        return _read_names(path, "mode=ro")
    except sqlite3.OperationalError as error:
        advice = "see that you may read it and no other program holds a lock on it"
        raise _refusal(StoreUnavailableError, path, "to read it", f"'{error}'", advice) from error
    except sqlite3.DatabaseError as error:
        raise _damaged(path, error) from error


def _read_names(path: Path, options: str) -> frozenset[str]:
    place = f"{path.absolute().as_uri()}?{options}"
    with closing(sqlite3.connect(place, uri=True, timeout=BUSY_TIMEOUT_S)) as connection:
        rows = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")
        return frozenset(name for (name,) in rows if not name.startswith("sqlite_"))


def _damaged(place: object, told: object) -> StoreCorruptError:
    advice = "restore it from a copy, or name another file"
    return _refusal(StoreCorruptError, place, "an intact database", f"'{told}'", advice)
