"""What the report of an evaluation says, as a page and in other formats."""

import base64
import csv
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, Literal

from cadenza.core.errors import InputError
from cadenza.core.tables import LATEX_HEAD, Table
from cadenza.evaluation.report.analysis import (
    FAIR,
    SEEN,
    UNSEEN,
    Cell,
    MethodNumbers,
    MetricName,
    Numbers,
    analyse,
    score_of,
)
from cadenza.evaluation.report.figures.episodes import (
    distance_figure,
    learning_figure,
    stress_figure,
    trajectory_figure,
    wall_figure,
)
from cadenza.evaluation.report.figures.methods import (
    difference_forest,
    heat_map,
    improvement_figure,
    profile_figure,
    rank_range,
    score_figure,
)
from cadenza.evaluation.report.figures.outcomes import (
    difference_figure,
    outcome_figure,
)
from cadenza.evaluation.report.figures.populations import gap_figure
from cadenza.evaluation.report.pages import Format, StoryPage, Tile, render_page
from cadenza.evaluation.report.svg import (
    MISSING,
    NBSP,
    Figure,
    count,
    number_interval,
    percent,
    plural,
    points_interval,
    score,
    score_interval,
    score_text,
)
from cadenza.evaluation.report.tables import (
    contact_table,
    difference_table,
    endings_table,
    filter_table,
    methods_table,
    proximity_table,
    score_difference,
    spread_table,
    success_table,
)
from cadenza.evaluation.report.view import (
    ConditionView,
    ReportView,
    Section,
    condition_css,
    player_data,
)
from cadenza.evaluation.results import Archive, EpisodeResult, IntervalRecord
from cadenza.evaluation.statistics.estimate import Estimate
from cadenza.evaluation.summary import interval_record

#: Most conditions whose long tables are not folded.
MAX_SHOWN: Final = 2
_CONFIDENCE: Final = f"95{NBSP}% interval"


def headline_tiles(view: ReportView, numbers: Numbers) -> tuple[Tile, ...]:
    """Return contacts, what the filter changes and outcomes by group; of methods, their scores."""
    if view.treatment is None and numbers.methods.ranking:
        return tuple(_method_tile(view, row) for row in numbers.methods.rows)
    tiles = [
        _contact_tile(condition, cell, css, by_method=view.compared == "Method")
        for condition, css, cell in zip(
            view.conditions, condition_css(view), numbers.overall.cells, strict=True
        )
        if cell is not None and cell.contact is not None
    ]
    effect = numbers.overall.comparisons.get(_judged(view))
    if effect is not None and effect.difference.value is not None:
        tiles.append(_effect_tile(view, effect.difference, effect.difference.value))
    tiles += [_outcome_tile(view, *group) for group in _outcomes(view, numbers)]
    return tuple(tiles)


def overall_score(view: ReportView, numbers: Numbers) -> str:
    """Return success, or return, over all partners under the main condition, with its interval."""
    return score_text(
        score_of(view, numbers.overall.cells[_main_condition(view)]), view.has_success
    )


