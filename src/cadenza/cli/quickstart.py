"""`cadenza quickstart`: the whole idea in minutes."""

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
    seed: Annotated[int, typer.Option("--seed", min=0, help="Root seed of the training.")] = 0,
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
    """Train an ego, evaluate it beside partners it has never met, and write a report.

    Run it again on the same folder and it continues where it stopped. It ends with code 1 if the
    bundle is damaged; changed sources alone leave it unverified, and the command says so.
    """
    with typed_exits(
        as_json=as_json, go_on="finished work is kept, run the same command again to continue"
    ):
        from cadenza.aht.config import EgoAHTConfig
        from cadenza.benchmark.quickstart import run_quickstart, training_config
        from cadenza.benchmark.verify import ELIGIBILITY
        from cadenza.cli.configuration import explained

        changes = settings or []
        explained(Path("quickstart"), EgoAHTConfig, lambda: training_config(out, seed, changes))
        with stage_bars(quiet=quiet or as_json) as report:
            result = run_quickstart(
                out=out,
                seed=seed,
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
    return {
        "report": str(result.report),
        "bundle": str(result.bundle),
        "checkpoint": str(result.checkpoint),
        "n_episodes": result.n_episodes,
        "verified": result.verified,
        "success_with_seen": result.success_with_seen(),
        "success_with_unseen": result.success_with_unseen(),
        "success_with_all_unseen": result.success_with_all_unseen(),
        "filter_effect": result.filter_effect and asdict(result.filter_effect),
        "verdict": result.verdict,
        "contacts": {c: result.contacts(c) for c in ("filter_on", "filter_off")},
        "partners": [
            {"name": name, "seen": seen, "leaves_way": way} for name, seen, way in result.partners
        ],
        "cells": [cell.model_dump(mode="json") for cell in result.cells],
        "failed_checks": [asdict(check) for check in result.checks if not check.ok],
    }


def _print_result(result: "QuickstartResult") -> None:
    columns, rows = result.table()
    print_table(f"{result.n_episodes} episodes, 95 % intervals", columns, rows)
    print_text(result.verdict)
    for check in result.checks:
        if not check.ok:
            typer.echo(f"failed check {check.name}: {check.detail}", err=True)
    state = "verified" if result.verified else "NOT verified"
    print_text(f"bundle: {result.bundle} ({state})")
    print_text(f"report: {result.report}")
