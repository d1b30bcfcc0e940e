"""Tables, migrations and what each database enforces by itself."""

import sqlite3
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine, inspect, text
from sqlalchemy.exc import IntegrityError

from cadenza.core.errors import ConfigurationError, MissingExtraError
from cadenza.loop.errors import (
    StoreCorruptError,
    StoreNotFoundError,
    StoreUnavailableError,
    StoreVersionError,
)
from cadenza.loop.store import JobStore, database, schema
from cadenza.loop.store.models import Base
from tests.integration.loop.store_processes import create_store


@pytest.fixture
def engine(empty_url):
    made = create_engine(empty_url)
    yield made
    made.dispose()


def test_migrated_tables_are_the_models(empty_url, engine):
    JobStore(empty_url).close()
    with engine.connect() as connection:
        options = {"compare_type": True, "compare_server_default": True}
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, Base.metadata) == []


def test_comparison_of_models_and_tables_sees_a_missing_column(empty_url, engine):
    JobStore(empty_url).close()
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE jobs DROP COLUMN heartbeat"))
        (difference,) = compare_metadata(MigrationContext.configure(connection), Base.metadata)
    assert difference[0] == "add_column"


def test_checks_of_the_migrated_tables_are_those_of_the_models(empty_url, engine):
    # Autogeneration does not compare check constraints and partial indices.
    JobStore(empty_url).close()
    inspector = inspect(engine)
    for table in Base.metadata.tables.values():
        wanted = {str(check.name) for check in table.constraints if hasattr(check, "sqltext")}
        found = {check["name"] for check in inspector.get_check_constraints(table.name)}
        assert found == wanted
    (partial,) = [
        index for index in inspector.get_indexes("checkpoints") if index["name"].endswith("blessed")
    ]
    assert partial["unique"]
    condition = partial["dialect_options"][f"{engine.dialect.name}_where"]
    assert str(condition).strip("()") == "blessed = 1"


def test_newest_migration_is_the_one_the_package_expects():
    config = Config()
    config.set_main_option("script_location", str(schema._MIGRATIONS))
    assert ScriptDirectory.from_config(config).get_heads() == [schema.HEAD]


def test_opening_again_migrates_nothing_and_keeps_the_rows(empty_url):
    with JobStore(empty_url) as store:
        store.create_run("run", "{}")
    with JobStore(empty_url) as store:
        assert [row["id"] for row in store.list_runs()] == ["run"]
    with JobStore.open_existing(empty_url) as store:
        assert [row["id"] for row in store.list_runs()] == ["run"]


def test_store_of_a_newer_version_is_refused_and_untouched(empty_url, engine):
    JobStore(empty_url).close()
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    for create in (True, False):
        with pytest.raises(StoreVersionError, match="got '9999'; it was written by a newer"):
            JobStore(empty_url, create=create)
    with engine.connect() as connection:
        assert connection.scalar(text("SELECT version_num FROM alembic_version")) == "9999"


def test_reader_does_not_migrate(empty_url, engine):
    with engine.connect() as connection:  # SQLite: creates the file, as another program might
        connection.execute(text("CREATE TABLE theirs (x INTEGER)"))
        connection.commit()
    with pytest.raises(StoreVersionError, match="got none; `cadenza loop run`"):
        JobStore.open_existing(empty_url)
    assert inspect(engine).get_table_names() == ["theirs"]


def test_many_processes_may_create_one_store_at_once(empty_url, processes):
    barrier = processes.Barrier(4)
    creators = [
        processes.Process(target=create_store, args=(empty_url, f"run{number}", barrier))
        for number in range(4)
    ]
    for creator in creators:
        creator.start()
    for creator in creators:
        creator.join(timeout=60.0)
    assert [creator.exitcode for creator in creators] == [0, 0, 0, 0]
    with JobStore.open_existing(empty_url) as store:
        assert len(store.list_runs()) == 4


def test_threads_may_create_several_stores_at_once(tmp_path):
    def create(number):
        JobStore(tmp_path / f"{number}.db").close()
        return JobStore.open_existing(tmp_path / f"{number}.db")

    with ThreadPoolExecutor(4) as pool:
        for future in [pool.submit(create, number) for number in range(4)]:
            future.result().close()