def verdict(view: ReportView, numbers: Numbers) -> str:
    """Return one sentence: contacts, outcomes by group, and what the filter gained and lost.

    A gain or loss is clear if the 95 % interval of the paired difference excludes zero; without an
    interval it cannot be judged.
    """
    if view.treatment is None and (ranking := numbers.methods.ranking):
        labels = {c.condition_id: c.label for c in view.conditions}
        best = ", ".join(labels[name] for name in ranking.best)
        scores = ", ".join(
            f"{row.condition.label} {score_text(row.score, view.has_success)}"
            for row in numbers.methods.rows
        )
        first = "the best" if view.compared == "Method" else "the highest"
        told = "was shown to be" if len(ranking.best) == 1 else "cannot be told from"
        what = "Share of episodes solved" if view.has_success else "Mean return"
        seeds = plural(numbers.methods.rows[0].score.n_clusters, view.seed_kind)
        return f"{best} {told} {first}. {what} over all partners and {seeds}: {scores}."
    by_method = view.compared == "Method"
    contacts = [
        (condition.label, f"{count(cell.n_contacts)} of {count(cell.n)} episodes")
        for condition, cell in zip(view.conditions, numbers.overall.cells, strict=True)
        if cell is not None and cell.contact is not None
    ]
    clauses: list[str] = []
    if contacts and by_method:
        told = ", ".join(f"{label} touched someone in {often}" for label, often in contacts)
        clauses.append(told)
    elif contacts:
        told = " and ".join(f"{often} {label}" for label, often in contacts)
        clauses.append(f"the ego touched someone in {told}")
    if groups := _outcomes(view, numbers):
        what = "share of episodes solved" if view.has_success else "mean return"
        each = ", ".join(f"{_outcome(view, cell)} with {words}" for cell, words, _ in groups)
        label = view.conditions[_main_condition(view)].label
        owner = f"{label}'s" if by_method else f"{label}, the"
        clauses.append(f"{owner} {what} was {each}")
    effect = numbers.overall.comparisons.get(_judged(view))
    if effect is not None and (value := effect.difference.value) is not None:
        change = {
            True: "a clear gain" if value > 0 else "a clear loss",
            False: "no clear change",
            None: "a change that cannot be judged",
        }[excludes_zero(effect.difference)]
        clauses.append(
            f"from the same starts, it did better with the filter in {count(effect.n_higher)} and "
            f"worse in {count(effect.n_lower)} of {plural(effect.difference.n, 'pair')}: {change} "
            f"({score_difference(view, value)}{' points' if view.has_success else ''}; "
            f"{_zero(view, effect.difference)})"
        )
    sentence = "; ".join(clauses)
    if not by_method:  # a method's name keeps its letters
        sentence = f"{sentence[:1].upper()}{sentence[1:]}"
    return sentence and f"{sentence}."


def _contact_tile(condition: ConditionView, cell: Cell, css: str, *, by_method: bool) -> Tile:
    """Return the number of contacts under one condition, or of one method."""
    bounds = ""
    if cell.contact is not None and cell.contact.high is not None:
        bounds = f"; true rate at most {percent(cell.contact.high)} ({_CONFIDENCE})"
        if cell.n_contacts:
            bounds = f"; rate {score_text(cell.contact, True)}"
    noun = "contact" if cell.n_contacts == 1 else "contacts"
    return Tile(
        value=count(cell.n_contacts),
        label=f"{noun} {'of ' if by_method else ''}{condition.label}",
        detail=f"in {plural(cell.n, 'episode')} with all partners{bounds}",
        css=css,
    )


def _method_tile(view: ReportView, row: MethodNumbers) -> Tile:
    """Return the score of one of several methods, and where it may rank."""
    detail = f"simultaneous {_CONFIDENCE} {score_interval(row.score, view.has_success)}"
    if row.ranks is not None:
        detail += f"; rank {rank_range(row.ranks)}"
    if row.cell.contact is not None:
        detail += f"; {count(row.cell.n_contacts)} of {count(row.cell.n)} episodes with contact"
    value = score(row.score.value, view.has_success)
    return Tile(value=value, label=row.condition.label, detail=detail, css=row.css)


def _outcomes(view: ReportView, numbers: Numbers) -> list[tuple[Cell, str, str]]:
    """Return results under the main condition, name and size of each group of partners."""
    words = {
        SEEN: "partners it trained with",
        FAIR: "unseen partners that always leave a way",
        UNSEEN: "all unseen partners",
    }
    main = _main_condition(view)
    return [
        (cell, words[label], row.note)
        for label, row in numbers.pooled.items()
        if (cell := row.cells[main]) is not None
    ]


def _outcome_tile(view: ReportView, cell: Cell, words: str, members: str) -> Tile:
    """Return success, or return, with one group of partners."""
    found = score_of(view, cell)
    bounds = MISSING if found is None else score_interval(found, view.has_success)
    label = view.conditions[_main_condition(view)].label
    return Tile(
        value=_outcome(view, cell),
        label=f"{'solved' if view.has_success else 'mean return'} with {words}",
        detail=f"{label}, {plural(cell.n, 'episode')} with {members}; {_CONFIDENCE} {bounds}",
        css="plain",
    )


