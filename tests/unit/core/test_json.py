"""JSON: lines of a log, strict parsing, and sealed documents."""

import json
from enum import Enum
from pathlib import Path

import numpy as np
import pytest
import torch

from cadenza.core import strict_json
from cadenza.core.errors import IntegrityError
from cadenza.core.strict_json import (
    json_line,
    parse_json_object,
    read_sealed_json,
    strict_event,
    write_sealed_json,
)


class Colour(Enum):
    RED = 1


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        (True, True),
        (3, 3),
        ("x", "x"),
        (np.int64(3), 3),
        (np.float32(0.5), 0.5),
        (np.float64(0.1), 0.1),
        (np.bool_(True), True),
        (np.array([[1, 2]]), [[1, 2]]),
        (torch.tensor(2.5, requires_grad=True), 2.5),
        (torch.tensor([1.0, 2.0], dtype=torch.bfloat16), [1.0, 2.0]),
        ((1, [2, {"a": (3,)}]), [1, [2, {"a": [3]}]]),
        ({1: "one"}, {"1": "one"}),
        (Path("a/b"), "a/b"),
        (Colour.RED, "Colour.RED"),
        ({2}, "{2}"),
        (1 + 2j, "(1+2j)"),
    ],
)
def test_strict_event_converts_the_value(value, expected):
    strict = strict_event({"v": value})
    assert strict == {"v": expected}
    assert type(strict["v"]) is type(expected)
    assert json.loads(json_line(strict)) == {"v": expected}


def test_strict_event_sets_numbers_that_are_not_finite_to_null_and_names_them():
    event = {
        "loss": float("nan"),
        "good": 1.0,
        "grad": np.array([1.0, np.inf]),
        "parts": {"a": [torch.tensor(-float("inf"))]},
        "single": np.float32("nan"),
    }
    assert strict_event(event) == {
        "loss": None,
        "good": 1.0,
        "grad": [1.0, None],
        "parts": {"a": [None]},
        "single": None,
        "non_finite": ["loss", "grad[1]", "parts.a[0]", "single"],
    }


def test_strict_event_of_a_list_that_holds_itself_ends():
    endless: list = []
    endless.append(endless)
    assert json_line(strict_event({"v": endless})).count(b"[") == 16


def test_json_line_is_sorted_ascii_with_one_newline():
    assert json_line({"b": "é\n\ud800", "a": 1}) == b'{"a": 1, "b": "\\u00e9\\n\\ud800"}\n'


def test_json_line_refuses_what_is_not_strict():
    with pytest.raises(ValueError, match="not JSON compliant"):
        json_line({"a": float("nan")})


def test_object_is_returned():
    assert parse_json_object(b'{"a": [1, null, "\xc3\xa4"]}', source="x") == {"a": [1, None, "ä"]}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'{"a": 1} {}', "expected strict JSON"),
        (b'{"a": {"b": 1, "b": 2}}', "a key is repeated among"),
        (b'{"a": -Infinity}', "the number -Infinity is not JSON"),
        (b'{"a": "\xff"}', "expected strict JSON"),
        (b"null", "expected a JSON object, got NoneType"),
        (b"", "expected strict JSON"),
    ],
)
def test_anything_looser_is_refused(data, message):
    with pytest.raises(IntegrityError, match=f"^file: .*{message}"):
        parse_json_object(data, source="file")


def test_document_beyond_every_size_we_write_is_refused_unparsed(monkeypatch):
    monkeypatch.setattr(strict_json, "MAX_JSON_BYTES", 5)
    with pytest.raises(IntegrityError, match="expected at most 5 bytes of JSON, got 6"):
        parse_json_object(b'{"":1}', source="file")


def test_document_comes_back_and_equal_facts_give_equal_bytes(tmp_path):
    facts = {"b": [1, 2.5], "a": {"x": None}}
    write_sealed_json(tmp_path / "one.json", facts, kind="thing", schema_version=3)
    write_sealed_json(
        tmp_path / "two.json", dict(reversed(facts.items())), kind="thing", schema_version=3
    )
    assert read_sealed_json(tmp_path / "one.json", kind="thing", schema_version=3) == facts
    assert (tmp_path / "one.json").read_bytes() == (tmp_path / "two.json").read_bytes()


def test_changed_value_is_refused(tmp_path):
    path = tmp_path / "one.json"
    write_sealed_json(path, {"rate": 0.25}, kind="thing")
    path.write_text(path.read_text().replace("0.25", "0.75"))
    with pytest.raises(IntegrityError, match="expected the content that its seal covers"):
        read_sealed_json(path, kind="thing")


@pytest.mark.parametrize(("kind", "version"), [("other", 1), ("thing", 2)])
def test_other_kind_or_version_is_refused(tmp_path, kind, version):
    write_sealed_json(tmp_path / "one.json", {}, kind="thing")
    with pytest.raises(IntegrityError, match=f"expected a document of kind '{kind}'"):
        read_sealed_json(tmp_path / "one.json", kind=kind, schema_version=version)
