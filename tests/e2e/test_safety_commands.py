"""`cadenza safety verify` and `cadenza safety tables` through the command line."""

import json

import pytest

from cadenza.safety.reporting import (
    AssumptionRow,
    ConditionRow,
    GapRow,
    ThreeTableReport,
    emit_three_tables,
)
from tests.e2e.commands import REPOSITORY, cadenza

#: Words that make a verification of a few seconds.
QUICK = ["--steps", "1000", "dts=[0.05]", "delays=[varying]", "stationary=false"]


def test_verify_reports_rows_totals_and_verdict(tmp_path):
    words = ("safety", "verify", *QUICK, "several_steps=200", "--quiet", "--partners", "1")
    words = (*words, "--partners", "3")
    done = cadenza(*words, cwd=tmp_path)
    assert done.code == 0
    assert "2-D zoh 0.05 s varying age" in done.out
    assert "3p 3-D semi 0.05 s" in done.out
    assert "One adversarial partner: 1200 steps in 12 episodes" in done.out
    assert "unfiltered actions  0; 95 %: at most 2.5e-03 of the steps" in done.out  # 3.0 / 1200
    assert "The claim holds" in done.out
    assert done.err == ""
    stored = json.loads((tmp_path / "runs" / "verify" / "verification.json").read_bytes())
    assert stored["holds"] is True
    assert (tmp_path / "runs" / "verify" / "worst_episode.png").stat().st_size > 10_000


def test_verify_takes_a_file_and_lets_options_win(tmp_path):
    shipped = REPOSITORY / "configs" / "safety" / "verify.yaml"
    done = cadenza(
        "safety",
        "verify",
        shipped,
        "steps=99999999",
        *["dts=[0.1]", "dims=3", "stationary=false"],
        *["--steps", "500", "--partners", "1", "--plant", "zoh", "--json"],
        cwd=tmp_path,
    )
    assert done.code == 0
    config = done.json["config"]
    assert (config["steps"], config["partners"], config["plants"]) == (500, [1], ["zoh"])
    assert (config["dts"], config["dims"]) == ([0.1], [3])
    assert len(done.json["scenarios"]) == 3


def test_verify_refuses_a_wrong_configuration_in_one_line(tmp_path):
    done = cadenza("safety", "verify", "max_age_s=5", cwd=tmp_path)
    assert done.code == 2
    assert "lower max_age_s or partner_accel" in done.err
    assert done.err.startswith("error: ")
    assert done.err.count("\n") == 1
    assert done.out == ""
    assert not (tmp_path / "runs").exists()


@pytest.fixture
def stored_tables(tmp_path):
    report = ThreeTableReport(
        table_1=(AssumptionRow("A1", "bounded gradient", 1, 200),),
        table_2=(ConditionRow("pred", "Learn", None, 20, 2, 1),),
        table_3=(GapRow("pred/Learn", 0.25, 0.01, 0.125),),
    )
    return emit_three_tables(out_dir=tmp_path / "tables", report=report)[0]


def test_tables_refuses_a_file_that_was_changed(tmp_path, stored_tables):
    text = stored_tables.read_text(encoding="utf-8")
    stored_tables.write_text(text.replace('"violations": 2', '"violations": 0'), encoding="utf-8")
    done = cadenza("safety", "tables", stored_tables, "--json", cwd=tmp_path)
    assert done.code == 10
    assert "content_hash mismatch" in done.json["error"]["message"]
    assert done.err.count("\n") == 1


def test_tables_are_printed_for_people(tmp_path, stored_tables):
    done = cadenza("safety", "tables", stored_tables, cwd=tmp_path)
    assert done.code == 0
    for cell in ("bounded gradient", "Learn", "pred/Learn"):
        assert cell in done.out
