"""One grammar for every command: KEY=VALUE as YAML writes it."""

import pytest

from cadenza.core.errors import ConfigurationError
from cadenza.core.key_values import apply_settings

FILE = {"seed": 0, "env": {"task": "crossing", "options": {"robots": 2, "wide": True}}, "dts": [1]}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["seed=7", "seed=8"], {"seed": 8}),  # the last one counts
        (["+lr=1e-3", "++b=[2e4, x]"], {"lr": 0.001, "b": [20_000.0, "x"]}),
        (["name='7'", 'text="a, b"', "none=null", "yes=true"],
         {"name": "7", "text": "a, b", "none": None, "yes": True}),
        (["target=0.0,0.0", "uri=local://a/b.pt", "eq=a=b"],
         {"target": "0.0,0.0", "uri": "local://a/b.pt", "eq": "a=b"}),
        (["dts=[]"], {"dts": []}),
        (["env.options.robots=3"],
         {"env": {"task": "crossing", "options": {"robots": 3, "wide": True}}}),
        (["env.options={robots: 4, new: {x: 1}}"],
         {"env": {"task": "crossing", "options": {"robots": 4, "wide": True, "new": {"x": 1}}}}),
        (["~env.options.wide", "env.options.robots=null"],
         {"env": {"task": "crossing", "options": {"robots": None}}}),
    ],
)  # fmt: skip
def test_settings_change_what_they_name_and_nothing_else(words, expected):
    before = repr(FILE)
    assert apply_settings(FILE, words) == {**FILE, **expected}
    assert repr(FILE) == before


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0.5", 0.5),
        ("1e-3", 0.001),
        ("-2.5E+3", -2500.0),
        ("7", 7),
        ("true", True),
        ("null", None),
        ("", None),
        ("'1e-3'", "1e-3"),
        ("1e", "1e"),
    ],
)
def test_values_are_read_as_in_a_file(text, value):
    found = apply_settings({}, [f"key={text}"])["key"]
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("seed", "expected key=value, got 'seed'"),
        ("=1", "expected key=value, got '=1'"),
        ("env..task=1", "expected key=value, got 'env..task=1'"),
        ("~seed=1", "expected key=value, got '~seed=1'; ~key removes a key"),
        ("~env.tsk", r"expected a key that is there, got 'env.tsk' \(did you mean 'env.task'\?\)"),
        ("dts=[1, 2", "dts=.1, 2: line 1, column 1: expected YAML, got a bracket without"),
        ("name=@x", "got a value that begins with '@'; put it in quotes"),
    ],
)
def test_a_word_that_is_no_setting_is_refused_in_one_sentence(word, told):
    with pytest.raises(ConfigurationError, match=told) as refused:
        apply_settings(FILE, [word])
    assert "\n" not in str(refused.value)
