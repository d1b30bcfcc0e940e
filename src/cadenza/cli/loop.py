"""`cadenza loop`: the commands that look at runs and answer them; `loop_run` has the others."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from cadenza.cli import loop_run
from cadenza.cli.doctor import print_checks
from cadenza.cli.loop_status import (
    RunId,
    StoreUrl,
    Workdir,
    command,
    looks,
    open_store,
    plain,
    print_status,
    store_location,
)
from cadenza.cli.loop_status import watch as show_until_the_end
from cadenza.cli.output import AsJson, ExitCode, print_json, print_text, typed_exits
from cadenza.loop.processes import readable

if TYPE_CHECKING:
    from cadenza.loop.requests import StopOutcome
    from cadenza.loop.status_report import RunStatus

loop_app: typer.Typer = typer.Typer(
    help="Collect, train, evaluate, decide, improve: unattended, and safe to kill.",
    no_args_is_help=True,
)
loop_app.command("run")(loop_run.run)
loop_app.command("resume")(loop_run.resume)
loop_app.command("demo")(loop_run.demo)

_RUNS: Final = Path("runs")
_KNOWLEDGE: Final = Path("knowledge")


@loop_app.command()
def status(
    run_id: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN_ID",
            help="Id of one run; default: all runs.",
            show_default=False,
        ),
    ] = None,
    workdir: Workdir = _RUNS,
    store: StoreUrl = None,
    cycles: Annotated[
        int, typer.Option("--cycles", min=0, help="Newest cycles of each run to show; 0 for all.")
    ] = 20,
    as_json: AsJson = False,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch",
            help="Refresh until no run is active; with --json, one object per refresh.",
        ),
    ] = False,
) -> None:
    """Show the state of runs: cycles, decisions, success with intervals, jobs, hours, questions."""
    with typed_exits(as_json=as_json, go_on="runs continue"), open_store(workdir, store) as opened:
        from cadenza.loop.status_report import all_statuses, run_status

        def look() -> "Sequence[RunStatus]":
            if run_id is None:
                return all_statuses(opened, workdir=workdir, newest=cycles or None)
            return [run_status(opened, run_id, workdir=workdir, newest=cycles or None)]

        if as_json:
            for statuses in looks(look) if watch else [look()]:
                print_json({"runs": [one.model_dump(mode="json") for one in statuses]})
        else:
            statuses = show_until_the_end(look, workdir, store) if watch else look()
            if not statuses:
                print_text("no runs yet")
            for one in statuses:
                if one is not statuses[0]:
                    print_text("")
                print_status(one, workdir, store)


@loop_app.command()
def stop(
    run_id: RunId,
    workdir: Workdir = _RUNS,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Stop a run so that it can be resumed; its job is ended first, finished work is kept."""
    with typed_exits(as_json=as_json), open_store(workdir, store) as opened:
        from cadenza.loop.requests import stop_run

        outcome = stop_run(opened, run_id, workdir=workdir)
        if as_json:
            print_json(outcome.model_dump(mode="json"))
        else:
            print_text(_stopped(outcome))
            print_text(f"continue with: {command('resume', run_id, workdir, store)}")


@loop_app.command()
def approve(
    run_id: RunId,
    by: Annotated[str, typer.Option("--by", help="Who answers.", show_default=False)],
    reason: Annotated[
        str, typer.Option("--reason", help="Why, for the record.", show_default=False)
    ],
    reject: Annotated[bool, typer.Option("--reject", help="Reject instead of approving.")] = False,
    workdir: Workdir = _RUNS,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Answer the decision that a run waits for; the answer is final."""
    with typed_exits(as_json=as_json), open_store(workdir, store) as opened:
        from dataclasses import asdict

        from cadenza.loop.requests import answer
        from cadenza.loop.status_report import worked_on_by

        row = answer(opened, run_id, approve=not reject, reason=reason, by=by)
        if as_json:
            print_json(asdict(row))
            return
        print_text(f"run {run_id}: {row.gate} in cycle {row.cycle} is {row.status} by {row.by}")
        if worked_on_by(opened, run_id) is None:
            print_text(
                f"no controller runs it; continue with: {command('resume', run_id, workdir, store)}"
            )


@loop_app.command()
def doctor(
    config: Annotated[
        Path | None,
        typer.Option(
            "--config", "-c", help="Configuration that must be able to run.", show_default=False
        ),
    ] = None,
    workdir: Annotated[
        Path | None,
        typer.Option(
            "--workdir",
            "-w",
            help="Folder of all runs; default: the configuration's, or runs.",
            show_default=False,
        ),
    ] = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Check that this machine can run loops, and say how to mend what is missing."""
    with typed_exits(as_json=as_json):
        from cadenza.core.shipped_configs import find_config
        from cadenza.loop.doctor import examine, read_configuration

        settings, found = None, []
        if config is not None:
            settings, found = read_configuration(find_config(config, "loop"))
        folder = workdir or (_RUNS if settings is None else settings.workdir)
        url = store or (None if settings is None else settings.store)
        checks = [
            *found,
            *examine(config=settings, store=store_location(folder, url), workdir=folder),
        ]
        healthy = all(check.level != "fail" for check in checks)
        if as_json:
            print_json({"ok": healthy, "checks": [check.model_dump() for check in checks]})
        else:
            print_checks("Loop runs on this machine", checks, warn="warn")
    if not healthy:
        raise typer.Exit(ExitCode.CHECK_FAILED)


@loop_app.command()
def lint(
    knowledge: Annotated[
        Path, typer.Option("--knowledge", "-k", help="Folder of the pages.")
    ] = _KNOWLEDGE,
    as_json: AsJson = False,
) -> None:
    """Check the pages that runs wrote: shape, contradictions, staleness."""
    with typed_exits(as_json=as_json):
        from cadenza.core.errors import ConfigurationError
        from cadenza.loop.knowledge.lint import findings

        if not knowledge.is_dir():
            raise ConfigurationError(
                f"{knowledge}: expected a folder of pages, got none; name it with --knowledge."
            )
        found = findings(knowledge)
        if as_json:
            print_json({"ok": not found, "findings": found})
        else:
            for finding in found:
                print_text(plain(f"{finding['page']}: {finding['problem']}"))
            print_text(f"{len(found)} findings" if found else "nothing wrong")
    if found:
        raise typer.Exit(ExitCode.CHECK_FAILED)


def _stopped(outcome: "StopOutcome") -> str:
    if outcome.controller is not None:
        who = readable(outcome.controller)
        return (
            f"run {outcome.run_id}: {who} was asked to stop it; it ends its job and keeps the run "
            "at its current step"
        )
    jobs = f", {', '.join(outcome.jobs)} asked to end" if outcome.jobs else ""
    return f"run {outcome.run_id}: no controller was running; it is now stopped{jobs}"
