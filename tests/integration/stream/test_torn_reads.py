"""No chunk is torn beside writers at full speed; without validation the same search finds some."""

import pytest

from tests.integration.stream.torn_reads import search


@pytest.mark.parametrize(
    ("chunks", "writers"),
    [(100_000, 1), (100_000, 2), pytest.param(1_000_000, 2, marks=pytest.mark.slow)],
)
def test_no_chunk_is_torn(chunks: int, writers: int) -> None:
    found = search(chunks, writers)
    assert (found.torn, found.foreign) == (0, 0)
    assert found.chunks >= chunks
    assert found.redraws > 0  # slots did change under the reader
    assert found.episodes > 1_000


def test_search_without_validation_finds_torn_chunks() -> None:
    found = search(5_000_000, 1, validate=False, until_torn=True)
    assert found.torn > 0
    assert found.foreign >= found.torn
