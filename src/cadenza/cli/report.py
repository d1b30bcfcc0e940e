"""`cadenza report` and `cadenza eval leaderboard`: sealed results for readers."""

from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import typer

from cadenza.cli.output import print_text, typed_exits

Format: TypeAlias = Literal["html", "markdown", "latex", "json"]
Sealed = Annotated[
    list[Path],
    typer.Argument(help="Bundles, or folders of evaluations and quickstarts that hold some."),
]
Registered = Annotated[
    Path | None,
    typer.Option("--repo-root", help="Git repository that holds the registration tag."),
]


def report(
    paths: Sealed,
    out: Annotated[Path, typer.Option("--out", "-o", help="File to write.")],
    form: Annotated[
        Format | None,
        typer.Option("--format", help="By default what the file's ending says, else html."),
    ] = None,
    repository: Registered = None,
) -> None:
    """Write one self-contained report about one result, or compare several of one task."""
    with typed_exits():
        from cadenza.benchmark.reporting import find_bundles, load_run, report_view
        from cadenza.core.files import atomic_write_text
        from cadenza.evaluation.report.render import FORMATS

        view = report_view([load_run(f, repo_path=repository) for f in find_bundles(paths)])
        endings: dict[str, Format] = {".md": "markdown", ".tex": "latex", ".json": "json"}
        chosen = form or endings.get(out.suffix, "html")
        atomic_write_text(out, FORMATS[chosen](view))
        print_text(f"report: {out}")