def _effect_tile(view: ReportView, change: Estimate, value: float) -> Tile:
    """Return what the filter changes over all partners.

    It is red if the estimate is negative, unless the interval includes zero.
    """
    detail = f"with the filter minus without it, {plural(change.n, 'pair')} with all partners"
    negative = value < 0.0 and excludes_zero(change) is not False
    return Tile(
        value=score_difference(view, value),
        label=f"{'points: ' if view.has_success else ''}the filter's effect on {_judged(view)}",
        detail=f"{detail}; {_zero(view, change)}{'; red: below zero' if negative else ''}",
        css="bad" if negative else "plain",
    )


def _main_condition(view: ReportView) -> int:
    """Return the index of the condition that headlines describe: the filtered one."""
    return 0 if view.treatment is None else view.conditions.index(view.treatment)


def _judged(view: ReportView) -> MetricName:
    return "success" if view.has_success else "return"


def _outcome(view: ReportView, cell: Cell) -> str:
    """Return the success rate or mean return of a cell."""
    found = score_of(view, cell)
    return score(None if found is None else found.value, view.has_success)


def excludes_zero(change: Estimate) -> bool | None:
    """Return whether the interval of a difference excludes zero; None without an interval."""
    if change.low is None or change.high is None:
        return None
    return not change.low <= 0.0 <= change.high


def _zero(view: ReportView, change: Estimate) -> str:
    """Return the interval of a difference and whether it excludes zero."""
    clear = excludes_zero(change)
    if clear is None:
        return "no interval"
    bounds = points_interval(change) if view.has_success else number_interval(change)
    verb = "excludes" if clear else "includes"
    return f"{_CONFIDENCE} {bounds} {verb} zero"


#: Name in the navigation, heading, and one or two sentences for a newcomer, by anchor.
_TEXTS: Final = {
    "watch": (
        "Watch",
        "Watch it",
        "Real recordings, not illustrations: each start was played {words}. Recordings show "
        "what single episodes look like; the numbers come from all episodes.",
    ),
    "success": (
        "Success",
        "How well it does with each partner",
        "{meaning}{seen}",
    ),
    "return": (
        "Return",
        "How well it does with each partner",
        "The task has no success predicate, so the mean episode return is shown.",
    ),
    "methods": (
        "Compared",
        "All partners together",
        "A cell is one {seed_kind} with one partner. {simultaneous}",
    ),
    "gap": (
        "Gap",
        "What it loses beside strangers",
        "How much better it does beside partners that it may have trained with than beside others, "
        "from the same starts.",
    ),
    "endings": (
        "Endings",
        "How the episodes ended",
        "An episode ends at the goal, with a contact, or when its time is up.{price}",
    ),
    "change": (
        "Filter effect",
        "What the filter changes",
        "The same initial states, partners and seeds with the filter and without it, so each "
        "difference is measured within a pair and the luck of the draw cancels out.",
    ),
    "distance": (
        "Distances",
        "How close it comes",
        "Counting contacts hides near misses; the extremes of each episode show them.",
    ),
    "learning": ("Learning", "How it was trained", "What lies behind the evaluated policies."),
    "safety": (
        "Safety",
        "Safety table",
        "{what}",
    ),
    "further": ("Settings", "Settings and further tables", "What was configured."),
}


def _section(
    anchor: str,
    *,
    figures: Sequence[Figure | None] = (),
    tables: Sequence[Table | None] = (),
    player: bool = False,
    fold: str = "",
    **words: str,
) -> Section:
    """Return a section with the figures and tables that are there, and ``words`` in its intro."""
    nav, title, intro = _TEXTS[anchor]
    return Section(
        identity="success" if anchor == "return" else anchor,
        nav=nav,
        title=title,
        intro=intro.format(**words).rstrip(),
        figures=tuple(figure for figure in figures if figure is not None),
        tables=tuple(table for table in tables if table is not None),
        player=player,
        fold=fold,
    )


def method_figures(view: ReportView, numbers: Numbers) -> tuple[Figure | None, ...]:
    """Return the figures of methods side by side; none where no score was recorded."""
    if not numbers.methods.rows:
        return ()
    return (
        score_figure(view, numbers),
        difference_forest(view, numbers) if view.treatment is None else None,
        heat_map(view, numbers),
        profile_figure(view, numbers),
        improvement_figure(numbers),
    )


