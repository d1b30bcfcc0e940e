"""The figures of README and pages are those of the committed records, and of no other version."""

import copy
import json

import pytest
import torch

import cadenza
from perf.record import machine
from tests.integration.docs.pages import ROOT
from tools import records


@pytest.fixture(autouse=True)
def _repository(monkeypatch):
    monkeypatch.chdir(ROOT)


@pytest.mark.parametrize("page", records.PAGES, ids=str)
def test_page_says_what_the_records_hold(page):
    text = page.read_text("utf-8")
    assert "<!-- record: end -->" in text
    assert records.written(page, text) == text, "run: python -m tools.records"


def test_picture_shows_the_recorded_start():
    record = records.load("quickstart")
    assert records.PICTURE.read_text("utf-8") == records.drawing(record)
    guarded, bare = (record["runs"][condition] for condition in records.TELLING)
    assert guarded["start"] == bare["start"]
    assert guarded["success"]
    assert bare["contact"] is not None


@pytest.mark.parametrize(
    "name", ["quickstart", "performance", "usefulness", "aht-small", "aht-small-copies"]
)
def test_record_names_this_version_and_a_machine(name):
    record = records.load(name)
    assert record["cadenza"] == cadenza.__version__
    assert len(record["sources"]) == 12
    assert "cores, Python 3." in record["machine"]
    assert "numpy" in record["machine"]


def test_another_figure_in_the_record_is_another_page(monkeypatch):
    record = copy.deepcopy(records.load("quickstart"))
    record["rows"][0][-1] = "199/200"
    monkeypatch.setattr(records, "load", lambda _: record)
    page = records.PAGES[0]
    written = records.written(page, page.read_text("utf-8"))
    assert "199/200" in written
    assert written != page.read_text("utf-8")


def test_machine_names_its_instruction_set():
    assert f" ({torch.backends.cpu.get_cpu_capability()}), " in machine()


def test_command_takes_new_measurements(tmp_path, monkeypatch):
    for page in records.PAGES:
        (tmp_path / page).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / page).write_text(page.read_text("utf-8"), encoding="utf-8")
    (tmp_path / records.RECORDS).mkdir()
    (tmp_path / records.PICTURE).parent.mkdir()
    for kept in (
        "quickstart.json",
        "aht-small.json",
        "aht-small-copies.json",
        "usefulness.json",
    ):
        text = (records.RECORDS / kept).read_text("utf-8")
        (tmp_path / records.RECORDS / kept).write_text(text, encoding="utf-8")
    row = {"name": "a step", "ours": 2.0, "peer": 5.0, "aim": 1.5, "unit": "us"}
    row |= {"ratio": 2.5, "peer_name": "somebody"}
    alone = {"name": "a jump", "ours": 3.0, "peer": None, "aim": None, "unit": "us"}
    alone |= {"ratio": None, "peer_name": ""}
    made = {"cadenza": "9.9", "sources": "abc", "machine": "a Z80, 1 core"}
    measured = tmp_path / "measured.json"
    measured.write_text(json.dumps(made | {"tables": [{"title": "Steps.", "rows": [row, alone]}]}))
    monkeypatch.chdir(tmp_path)
    records.main(["--performance", str(measured)])
    page = (tmp_path / "docs/performance.md").read_text("utf-8")
    assert "Measured with cadenza 9.9 (sources abc) on a Z80, 1 core." in page
    assert "| a step | 2 | us | 5 (a) | 2.50x | 1.5x |\n| a jump | 3 | us |  |  |  |" in page
    assert "\n\nPeer: (a) somebody.\n" in page
    assert "### Online stream" not in page
