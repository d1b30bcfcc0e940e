"""The commands that look at runs, with a store on a real PostgreSQL server."""

import json

import pytest
from typer.testing import CliRunner

from cadenza.cli.main import app
from tests.loop_runs import RUN, begun_run


@pytest.fixture
def url(postgres_url, tmp_path):
    begun_run(tmp_path, location=postgres_url).close()
    return postgres_url


def test_runs_are_shown_and_stopped_wherever_the_store_is(url, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shown = CliRunner().invoke(app, ["loop", "status", "--store", url])
    assert shown.exit_code == 0, shown.output
    assert f"go on with: cadenza loop resume {RUN} --store {url}" in shown.stdout
    monkeypatch.setenv("CADENZA_STORE", url)
    stopped = CliRunner().invoke(app, ["loop", "stop", RUN])
    assert f"go on with: cadenza loop resume {RUN}\n" in stopped.stdout
    status = CliRunner().invoke(app, ["loop", "status", RUN, "--json"])
    assert json.loads(status.stdout)["runs"][0]["status"] == "stopped"
    doctor = CliRunner().invoke(app, ["loop", "doctor", "--json"])
    [check] = [c for c in json.loads(doctor.stdout)["checks"] if c["name"] == "store"]
    assert (check["level"], check["detail"]) == ("ok", f"{url}: 1 run")
    assert not (tmp_path / "runs").exists()


def test_a_server_without_our_tables_asks_for_a_run_first(empty_postgres_url):
    shown = CliRunner().invoke(app, ["loop", "status", "--store", empty_postgres_url])
    assert shown.exit_code == 13
    assert "brings them up to date" in shown.stderr
    doctor = CliRunner().invoke(app, ["loop", "doctor", "--store", empty_postgres_url, "--json"])
    [check] = [c for c in json.loads(doctor.stdout)["checks"] if c["name"] == "store"]
    assert check["level"] == "ok"
    assert "the next run brings it up to date" in check["detail"]
