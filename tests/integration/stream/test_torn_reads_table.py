"""The table of the search for torn chunks: its sums, its progress, and when it fails."""

import pytest

from tests.integration.stream import torn_reads_table
from tests.integration.stream.torn_reads import Found


def found(chunks: int, **more: int) -> Found:
    counts = {"torn": 0, "foreign": 0, "redraws": 4, "episodes": 5} | more
    return Found(chunks=chunks, seconds=0.5, **counts)


@pytest.mark.parametrize(
    ("more", "status"),
    [({}, 0), ({"torn": 1}, 1), ({"foreign": 1}, 1), ({"broken": 1}, 1), ({"redraws": 0}, 1)],
)
def test_status_tells_of_faults_and_of_searches_that_prove_nothing(
    monkeypatch: pytest.MonkeyPatch, more: dict[str, int], status: int
) -> None:
    monkeypatch.setattr(torn_reads_table, "search", lambda chunks, writers: found(chunks, **more))
    assert torn_reads_table.main(["--chunks", "600000"]) == status


def test_table_sums_the_pieces_of_each_search(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []

    def search(chunks: int, writers: int) -> Found:
        asked.append((writers, chunks))
        return found(chunks)

    monkeypatch.setattr(torn_reads_table, "search", search)
    assert torn_reads_table.main(["--chunks", "600000"]) == 0
    assert asked == [(w, c) for w in (1, 2) for c in (250_000, 250_000, 100_000)]
    out, err = capsys.readouterr()
    assert out.splitlines()[-2:] == [
        "| 1 | 600,000 | 0 | 0 | 12 | 15 | 400,000 |",
        "| 2 | 600,000 | 0 | 0 | 12 | 15 | 400,000 |",
    ]
    assert "writers: 2; 500,000 of 600,000 chunks, 0 torn, 0 of another episode, 1 s" in err
