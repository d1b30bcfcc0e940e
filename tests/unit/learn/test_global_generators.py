import random

import numpy as np
import pytest
import torch

from cadenza.core.errors import CheckpointError
from cadenza.core.payloads import deserialise, serialise
from cadenza.learn.callbacks.checkpointing import (
    global_generator_states,
    set_global_generator_states,
)


@pytest.fixture(autouse=True)
def _leave_generators_alone():
    states = global_generator_states()
    yield
    set_global_generator_states(states)


def draws():
    """Return draws of all three generators; gauss() and normal keep a spare one inside."""
    python = [random.random(), random.gauss(0, 1)]  # noqa: S311 -- the global one is the subject
    legacy = [np.random.rand(), np.random.normal()]  # noqa: NPY002 -- the global one is the subject
    return [*python, *legacy, torch.rand(()).item(), torch.randn(()).item()]


def test_generators_go_on_where_they_were_after_a_round_trip_through_bytes():
    draws()  # leaves a spare normal draw in two of them
    states = deserialise(serialise(global_generator_states()), max_bytes=2**20)
    expected = [draws(), draws()]
    draws()
    set_global_generator_states(states)
    assert [draws(), draws()] == expected


@pytest.mark.parametrize(
    "change",
    [
        lambda states: states.pop("python"),
        lambda states: states["numpy"].pop("words"),
        lambda states: states.update(torch=torch.zeros(3, dtype=torch.uint8)),
        lambda states: states["python"].update(words=torch.zeros(2, dtype=torch.int64)),
        lambda states: states.update(torch="text"),
    ],
)
def test_malformed_states_are_one_kind_of_error(change):
    states = global_generator_states()
    change(states)
    with pytest.raises(CheckpointError, match="expected those of Python, numpy and torch"):
        set_global_generator_states(states)
