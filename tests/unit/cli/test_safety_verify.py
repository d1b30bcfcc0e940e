"""How `safety verify` reads its words, and prints a result that cannot be stored."""

import dataclasses
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cadenza.cli.main import app
from cadenza.cli.output import ExitCode
from cadenza.core.errors import StorageError
from cadenza.safety.verifier.config import VerifierConfig
from cadenza.safety.verifier.report import VerificationReport
from cadenza.safety.verifier.run import verify


def command(*words):
    return CliRunner().invoke(app, ["safety", "verify", *words])


class ReadError(Exception):
    """The words were read, as these arguments say."""


@pytest.fixture
def read(monkeypatch):
    """Runs the command up to where it loads its configuration."""

    def load(path, values, settings):
        raise ReadError(path, values, settings)

    monkeypatch.setattr("cadenza.safety.verifier.config.load_verifier_config", load)
    return command


def test_first_word_without_equals_sign_is_the_file(read):
    assert read("a.yaml", "steps=5").exception.args == (Path("a.yaml"), {}, ["steps=5"])
    assert read("steps=5", "--seed", "4").exception.args == (None, {"seed": 4}, ["steps=5"])
    assert read("~steps").exception.args == (None, {}, ["~steps"])
    assert read().exception.args == (None, {}, [])


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("more", "expected key=value, got 'more'"),
        ("dts=[1", "dts=[1: line 1, column 1: expected YAML, got a bracket without"),
    ],
)
def test_word_that_is_no_pair_or_no_yaml_is_refused(word, told):
    ended = command("steps=5", word)
    assert ended.exit_code == ExitCode.USAGE
    assert told in ended.stderr


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
        return command("--out", str(tmp_path), "--quiet")

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
