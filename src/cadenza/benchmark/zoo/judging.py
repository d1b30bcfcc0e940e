"""From zoos and egos to a judged matrix: played, measured, sealed and shown on one page."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from cadenza.benchmark.zoo.encounters import play_encounters
from cadenza.benchmark.zoo.matrix import cross_play, diversity_table, write_matrix
from cadenza.benchmark.zoo.responses import RESPONSES_JSON
from cadenza.benchmark.zoo.selecting import family_diversity
from cadenza.benchmark.zoo.verdict import REPORT_HTML, compared, family_table, merged_responses
from cadenza.core.errors import ConfigurationError
from cadenza.core.files import atomic_write_text
from cadenza.core.progress import StageReport
from cadenza.core.tables import Table
from cadenza.evaluation.best_responses import load_best_responses, store_best_responses
from cadenza.evaluation.report.analysis import analyse
from cadenza.evaluation.report.render import render_report
from cadenza.evaluation.report.tables import proximity_table


def judge(
    zoos: Sequence[Path],
    *,
    out: Path,
    progress: StageReport,
    best_responses: Path | None = None,
    encounters: int = 0,
    seed: int = 0,
    workers: int | None = None,
    **played: Any,
) -> tuple[Table, ...]:
    """Play everybody with everybody, and write the matrix and what `cadenza report` shows of it.

    Args:
        zoos: Zoos of one task.
        out: Folder of the matrix.
        progress: Called with the stage and how far it is.
        best_responses: File of best responses; None takes those of the zoos.
        encounters: Meet each partner so many times in a row, too; 0 for none.
        seed: Chooses the seeds of the episodes.
        workers: Processes; by default one per core.
        played: Further arguments of `cross_play`.

    Returns:
        Scores by family, best-response proximity and diversity, those that there are.

    Raises:
        ConfigurationError: One encounter is asked for, or see `cross_play`.
    """
    if encounters == 1:
        raise ConfigurationError("--encounters: expected at least 2, or 0 for none, got 1.")
    best = load_best_responses(best_responses) if best_responses else merged_responses(zoos)
    with ExitStack() as held:
        result = cross_play(
            zoos,
            out=out,
            seed=seed,
            workers=workers,
            progress=partial(progress, "cross-play"),
            held=held,
            **played,
        )
        if encounters:
            play_encounters(
                result,
                out=out,
                encounters=encounters,
                workers=workers,
                progress=partial(progress, "encounters"),
            )
        diversity = family_diversity(zoos, seed=seed)
        write_matrix(out, result.model_copy(update={"diversity": diversity}))
        if best is not None:
            store_best_responses(out / RESPONSES_JSON, best)
        else:
            (out / RESPONSES_JSON).unlink(missing_ok=True)  # those of an earlier call
        view, _ = compared([out])
        atomic_write_text(out / REPORT_HTML, render_report(view))
    tables = [family_table(result)]
    if (proximity := proximity_table(view, analyse(view))) is not None:
        rows = tuple(row[:-3] for row in proximity.rows)
        tables.append(replace(proximity, columns=proximity.columns[:-3], rows=rows))
    if diversity:
        tables.append(diversity_table(diversity))
    return tuple(tables)
