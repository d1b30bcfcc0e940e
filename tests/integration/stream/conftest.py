"""Every test leaves no producer and no shared memory behind."""

from collections.abc import Generator

import pytest

from tests.stream_engines import nothing_left

_FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Remember which tests failed."""
    report = yield
    if call.when == "call":
        item.stash[_FAILED] = report.failed
    return report


@pytest.fixture(autouse=True)
def _clean(request: pytest.FixtureRequest) -> Generator[None]:
    with nothing_left(lambda: request.node.stash.get(_FAILED, False)):
        yield
