"""The result of `safety verify` is printed although its files cannot be stored."""

import dataclasses

import pytest
from typer.testing import CliRunner

from cadenza.cli.exit_codes import ExitCode
from cadenza.cli.main import app
from cadenza.core.errors import StorageError
from cadenza.safety.verifier.config import VerifierConfig
from cadenza.safety.verifier.report import VerificationReport
from cadenza.safety.verifier.run import verify


@pytest.fixture(scope="module")
def report():
    return verify(
        VerifierConfig(
            steps=200, dims=(2,), plants=("zoh",), dts=(0.05,), partners=(1,), stationary=False
        )
    )


@pytest.fixture
def publish(tmp_path, monkeypatch):
    """Runs the command on a verification that ended with the given report."""

    def run(report):
        monkeypatch.setattr("cadenza.safety.verifier.run.verify", lambda *_: report)
        return CliRunner().invoke(app, ["safety", "verify", "--out", str(tmp_path), "--quiet"])

    return run


def test_text_comes_before_the_refusal(report, publish, monkeypatch):
    def full(*_):
        raise StorageError("expected to write the report")

    monkeypatch.setattr(VerificationReport, "save", full)
    ended = publish(report)
    assert "The claim holds (" in ended.stdout
    assert "expected to write the report" in ended.stderr
    assert ended.exit_code == ExitCode.STORAGE


def test_failed_claim_is_printed_last(report, publish):
    (result,) = [r for r in report.results if r.delay == "none"]
    counts = dataclasses.replace(result.counts, malformed_steps=3)
    broken = dataclasses.replace(report, results=[dataclasses.replace(result, counts=counts)])
    ended = publish(broken)
    *_, failure, claim, _, _ = ended.stdout.splitlines()
    assert failure.startswith("FAILED: the filter returned no finite action in 3 of")
    assert claim.startswith("The claim does NOT hold (")
    assert ended.exit_code == ExitCode.CHECK_FAILED
