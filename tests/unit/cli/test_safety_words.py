"""How `safety verify` reads its words."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from cadenza.cli.exit_codes import ExitCode
from cadenza.cli.main import app


class ReadError(Exception):
    """The words were read, as these arguments say."""


@pytest.fixture
def verify(monkeypatch):
    """Runs the command up to where it loads its configuration."""

    def load(path, values):
        raise ReadError(path, values)

    monkeypatch.setattr("cadenza.safety.verifier.config.load_verifier_config", load)
    return lambda *words: CliRunner().invoke(app, ["safety", "verify", *words])


def test_first_word_without_equals_sign_is_the_file(verify):
    assert verify("a.yaml", "steps=5").exception.args == (Path("a.yaml"), {"steps": 5})
    assert verify("steps=5").exception.args == (None, {"steps": 5})
    assert verify().exception.args == (None, {})


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0.5", 0.5),
        ("1e-3", 1e-3),
        ("7", 7),
        ("true", True),
        ("null", None),
        ("wae", "wae"),
        ("[zoh, semi_implicit]", ["zoh", "semi_implicit"]),
        ("", None),
    ],
)
def test_values_are_read_as_in_a_file(verify, text, value):
    (read,) = verify(f"key={text}").exception.args[1].values()
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("more", "expected key=value after the configuration"),
        ("=5", "expected key=value after the configuration"),
        ("dts=[1", "dts: expected a value as in YAML, got '[1'"),
    ],
)
def test_word_that_is_no_pair_or_no_yaml_is_refused(verify, word, told):
    ended = verify("steps=5", word)
    assert ended.exit_code == ExitCode.USAGE
    assert told in ended.stderr
