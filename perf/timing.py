"""Time small functions, and print them as ratios to a public peer.

Protocol:  warm up, then time each call on its own with `time.perf_counter_ns`; report percentiles,
           not the mean: a shared machine adds outliers that say nothing about the code.
Reading:   a figure is only worth comparing with its peer from the same process and the same minute.
Units:     microseconds unless a `Row` says otherwise.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from string import ascii_lowercase
from typing import Any, Literal

import numpy as np

#: Calls before timing starts: fills caches and lets lazy imports happen.
WARMUP_CALLS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Distribution of one function's duration, in microseconds."""

    p50: float
    p90: float
    p99: float
    minimum: float
    repeats: int


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a result table.

    Attributes:
        name: What was measured.
        ours: Our figure, in ``unit``.
        peer: The peer's figure in the same unit, or None where no peer exists.
        unit: Unit of both figures, e.g. ``"us"`` or ``"steps/s"``.
        aim: Least ratio to the peer that we promise; None for a row that is shown, not judged.
        better: Which direction is better; decides how the ratio is read.
        peer_name: Who the peer is.
    """

    name: str
    ours: float
    peer: float | None = None
    unit: str = "us"
    aim: float | None = None
    better: Literal["lower", "higher"] = "lower"
    peer_name: str = ""

    @property
    def ratio(self) -> float | None:
        """How many times better than the peer we are (> 1 means better)."""
        if self.peer is None or self.ours == 0.0 or self.peer == 0.0:
            return None
        return self.peer / self.ours if self.better == "lower" else self.ours / self.peer

    @property
    def kept(self) -> bool | None:
        """Whether the ratio reaches its aim; None where either is missing."""
        if self.aim is None or self.ratio is None:
            return None
        return self.ratio >= self.aim


def measure(fn: Callable[[], object], repeats: int, *, warmup: int = WARMUP_CALLS) -> Timing:
    """Return the distribution of ``fn``'s duration over ``repeats`` timed calls."""
    for _ in range(min(warmup, repeats)):
        fn()
    clock = time.perf_counter_ns
    durations = np.empty(repeats, dtype=np.float64)
    for index in range(repeats):
        start = clock()
        fn()
        durations[index] = clock() - start
    p50, p90, p99 = (float(q) for q in np.percentile(durations / 1e3, (50, 90, 99)))
    return Timing(p50=p50, p90=p90, p99=p99, minimum=float(durations.min()) / 1e3, repeats=repeats)


def measure_us(fn: Callable[[], object], repeats: int) -> float:
    """Return the median duration of one call of ``fn`` in microseconds."""
    return measure(fn, repeats).p50


def measure_rate(fn: Callable[[], object], *, work_per_call: float, seconds: float = 1.0) -> float:
    """Return units of work per second, sustained over about ``seconds`` of calls.

    Unlike `measure_us` this counts everything that happens now and then (resets, collections).
    """
    for _ in range(3):
        fn()
    calls, start = 0, time.perf_counter()
    elapsed = 0.0
    while elapsed < seconds:
        fn()
        calls += 1
        elapsed = time.perf_counter() - start
    return calls * work_per_call / elapsed


def table(rows: Sequence[Row]) -> str:
    """Return ``rows`` as an aligned text table; letters stand for the peers."""
    marks = peer_marks([row.peer_name for row in rows])
    header = ("measurement", "ours", "peer", "", "unit", "ratio", "aim", "")
    lines = [header, *(_cells(row, marks) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    text = [
        "  ".join(
            cell.ljust(width) if column in (0, 3, 4, 7) else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]
    text.insert(1, "-" * max(len(line) for line in text))
    return "\n".join(text)


def peer_marks(names: Sequence[str]) -> dict[str, str]:
    """Return a letter for each peer's name, in order of appearance."""
    peers = dict.fromkeys(name for name in names if name)
    return dict(zip(peers, ascii_lowercase, strict=False))


def print_table(title: str, rows: Sequence[Row]) -> None:
    """Print ``rows`` under ``title``, with the peers' names."""
    print(f"\n{title}")
    print(table(rows))
    for name, mark in peer_marks([row.peer_name for row in rows]).items():
        print(f"{mark}: {name}")


def rows_document(title: str, rows: Sequence[Row]) -> dict[str, Any]:
    """Return ``rows`` as JSON values."""
    return {
        "title": title,
        "rows": [asdict(row) | {"ratio": row.ratio, "kept": row.kept} for row in rows],
    }


def _cells(row: Row, marks: Mapping[str, str]) -> tuple[str, ...]:
    return (
        row.name,
        _number(row.ours),
        "" if row.peer is None else _number(row.peer),
        marks.get(row.peer_name, ""),
        row.unit,
        "" if row.ratio is None else f"{row.ratio:.2f}x",
        "" if row.aim is None else f"{row.aim:.3g}x",
        {True: "kept", False: "MISSED", None: ""}[row.kept],
    )


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