def test_database_itself_refuses_a_second_blessed_policy_and_a_run_that_is_not_there(store_url):
    insert = (
        "INSERT INTO checkpoints (run_id, cycle_idx, policy_type, path, blessed) "
        "VALUES ('{}', 0, 'act', '/p', 1)"
    )
    with JobStore(store_url) as store:
        store.create_run("run", "{}")
        with store._database.write() as connection:
            connection.execute(text(insert.format("run")))
        for run_id in ("run", "nobody"):
            with pytest.raises(IntegrityError), store._database.write() as connection:
                connection.execute(text(insert.format(run_id)))
        assert len(store.checkpoints_for("run")) == 1


def test_database_clock_is_the_time(store_url):
    with JobStore(store_url) as store, store._database.read() as connection:
        first = database.now(connection)
        assert first > 1.7e9
        assert 0.0 <= database.now(connection) - first < 60.0


def test_broken_transaction_leaves_nothing(store):
    def crash():
        with store._database.write() as connection:
            connection.execute(text("INSERT INTO runs (id) VALUES ('x')"))

    with pytest.raises(IntegrityError):
        crash()
    assert store.list_runs() == []


# SQLite


def test_sqlite_file_is_durable_and_strict(tmp_path):
    path = tmp_path / "deep" / "folder" / "cadenza.db"
    with JobStore(path) as store, store._database.read() as connection:
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


def test_closed_store_leaves_one_file_and_no_open_descriptor(tmp_path):
    def open_files():
        links = Path("/proc/self/fd").iterdir()
        return [str(link.readlink()) for link in links if link.is_symlink()]

    with JobStore(tmp_path / "cadenza.db") as store:
        store.create_run("run", "{}")
        assert any(str(tmp_path) in name for name in open_files())
    assert not any(str(tmp_path) in name for name in open_files())
    assert [path.name for path in tmp_path.iterdir()] == ["cadenza.db"]


def test_reading_a_store_that_is_not_there_creates_nothing(tmp_path):
    path = tmp_path / "folder" / "cadenza.db"
    with pytest.raises(StoreNotFoundError, match="expected a job store, got no file"):
        JobStore.open_existing(path)
    with pytest.raises(FileNotFoundError):
        JobStore.open_existing(f"sqlite:///{path}")
    assert list(tmp_path.iterdir()) == []


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


def test_creator_that_waits_too_long_for_another_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(database, "BUSY_TIMEOUT_S", 0.05)
    path = tmp_path / "cadenza.db"
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE theirs (x)")
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailableError, match="database is locked"):
        JobStore(path)
    other.close()


def test_file_that_is_no_database_is_refused(tmp_path):
    path = tmp_path / "cadenza.db"
    path.write_bytes(b"this is not a database, and long enough to be looked at" * 100)
    with pytest.raises(StoreCorruptError, match="file is not a database"):
        JobStore(path)


def test_store_that_may_not_be_written_is_refused(tmp_path):
    folder = tmp_path / "cadenza.db"
    folder.mkdir()
    with pytest.raises(StoreUnavailableError, match="unable to open"):
        JobStore(folder)
    assert stat.S_ISDIR(folder.stat().st_mode)


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


# PostgreSQL


def test_creators_wait_for_one_another(empty_postgres_url):
    engine = create_engine(empty_postgres_url)
    with ThreadPoolExecutor(1) as pool, engine.connect() as connection:
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": schema._LOCK_KEY})
        opening = pool.submit(lambda: JobStore(empty_postgres_url).close())
        with pytest.raises(TimeoutError):
            opening.result(timeout=0.5)
        connection.rollback()
        opening.result(timeout=60.0)
    engine.dispose()


def test_password_is_not_shown(empty_postgres_url):
    url = empty_postgres_url.replace("postgres@", "postgres:hunter2@")
    with pytest.raises(StoreVersionError) as caught:
        JobStore.open_existing(url)
    assert "hunter2" not in str(caught.value)
    assert "***" in str(caught.value)


def test_server_that_is_not_there_is_named():
    with pytest.raises(StoreUnavailableError, match="see that the database runs"):
        JobStore("postgresql://postgres@127.0.0.1:1/x?connect_timeout=2")


def test_missing_driver_names_the_extra(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(MissingExtraError, match=r"cadenza\[postgresql\]"):
        JobStore("postgresql://postgres@127.0.0.1:1/x")
