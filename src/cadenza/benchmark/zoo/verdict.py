"""From a matrix to a verdict: one report of everything that a matrix's folder tells.

Shown:    the further egos of the matrix, or its first ones, as methods beside all partners, with
          the family and split of each; worst partner, family and CVaR; how close they come to best
          responses; what they lose beside strangers; cross-play of everybody; adaptation; and how
          to film any cell.
Read:     the sealed bundles, verified, and beside them ``matrix.json``, ``best-responses.json`` and
          ``encounters.json`` where they are.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from cadenza.benchmark.bundle import BUNDLE_NAME
from cadenza.benchmark.evaluation_run import BUNDLES_FOLDER
from cadenza.benchmark.reporting import SealedRun, find_bundles, load_run, report_view
from cadenza.benchmark.zoo.encounters import ENCOUNTERS_JSON
from cadenza.benchmark.zoo.matrix import MATRIX_JSON, film_command, matrix_figure, partner_labels
from cadenza.benchmark.zoo.responses import RESPONSES_FOLDER, RESPONSES_JSON
from cadenza.core.errors import ConfigurationError, IntegrityError
from cadenza.core.strict_json import parse_json_object
from cadenza.core.tables import Table
from cadenza.evaluation.best_responses import (
    BestResponses,
    load_best_responses,
    store_best_responses,
)
from cadenza.evaluation.encounters import Encounters
from cadenza.evaluation.report.figures.populations import (
    encounter_figures,
    encounter_table,
    response_figure,
)
from cadenza.evaluation.report.svg import score_text
from cadenza.evaluation.report.view import ReportView, Section, Statement, condition_css
from cadenza.evaluation.results import first_problem
from cadenza.evaluation.statistics.estimate import Estimate
from cadenza.partners.zoo_manifest import Skill

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


def keep_responses(folder: Path, best: BestResponses) -> None:
    """Store best responses beside a matrix, where its report looks for them."""
    store_best_responses(folder / RESPONSES_JSON, best)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What lies in the folder of a matrix beside its bundles.

    Attributes:
        folder: The folder.
        matrix: Content of ``matrix.json``.
        best: Best responses to its partners.
        met: Encounters of its egos.
    """

    folder: Path
    matrix: Mapping[str, Any]
    best: BestResponses | None
    met: Encounters | None


def read_verdict(folder: Path) -> Verdict | None:
    """Return what is in a folder; None if it is not that of a matrix.

    Raises:
        IntegrityError: A file is damaged.
        ConfigurationError: Best responses cannot be read.
    """
    path = folder / MATRIX_JSON
    if not path.is_file():
        return None
    content = parse_json_object(path.read_bytes(), source=str(path))
    best, met = folder / RESPONSES_JSON, folder / ENCOUNTERS_JSON
    try:
        known = Encounters.model_validate_json(met.read_bytes()) if met.is_file() else None
    except ValidationError as error:
        told = f"{met}: expected encounters: {first_problem(error)}; play them again."
        raise IntegrityError(told) from error
    return Verdict(
        folder=folder,
        matrix=content,
        best=load_best_responses(best) if best.is_file() else None,
        met=known,
    )


def judged_bundles(paths: Sequence[Path]) -> list[Path]:
    """Return the bundles that a report of ``paths`` compares: of a matrix, the judged egos'."""
    found: list[Path] = []
    for path in paths:
        verdict = read_verdict(path)
        if verdict is None:
            found += find_bundles([path])
        else:
            policies = verdict.matrix["policies"]
            found += (
                path / BUNDLES_FOLDER / policy
                for ego in verdict.matrix["judged"]
                for policy in policies[ego]
            )
    missing = [path for path in found if not (path / BUNDLE_NAME).is_file()]
    if missing:
        raise ConfigurationError(f"{missing[0]}: expected a bundle of the matrix, got none there.")
    return found


def verdict_report(folder: Path, *, repository: Path | None = None) -> ReportView:
    """Return the report of a matrix's folder.

    Raises:
        IntegrityError: A bundle or file is not what was sealed.
        ConfigurationError: The folder holds no matrix, or best responses of another task.
    """
    found = read_verdict(folder)
    if found is None:
        raise ConfigurationError(
            f"{folder}: expected the folder of a matrix, got no {MATRIX_JSON}."
        )
    runs = [load_run(path, repo_path=repository) for path in judged_bundles([folder])]
    return with_verdict(report_view(runs, best_responses=found.best, by_method=True), runs, found)


