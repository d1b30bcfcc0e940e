"""Raw data inside the page: CSV as data URIs, nothing to fetch."""

import base64
import csv
import io
from collections.abc import Iterable, Sequence
from typing import Any, Final

from cadenza.evaluation.episodes import EpisodeResult
from cadenza.evaluation.report.analysis import Numbers
from cadenza.evaluation.report.view import ReportView
from cadenza.evaluation.statistics.estimate import Estimate

#: Columns of the episode table, in file order.
EPISODE_COLUMNS: Final = tuple(name for name in EpisodeResult.model_fields if name != "metadata")

#: First characters that spreadsheets take for a formula.
_FORMULA_MARKS: Final = ("=", "+", "-", "@", "\t", "\r")


def episodes_csv(episodes: Iterable[EpisodeResult]) -> str:
    """Return one line per episode; what was not recorded is empty."""
    rows = ([getattr(episode, name) for name in EPISODE_COLUMNS] for episode in episodes)
    return _csv(EPISODE_COLUMNS, rows)


def estimates_csv(view: ReportView, numbers: Numbers) -> str:
    """Return every estimate of the report with its bounds and estimator."""
    header = (
        "row", "condition", "statistic", "value", "low", "high",
        "confidence", "estimator", "n", "n_seeds", "undefined_reason",
    )  # fmt: skip
    rows: list[list[Any]] = []
    for row in (*numbers.partners, *numbers.groups, numbers.overall):
        for condition, cell in zip(view.conditions, row.cells, strict=True):
            if cell is None:
                continue
            estimates = {
                "success": cell.success if view.has_success else None,
                "contact": cell.contact,
                "return": cell.episode_return,
                "intervention_share": cell.intervention_share,
            }
            rows += [
                [row.label, condition.condition_id, name, *_cells(estimate)]
                for name, estimate in estimates.items()
                if estimate is not None
            ]
        for name, comparison in row.comparisons.items():
            rows.append([row.label, "paired difference", name, *_cells(comparison.difference)])
    return _csv(header, rows)


def data_uri(text: str) -> str:
    """Return ``text`` as a CSV data URI."""
    encoded = base64.b64encode(text.encode("utf-8")).decode("ascii")
    return f"data:text/csv;charset=utf-8;base64,{encoded}"


def _cells(estimate: Estimate) -> list[Any]:
    """Return an estimate as CSV cells."""
    return [
        estimate.value,
        estimate.low,
        estimate.high,
        estimate.confidence,
        estimate.estimator,
        estimate.n,
        estimate.n_clusters,
        estimate.undefined_reason,
    ]


def _csv(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return CSV with CRLF line ends (RFC 4180)."""
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, lineterminator="\r\n")
    writer.writerow(header)
    writer.writerows([_field(value) for value in row] for row in rows)
    return buffer.getvalue()


def _field(value: Any) -> Any:
    """Return a CSV field; text that a spreadsheet would run gets a leading apostrophe."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, str) and value.startswith(_FORMULA_MARKS):
        return f"'{value}"
    return "" if value is None else value
