"""Tables, layouts and what each database enforces by itself."""

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import create_engine, inspect, text

from cadenza.cli.loop_status import open_store
from cadenza.core.errors import ConfigurationError, MissingExtraError
from cadenza.loop.errors import (
    LeaseHeldError,
    StoreForeignError,
    StoreOutdatedError,
    StoreUnavailableError,
    StoreVersionError,
)
from cadenza.loop.processes import this_process
from cadenza.loop.store import JobStore, database
from cadenza.loop.store.changes import request_approval
from cadenza.loop.store.database import Database
from cadenza.loop.store.schema import HEAD, METADATA, PREVIOUS, VERSION
from tests.loop_runs import RUN

#: Databases as the version before made them, one per kind: two runs with rows in every table.
LAYOUTS = Path(__file__).with_name("layouts")


@pytest.fixture
def engine(empty_url):
    made = create_engine(empty_url)
    yield made
    made.dispose()


def make_previous(engine):
    """Fill an empty database with a store of the previous layout."""
    script = (LAYOUTS / f"{PREVIOUS}.{engine.dialect.name}.sql").read_text()
    raw = engine.raw_connection()
    if engine.dialect.name == "sqlite":
        raw.executescript(script)
    else:
        raw.driver_connection.execute(script)
        raw.commit()
    raw.close()
    engine.dispose()


def tables_of(engine):
    """Return what the database says of its tables, in no order."""
    inspector = inspect(engine)
    found = {}
    for table in inspector.get_table_names():
        columns = {
            column["name"]: (str(column["type"]), column["nullable"], column["default"])
            for column in inspector.get_columns(table)
        }
        of_table = (
            inspector.get_pk_constraint(table),
            inspector.get_indexes(table),
            inspector.get_unique_constraints(table),
            inspector.get_foreign_keys(table),
            inspector.get_check_constraints(table),
        )
        constraints = [plain(part) for part in of_table]
        found[table] = (columns, constraints)
    return found


def plain(value):
    if isinstance(value, dict):
        return sorted((name, plain(one)) for name, one in value.items())
    return sorted(map(str, map(plain, value))) if isinstance(value, list) else str(value)


def test_store_of_the_previous_layout_keeps_its_rows_and_becomes_like_a_new_one(
    empty_url, engine, request, tmp_path
):
    make_previous(engine)
    with JobStore.open_existing(empty_url) as older:
        assert not older.is_up_to_date
        before = everything(older)
    engine.dispose()
    with JobStore(empty_url) as opened:
        assert opened.is_up_to_date
        assert everything(opened) == before
        assert opened.blessed_checkpoint(RUN)["path"] == "cycle_0/train/policy"
        assert [row.key.stage for row in opened.jobs.of_run(RUN)] == [
            "train", "eval_candidate_0", "train",
        ]  # fmt: skip
        lease = opened.leases.acquire(RUN, "next", ttl_s=60.0)
        state, version = opened.load_state(RUN)
        assert opened.commit(lease, version, state, events=[]) == version + 1
    if engine.dialect.name == "postgresql":
        fresh = create_engine(request.getfixturevalue("postgres_store_url"))
    else:
        JobStore(tmp_path / "fresh.db").close()
        fresh = create_engine(f"sqlite:///{tmp_path / 'fresh.db'}")
    assert tables_of(engine) == tables_of(fresh)
    fresh.dispose()


def everything(store):
    return {name: store.database.rows(table.select()) for name, table in METADATA.tables.items()}


def test_partial_index_allows_one_blessed_policy_per_run(empty_url, engine):
    JobStore(empty_url).close()
    (partial,) = [
        index
        for index in inspect(engine).get_indexes("checkpoints")
        if index["name"].endswith("blessed")
    ]
    assert partial["unique"]
    condition = partial["dialect_options"][f"{engine.dialect.name}_where"]
    assert str(condition).strip("()") == "blessed = 1"


@pytest.mark.parametrize(
    ("version", "message"),
    [
        ("9999", f"version {PREVIOUS} or {HEAD}, got '9999'; it was written by a newer"),
        ("0002", "got '0002'; it was written before the first release"),
    ],
)
def test_store_of_another_version_is_refused_and_untouched(empty_url, engine, version, message):
    JobStore(empty_url).close()
    with engine.begin() as connection:
        connection.execute(VERSION.update().values(version_num=version))
    for create in (True, False):
        with pytest.raises(StoreVersionError, match=message):
            JobStore(empty_url, create=create)
    with engine.connect() as connection:
        assert connection.scalar(text("SELECT version_num FROM alembic_version")) == version


def test_reader_does_not_migrate(empty_url, engine):
    with engine.connect() as connection:  # SQLite: creates the file, as another program might
        connection.execute(text("CREATE TABLE theirs (x INTEGER)"))
        connection.execute(text("DROP TABLE theirs"))
        connection.commit()
    with pytest.raises(StoreOutdatedError, match="got none; `cadenza loop run`"):
        JobStore.open_existing(empty_url)
    assert inspect(engine).get_table_names() == []


