import json
from enum import Enum
from pathlib import Path

import numpy as np
import pytest
import torch

from cadenza.core.json_values import json_line, strict_event


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
