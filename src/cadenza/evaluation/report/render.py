"""The page itself: one HTML file that needs nothing else.

The content security policy in its head allows the embedded style and the embedded script by their
hashes and nothing from anywhere else, so a browser enforces what the promise says.
"""

import base64
import csv
import hashlib
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from cadenza.core.files import atomic_write_text
from cadenza.evaluation.episodes import EpisodeResult
from cadenza.evaluation.report.analysis import Numbers, analyse
from cadenza.evaluation.report.blocks import headline_tiles
from cadenza.evaluation.report.formatting import plural
from cadenza.evaluation.report.rollouts import player_data
from cadenza.evaluation.report.sections import build_sections
from cadenza.evaluation.report.view import ReportView, condition_css
from cadenza.evaluation.statistics.estimate import Estimate

#: What each estimator does, for the method note.
ESTIMATORS: Final = {
    "rate/cluster/korn-graubard/v1": "Rates: exact binomial bounds (Clopper-Pearson) on the "
    "effective number of episodes, which shrinks when seeds disagree (Korn and Graubard 1998).",
    "mean/cluster/student-t/v1": "Means: Student t on the means of the seeds.",
    "mean/paired-cluster/student-t/v1": "Paired differences: Student t on each seed's mean "
    "difference between the two conditions.",
}


def render_report(view: ReportView) -> str:
    """Return the page; equal views give equal text.

    Raises:
        InputError: Two episodes of one condition share partner, seed, index and initial state.
    """
    numbers = analyse(view)
    environment = _environment()
    style, script = _asset(environment, "style.css"), _asset(environment, "player.js")
    return environment.get_template("report.html.j2").render(
        view=view,
        numbers=numbers,
        tiles=headline_tiles(view, numbers),
        sections=build_sections(view, numbers),
        badge=_badge(view),
        statements=_statements(view, numbers),
        methods=tuple(ESTIMATORS.items()),
        condition_css=condition_css(view),
        player_data=player_data(view) if view.rollouts else None,
        recorded={r.partner_id for r in view.rollouts},
        episodes_uri=data_uri(episodes_csv(view.episodes)),
        estimates_uri=data_uri(estimates_csv(view, numbers)),
        style=style,
        script=script,
        policy=_policy(style, script),
    )


def write_report(view: ReportView, path: Path) -> Path:
    """Write the page to ``path`` in one durable step and return the path.

    Raises:
        InputError: As `render_report`.
        StorageError: The file system refused; an older report is intact.
    """
    atomic_write_text(path, render_report(view))
    return path


def _environment() -> Environment:
    """Return a template environment that escapes everything and knows no undefined name."""
    return Environment(
        loader=PackageLoader("cadenza.evaluation.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def _asset(environment: Environment, name: str) -> Markup:
    """Return a style sheet or script of the package, as it is."""
    assert environment.loader is not None  # noqa: S101 -- set above
    source, _, _ = environment.loader.get_source(environment, name)
    return Markup(source)  # noqa: S704 -- a file of this package


def _policy(style: str, script: str) -> str:
    """Return the content security policy that allows exactly these two texts."""
    return (
        f"default-src 'none'; img-src data:; style-src '{_hash(style)}'; "
        f"script-src '{_hash(script)}'; base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    """Return the policy's name for ``text``."""
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"sha256-{base64.b64encode(digest).decode('ascii')}"


def _badge(view: ReportView) -> dict[str, str]:
    """Return state and text of the verification badge."""
    total = len(view.verification)
    failed = sum(not check.ok for check in view.verification)
    if not total:
        return {"state": "unknown", "text": "Not verified"}
    if failed:
        return {"state": "bad", "text": f"Verification failed: {failed} of {total} checks"}
    return {"state": "good", "text": f"Verified: {plural(total, 'check')} passed"}


def _statements(view: ReportView, numbers: Numbers) -> dict[str, Any]:
    """Return the plain sentences by kind; cautions of the statistics come last."""
    by_kind: dict[str, list[str]] = {"measured": [], "not_measured": [], "caution": []}
    for statement in view.statements:
        by_kind[statement.kind].append(statement.text)
    by_kind["caution"] += numbers.cautions
    return by_kind


# Raw data inside the page: CSV as data URIs, nothing to fetch.

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
