"""Hypothesis profiles: `make test` draws the same examples every time, `make explore` new ones.

And the order of the tests: the long ones first.
"""

import gc
import os
import signal

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.constants_ast import Constants

PROFILE = os.environ.get("CADENZA_HYPOTHESIS", "fixed")
# How long an example takes, or to draw it, says more about the machine than about the code.
UNTIMED = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("fixed", derandomize=True, **UNTIMED)
settings.register_profile("explore", print_blob=True, **UNTIMED)
settings.load_profile(PROFILE)
if PROFILE == "fixed":
    # Hypothesis also draws numbers and words that stand in the modules imported so far: which ones
    # depends on the tests before. Where the name is gone, this fails and has to be looked at.
    pytest.MonkeyPatch().setattr(
        "hypothesis.internal.conjecture.providers._get_local_constants", Constants
    )

# A shell starts what runs in the background with SIGINT ignored, nohup with SIGHUP; tests send
# both.
for number, handler in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)


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
