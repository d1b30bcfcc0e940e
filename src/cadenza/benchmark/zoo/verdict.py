"""From a matrix to a verdict: one report of everything that a matrix's folder tells.

Shown:    the further egos of the matrix, or its first ones, as methods beside all partners, with
          the family and split of each; worst partner, family and CVaR; how close they come to best
          responses; what they lose beside strangers; cross-play of everybody; adaptation; and how
          to film any cell.
Read:     the sealed bundles, verified, and beside them ``matrix.json``, ``best-responses.json`` and
          ``encounters.json`` where they are.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from cadenza.benchmark.bundle import BUNDLE_NAME
from cadenza.benchmark.evaluation_run import BUNDLES_FOLDER
from cadenza.benchmark.reporting import SealedRun, find_bundles, load_run, report_view
from cadenza.benchmark.zoo.encounters import read_encounters
from cadenza.benchmark.zoo.matrix import (
    AS_TRAINED,
    PLAIN,
    Matrix,
    film_command,
    matrix_figure,
    partner_labels,
    read_matrix,
)
from cadenza.benchmark.zoo.responses import RESPONSES_FOLDER, RESPONSES_JSON
from cadenza.core.errors import ConfigurationError
from cadenza.core.tables import Table
from cadenza.evaluation.best_responses import BestResponses, load_best_responses
from cadenza.evaluation.encounters import Encounters
from cadenza.evaluation.report.figures.populations import (
    encounter_figures,
    encounter_table,
    response_figure,
)
from cadenza.evaluation.report.svg import score_text
from cadenza.evaluation.report.view import ReportView, Section, Statement, condition_css

REPORT_HTML: Final = "report.html"


def merged_responses(folders: Sequence[Path]) -> BestResponses | None:
    """Return the best responses of zoos, those that have some, together; None without any.

    Raises:
        ConfigurationError: They are by different metrics, or a file is damaged.
    """
    paths = [folder / RESPONSES_FOLDER / RESPONSES_JSON for folder in folders]
    found = [load_best_responses(path) for path in paths if path.is_file()]
    if len({(one.task, one.metric) for one in found}) > 1:
        raise ConfigurationError(
            f"best responses: expected one metric, got {', '.join(one.metric for one in found)}; "
            "train those of all zoos by the same."
        )
    if not found:
        return None
    partners = {name: best for one in found for name, best in one.partners.items()}
    return found[0].model_copy(update={"partners": partners})


def compared(
    paths: Sequence[Path],
    *,
    best_responses: BestResponses | None = None,
    repository: Path | None = None,
) -> tuple[ReportView, list[SealedRun]]:
    """Return the report of some bundles, or of all that a matrix's folder tells, and the bundles.

    Of matrices the bundles of the judged egos are taken. ``best_responses`` replace those in the
    folder.

    Raises:
        IntegrityError: A bundle or file is not what was sealed.
        ConfigurationError: There is no bundle, or best responses are of another task.
    """
    matrices = [read_matrix(path) for path in paths]
    bundles: list[Path] = []
    for path, found in zip(paths, matrices, strict=True):
        if found is None:
            bundles += find_bundles([path])
        else:
            names = [name for ego in found.judged for name in found.policies[ego]]
            bundles += (path / BUNDLES_FOLDER / name for name in names)
    missing = [path for path in bundles if not (path / BUNDLE_NAME).is_file()]
    if missing:
        raise ConfigurationError(f"{missing[0]}: expected a bundle of the matrix, got none there.")
    runs = [load_run(path, repo_path=repository) for path in bundles]
    matrix = matrices[0] if len(matrices) == 1 else None
    if matrix is None:
        return report_view(runs, best_responses=best_responses), runs
    beside = paths[0] / RESPONSES_JSON
    if best_responses is None and beside.is_file():
        best_responses = load_best_responses(beside)
    view = report_view(runs, best_responses=best_responses, by_method=True)
    return _with_verdict(view, matrix, paths[0]), runs


def _with_verdict(view: ReportView, matrix: Matrix, folder: Path) -> ReportView:
    """Return the view with families, what was seen, and the parts of the verdict."""
    met, labels = read_encounters(folder), partner_labels(matrix)
    families = dict(zip(matrix.partners, matrix.families, strict=True))
    seen = {name for names in matrix.seen.values() for name in names}
    is_known = set(matrix.guessed) < set(matrix.judged) or 0 < len(seen) < len(families)
    partners = tuple(
        replace(
            partner,
            label=labels[partner.partner_id],
            family=families[partner.partner_id],
            seen=partner.partner_id in seen if is_known else None,
            seen_by={ego: partner.partner_id in names for ego, names in matrix.seen.items()},
        )
        for partner in view.partners
    )
    texts = [*_seen_texts(matrix, families), _condition_text(matrix)]
    if left_out := len(matrix.egos) - len(matrix.judged):
        texts.append(f"The matrix has {left_out} more egos; the other parts compare those above.")
    statements = [Statement(kind="measured", text=text) for text in texts]
    if view.best_responses is None:
        text = "How close anybody comes to the best possible: run `cadenza zoo best-response`."
        statements.append(Statement(kind="not_measured", text=text))
    if met is None:
        text = "Whether anybody adapts: play `cadenza zoo matrix` with --encounters 8."
        statements.append(Statement(kind="not_measured", text=text))
    return replace(
        view,
        partners=partners,
        statements=(*view.statements, *statements),
        sections=tuple(_sections(view, matrix, met, str(folder))),
    )


def _seen_texts(matrix: Matrix, families: Mapping[str, str]) -> Iterator[str]:
    """Yield whom the judged egos trained with, those of one answer together."""
    answers: dict[tuple[str, bool], list[str]] = {}
    for ego in matrix.judged:
        met = ", ".join(sorted({families[name] for name in matrix.seen[ego]}))
        answers.setdefault((met, ego in matrix.guessed), []).append(ego)
    for (met, is_guess), egos in answers.items():
        told = ", ".join(egos)
        if is_guess:
            yield f"Whom {told} trained with is not known; taken from the zoos: {met or 'nobody'}."
        elif met:
            yield f"By its policy files, {told} trained with {met}."
        else:
            yield f"{told} trained with none of these partners."


def _condition_text(matrix: Matrix) -> str:
    guarded = ", ".join(matrix.guarded)
    if matrix.condition == AS_TRAINED:
        return (
            f"Condition {AS_TRAINED}: everybody acts behind the safety filter that {guarded} "
            "trained behind. Best responses are trained and measured without it."
        )
    if guarded:
        return f"Condition {PLAIN}: no safety filter, although {guarded} trained behind one."
    return f"Condition {PLAIN}: nobody acts behind a safety filter."


def _sections(
    view: ReportView, matrix: Matrix, met: Encounters | None, place: str
) -> Iterator[Section]:
    """Yield the parts of the page that a matrix's folder adds."""
    yield Section(
        identity="cross-play",
        nav="Cross-play",
        title="Who plays well with whom",
        intro="Every ego with every partner, from the same starts.",
        figures=(matrix_figure(matrix, place),),
        tables=(family_table(matrix),),
    )
    marks = zip(view.conditions, condition_css(view), strict=True)
    labels = {c.condition_id: css for c, css in marks}
    if met is not None and not labels.keys().isdisjoint(met.egos):
        families = dict(zip(matrix.partners, matrix.families, strict=True))
        yield Section(
            identity="adaptation",
            nav="Adaptation",
            title="Whether it adapts",
            intro="Adaptation is measured, never assumed: each ego meets each partner "
            "several times in a row, with and without its memory of earlier encounters.",
            figures=tuple(encounter_figures(met, labels)),
            tables=(encounter_table(met, families),),
        )
    best = view.best_responses
    curves = None if best is None else response_figure(best)
    if curves is not None:
        yield Section(
            identity="bounds",
            nav="Bounds",
            title="How good anybody could be",
            intro="Best responses were trained beside one partner each, with the budget that "
            "the table of proximity states.",
            figures=(curves,),
        )
    yield Section(
        identity="cells",
        nav="Watch",
        title="Watch any cell",
        intro="Each command films the first episode of a cell again; --start 3 takes the fourth.",
        tables=(_commands(matrix, place),),
        fold="Show the commands",
    )


def family_table(matrix: Matrix) -> Table:
    """Return the score of every ego over each family of partners, with its interval."""
    shown = {
        name: [
            score_text(matrix.estimate(ego, one), one.metric == "success")
            for ego, one in zip(matrix.egos, own, strict=True)
        ]
        for name, own in matrix.by_family.items()
    }
    columns = ("Ego", *shown)
    rows = [(ego, *(own[i] for own in shown.values())) for i, ego in enumerate(matrix.egos)]
    if len(shown) > len(matrix.egos):  # the narrower way
        columns = ("Family", *matrix.egos)
        rows = [(name, *own) for name, own in shown.items()]
    return Table(
        title="Score by family of partners",
        columns=columns,
        rows=tuple(rows),
        caption="Mean over the family's partners and all seeds, 95 % intervals over seeds.",
        text_columns=(0,),
    )


def _commands(matrix: Matrix, place: str) -> Table:
    """Return the command that films each cell."""
    return Table(
        title="Commands",
        columns=("Ego", "Partner", "Command"),
        rows=tuple(
            (ego, partner, film_command(matrix, place, ego, partner))
            for ego in matrix.egos
            for partner in matrix.partners
        ),
        text_columns=(0, 1, 2),
    )
