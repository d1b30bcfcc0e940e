"""What a suite tells: one page, one leaderboard, and the same for programs."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeAlias

from markupsafe import Markup

from cadenza.benchmark.suite import JudgedTask
from cadenza.core.files import atomic_write_json, atomic_write_text
from cadenza.core.tables import Table
from cadenza.evaluation.report.analysis import Numbers, analyse
from cadenza.evaluation.report.figures.outcomes import Figure
from cadenza.evaluation.report.pages import StoryPage, Tile, render_page
from cadenza.evaluation.report.render import (
    leaderboard_tables,
    method_figures,
    render_json,
    render_leaderboards,
    verdict,
)
from cadenza.evaluation.report.svg import (
    MISSING,
    count,
    score,
    score_change,
    score_interval,
    score_text,
)
from cadenza.evaluation.report.view import Section
from cadenza.evaluation.statistics.estimate import Estimate

REPORT_NAME: Final = "report.html"
LEADERBOARD_NAME: Final = "leaderboard.md"
RESULT_NAME: Final = "result.json"
#: Figures of a task; the others are on the page of `cadenza report FOLDER/TASK/evaluation`.
_FIGURES: Final = frozenset({"fig-methods", "fig-lead", "fig-heat"})
#: Label of all partners of a task together.
_ALL: Final = "all partners"
_SELF_PLAY: Final = (
    "Egos in self-play learn from the rows of both robots, twice as many for the same frames, and "
    "without the safety filter."
)
#: A family of partners, an ego, its score, and what it is ahead of each reference.
_Row: TypeAlias = tuple[str, str, Estimate, dict[str, Estimate | None]]


def write_suite_report(out: Path, played: Sequence[JudgedTask]) -> Path:
    """Write page, leaderboard and result into the folder; return the page's path."""
    views = [task.view for task in played]
    atomic_write_text(out / REPORT_NAME, render_page(suite_page(played)))
    atomic_write_text(out / LEADERBOARD_NAME, render_leaderboards(views, "markdown"))
    atomic_write_json(out / RESULT_NAME, suite_record(played))
    return out / REPORT_NAME


def suite_record(played: Sequence[JudgedTask]) -> dict[str, Any]:
    """Return every estimate of the suite by task, and its differences, as JSON values."""
    tasks = {
        task.plan.name: {
            "report": json.loads(render_json(task.view)),
            "differences": [
                {
                    "family": family,
                    "ego": ego,
                    "score": _plain(score),
                    "ahead_of": {name: _plain(each) for name, each in ahead.items()},
                }
                for family, ego, score, ahead in _by_family(task)
            ],
        }
        for task in played
    }
    return {"title": played[0].plan.suite.title, "tasks": tasks}


def _plain(found: Estimate | None) -> dict[str, float | None] | None:
    return found and {"value": found.value, "low": found.low, "high": found.high}


def suite_page(played: Sequence[JudgedTask]) -> StoryPage:
    """Return the page of a suite."""
    suite = played[0].plan.suite
    bundle = played[0].runs[0].bundle
    commit = f"{bundle.git_sha[:12]}{' with local changes' if bundle.diff_sha256 else ''}"
    references = " and ".join(suite.references)
    return StoryPage(
        kind="suite",
        title=suite.title,
        subtitle=suite.summary,
        verdict=" ".join(_lead(task) for task in played),
        tiles=tuple(_tile(task) for task in played),
        measured=(
            f"Every ego was trained {suite.seeds} times, with budgets of environment frames that "
            "are equal but for the rest of a rollout (see what was spent), and judged beside "
            "partners that no ego trained with, all from the same starts.",
            "Training seeds are the clusters of every interval, so the luck of training is in it.",
            *((f"Differences are those to {references}, paired by start.",) if references else ()),
        ),
        cautions=(
            "Partners are a choice, too: intervals speak of further training seeds beside these "
            "partners, not of other partners.",
            *((_SELF_PLAY,) if played[0].plan.egos("self") else ()),
        ),
        sections=(*(_section(task) for task in played), _budgets(played)),
        facts={
            "Commit": commit,
            "Package": f"cadenza {bundle.package_version}",
            "Training seeds": ", ".join(map(str, range(suite.seeds))),
            "Bundles": _verified(played),
            "Platform": f"{bundle.platform.os}, Python {bundle.platform.python}, "
            f"torch {bundle.platform.torch}",
        },
    )


def _lead(task: JudgedTask) -> str:
    """Return how far each ego is ahead of the first reference, over all partners of a task."""
    references = task.plan.suite.references[:1]
    if not references:
        return f"{task.plan.name}: {verdict(task.view, task.numbers)}"
    rate = task.view.has_success
    others = "; ".join(
        f"{ego} {score_change(ahead[references[0]], rate)}"
        for _, ego, _, ahead in _differences(_ALL, task.numbers, references)
        if ego != references[0]
    )
    unit = ", points" if rate else ""
    return f"{task.plan.name}, ahead of {references[0]}{unit}: {others}."


