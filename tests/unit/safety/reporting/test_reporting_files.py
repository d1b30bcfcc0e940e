import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cadenza.core.errors import InputError
from cadenza.safety.errors import ReportError
from cadenza.safety.reporting import (
    SCHEMA_VERSION,
    AssumptionRow,
    ConditionRow,
    GapRow,
    ThreeTableReport,
    emit_three_tables,
    parse_three_tables,
    verify_markdown,
)
from tests.unit.safety.reporting.samples import DETAILS, sample_report

REPOSITORY = Path(__file__).parents[4]

# Files as the first versions of the format were written: the text by hand, its hash by hashlib.
VERSION_1 = """{
  "schema_version": 1,
  "table_1": [
    {
      "assumption": "A1",
      "description": "bounded gradient",
      "n_steps": 1000,
      "violations": 4
    }
  ],
  "table_2": [
    {
      "conformal_mode": "Learn",
      "fallback_fires": 2,
      "n_episodes": 20,
      "predictor": "pred",
      "vendor_compliance": null,
      "violations": 3
    }
  ],
  "table_3": [
    {
      "condition": "pred/Learn",
      "lambda_mean": -0.25,
      "lambda_var": 0.0625,
      "oracle_lambda_mean": 0.0
    }
  ]
}"""
VERSION_2 = VERSION_1.replace('"schema_version": 1', '"schema_version": 2').replace(
    '      "n_episodes": 20,\n      "predictor": "pred",\n',
    '      "max_slack": 0.5,\n      "n_episodes": 20,\n      "predictor": "pred",\n'
    '      "slack_l2": 0.125,\n',
)
VERSION_3 = VERSION_2.replace('"schema_version": 2', '"schema_version": 3')


def with_hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).hexdigest()
    return text.replace("{\n", '{\n  "content_hash": "' + digest + '",\n', 1)


def write(folder: Path, text: str) -> Path:
    path = folder / "three_tables.json"
    path.write_text(text, encoding="utf-8")
    return path


def expected(max_slack: float, slack_l2: float) -> ThreeTableReport:
    return ThreeTableReport(
        (AssumptionRow("A1", "bounded gradient", 4, 1000),),
        (ConditionRow("pred", "Learn", None, 20, 3, 2, max_slack, slack_l2),),
        (GapRow("pred/Learn", -0.25, 0.0625, 0.0),),
    )


@pytest.mark.parametrize(
    ("text", "slack"),
    [(VERSION_1, (0.0, 0.0)), (VERSION_2, (0.5, 0.125)), (VERSION_3, (0.5, 0.125))],
)
def test_genuine_file_of_every_version_is_read(tmp_path, text, slack):
    report = parse_three_tables(write(tmp_path, with_hash(text)))
    assert report == expected(*slack)
    assert report.schema_version == SCHEMA_VERSION == 3


def test_canonical_text_and_its_hash_are_the_documented_ones():
    report = expected(0.5, 0.125)
    assert report.to_canonical_json() == VERSION_3
    assert report.content_hash() == hashlib.sha256(VERSION_3.encode()).hexdigest()


@pytest.mark.parametrize("text", [VERSION_1, VERSION_2, VERSION_3])
def test_tampered_file_of_every_version_is_refused(tmp_path, text):
    genuine = with_hash(text)
    for old, new in (('"violations": 3', '"violations": 0'), ("-0.25", "-0.2500001")):
        with pytest.raises(ReportError, match="content_hash mismatch"):
            parse_three_tables(write(tmp_path, genuine.replace(old, new)))


def test_missing_hash_is_refused_unless_asked_for(tmp_path):
    path = write(tmp_path, VERSION_2)
    with pytest.raises(ReportError, match="expected a content_hash, got none"):
        parse_three_tables(path)
    assert parse_three_tables(path, require_hash=False) == expected(0.5, 0.125)


