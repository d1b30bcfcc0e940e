"""The result of `safety verify` is printed although its files cannot be stored."""

import dataclasses

import pytest

from cadenza.cli.safety import _publish
from cadenza.core.errors import StorageError
from cadenza.safety.verifier.config import VerifierConfig
from cadenza.safety.verifier.run import verify


@pytest.fixture(scope="module")
def report():
    return verify(
        VerifierConfig(
            steps=200, dims=(2,), plants=("zoh",), dts=(0.05,), partners=(1,), stationary=False
        )
    )


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "taken"
    path.write_text("a file", encoding="utf-8")
    return path


def test_text_comes_before_the_refusal(report, file, capsys):
    with pytest.raises(StorageError, match="expected to write"):
        _publish(report, file, 1.0, as_json=False)
    assert "The claim holds (1.0 s)." in capsys.readouterr().out


def test_failed_claim_is_printed_last(report, tmp_path, capsys):
    (result,) = [r for r in report.results if r.delay == "none"]
    counts = dataclasses.replace(result.counts, malformed_steps=3)
    broken = dataclasses.replace(report, results=[dataclasses.replace(result, counts=counts)])
    _publish(broken, tmp_path, 1.0, as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert "The claim does NOT hold (1.0 s)." in lines
    assert any("FAILED: the filter returned no finite action in 3 of" in line for line in lines)