def build_sections(view: ReportView, numbers: Numbers) -> tuple[Section, ...]:
    """Return the sections that have something to show."""
    words = "under both conditions" if len(view.conditions) > 1 else "once"
    meaning = f"Success means {view.success_meaning.rstrip('.')}. " if view.success_meaning else ""
    judged = _judged(view)
    long = "Show the table" if len(view.conditions) > MAX_SHOWN else ""
    words_only = [replace(t, text_columns=tuple(range(len(t.columns)))) for t in view.tables]
    candidates = (
        _section(
            "watch",
            figures=[trajectory_figure(view, pick) for pick in view.picks],
            player=bool(view.rollouts),
            words=words,
        ),
        _section(
            judged,
            figures=[outcome_figure(view, numbers)],
            tables=[success_table(view, numbers)],
            fold="The numbers as a table",
            meaning=meaning,
            seen="The ego trained with the partners marked so and never met the others."
            if numbers.pooled.get(UNSEEN)
            else "",
        ),
        _section(
            "methods",
            figures=method_figures(view, numbers),
            tables=[
                methods_table(view, numbers),
                proximity_table(view, numbers),
                spread_table(view, numbers),
            ],
            seed_kind=view.seed_kind,
            simultaneous=""
            if len(numbers.methods.rows) < 2
            else "Intervals of the means hold for "
            "all rows at once (Bonferroni), rank ranges too (Holm): a method's true rank is one of "
            "the range.",
        ),
        _section("gap", figures=[gap_figure(view, numbers)]),
        _section(
            "endings",
            tables=[endings_table(view, numbers)],
            fold=long,
            price=" A time-out can be the policy's own or the price of the filter."
            if view.is_filtered
            else "",
        ),
        _section(
            "change",
            figures=[
                difference_figure(numbers, judged, better_high=True),
                difference_figure(numbers, "contact", better_high=False),
            ],
            tables=[difference_table(view, numbers)],
        ),
        _section(
            "distance",
            figures=[
                distance_figure(view, numbers),
                wall_figure(view, numbers),
                stress_figure(view, numbers),
            ],
        ),
        _section("learning", figures=[learning_figure(c, n) for n, c in enumerate(view.learning)]),
        _section(
            "safety",
            tables=[contact_table(view, numbers), filter_table(view, numbers)],
            fold=long,
            what="Violations and the filter's emergency actions, kept apart, and how much the "
            "filter had to do: one that acts on every step has replaced the policy, one that never "
            "acts was not needed."
            if view.is_filtered
            else "What the episodes recorded of contacts and distances.",
        ),
        *view.sections,
        _section("further", tables=words_only, fold="Show the tables"),
    )
    shown = [s for s in candidates if s.figures or s.tables]
    if view.treatment is None:  # methods first, then each with its partners
        shown.sort(key=lambda section: section.identity != "methods")
    return tuple(shown)


#: What each estimator does, for the method note.
ESTIMATORS: Final = {
    "rate/cluster/beta-binomial/v1": "Rates: posterior of a beta-binomial model, in which "
    "seeds may differ as much as they feasibly can; 95 % of it lie between the bounds.",
    "rate/one-seed/clopper-pearson/v1": "Rates of one seed: exact binomial bounds "
    "(Clopper-Pearson); other seeds are not in them.",
    "rate/cluster/korn-graubard/v1": "Rates: exact binomial bounds (Clopper-Pearson) on the "
    "effective number of episodes, which shrinks when seeds disagree (Korn and Graubard 1998).",
    "mean/cluster/student-t/v1": "Means: Student t on the means of the seeds.",
    "mean/paired-cluster/student-t/v1": "Paired differences: Student t on each seed's mean "
    "difference between the two conditions.",
    "difference/paired-cluster/t-mover/v1": "Paired differences of rates: Student t on each seed's "
    "difference; with rates near 0 or 1, wider bounds from both rates (MOVER).",
    "iqm/cluster/expanded-percentile/v1": "Interquartile means: redrawn seeds, at levels that pay "
    "for few of them.",
    "worst-partner/cluster/bonferroni/v1": "Worst partner: from simultaneous intervals of all "
    "partners, so the choice is paid for.",
    "cvar-partner/cluster/bonferroni/v1": "CVaR: the same for the mean of the worst partners.",
    "improvement/paired-cluster/student-t/v1": "Probability of improvement: Student t over seeds.",
    "improvement/paired-cluster/betting/v1": "Probability of improvement where all seeds agree: "
    "bounds by betting.",
    "difference/paired-one-seed/tango/v1": "Paired differences of one seed: score bounds (Tango "
    "1998); other seeds are not in them.",
}


