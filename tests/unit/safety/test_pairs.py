import json
import warnings

import numpy as np
import pytest

from cadenza.core.errors import InputError
from cadenza.safety.pairs import (
    canonical_pair_key,
    canonical_pair_order,
    lambda_from_jsonable,
    lambda_to_jsonable,
    make_ego_pair_keys,
    make_lambda_dict,
    make_pair_keys,
)


def test_pair_order_sorts_and_refuses_duplicates():
    assert canonical_pair_order(["b", "a", "c"]) == ["a", "b", "c"]
    with pytest.raises(InputError, match="duplicate 'a'"):
        canonical_pair_order(["a", "b", "a"])


def test_pair_key_is_sorted_and_needs_two_agents():
    assert canonical_pair_key("z", "a") == ("a", "z") == canonical_pair_key("a", "z")
    with pytest.raises(InputError, match="distinct UIDs"):
        canonical_pair_key("a", "a")


@pytest.mark.parametrize("n", [0, 1, 2, 3, 4, 5, 6])
def test_pair_keys_are_the_upper_triangle(n):
    uids = [chr(ord("a") + i) for i in range(n)]
    keys = make_pair_keys(reversed(uids))
    assert len(keys) == n * (n - 1) // 2
    assert keys == sorted(set(keys))
    assert len(make_ego_pair_keys("a", uids)) == max(0, n - 1)


def test_pair_keys_run_outer_then_inner():
    assert make_pair_keys(["c", "a", "b"]) == [("a", "b"), ("a", "c"), ("b", "c")]


def test_ego_pair_keys_keep_the_ego_on_either_side():
    assert make_ego_pair_keys("b", ["c", "b", "a"]) == [("a", "b"), ("b", "c")]


def test_lambda_dict_fills_every_pair_with_a_float():
    assert make_lambda_dict(["b", "a"], fill=1) == {("a", "b"): 1.0}
    assert isinstance(make_lambda_dict(["b", "a"], fill=1)["a", "b"], float)


def test_wire_version_3_round_trips_through_json():
    values = {("a", "c"): -0.1, ("a", "b"): 1 / 3}
    payload = json.loads(json.dumps(lambda_to_jsonable(values)))
    assert payload == [
        {"a": "a", "b": "b", "value": 1 / 3},
        {"a": "a", "b": "c", "value": -0.1},
    ]
    assert lambda_from_jsonable(payload) == values


def test_wire_empty_version_3_round_trips():
    assert lambda_to_jsonable({}) == []
    assert lambda_from_jsonable([]) == {}


def test_wire_swapped_keys_are_canonicalised_both_ways():
    assert lambda_to_jsonable({("b", "a"): 2.0}) == [{"a": "a", "b": "b", "value": 2.0}]
    assert lambda_from_jsonable([{"a": "b", "b": "a", "value": 2}]) == {("a", "b"): 2.0}


def test_wire_duplicates_are_refused_both_ways():
    with pytest.raises(InputError, match="duplicate"):
        lambda_to_jsonable({("a", "b"): 1.0, ("b", "a"): 2.0})
    entry = {"a": "a", "b": "b", "value": 1.0}
    with pytest.raises(InputError, match="duplicate"):
        lambda_from_jsonable([entry, entry | {"a": "b", "b": "a"}])


def test_wire_version_2_needs_uids_and_warns_once():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        values = lambda_from_jsonable([1, 2.0, 3.0], uids=["c", "b", "a"])
    assert values == {("a", "b"): 1.0, ("a", "c"): 2.0, ("b", "c"): 3.0}
    assert [w.category for w in caught] == [DeprecationWarning]
    assert caught[0].filename == __file__  # points at the caller
    assert "0.6.0" in str(caught[0].message)
    with pytest.raises(TypeError, match="needs uids"):
        lambda_from_jsonable([1.0])


def test_wire_version_2_without_pairs_is_the_empty_form_and_does_not_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert lambda_from_jsonable([], uids=iter(["a"])) == {}
        assert lambda_from_jsonable([], uids=[]) == {}


@pytest.mark.parametrize("entry", [{"a": "a", "b": "b", "value": 1.0}, "1", None, True, [1.0]])
def test_wire_version_2_entry_that_is_no_number_is_refused(entry):
    with pytest.raises(TypeError, match=r"payload\[1\]: expected a number like"):
        lambda_from_jsonable([1.0, entry], uids=["a", "b", "c"])


def test_wire_version_2_repeated_uids_are_refused():
    with pytest.raises(InputError, match="duplicate 'a'"):
        lambda_from_jsonable([1.0], uids=["a", "a"])


def test_wire_version_2_wrong_count_is_refused():
    with pytest.raises(InputError, match="canonical pair count 3"):
        lambda_from_jsonable([1.0, 2.0], uids=["a", "b", "c"])
    with pytest.raises(InputError, match="canonical pair count 1"):
        lambda_from_jsonable([], uids=["a", "b"])


@pytest.mark.parametrize("payload", [None, {}, (1.0,), np.zeros(1), "[]"])
def test_wire_not_a_list_is_refused(payload):
    with pytest.raises(TypeError, match="expected list"):
        lambda_from_jsonable(payload, uids=["a", "b"])


@pytest.mark.parametrize(
    ("entries", "error", "message"),
    [
        ([{"a": "a", "b": "a", "value": 1.0}], InputError, "distinct UIDs"),
        ([{"a": "a", "b": "b"}], InputError, r"missing \['value'\]"),
        ([{"a": 1, "b": "b", "value": 1.0}], TypeError, "expected agent ids as text"),
        ([{"a": "a", "b": "b", "value": 1.0}, 3.0], TypeError, "expected an object"),
        ([{"a": "a", "b": "b", "value": float("nan")}], InputError, "expected a finite number"),
        (
            [{"a": "a", "b": "b", "value": 10**400}],
            InputError,
            "expected a number, got an integer beyond the range of floats",
        ),
        ([{"a": "a", "b": "b", "value": "1"}], InputError, "expected a number, got '1'"),
        ([{"a": "a", "b": "b", "value": True}], InputError, "expected a number, got True"),
    ],
)
def test_wire_malformed_entry_is_refused(entries, error, message):
    with pytest.raises(error, match=message):
        lambda_from_jsonable(entries)


def test_wire_non_finite_value_is_not_written():
    with pytest.raises(InputError, match="expected a finite number"):
        lambda_to_jsonable({("a", "b"): float("inf")})


def test_wire_numbers_of_other_libraries_are_written_as_floats():
    payload = lambda_to_jsonable({("a", "b"): np.float32(0.5), ("a", "c"): np.int64(2)})
    assert json.dumps([entry["value"] for entry in payload]) == "[0.5, 2.0]"


def test_ego_pair_keys_of_duplicate_uids_are_refused():
    with pytest.raises(InputError, match="duplicate 'p'"):
        make_ego_pair_keys("ego", ["p", "ego", "p"])
