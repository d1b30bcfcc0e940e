"""How `safety verify` reads its words."""

from pathlib import Path

import pytest

from cadenza.cli.safety import _split_words
from cadenza.core.errors import ConfigurationError


def test_first_word_without_equals_sign_is_the_file():
    assert _split_words(["a.yaml", "steps=5"]) == (Path("a.yaml"), {"steps": 5})
    assert _split_words(["steps=5"]) == (None, {"steps": 5})
    assert _split_words([]) == (None, {})


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
def test_values_are_read_as_in_a_file(text, value):
    (read,) = _split_words([f"key={text}"])[1].values()
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize("word", ["more", "=5"])
def test_word_that_is_no_pair_is_refused(word):
    with pytest.raises(ConfigurationError, match="expected key=value after the configuration"):
        _split_words(["steps=5", word])


def test_value_that_is_no_yaml_is_refused():
    with pytest.raises(ConfigurationError, match=r"dts: expected a value as in YAML, got '\[1'"):
        _split_words(["dts=[1"])
