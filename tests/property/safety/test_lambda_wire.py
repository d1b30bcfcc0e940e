"""Slack per pair survives its JSON form, whatever the ids and the order they are stored in."""

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from cadenza.safety.contracts import (
    canonical_pair_key,
    lambda_from_jsonable,
    lambda_to_jsonable,
    make_ego_pair_keys,
    make_lambda_dict,
    make_pair_keys,
)
from tests.campaigns import size

uid_lists = st.lists(st.text(max_size=4), unique=True, max_size=6)
slacks = st.floats(allow_nan=False, allow_infinity=False)


@settings(max_examples=size(20, 40))
@given(uids=uid_lists, data=st.data())
def test_wire_form_round_trips_and_depends_on_the_content_only(uids, data):
    values = {key: data.draw(slacks) for key in make_pair_keys(uids)}
    text = json.dumps(lambda_to_jsonable(values))
    assert lambda_from_jsonable(json.loads(text)) == values
    swapped = {(b, a): value for (a, b), value in reversed(values.items())}
    assert json.dumps(lambda_to_jsonable(swapped)) == text


@given(uids=uid_lists)
def test_pair_keys_are_canonical_and_cover_every_pair_once(uids):
    keys = make_pair_keys(uids)
    assert len(set(keys)) == len(keys) == len(uids) * (len(uids) - 1) // 2
    for a, b in keys:
        assert (a, b) == canonical_pair_key(b, a)
        assert a < b
    assert set(make_lambda_dict(uids)) == set(keys)
    for ego in uids:
        assert set(make_ego_pair_keys(ego, uids)) == {key for key in keys if ego in key}
