import json

import numpy as np
import pytest

from cadenza.core.errors import CheckpointError
from cadenza.learn.loaded_state import generator_state, set_generator_state


def test_generator_continues_after_a_round_trip_through_json():
    rng = np.random.default_rng(3)
    rng.integers(0, 7, size=5, dtype=np.uint32)  # leaves half a 64-bit word behind
    state = json.loads(json.dumps(generator_state(rng)))
    other = np.random.default_rng(99)
    set_generator_state(other, state)
    assert other.permutation(20).tolist() == rng.permutation(20).tolist()
    assert other.integers(0, 9, 4, np.uint32).tolist() == rng.integers(0, 9, 4, np.uint32).tolist()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bit_generator": "MT19937"}, "expected PCG64, got 'MT19937'"),
        ({"inc": None}, "expected the fields of PCG64"),
        ({"state": "many"}, "expected the fields of PCG64"),
    ],
)
def test_malformed_generator_state_raises(change, message):
    state = generator_state(np.random.default_rng(3)) | change
    state = {name: value for name, value in state.items() if value is not None}
    with pytest.raises(CheckpointError, match=message):
        set_generator_state(np.random.default_rng(0), state)
