"""No chunk is torn beside writers at full speed; without validation the same search finds some."""

import pytest

from cadenza.stream import slot_reader
from cadenza.stream.draw_options import DrawOptions
from cadenza.stream.slots import SlotStore
from cadenza.stream.windows import WindowTable
from tests.campaigns import nightly, size
from tests.integration.stream.torn_reads import search


@pytest.mark.parametrize("writers", [pytest.param(1, marks=nightly), 2])
def test_no_chunk_is_torn(writers: int) -> None:
    chunks = size(10_000, 1_000_000)
    found = search(chunks, writers, least_redraws=1, least_episodes=1_001)
    assert found.faults == 0
    assert found.chunks >= chunks
    assert found.redraws > 0  # slots did change under the reader
    assert found.episodes > 1_000


@pytest.mark.parametrize(
    "options",
    [
        {"weighting": "window", "short": "pad"},
        {"weighting": "step"},
        {"stratified": True},
        {"sampling_mode": "segment"},
        {"sampling_mode": "segment", "short": "pad"},
    ],
)
def test_no_chunk_is_torn_whatever_is_drawn(options: dict[str, str]) -> None:
    how = DrawOptions(**options)  # pyright: ignore[reportArgumentType]
    found = search(size(3_000, 100_000), 1, options=how, least_redraws=1)
    assert found.faults == 0
    assert found.redraws > 0


@pytest.mark.parametrize("options", [pytest.param({}, marks=nightly), {"weighting": "step"}])
def test_no_chunk_of_threads_that_share_a_reader_is_torn(options: dict[str, str]) -> None:
    how = DrawOptions(**options)  # pyright: ignore[reportArgumentType]
    found = search(size(8_000, 300_000), 1, threads=3, options=how, least_redraws=1)
    assert found.faults == 0
    assert found.redraws > 0


def test_search_without_validation_finds_torn_chunks() -> None:
    found = search(5_000_000, 1, validate=False, until="torn")
    assert found.torn > 0
    assert found.foreign >= found.torn


def test_search_finds_threads_that_share_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    tables: dict[tuple[int, DrawOptions], WindowTable] = {}

    def one_for_all(store: SlotStore, c: int, options: DrawOptions) -> WindowTable:
        return tables.setdefault((c, options), WindowTable(store, c, options))

    monkeypatch.setattr(slot_reader, "WindowTable", one_for_all)
    assert search(2_000_000, 1, threads=3, until="faults").faults > 0
