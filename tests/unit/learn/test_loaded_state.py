"""What is asked of a loaded state."""

import pytest

from cadenza.core.errors import CheckpointError, CheckpointKeyError
from cadenza.learn.loaded_state import complete_state, require_parts, require_version


def test_missing_parts_are_named():
    message = r"Box: expected a state with a, b, c, got \['b'\] without \['a', 'c'\]; load"
    with pytest.raises(CheckpointKeyError, match=message):
        require_parts("Box", {"b": 2}, ("a", "b", "c"))


@pytest.mark.parametrize("state", [{}, {"version": 2}, {"version": "3"}])
def test_state_of_another_version_is_refused(state):
    with pytest.raises(CheckpointError, match="Box: expected a state of version 3, got"):
        require_version("Box", state, 3)


@pytest.mark.parametrize("error", [KeyError("a"), RuntimeError("b"), TypeError("c"), ValueError()])
def test_what_a_foreign_state_raises_becomes_one_error(error):
    message = "Box: expected a complete state of these sizes, got one with"
    with pytest.raises(CheckpointError, match=message), complete_state("Box", "these sizes"):
        raise error


def test_error_that_explains_itself_is_kept():
    with pytest.raises(CheckpointError, match=r"^inner$"), complete_state("Box", "these sizes"):
        raise CheckpointError("inner")
