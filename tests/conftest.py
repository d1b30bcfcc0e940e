"""Hypothesis profiles: `make test` draws the same examples every time, `make explore` new ones.

And the order of the tests: the long ones first.
"""

import gc
import multiprocessing
import os
import pkgutil
import shutil
import signal
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

import cadenza
from cadenza.core.errors import MissingExtraError
from cadenza.core.extras import load_extra
from tests.campaigns import size

PROFILE = os.environ.get("CADENZA_HYPOTHESIS", "fixed")
# How long an example takes, or to draw it, says more about the machine than about the code.
UNTIMED = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile(
    "fixed", derandomize=True, print_blob=True, max_examples=size(50, 100), **UNTIMED
)
settings.register_profile("explore", print_blob=True, **UNTIMED)
settings.load_profile(PROFILE)

#: What processes of producers and of jobs begin with: each would import it anew.
FORK_SERVER = [
    "torch._dynamo",  # which the first optimiser imports
    "scipy.sparse.linalg",
    "scipy.stats",
    "cadenza.benchmark.training_seeds",
    "cadenza.benchmark.zoo.jobs",
    "cadenza.stream.producer",
]

#: Where files are durable at once, and the room that the folders of tests must have there, bytes.
MEMORY, ROOM = Path("/dev/shm"), 4 << 30  # noqa: S108 - the name of the file system
# Processes die in these tests, the machine does not: nothing here depends on a disk that is slow.
if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free >= ROOM:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))

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
    """Import the package whole in a worker, and let garbage collections pass over all there is.

    Hypothesis also draws numbers and words that stand in the modules imported so far; with all of
    them imported, the examples do not depend on the tests before. With thousands of tests and torch
    in memory, one collection takes 0.7 s otherwise; what tests leave is collected seldom.
    """
    if "PYTEST_XDIST_WORKER" in os.environ:
        for module in pkgutil.walk_packages(cadenza.__path__, "cadenza."):
            if not module.name.endswith("__main__"):
                with suppress(MissingExtraError):
                    load_extra(module.name)
        multiprocessing.get_context("forkserver").set_forkserver_preload(FORK_SERVER)
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 100)
