import sqlite3
import subprocess
import sys

import pytest

from cadenza.loop.errors import StoreCorruptError
from cadenza.loop.store.database import table_names

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
