"""Tables, migrations and what each database enforces by itself."""

import json
import sqlite3
from contextlib import closing

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from sqlalchemy import create_engine, inspect, text

from cadenza.cli.loop_status import open_store
from cadenza.core.errors import ConfigurationError, MissingExtraError
from cadenza.core.files import sha256_bytes
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
from cadenza.loop.store.models import Base


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
        connection.execute(text("DROP TABLE theirs"))
        connection.commit()
    with pytest.raises(StoreOutdatedError, match="got none; `cadenza loop run`"):
        JobStore.open_existing(empty_url)
    assert inspect(engine).get_table_names() == []


def migrate_to(url, revision):
    """Bring an empty database to an older version."""
    engine = create_engine(url)
    config = Config()
    config.set_main_option("script_location", "cadenza.loop.store:migrations")
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, revision)
    engine.dispose()


def test_older_store_is_brought_up_to_date_with_its_rows_and_without_passwords(
    empty_url, engine, tmp_path
):
    migrate_to(empty_url, "0001")
    stores = {
        "guarded": "postgresql://ada:hunter2@host/runs",
        "options": "postgresql://ada@host/runs?connect_timeout=3&password=hunter2",
        "open": "postgresql://ada@host/runs",
        "file": None,
    }
    models = {
        "guarded": "openai:org/m:8b@https://ada:hunter2@host:80/v1",
        "options": "gemini:m@https://host/v1?key=hunter2",
        "open": "openai:m@http://host/v1",
        "file": "openai:m@https://a/hunter2@host",
    }
    with engine.begin() as connection:
        for run_id, store in stores.items():
            config = json.dumps({"run_name": "r", "store": store, "seed": 3, "llm": models[run_id]})
            values = {"id": run_id, "config": config}
            connection.execute(
                text(
                    "INSERT INTO runs (id, created_at, config_json, config_sha256, state_json) "
                    "VALUES (:id, 1.5, :config, 'old', '{}')"
                ),
                values,
            )
    with JobStore.open_existing(empty_url) as older:
        assert not older.is_up_to_date
    engine.dispose()
    with JobStore(empty_url) as opened:
        assert opened.is_up_to_date
        rows = {row["id"]: row for row in opened.list_runs()}
    kept = {run_id: json.loads(row["config_json"]) for run_id, row in rows.items()}
    assert {run_id: config["store"] for run_id, config in kept.items()} == {
        "guarded": "postgresql://ada:***@host/runs",
        "options": "postgresql://ada@host/runs?connect_timeout=3&password=***",
        "open": "postgresql://ada@host/runs",
        "file": None,
    }
    assert {run_id: config["llm"] for run_id, config in kept.items()} == {
        "guarded": "openai:org/m:8b@https://host:80/v1",
        "options": "gemini:m@https://host/v1",
        "open": "openai:m@http://host/v1",
        "file": "openai:m@https://host",
    }
    assert {(config["run_name"], config["seed"]) for config in kept.values()} == {("r", 3)}
    assert (rows["open"]["config_sha256"], rows["open"]["created_at"]) == ("old", 1.5)
    assert rows["guarded"]["config_sha256"] == sha256_bytes(rows["guarded"]["config_json"].encode())
    for file in tmp_path.iterdir():
        assert b"hunter2" not in file.read_bytes()


def test_store_is_opened_as_it_is_unless_it_shall_be_upgraded(empty_url, tmp_path):
    migrate_to(empty_url, "0001")
    for upgrade in (False, True):
        with open_store(tmp_path, empty_url, upgrade=upgrade) as opened:
            assert opened.is_up_to_date is upgrade


def test_older_store_is_stopped_and_answered_and_not_migrated_under_a_run_at_work(
    empty_url, engine
):
    with JobStore(empty_url) as store:
        store.create_run("run", "{}")
        lease = store.leases.acquire("run", this_process(), ttl_s=600.0)
        store.apply(lease, request_approval(0, "promote"))
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '0002'"))
    with pytest.raises(LeaseHeldError, match="from version 0002 to 0003, got 'run', which process"):
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
