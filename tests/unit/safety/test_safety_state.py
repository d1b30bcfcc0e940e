import json

import pytest

from cadenza.core.errors import InputError
from cadenza.safety.state import SafetyState


def test_state_defaults_are_the_promised_ones():
    state = SafetyState({})
    assert (state.epsilon, state.eta, state.warmup_steps_remaining) == (-0.05, 0.01, 0)


def test_state_round_trips_exactly_through_json():
    state = SafetyState({("a", "b"): 0.1 + 0.2, ("a", "c"): -1e-300}, 1 / 3, 1e-17, 7)
    assert SafetyState.from_dict(json.loads(json.dumps(state.to_dict()))) == state


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epsilon": float("nan")}, "epsilon: expected a finite"),
        ({"eta": -0.1}, "eta: expected a finite number >= 0, got -0.1"),
        ({"eta": float("inf")}, "eta: expected a finite"),
        (
            {"warmup_steps_remaining": -1},
            "steps_remaining: expected a whole number >= 0, got -1",
        ),
    ],
)
def test_state_out_of_range_is_refused(change, message):
    with pytest.raises(InputError, match=message):
        SafetyState(**({"lambda_": {}} | change))


def test_state_of_another_version_or_incomplete_is_refused():
    payload = SafetyState({}).to_dict()
    with pytest.raises(InputError, match="schema version 1, got 2"):
        SafetyState.from_dict(payload | {"schema_version": 2})
    del payload["eta"]
    with pytest.raises(InputError, match=r"missing \['eta'\]"):
        SafetyState.from_dict(payload)
