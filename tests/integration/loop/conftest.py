"""Stores for the tests of this folder: SQLite, and a real PostgreSQL server."""

import shutil

import pytest
from sqlalchemy import create_engine

from cadenza.loop.store import JobStore
from cadenza.loop.store.schema import METADATA
from tests.integration.loop.postgres import MISSING, find_programs, running_server


@pytest.fixture(scope="session")
def postgres_server():
    programs = find_programs()
    if programs is None:
        pytest.skip(MISSING)
    with running_server(programs) as server:
        yield server


@pytest.fixture(scope="session")
def postgres_store_url(postgres_server):
    """URL of the one job store of the session: making a database takes a second."""
    url = postgres_server.url(postgres_server.new_database())
    JobStore(url).close()
    return url


@pytest.fixture
def postgres_url(postgres_store_url):
    """URL of a job store on PostgreSQL without any rows."""
    yield postgres_store_url
    engine = create_engine(postgres_store_url)
    with engine.begin() as connection:
        for table in reversed(METADATA.sorted_tables):
            connection.execute(table.delete())
    engine.dispose()


@pytest.fixture
def empty_postgres_url(postgres_server):
    """URL of a database without tables."""
    name = postgres_server.new_database()
    yield postgres_server.url(name)
    postgres_server.drop_database(name)


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory):
    """A job store without any rows, to be copied: faster than migrating anew for each test."""
    path = tmp_path_factory.mktemp("template") / "cadenza.db"
    JobStore(path).close()
    return path


@pytest.fixture
def sqlite_url(sqlite_template, tmp_path):
    """URL of a job store in a file."""
    path = tmp_path / "cadenza.db"
    shutil.copyfile(sqlite_template, path)
    return f"sqlite:///{path}"


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request):
    """Where a fresh job store is: a test that takes it runs on both databases."""
    name = "postgres_url" if request.param == "postgresql" else "sqlite_url"
    return request.getfixturevalue(name)


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request, tmp_path):
    """Where no store is yet."""
    if request.param == "postgresql":
        return request.getfixturevalue("empty_postgres_url")
    return f"sqlite:///{tmp_path / 'cadenza.db'}"


@pytest.fixture
def store(store_url):
    with JobStore(store_url) as opened:
        yield opened