@pytest.mark.parametrize("version", ["4", "true", '"3"', "null"])
def test_unknown_version_is_refused(tmp_path, version):
    text = VERSION_3.replace('"schema_version": 3', f'"schema_version": {version}')
    with pytest.raises(ReportError, match=r"schema_version: expected one of \[1, 2, 3\], got"):
        parse_three_tables(write(tmp_path, with_hash(text)))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"lambda_var": 0.0625', '"lambda_var": NaN', "the number NaN is not JSON"),
        ('"violations": 4', '"violations": 1001', "violations: expected a count >= 0 and <= 1000"),
        ('"predictor": "pred"', '"predictor": "guess"', "predictor: expected one of gt, pred"),
        ('      "violations": 4\n', '      "broken": 4\n', "missing violations"),
        ('"table_3": [', '"table_4": [', "table_3: expected a list of objects, got None"),
        ('"table_2": [', '"table_2": [\n    7,', "table_2: expected a list of objects"),
    ],
)
def test_malformed_file_with_a_valid_hash_is_refused(tmp_path, old, new, message):
    with pytest.raises(ReportError, match=message):
        parse_three_tables(write(tmp_path, canonical_with_hash(VERSION_3.replace(old, new))))


def canonical_with_hash(text: str) -> str:
    """Return ``text`` in canonical form with its hash, so that only its content is at fault."""
    canonical = json.dumps(json.loads(text), sort_keys=True, indent=2, separators=(",", ": "))
    return with_hash(canonical)


def test_repeated_key_is_refused(tmp_path):
    text = with_hash(VERSION_3).replace('"n_steps": 1000', '"n_steps": 1, "n_steps": 1000')
    with pytest.raises(ReportError, match="a key is repeated"):
        parse_three_tables(write(tmp_path, text))


def test_program_that_knows_only_the_tables_reads_a_report_with_details(tmp_path):
    """It recomputes the hash from the fields it knows, so details must not enter it."""
    json_path, _ = emit_three_tables(out_dir=tmp_path, report=sample_report(details=DETAILS))
    document = json.loads(json_path.read_text(encoding="utf-8"))
    known = {key: document[key] for key in ("schema_version", "table_1", "table_2", "table_3")}
    text = json.dumps(known, sort_keys=True, indent=2, separators=(",", ": "))
    assert document["content_hash"] == hashlib.sha256(text.encode()).hexdigest()


def test_tampered_details_are_refused(tmp_path):
    json_path, _ = emit_three_tables(out_dir=tmp_path, report=sample_report(details=DETAILS))
    genuine = json_path.read_text(encoding="utf-8")
    with pytest.raises(ReportError, match="details_hash mismatch"):
        parse_three_tables(write(tmp_path, genuine.replace('"daqp"', '"osqp"')))
    document = json.loads(genuine)
    del document["details_hash"]
    with pytest.raises(ReportError, match="expected a details_hash, got none"):
        parse_three_tables(write(tmp_path, json.dumps(document)))
    document = json.loads(genuine)
    del document["details"]
    with pytest.raises(ReportError, match="expected the details that details_hash belongs to"):
        parse_three_tables(write(tmp_path, json.dumps(document)))


def test_markdown_that_was_changed_is_found(tmp_path):
    json_path, markdown_path = emit_three_tables(out_dir=tmp_path, report=sample_report())
    verify_markdown(markdown_path, json_path)
    text = markdown_path.read_text(encoding="utf-8")
    markdown_path.write_text(text.replace("| 7 |", "| 0 |"), encoding="utf-8")
    with pytest.raises(ReportError, match=r"expected the text of three_tables\.json"):
        verify_markdown(markdown_path, json_path)


def test_report_that_cannot_be_json_is_never_written(tmp_path):
    with pytest.raises(InputError, match="expected a finite number"):
        emit_three_tables(
            out_dir=tmp_path, report=ThreeTableReport((), (), (GapRow("c", 1e999, None, None),))
        )
    assert list(tmp_path.iterdir()) == []


WRITER = """
import sys
from pathlib import Path
from tests.unit.safety.reporting.samples import DETAILS, sample_report
from cadenza.safety.reporting import emit_three_tables
violations = 0
while True:
    violations += 1
    emit_three_tables(
        out_dir=Path(sys.argv[1]), report=sample_report(details=DETAILS, violations=violations)
    )
    print(violations, "are there", flush=True)
"""


def test_kill_while_writing_leaves_a_whole_report(tmp_path):
    for written in range(1, 6):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, cwd=REPOSITORY
        ) as process:
            assert process.stdout is not None
            for _ in range(written):  # killed somewhere in the report after these
                assert process.stdout.readline()
            os.kill(process.pid, signal.SIGKILL)
        report = parse_three_tables(tmp_path / "three_tables.json")
        assert report == sample_report(details=DETAILS, violations=report.table_2[0].violations)
        text = (tmp_path / "three_tables.md").read_text(encoding="utf-8")
        assert text.startswith("<!-- content_hash: ")
        assert text.endswith("\n")
