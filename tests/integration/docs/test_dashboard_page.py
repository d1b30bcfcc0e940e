"""What the page about the dashboard names is there: addresses, options, and settings that parse."""

import re

import yaml
from typer.testing import CliRunner

from cadenza.cli.main import app
from cadenza.web import create_app
from tests.integration.docs.pages import blocks, text

PAGE = "dashboard.md"


def test_the_table_of_json_addresses_is_that_of_the_application(tmp_path):
    told = re.findall(r"^\| `(/api/[^`]*)` \|", text(PAGE), flags=re.MULTILINE)
    described = create_app(tmp_path, tmp_path).openapi()["paths"]
    assert sorted(told) == sorted([*described, "/api/openapi.json"])


def test_every_option_of_the_page_is_one_of_the_command():
    printed = CliRunner().invoke(app, ["dash", "--help"], env={"COLUMNS": "200"}).output
    told = re.findall(r"cadenza dash (.*)", "".join(blocks(PAGE, "console")))
    assert len(told) > 2
    for option in re.findall(r"--[a-z-]+", " ".join(told)):
        assert option in printed


def test_the_settings_for_prometheus_send_the_token():
    [job] = yaml.safe_load(blocks(PAGE, "yaml")[0])["scrape_configs"]
    assert job["authorization"]["type"] == "Bearer"
    assert "metrics_path" not in job  # Prometheus asks for /metrics by itself
