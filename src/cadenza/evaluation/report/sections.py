"""Order and contents of the page: which figures and tables stand under which heading."""

from dataclasses import dataclass
from typing import TypeVar

from cadenza.evaluation.report.analysis import Numbers
from cadenza.evaluation.report.blocks import (
    TableBlock,
    contact_table,
    intervention_table,
    safety_table,
    success_table,
)
from cadenza.evaluation.report.figures.distance import distance_figure, partner_distance_figure
from cadenza.evaluation.report.figures.figure import Figure
from cadenza.evaluation.report.figures.learning import learning_figure
from cadenza.evaluation.report.figures.outcomes import (
    difference_figure,
    intervention_figure,
    return_figure,
    success_figure,
)
from cadenza.evaluation.report.figures.trajectories import trajectory_figure
from cadenza.evaluation.report.view import ReportView

_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One heading of the page.

    Attributes:
        identity: Its anchor.
        nav: Its name in the navigation.
        title: Its heading.
        intro: One or two sentences for a newcomer.
        figures: Its figures, in order.
        tables: Its tables, in order.
        player: Whether the rollout player stands here.
        fold: Words that unfold its tables; empty shows them at once.
    """

    identity: str
    nav: str
    title: str
    intro: str
    figures: tuple[Figure, ...] = ()
    tables: tuple[TableBlock, ...] = ()
    player: bool = False
    fold: str = ""


def build_sections(view: ReportView, numbers: Numbers) -> tuple[Section, ...]:
    """Return the sections that have something to show."""
    candidates = (
        _watch(view),
        _success(view, numbers),
        _change(view, numbers),
        _distances(view, numbers),
        _filter(view, numbers),
        _learning(view),
        _safety(view, numbers),
        _further(view),
    )
    return tuple(s for s in candidates if s.figures or s.tables)


def _watch(view: ReportView) -> Section:
    words = "one recorded episode per partner"
    if len(view.conditions) > 1:
        words += ", played twice from the same start"
    return Section(
        identity="watch",
        nav="Watch",
        title="Watch it",
        intro=f"Real recordings, not illustrations: {words}. A recording is an example; the "
        f"numbers below come from all episodes. {view.rollouts_note}".rstrip(),
        figures=_present(trajectory_figure(view)),
        player=bool(view.rollouts),
    )


def _success(view: ReportView, numbers: Numbers) -> Section:
    if not view.has_success:
        return Section(
            identity="success",
            nav="Return",
            title="How well it does with each partner",
            intro="The task has no success predicate, so the mean episode return is shown.",
            figures=(return_figure(view, numbers),),
            tables=(success_table(view, numbers),),
            fold="The numbers as a table",
        )
    meaning = f"Success means {view.success_meaning.rstrip('.')}. " if view.success_meaning else ""
    return Section(
        identity="success",
        nav="Success",
        title="How well it does with each partner",
        intro=f"{meaning}The ego trained with the partners marked so and never met the others.",
        figures=(success_figure(view, numbers),),
        tables=(success_table(view, numbers),),
        fold="The numbers as a table",
    )


def _change(view: ReportView, numbers: Numbers) -> Section:
    first = (
        difference_figure(numbers, "success", better_high=True)
        if view.has_success
        else difference_figure(numbers, "return", better_high=True)
    )
    return Section(
        identity="change",
        nav="Filter effect",
        title="What the filter changes",
        intro="The same initial states, partners and seeds with the filter and without it, so each "
        "difference is measured within a pair and luck of the draw cancels.",
        figures=_present(first, difference_figure(numbers, "contact", better_high=False)),
        tables=_present(contact_table(view, numbers)),
    )


def _distances(view: ReportView, numbers: Numbers) -> Section:
    return Section(
        identity="distance",
        nav="Distances",
        title="How close it comes",
        intro="Counting contacts hides near misses; the smallest distance of each episode shows "
        "them.",
        figures=_present(distance_figure(view, numbers), partner_distance_figure(view, numbers)),
    )


def _filter(view: ReportView, numbers: Numbers) -> Section:
    return Section(
        identity="filter",
        nav="Filter at work",
        title="How much the filter had to do",
        intro="A filter that acts on every step has replaced the policy; one that never acts was "
        "not needed.",
        figures=_present(intervention_figure(numbers)),
        tables=_present(intervention_table(view, numbers)),
    )


def _learning(view: ReportView) -> Section:
    return Section(
        identity="learning",
        nav="Learning",
        title="How it was trained",
        intro="The run behind the evaluated policy.",
        figures=_present(learning_figure(view.learning) if view.learning else None),
    )


def _safety(view: ReportView, numbers: Numbers) -> Section:
    return Section(
        identity="safety",
        nav="Safety",
        title="Safety table",
        intro="Violations and the filter's emergency actions, kept apart.",
        tables=(safety_table(view, numbers),),
    )


def _further(view: ReportView) -> Section:
    return Section(
        identity="further",
        nav="Settings",
        title="Settings and further tables",
        intro="What was configured.",
        fold="Show the tables",
        tables=tuple(
            TableBlock(
                title=table.title,
                columns=table.columns,
                rows=table.rows,
                note=table.caption,
                text_columns=tuple(range(len(table.columns))),
            )
            for table in view.tables
        ),
    )


def _present(*items: _Item | None) -> tuple[_Item, ...]:
    """Return the items that are there."""
    return tuple(item for item in items if item is not None)
