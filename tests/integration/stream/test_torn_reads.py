"""No chunk is torn beside writers at full speed; without validation the same search finds some."""

import pytest

from tests.integration.stream.torn_reads import search


@pytest.mark.parametrize("writers", [1, 2])
def test_no_chunk_is_torn(writers: int) -> None:
    found = search(200_000, writers)
    assert (found.torn, found.foreign) == (0, 0)
    assert found.chunks >= 200_000
    assert found.redraws > 0  # slots did change under the reader
    assert found.episodes > 1_000


@pytest.mark.slow
@pytest.mark.parametrize("writers", [1, 2])
def test_no_chunk_of_a_million_is_torn(writers: int) -> None:
    found = search(1_000_000, writers)
    assert (found.torn, found.foreign) == (0, 0)


def test_search_without_validation_finds_torn_chunks() -> None:
    found = search(5_000_000, 1, validate=False, until_torn=True)
    assert found.torn > 0
    assert found.foreign >= found.torn
