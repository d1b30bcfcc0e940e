import json
import sqlite3
import subprocess
import sys

import pytest

from cadenza.core.errors import ConfigurationError
from cadenza.loop.errors import StoreCorruptError
from cadenza.loop.store.database import config_to_keep, shown, table_names, url_of

SECRETS = [
    ("postgresql://ada:hunter2@host:5432/runs", "postgresql://ada:***@host:5432/runs"),
    ("postgresql+psycopg://ada:hun%40ter2@host/runs", "postgresql+psycopg://ada:***@host/runs"),
    ("postgresql://ada@host/runs?password=hunter2&connect_timeout=3", None),
    ("postgresql://host/runs?user=ada&sslpassword=hunter2", None),
    ("postgresql://ada:a/hunter2@host/runs", "postgresql://ada:***@host/runs"),
    ("postgresql://ada@host/runs?password=a&password=hunter2", None),
]


@pytest.mark.parametrize(("location", "wanted"), SECRETS)
def test_password_is_neither_shown_nor_kept(location, wanted):
    if wanted is not None:
        assert shown(location) == wanted
    kept = config_to_keep(json.dumps({"run_name": "r", "store": location}))
    for text in (shown(location), shown(url_of(location)), kept):
        assert "hunter2" not in text
        assert "hun%40ter2" not in text
        assert "ada" in text
    assert json.loads(kept) == {"run_name": "r", "store": shown(location)}
    url = url_of(shown(location))  # what was shown connects without a password
    assert (url.password, url.drivername, url.database) == (None, "postgresql+psycopg", "runs")
    assert not {"password", "sslpassword"} & set(url.query)


def test_password_reaches_the_driver():
    word = "hunter@2"
    assert url_of("postgresql://ada:hunter%402@host/runs").password == word
    assert url_of("postgresql://ada@host/runs?password=hunter%402").query["password"] == word


@pytest.mark.parametrize(
    "location", ["postgresql://ada:p@hunter2:x@host/runs", "post gres://ada:hunter2@host/runs"]
)
def test_url_that_cannot_be_read_is_not_quoted(location):
    for read in (url_of, shown):
        with pytest.raises(ConfigurationError, match="got one that cannot be read") as caught:
            read(location)
        assert "hunter2" not in str(caught.value)
        assert caught.value.__cause__ is None
    with pytest.raises(ConfigurationError):
        config_to_keep(json.dumps({"store": location}))


CRASH = """
import os, sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
connection.execute("PRAGMA journal_mode = WAL")
connection.execute("CREATE TABLE theirs (x INTEGER PRIMARY KEY AUTOINCREMENT)")
connection.commit()
os._exit(0)
"""


def make(path, mode):
    if mode == "killed":  # what was committed lies in the log alone
        subprocess.run([sys.executable, "-c", CRASH, str(path)], check=True)
        assert b"theirs" not in path.read_bytes()
        return
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA journal_mode = {mode}")
    connection.execute("CREATE TABLE theirs (x INTEGER PRIMARY KEY AUTOINCREMENT)")
    connection.commit()
    connection.close()


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix != ".db-shm"}


@pytest.mark.parametrize("mode", ["delete", "wal", "killed"])
def test_tables_are_named_and_nothing_is_touched(tmp_path, mode):
    path = tmp_path / "odd %20?name#.db"
    make(path, mode)
    before = content(tmp_path)
    assert table_names(path) == {"theirs"}
    assert content(tmp_path) == before


def test_file_that_cannot_be_read_as_a_database_is_refused(tmp_path):
    path = tmp_path / "a.db"
    path.write_bytes(b"no database")
    with pytest.raises(StoreCorruptError, match="file is not a database"):
        table_names(path)
    make(tmp_path / "b.db", "delete")
    whole = (tmp_path / "b.db").read_bytes()
    path.write_bytes(whole[:100] + b"\xff" * (len(whole) - 100))
    with pytest.raises(StoreCorruptError, match="restore it from a copy"):
        table_names(path)
