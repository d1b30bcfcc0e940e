"""A server that asks for a password: who gives it, who is refused, and that nobody keeps it."""

import json

import pytest
from sqlalchemy import create_engine, select
from typer.testing import CliRunner

from cadenza.cli.main import app
from cadenza.core.errors import ConfigurationError
from cadenza.loop.resuming import stored_config
from cadenza.loop.store import JobStore
from cadenza.loop.store.schema import METADATA
from tests.integration.loop.loop_harness import Loop
from tests.integration.loop.postgres import GUARDED
from tests.loop_fakes import FakeStack
from tests.loop_runs import RUN, begun_run

WORD = "hunter2/@"
IN_URL = "hunter2%2F%40"


@pytest.fixture(scope="session")
def users(postgres_server):
    postgres_server.add_user(GUARDED, f"SUPERUSER PASSWORD '{WORD}'")
    postgres_server.add_user("limited", "")


@pytest.fixture
def url(postgres_url, users, monkeypatch, tmp_path):
    """URL of a store on a server that asks for a password; the URL names none."""
    monkeypatch.delenv("PGPASSWORD", raising=False)
    monkeypatch.setenv("PGPASSFILE", str(tmp_path / "no passwords"))
    return postgres_url.replace("postgres@", f"{GUARDED}@")


def with_password(url, password=IN_URL):
    return url.replace(f"{GUARDED}@", f"{GUARDED}:{password}@")


def everything_in(url):
    """Every row of every table of a store, as one text."""
    engine = create_engine(url)
    with engine.connect() as connection:
        tables = METADATA.sorted_tables
        found = [row for table in tables for row in connection.execute(select(table))]
    engine.dispose()
    return "\n".join(map(str, found))


def test_password_is_taken_from_the_url_the_environment_or_a_file(url, monkeypatch, tmp_path):
    JobStore(with_password(url)).close()
    monkeypatch.setenv("PGPASSWORD", WORD)
    for location in (url, with_password(url, "***")):
        JobStore(location).close()
    monkeypatch.delenv("PGPASSWORD")
    passwords = tmp_path / "passwords"
    passwords.write_text(f"127.0.0.1:*:*:{GUARDED}:{WORD}\n")
    passwords.chmod(0o600)
    monkeypatch.setenv("PGPASSFILE", str(passwords))
    JobStore(url).close()


def test_whole_run_leaves_no_password_and_goes_on_with_another_url(url, tmp_path, monkeypatch):
    location = with_password(url)

    def go_on(store, **changes):
        with JobStore(store) as opened:
            stack = FakeStack((0.5, 0.9))
            loop = Loop(opened, tmp_path, stack, budgets={"max_cycles": 2}, **changes)
            loop.controller.cfg = loop.cfg.model_copy(update={"store": store})
            return loop.run()

    assert go_on(location).cycles_run == 2
    assert WORD not in everything_in(location)
    assert IN_URL not in everything_in(location)
    files = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert files
    assert not any(word.encode() in data for data in files for word in (WORD, IN_URL))
    with JobStore(location) as opened:
        assert stored_config(opened, "run").store == with_password(url, "***")

    monkeypatch.setenv("PGPASSWORD", WORD)
    assert go_on(url).cycles_run == 2  # the same run: only its store is named otherwise
    with pytest.raises(ConfigurationError, match="got other values for seed;"):
        go_on(url, seed=5)


def test_commands_take_the_password_from_url_and_environment(url, tmp_path, monkeypatch):
    begun_run(tmp_path, location=with_password(url)).close()
    monkeypatch.chdir(tmp_path)
    shown = CliRunner().invoke(app, ["loop", "status", "--store", with_password(url), "--json"])
    assert json.loads(shown.stdout)["runs"][0]["run_id"] == RUN
    told = CliRunner().invoke(app, ["loop", "status", "--store", with_password(url)])
    assert f"resume {RUN} --store '{with_password(url, '***')}'" in told.stdout
    refused = CliRunner().invoke(app, ["loop", "status", "--store", with_password(url, "***")])
    assert refused.exit_code == 11
    assert "expected this user's password, got none" in refused.stderr
    monkeypatch.setenv("PGPASSWORD", WORD)
    copied = CliRunner().invoke(app, ["loop", "status", "--store", with_password(url, "***")])
    assert copied.exit_code == 0
    monkeypatch.setenv("CADENZA_STORE", with_password(url, "letmein"))
    wrong = CliRunner().invoke(app, ["loop", "resume", RUN])
    assert wrong.exit_code == 11
    assert "got a wrong one" in wrong.stderr
    for result in (shown, told, refused, copied, wrong):
        assert IN_URL not in result.output
        assert "letmein" not in result.output
