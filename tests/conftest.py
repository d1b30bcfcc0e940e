"""Hypothesis profiles: `make test` draws the same examples every time, `make explore` new ones.

And the order of the tests: the long ones first.
"""

import gc
import os

import pytest
from hypothesis import settings

# No deadline: how long an example takes says more about the machine than about the code.
settings.register_profile("fixed", derandomize=True, deadline=None)
settings.register_profile("explore", print_blob=True, deadline=None)
settings.load_profile(os.environ.get("CADENZA_HYPOTHESIS", "fixed"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put modules with slow tests first, so that no worker begins one when the others are done."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


def pytest_collection_finish() -> None:
    """Let garbage collections of the tests pass over what imports and collection made.

    With thousands of tests and torch in memory, one collection takes 0.7 s otherwise.
    """
    gc.collect()
    gc.freeze()