def compose(view: ReportView, numbers: Numbers) -> StoryPage:
    """Return what the report of ``view`` says, by its `analyse`."""

    def said(kind: str) -> list[str]:
        return [statement.text for statement in view.statements if statement.kind == kind]

    return StoryPage(
        kind="evaluation report",
        title=view.title,
        task=view.task,
        subtitle=view.subtitle,
        badge=_badge(view),
        verdict=verdict(view, numbers),
        tiles=headline_tiles(view, numbers),
        measured=tuple(said("measured")),
        not_measured=tuple(said("not_measured")),
        cautions=(*said("caution"), *numbers.cautions),
        sections=build_sections(view, numbers),
        facts={fact.label: fact.value for fact in view.provenance},
    )


def render_report(view: ReportView) -> str:
    """Return the page; equal views give equal text; errors as `analyse`."""
    numbers = analyse(view)
    estimates = estimates_csv(view, numbers)
    return render_page(
        compose(view, numbers),
        "report.html.j2",
        script="player.js",
        view=view,
        numbers=numbers,
        main=_main_condition(view),
        methods=tuple(item for item in ESTIMATORS.items() if item[0] in estimates),
        condition_css=condition_css(view),
        player_data=player_data(view) if view.rollouts else None,
        recorded={r.partner_id for r in view.rollouts},
        episodes_uri=data_uri(episodes_csv(view.episodes)),
        estimates_uri=data_uri(estimates),
    )


def render_markdown(view: ReportView) -> str:
    """Return what the page says without its pictures, as Markdown; errors as `analyse`."""
    return compose(view, analyse(view)).markdown()


def render_latex(view: ReportView) -> str:
    """Return the report's tables as LaTeX; its first line names the packages it needs."""
    return compose(view, analyse(view)).latex()


class EstimateRecord(IntervalRecord):
    """One estimate of a report: of which partner or group, under which condition, of what."""

    row: str
    condition: str
    statistic: str


class MethodRecord(Archive):
    """One method of a report over all partners; intervals as in `MethodNumbers`.

    ``worst_partner`` names it; ``ranks`` are the least and the largest that the data allow.
    """

    method: str
    row: str
    ranks: tuple[int, int] | None
    worst_partner: str
    estimates: dict[str, IntervalRecord]


class ReportRecord(Archive):
    """A report for programs; ``checks`` maps those of the verification to whether they hold.

    ``clusters`` says of what seeds the intervals speak: ``"training seed"``, or evaluation's.
    """

    schema_version: Literal[1] = 1
    title: str
    task: str
    verdict: str
    statements: dict[str, list[str]]
    provenance: dict[str, str]
    checks: dict[str, bool]
    clusters: str
    methods: list[MethodRecord]
    estimates: list[EstimateRecord]


def render_json(view: ReportView) -> str:
    """Return the report as a `ReportRecord`; errors as `analyse`."""
    numbers = analyse(view)
    page = compose(view, numbers)
    record = ReportRecord(
        title=view.title,
        task=view.task,
        verdict=page.verdict,
        statements={
            "measured": list(page.measured),
            "not_measured": list(page.not_measured),
            "caution": list(page.cautions),
        },
        provenance=dict(page.facts),
        checks={check.name: check.ok for check in view.verification},
        clusters=view.seed_kind,
        methods=[_method_record(row) for row in numbers.methods.rows],
        estimates=[
            EstimateRecord(
                row=row, condition=condition, statistic=name, **interval_record(e).model_dump()
            )
            for row, condition, name, e in estimates_of(view, numbers)
        ],
    )
    return record.model_dump_json(indent=2) + "\n"