def _tile(task: JudgedTask) -> Tile:
    """Return the best score of a task."""
    rate, rows = task.view.has_success, task.numbers.methods.rows  # of methods in order
    return Tile(
        value=score(rows[0].score.value, rate),
        label=f"{task.plan.name}: {rows[0].condition.label}",
        detail=f"{'solved' if rate else 'mean return'}, the highest of {len(rows)} egos; "
        f"{score_interval(rows[0].score, rate)}",
        css="plain",
    )


def _verified(played: Sequence[JudgedTask]) -> str:
    """Return how many bundles there are, and what does not hold of them."""
    runs = [run for task in played for run in task.runs]
    failed = dict.fromkeys(
        f"{check.name}: {check.detail}" for run in runs for check in run.checks if not check.ok
    )
    return f"{len(runs)} verified; {'; '.join(failed) or 'every check passed'}"


def _section(task: JudgedTask) -> Section:
    """Return what is told of one task."""
    view, numbers, name = task.view, task.numbers, task.plan.name
    figures = [f for f in method_figures(view, numbers) if f and f.identity in _FIGURES]
    return Section(
        identity=name,
        nav=name,
        title=task.plan.spec.title.rstrip("."),
        intro=f"{view.subtitle} {verdict(view, numbers)}",
        figures=tuple(_named(figure, name) for figure in figures),
        tables=(*leaderboard_tables(view, numbers), family_table(task)),
    )


def _named(figure: Figure, prefix: str) -> Figure:
    """Return a figure whose ids no other task's has."""
    own = f"{prefix}-{figure.identity}"
    drawn = str(figure.svg).replace(f"{figure.identity}-", f"{own}-")
    return replace(figure, identity=own, svg=Markup(drawn))  # noqa: S704 -- of `make_figure`


def family_table(task: JudgedTask) -> Table:
    """Return how far each ego is ahead of the references beside each family of partners."""
    rate, references = task.view.has_success, task.plan.suite.references
    rows = tuple(
        (family, ego, score_text(found, rate), *(score_change(x, rate) for x in ahead.values()))
        for family, ego, found, ahead in _by_family(task)
    )
    return Table(
        title="Beside each family, and ahead of the references",
        columns=("Family", "Ego", "Score, 95 %", *(f"Ahead of {name}" for name in references)),
        rows=rows,
        caption="Differences are paired by start, each with its own 95 % interval over training "
        f"seeds{', in percentage points' if rate else ''}; they are not corrected for their "
        "number.",
        text_columns=(0, 1),
    )


def _by_family(task: JudgedTask) -> Iterator[_Row]:
    """Yield each ego beside all partners, then beside each family of them."""
    references = task.plan.suite.references
    yield from _differences(_ALL, task.numbers, references)
    for family in dict.fromkeys(partner.family for partner in task.view.partners):
        partners = tuple(p for p in task.view.partners if p.family == family)
        ids = {partner.partner_id for partner in partners}
        episodes = tuple(e for e in task.view.episodes if e.partner in ids)
        own = replace(task.view, partners=partners, episodes=episodes, best_responses=None)
        yield from _differences(family, analyse(own), references)


def _differences(family: str, found: Numbers, references: Sequence[str]) -> Iterator[_Row]:
    """Yield each ego with what it is ahead of the references."""
    ranking = found.methods.ranking
    for row in found.methods.rows:
        name, ahead = row.condition.condition_id, dict[str, Estimate | None]()
        for other in references:
            pair = ranking and ranking.comparisons.get((name, other))
            back = ranking and ranking.comparisons.get((other, name))
            ahead[other] = pair and pair.difference
            if back is not None:
                d = back.difference
                value, low, high = (e and -e for e in (d.value, d.high, d.low))
                ahead[other] = replace(d, value=value, low=low, high=high)
        yield family, row.condition.label, row.score, ahead


def _budgets(played: Sequence[JudgedTask]) -> Section:
    """Return what was spent."""
    rows = tuple(
        (task.plan.name, step.folder, step.what, count(step.frames) if step.frames else MISSING)
        for task in played
        for step in task.plan.steps()
    )
    table = Table(
        title="Steps and their budgets",
        columns=("Task", "Folder", "What", "Environment frames"),
        rows=rows,
        text_columns=(0, 1, 2),
    )
    return Section(
        identity="budgets",
        nav="Budgets",
        title="What was spent",
        intro="Frames are steps of the environment, of all seeds together.",
        tables=(table,),
    )
