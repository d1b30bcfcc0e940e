"""`cadenza quickstart`: the whole idea in minutes."""

from pathlib import Path
from typing import Annotated, Any

import typer

from cadenza.cli.exit_codes import ExitCode
from cadenza.cli.output import print_json, print_table, typed_exits
from cadenza.cli.progress import progress_bar


def quickstart(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for everything written.")] = Path(
        "runs/quickstart"
    ),
    seed: Annotated[int, typer.Option("--seed", min=0, help="Root seed of the training.")] = 0,
    workers: Annotated[
        int | None,
        typer.Option("--workers", "-j", min=1, help="Processes; one per core by default."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bars.")] = False,
) -> None:
    """Train an ego, let it meet partners it has never seen, and write an honest report."""
