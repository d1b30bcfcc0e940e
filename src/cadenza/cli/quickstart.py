"""`cadenza quickstart`: the whole idea in minutes."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cadenza.cli.configuration import Settings
from cadenza.cli.output import AsJson, ExitCode, print_json, print_table, print_text, typed_exits
from cadenza.core.progress import stage_bars

if TYPE_CHECKING:
    from cadenza.benchmark.quickstart import QuickstartResult


def quickstart(
    settings: Settings = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for everything written.")] = Path(
        "runs/quickstart"
    ),
    seeds: Annotated[
        str, typer.Option("--seeds", help="Training seeds: 3 (0 to 2), 0-2 or 3,7,9.")
    ] = "3",
    episodes: Annotated[
        int,
        typer.Option("--episodes", min=1, help="Episodes per seed (of 10), partner and condition."),
    ] = 20,
    workers: Annotated[
        int | None,
        typer.Option("--workers", "-j", min=1, help="Processes; one per core by default."),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Delete an earlier run in the folder.")
    ] = False,
    as_json: AsJson = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bars.")] = False,
) -> None:
    """Train an ego with three seeds, evaluate it beside partners it has never met, and report.

    Run it again on the same folder and it continues where it stopped. It ends with code 1 if a
    bundle is damaged; changed sources alone leave it unverified, and the command says so.
    """
    with typed_exits(
        as_json=as_json, go_on="finished work is kept, run the same command again to continue"
    ):
        from cadenza.aht.config import EgoAHTConfig
        from cadenza.benchmark.quickstart import run_quickstart, training_config
        from cadenza.benchmark.training_seeds import parse_seeds
        from cadenza.benchmark.verify import ELIGIBILITY
        from cadenza.cli.configuration import explained

        changes = settings or []
        explained(Path("quickstart"), EgoAHTConfig, lambda: training_config(out, changes))
        with stage_bars(quiet=quiet or as_json) as report:
            result = run_quickstart(
                out=out,
                seeds=parse_seeds(seeds),
                workers=workers,
                overwrite=overwrite,
                overrides=changes,
                episodes_per_seed=episodes,
                progress=report,
            )
        if as_json:
            print_json(_payload(result))
        else:
            _print_result(result)
    if any(check.name != ELIGIBILITY for check in result.checks if not check.ok):
        raise typer.Exit(ExitCode.CHECK_FAILED)


def _payload(result: "QuickstartResult") -> dict[str, Any]:
    """Return the result as JSON values."""
    from cadenza.evaluation.report.render import render_json

    return {
        "report": str(result.report),
        "bundles": {policy: str(folder) for policy, folder in result.bundles.items()},
        "checkpoints": [str(path) for path in result.checkpoints],
        "verified": result.verified,
        "failed_checks": [asdict(check) for check in result.checks if not check.ok],
        "result": json.loads(render_json(result.view)),
    }


def _print_result(result: "QuickstartResult") -> None:
    columns, rows = result.table()
    clusters = len(result.bundles)
    over = f" over {clusters} training seeds" if clusters > 1 else ""
    print_table(f"{len(result.view.episodes)} episodes, 95 % intervals{over}", columns, rows)
    print_text(result.verdict)
    for check in result.checks:
        if not check.ok:
            typer.echo(f"failed check {check.name}: {check.detail}", err=True)
    state = "verified" if result.verified else "NOT verified"
    for policy, folder in result.bundles.items():
        print_text(f"bundle of {policy}: {folder} ({state})")
    print_text(f"report: {result.report}")
