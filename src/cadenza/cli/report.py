"""`cadenza report` and `cadenza eval leaderboard`: sealed results for readers."""

from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import typer

from cadenza.cli.evaluate import BestResponseFile
from cadenza.cli.output import ExitCode, print_text, typed_exits
from cadenza.cli.prereg import Repository
from cadenza.core.errors import ConfigurationError

Format: TypeAlias = Literal["html", "markdown", "latex", "json"]
Sealed = Annotated[
    list[Path],
    typer.Argument(help="Bundles, or folders of evaluations, quickstarts, matrices with some."),
]

Form = Annotated[
    Format | None, typer.Option("--format", help="By default what the ending of --out says.")
]
_ENDINGS: dict[str, Format] = {".html": "html", ".md": "markdown", ".tex": "latex", ".json": "json"}


def format_of(out: Path, form: Format | None) -> Format:
    """Return the format that was asked for, or that the ending of ``out`` stands for.

    Raises:
        ConfigurationError: The ending stands for none.
    """
    if form is None and out.suffix not in _ENDINGS:
        raise ConfigurationError(
            f"--out: expected an ending of {', '.join(_ENDINGS)}, got {out}; or give --format."
        )
    return form or _ENDINGS[out.suffix]


def report(
    paths: Sealed,
    out: Annotated[Path, typer.Option("--out", "-o", help="File to write.")],
    form: Form = None,
    best_responses: BestResponseFile = None,
    repository: Repository = Path(),
) -> None:
    """Write one self-contained report about a result, sweep or suite, or compare results."""
    with typed_exits():
        from cadenza.benchmark.reporting import with_recordings
        from cadenza.benchmark.zoo.verdict import compared
        from cadenza.core.files import atomic_write_text
        from cadenza.evaluation.best_responses import load_best_responses
        from cadenza.evaluation.report.render import FORMATS
        from cadenza.evaluation.report.view import RECORDINGS_NAME

        chosen = format_of(out, form)
        if (text := _story(paths, chosen)) is not None:
            atomic_write_text(out, text)
            print_text(f"report: {out}")
            return
        best = best_responses and load_best_responses(best_responses)
        view, runs = compared(paths, best_responses=best, repository=repository)
        for recorded in (path / RECORDINGS_NAME for path in paths):
            if recorded.is_file():
                view, _ = with_recordings(view, runs, recorded.read_bytes())
        atomic_write_text(out, FORMATS[chosen](view))
        print_text(f"report: {out}")


def _story(paths: list[Path], form: Format) -> str | None:
    """Return the page of a folder that is no evaluation; None if it is one."""
    from cadenza.benchmark import suite, sweep
    from cadenza.benchmark.suite_report import suite_page, suite_record
    from cadenza.benchmark.sweep_report import sweep_page, sweep_record
    from cadenza.evaluation.report.pages import render_story

    if len(paths) != 1:
        return None
    if (paths[0] / sweep.REQUEST_NAME).is_file():
        found = sweep.read_sweep(paths[0])
        return render_story(sweep_page(found), form, sweep_record(found))
    if (paths[0] / suite.REQUEST_NAME).is_file():
        played = suite.read_suite(paths[0])
        return render_story(suite_page(played), form, suite_record(played))
    return None


def leaderboard(
    paths: Sealed,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="File to write.")] = None,
    form: Form = None,
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; code 1 if --out is not up to date.")
    ] = False,
    best_responses: BestResponseFile = None,
    repository: Repository = Path(),
) -> None:
    """Rank verified results, one table for each task and setting; others are refused."""
    with typed_exits():
        from cadenza.benchmark.reporting import find_bundles, load_run, task_views
        from cadenza.core.files import atomic_write_text
        from cadenza.evaluation.best_responses import load_best_responses
        from cadenza.evaluation.report.render import render_leaderboards

        if check and out is None:
            raise ConfigurationError("eval leaderboard: expected --out FILE beside --check.")
        chosen = format_of(out, form) if out else form or "markdown"
        best = best_responses and load_best_responses(best_responses)
        bundles = find_bundles(paths)
        runs = [load_run(folder, repo_path=repository, strict=True) for folder in bundles]
        text = render_leaderboards(task_views(runs, best_responses=best), chosen)
        if out is None:
            print_text(text.rstrip("\n"))
            return
        if not check:
            atomic_write_text(out, text)
            print_text(f"leaderboard: {out}")
            return
        current = out.is_file() and out.read_text(encoding="utf-8") == text
        print_text(f"{out}: {'up to date' if current else 'differs from what the bundles give'}")
    if not current:
        raise typer.Exit(ExitCode.CHECK_FAILED)