def _method_record(row: MethodNumbers) -> MethodRecord:
    return MethodRecord(
        method=row.condition.label,
        row=row.condition.row_id,
        ranks=row.ranks,
        worst_partner=row.worst.names[0],
        estimates={name: interval_record(e) for name, e in row.named().items()},
    )


def leaderboard_tables(view: ReportView, numbers: Numbers) -> list[Table]:
    """Return the tables of the methods of one task."""
    tables = methods_table(view, numbers), proximity_table(view, numbers)
    return [table for table in tables if table is not None]


def render_leaderboards(views: Sequence[ReportView], form: Format) -> str:
    """Return the tables of methods of several tasks; HTML is the report of a single one.

    Raises:
        InputError: Several tasks in one page.
    """
    if form == "html":
        if len(views) != 1:
            raise InputError(
                f"leaderboard: expected one task in a page, got {len(views)}; write one page each."
            )
        return render_report(views[0])
    if form == "json":
        return f"[{','.join(render_json(view) for view in views)}]\n"
    tables = [table for view in views for table in leaderboard_tables(view, analyse(view))]
    if form == "latex":
        return "\n\n".join([LATEX_HEAD, *(table.to_latex() for table in tables)]) + "\n"
    return "\n\n".join(table.to_markdown() for table in tables) + "\n"


#: What writes a report in each format.
FORMATS: Final[dict[Format, Callable[[ReportView], str]]] = {
    "html": render_report,
    "markdown": render_markdown,
    "latex": render_latex,
    "json": render_json,
}


def _badge(view: ReportView) -> dict[str, str]:
    """Return state and text of the verification badge."""
    total = len(view.verification)
    failed = sum(not check.ok for check in view.verification)
    if not total:
        return {"state": "unknown", "text": "Not verified"}
    if failed:
        return {"state": "bad", "text": f"Verification failed: {failed} of {total} checks"}
    return {"state": "good", "text": f"Verified: {plural(total, 'check')} passed"}


# Raw data inside the page: CSV as data URIs, nothing to fetch.

#: Columns of the episode table, in file order.
EPISODE_COLUMNS: Final = tuple(name for name in EpisodeResult.model_fields if name != "metadata")

#: First characters that spreadsheets take for a formula.
_FORMULA_MARKS: Final = ("=", "+", "-", "@", "\t", "\r")


def episodes_csv(episodes: Iterable[EpisodeResult]) -> str:
    """Return one line per episode; what was not recorded is empty."""
    rows = ([getattr(episode, name) for name in EPISODE_COLUMNS] for episode in episodes)
    return _csv(EPISODE_COLUMNS, rows)


def estimates_of(view: ReportView, numbers: Numbers) -> Iterator[tuple[str, str, str, Estimate]]:
    """Yield (row, condition, statistic, estimate) for every estimate of the report."""
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
            for name, estimate in estimates.items():
                if estimate is not None:
                    yield row.label, condition.condition_id, name, estimate
        for name, comparison in row.comparisons.items():
            yield row.label, "paired difference", name, comparison.difference


def _of_methods(numbers: Numbers) -> Iterator[tuple[str, str, str, Estimate]]:
    for row in numbers.methods.rows:
        for name, estimate in row.named().items():
            yield "All partners together", row.condition.condition_id, name, estimate
    for (first, second), estimate in numbers.methods.improvement.items():
        yield "All partners together", first, f"improvement over {second}", estimate


def estimates_csv(view: ReportView, numbers: Numbers) -> str:
    """Return every estimate of the report with its bounds and estimator."""
    header = (
        "row", "condition", "statistic", "value", "low", "high",
        "confidence", "estimator", "n", "n_seeds", "undefined_reason",
    )  # fmt: skip
    rows = (
        [*names, e.value, e.low, e.high, e.confidence, e.estimator, e.n, e.n_clusters,
         e.undefined_reason]
        for *names, e in (*estimates_of(view, numbers), *_of_methods(numbers))
    )  # fmt: skip
    return _csv(header, rows)


def data_uri(text: str) -> str:
    """Return ``text`` as a CSV data URI."""
    encoded = base64.b64encode(text.encode("utf-8")).decode("ascii")
    return f"data:text/csv;charset=utf-8;base64,{encoded}"


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
