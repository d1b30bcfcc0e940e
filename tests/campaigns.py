"""Sizes of campaigns: small ones in `make test`, full ones in `make nightly`, by the same code."""

import os
from typing import Final, TypeVar

import pytest

Size = TypeVar("Size")

#: Whether `make nightly` runs the tests.
NIGHTLY: Final = os.environ.get("CADENZA_TESTS") == "nightly"
#: Marks what has no small version.
nightly = pytest.mark.skipif(not NIGHTLY, reason="part of `make nightly`")


def size(small: Size, full: Size) -> Size:
    """Return the size of a campaign: ``small`` in `make test`, ``full`` in `make nightly`."""
    return full if NIGHTLY else small
