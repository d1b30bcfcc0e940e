"""Every test leaves no producer and no shared memory behind."""

from collections.abc import Generator

import pytest

from tests.stream_engines import nothing_left


@pytest.fixture(autouse=True)
def _clean() -> Generator[None]:
    with nothing_left():
        yield