def with_verdict(view: ReportView, runs: Sequence[SealedRun], found: Verdict) -> ReportView:
    """Return the view with families, what was seen, and the parts of the verdict."""
    told = {str(one["name"]): one for one in found.matrix["partners"]}
    labels = partner_labels(found.matrix)
    partners = tuple(
        replace(
            partner,
            label=labels[partner.partner_id],
            family=str(told[partner.partner_id]["family"]),
            seen=bool(told[partner.partner_id]["seen"]),
        )
        for partner in view.partners
    )
    several = len({partner.seen for partner in partners}) > 1
    partners = partners if several else tuple(replace(p, seen=None) for p in partners)
    shown = {run.method for run in runs}
    left_out = [ego for ego in found.matrix["egos"] if ego not in shown]
    statements = [*view.statements]
    if several:
        met = ", ".join(sorted({p.family for p in partners if p.seen}))
        text = f"Seen are partners that the egos may have trained with: {met}."
        statements.append(Statement(kind="measured", text=text))
    if left_out:
        text = f"The matrix has {len(left_out)} more egos; the other parts compare those above."
        statements.append(Statement(kind="measured", text=text))
    if found.best is None:
        text = "How close anybody comes to the best possible: run `cadenza zoo best-response`."
        statements.append(Statement(kind="not_measured", text=text))
    if found.met is None:
        text = "Whether anybody adapts: play `cadenza zoo matrix` with --encounters 8."
        statements.append(Statement(kind="not_measured", text=text))
    view = replace(view, partners=partners, statements=tuple(statements))
    return replace(view, sections=tuple(_sections(view, found)))


def _sections(view: ReportView, found: Verdict) -> list[Section]:
    """Return the parts of the page that a matrix's folder adds."""
    matrix, place = found.matrix, str(found.folder)
    sections = [
        Section(
            identity="cross-play",
            nav="Cross-play",
            title="Who plays well with whom",
            intro="Every ego with every partner, from the same starts.",
            figures=(matrix_figure(matrix, place),),
            tables=(family_table(matrix),),
        )
    ]
    families = {p.partner_id: p.family for p in view.partners}
    if found.met is not None:
        marks = zip(view.conditions, condition_css(view), strict=True)
        labels = {c.condition_id: css for c, css in marks}
        known = [ego for ego in found.met.egos if ego in labels]
        if known:
            sections.append(
                Section(
                    identity="adaptation",
                    nav="Adaptation",
                    title="Whether it adapts",
                    intro="Adaptation is measured, never assumed: each ego meets each partner "
                    "several times in a row, with and without its memory of earlier encounters.",
                    figures=tuple(encounter_figures(found.met, labels)),
                    tables=(encounter_table(found.met, families),),
                )
            )
    curves = None if found.best is None else response_figure(found.best)
    if curves is not None:
        sections.append(
            Section(
                identity="bounds",
                nav="Bounds",
                title="How good anybody could be",
                intro="Best responses were trained beside one partner each, with the budget that "
                "the table of proximity states.",
                figures=(curves,),
            )
        )
    sections.append(
        Section(
            identity="cells",
            nav="Watch",
            title="Watch any cell",
            intro="Each command films the first episode of a cell again; --start 3 takes the "
            "fourth.",
            tables=(_commands(matrix, place),),
            fold="Show the commands",
        )
    )
    return sections


def family_table(matrix: Mapping[str, Any]) -> Table:
    """Return the score of every ego over each family of partners, with its interval."""
    families = {
        name: [Skill.model_validate(cell) for cell in cells]
        for name, cells in matrix["families"].items()
    }
    cells = {
        name: [_skill(one, len(matrix["seeds"])) for one in own] for name, own in families.items()
    }
    egos = [str(ego) for ego in matrix["egos"]]
    columns, rows = (
        ("Ego", *families),
        [(e, *(own[i] for own in cells.values())) for i, e in enumerate(egos)],
    )
    if len(families) > len(egos):  # the narrower way
        columns, rows = ("Family", *egos), [(name, *own) for name, own in cells.items()]
    return Table(
        title="Score by family of partners",
        columns=columns,
        rows=tuple(rows),
        caption="Mean over the family's partners and all seeds, 95 % intervals over seeds.",
        text_columns=(0,),
    )


def _skill(skill: Skill, seeds: int) -> str:
    found = Estimate(
        value=skill.value,
        low=skill.low,
        high=skill.high,
        confidence=0.95,
        estimator="",
        n=skill.episodes,
        n_clusters=seeds,
    )
    return score_text(found, skill.metric == "success")


def _commands(matrix: Mapping[str, Any], place: str) -> Table:
    """Return the command that films each cell."""
    return Table(
        title="Commands",
        columns=("Ego", "Partner", "Command"),
        rows=tuple(
            (str(ego), str(partner["name"]), film_command(matrix, place, ego, partner["name"]))
            for ego in matrix["egos"]
            for partner in matrix["partners"]
        ),
        text_columns=(0, 1, 2),
    )
