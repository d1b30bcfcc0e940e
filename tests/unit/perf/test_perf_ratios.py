"""Benchmarks are judged by their ratios to a peer of the same run, and by nothing else."""

import json
import sys

import pytest

from perf import __main__ as command
from perf.timing import Row, table


@pytest.mark.parametrize(
    ("row", "ratio", "kept"),
    [
        (Row("time", 2.0, 5.0, aim=2.5), 2.5, True),
        (Row("time", 2.0, 4.9, aim=2.5), 2.45, False),
        (Row("rate", 50.0, 20.0, better="higher", aim=3.0), 2.5, False),
        (Row("shown only", 9e9, 1.0), 1 / 9e9, None),
        (Row("no peer", 9e9, aim=2.0), None, None),
    ],
)
def test_a_row_keeps_its_aim_by_the_ratio_to_its_peer(row, ratio, kept):
    assert row.ratio == (None if ratio is None else pytest.approx(ratio))
    assert row.kept is kept


def test_table_names_peers_by_letters():
    rows = [Row("a", 1.0, 2.0, peer_name="P"), Row("b", 1.0), Row("c", 4.0, 2.0, peer_name="Q")]
    lines = [line.split() for line in table(rows).splitlines()[2:]]
    assert lines == [
        ["a", "1", "2", "a", "us", "2.00x"],
        ["b", "1", "us"],
        ["c", "4", "2", "b", "us", "0.50x"],
    ]


@pytest.mark.parametrize(("aim", "ended"), [(2.0, None), (3.0, "slow"), (None, None)])
def test_only_a_ratio_below_its_aim_ends_with_an_error(aim, ended, tmp_path, monkeypatch):
    """Whatever the machine: the figures are those of a very slow one."""
    rows = [Row("slow", 2e9, 5e9, aim=aim, peer_name="P"), Row("alone", 1e12)]
    monkeypatch.setattr("perf.bench_comm.rows", lambda: rows)
    file = tmp_path / "measured.json"
    monkeypatch.setattr(sys, "argv", ["perf", "--only", "comm", "--json", str(file)])
    if ended is None:
        command.main()
    else:
        with pytest.raises(SystemExit, match=ended) as raised:
            command.main()
        assert "alone" not in str(raised.value)
    written = json.loads(file.read_text())["tables"][0]["rows"]
    assert [(row["aim"], row["kept"]) for row in written] == [
        (aim, None if aim is None else ended is None),
        (None, None),
    ]