@pytest.mark.parametrize("older", [False, True])
def test_many_that_open_a_store_at_once_make_or_upgrade_it_once(empty_url, engine, older):
    if older:
        make_previous(engine)

    def runs_of(_):
        with JobStore(empty_url) as store:
            assert store.is_up_to_date
            return len(store.list_runs())

    with ThreadPoolExecutor(6) as pool:
        assert set(pool.map(runs_of, range(6))) == {2 if older else 0}


def test_store_is_opened_as_it_is_unless_it_shall_be_upgraded(empty_url, engine, tmp_path):
    make_previous(engine)
    for upgrade in (False, True):
        with open_store(tmp_path, empty_url, upgrade=upgrade) as opened:
            assert opened.is_up_to_date is upgrade


def test_older_store_is_stopped_and_answered_and_not_migrated_under_a_run_at_work(
    empty_url, engine
):
    make_previous(engine)
    with JobStore.open_existing(empty_url) as store:
        store.create_run("run", "{}")
        lease = store.leases.acquire("run", this_process(), ttl_s=600.0)
        store.apply(lease, request_approval(0, "promote"))
    message = f"from version {PREVIOUS} to {HEAD}, got 'run', which process"
    with pytest.raises(LeaseHeldError, match=message):
        JobStore(empty_url)
    with JobStore.open_existing(empty_url) as older:
        assert older.get_run("run")["stop_requested_at"] is None
        older.request_stop("run")
        assert older.get_run("run")["stop_requested_at"] is not None
        answer = older.approvals.decide("run", 0, "promote", "approved", reason="r", by="Ada")
        assert answer.status == "approved"
        older.leases.release(lease)
    with JobStore(empty_url) as store:
        assert store.is_up_to_date


# Databases of other programs

#: What LeAgents, MLflow and some other program have.
FOREIGN = [
    ("runs", "cycles", "checkpoints"),
    ("alembic_version", "runs", "experiments"),
    ("theirs",),
]


def make_foreign(engine, tables):
    with engine.begin() as connection:
        for table in tables:
            connection.execute(text(f"CREATE TABLE {table} (version_num TEXT)"))
    engine.dispose()


@pytest.mark.parametrize(("tables", "mode"), [*zip(FOREIGN, ("delete", "wal", "wal"), strict=True)])
def test_foreign_file_is_refused_and_left_byte_by_byte(tmp_path, tables, mode):
    path = tmp_path / "theirs.db"
    raw = sqlite3.connect(path)
    raw.execute(f"PRAGMA journal_mode = {mode}")
    raw.close()
    make_foreign(create_engine(f"sqlite:///{path}"), tables)
    before = path.read_bytes()
    for create in (True, False):
        with pytest.raises(StoreForeignError, match=f"tables {', '.join(sorted(tables))}.*left as"):
            JobStore(path, create=create)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["theirs.db"]


def test_sqlite_file_is_durable_and_strict(tmp_path):
    path = tmp_path / "deep" / "folder" / "cadenza.db"
    with closing(Database(path, create=True)) as opened, opened.read() as connection:
        pragmas = {
            name: connection.scalar(text(f"PRAGMA {name}"))
            for name in ("journal_mode", "foreign_keys", "synchronous", "busy_timeout")
        }
    assert pragmas == {
        "journal_mode": "wal",
        "foreign_keys": 1,
        "synchronous": 2,  # FULL
        "busy_timeout": database.BUSY_TIMEOUT_S * 1000,
    }


def test_writer_that_waits_too_long_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(database, "BUSY_TIMEOUT_S", 0.05)
    path = tmp_path / "cadenza.db"
    with JobStore(path) as store:
        other = sqlite3.connect(path)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailableError, match="database is locked"):
            store.create_run("run", "{}")
        assert store.list_runs() == []  # readers do not wait
        other.rollback()
        other.close()
        store.create_run("run", "{}")


@pytest.mark.parametrize(
    ("location", "message"),
    [
        ("mysql://x/y", r"got 'mysql'"),
        ("sqlite:///:memory:", "a restart would lose"),
        ("sqlite://", "a restart would lose"),
        ("://", "expected a path or an SQLAlchemy URL"),
    ],
)
def test_location_that_cannot_hold_a_store_is_refused(location, message):
    with pytest.raises(ConfigurationError, match=message):
        JobStore(location)


def test_server_that_is_not_there_is_named():
    with pytest.raises(StoreUnavailableError, match="see that the database runs"):
        JobStore("postgresql://postgres@127.0.0.1:1/x?connect_timeout=2")


def test_missing_driver_names_the_extra(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(MissingExtraError, match=r"cadenza\[postgresql\]"):
        JobStore("postgresql://postgres@127.0.0.1:1/x")
