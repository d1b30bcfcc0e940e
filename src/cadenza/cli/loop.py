"""`cadenza loop`: the commands that look at runs and answer them; `loop_run` has the others."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from cadenza.cli import loop_run
from cadenza.cli.doctor import print_checks
from cadenza.cli.loop_status import (
    KNOWLEDGE,
    RUNS,
    By,
    Config,
    Knowledge,
    Reason,
    RunId,
    StoreUrl,
    Workdir,
    command,
    comparison_rows,
    event_line,
    login_name,
    looks,
    open_store,
    plain,
    print_status,
    run_row,
    store_location,
    utc,
)
from cadenza.cli.loop_status import watch as show_until_the_end
from cadenza.cli.output import AsJson, ExitCode, print_json, print_table, print_text, typed_exits
from cadenza.core.errors import ConfigurationError
from cadenza.loop.processes import readable

if TYPE_CHECKING:
    from cadenza.loop.requests import StopOutcome
    from cadenza.loop.status_report import RunStatus

loop_app: typer.Typer = typer.Typer(
    help="Collect, train, evaluate, decide, improve: unattended, and safe to kill.\n\nFor weeks: "
    "the sections notify (who is told, by a command or webhook) and retention (what is removed "
    "between cycles) of a configuration; prune, service, list, logs, compare. See docs/loop.md.",
    no_args_is_help=True,
)
loop_app.command("run")(loop_run.run)
loop_app.command("resume")(loop_run.resume)
loop_app.command("demo")(loop_run.demo)

#: Most folders of one run that `prune` lists.
_SHOWN: Final = 20
#: Exit codes after which a run needs a person, not another try.
_FINAL: Final = (
    *(ExitCode.USAGE, ExitCode.DAMAGED_DATA, ExitCode.NOT_READY, ExitCode.MISSING_EXTRA),
    *(ExitCode.REFUSED, ExitCode.BAD_INPUT),
)


@loop_app.command()
def status(
    run_id: Annotated[
        str | None, typer.Argument(metavar="RUN_ID", help="Id of one run; default: all runs.")
    ] = None,
    workdir: Workdir = RUNS,
    store: StoreUrl = None,
    cycles: Annotated[
        int, typer.Option("--cycles", min=0, help="Newest cycles of each run to show; 0 for all.")
    ] = 20,
    as_json: AsJson = False,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch", help="Refresh until no run is active; with --json, one object per refresh."
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
    by: By = None,
    reason: Reason = None,
    workdir: Workdir = RUNS,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Stop a run so that it can be resumed; its job is ended first, finished work is kept."""
    with typed_exits(as_json=as_json), open_store(workdir, store) as opened:
        from cadenza.loop.requests import stop_run

        by = login_name() if by is None else by
        outcome = stop_run(opened, run_id, workdir=workdir, reason=reason, by=by)
        if as_json:
            print_json(outcome.model_dump(mode="json"))
        else:
            print_text(_stopped(outcome))
            print_text(f"continue with: {command('resume', run_id, workdir, store)}")


@loop_app.command()
def approve(
    run_id: RunId,
    by: Annotated[str, typer.Option("--by", help="Who answers.")],
    reason: Annotated[str, typer.Option("--reason", help="Why, for the record.")],
    reject: Annotated[bool, typer.Option("--reject", help="Reject instead of approving.")] = False,
    workdir: Workdir = RUNS,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Answer the decision that a run waits for; the answer is final."""
    with typed_exits(as_json=as_json), open_store(workdir, store) as opened:
        from dataclasses import asdict

        from cadenza.loop.requests import answer

        row = answer(opened, run_id, approve=not reject, reason=reason, by=by)
        if as_json:
            print_json(asdict(row))
            return
        print_text(f"run {run_id}: {row.gate} in cycle {row.cycle} is {row.status} by {row.by}")
        if opened.leases.holder(run_id) is None:
            print_text(
                f"no controller runs it; continue with: {command('resume', run_id, workdir, store)}"
            )


@loop_app.command()
def doctor(
    config: Config = None,
    workdir: Annotated[
        Path | None,
        typer.Option(
            "--workdir", "-w", help="Folder of all runs; default: the configuration's, or runs."
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
        folder = workdir or (RUNS if settings is None else settings.workdir)
        url = store or (None if settings is None else settings.store)
        checks = [
            *found,
            *examine(config=settings, store=store_location(folder, url), workdir=folder),
        ]
        healthy = all(check.level != "fail" for check in checks)
        if as_json:
            print_json({"ok": healthy, "checks": [check._asdict() for check in checks]})
        else:
            print_checks("Loop runs on this machine", checks, warn="warn")
    if not healthy:
        raise typer.Exit(ExitCode.CHECK_FAILED)


@loop_app.command()
def lint(
    knowledge: Knowledge = KNOWLEDGE,
    as_json: AsJson = False,
) -> None:
    """Check the pages that runs wrote: shape, contradictions, staleness."""
    with typed_exits(as_json=as_json):
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


@loop_app.command("list")
def list_runs(
    status: Annotated[
        str | None, typer.Option("--status", help="Only runs of this status.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Most runs.")] = 100,
    workdir: Workdir = RUNS,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """List runs, the newest first, one line each."""
    with typed_exits(as_json=as_json), open_store(workdir, store) as opened:
        from cadenza.loop.status_report import run_list
        from cadenza.loop.store.changes import RUN_STATUSES

        if status not in (None, *RUN_STATUSES):
            expected = ", ".join(RUN_STATUSES)
            raise ConfigurationError(f"--status: expected one of {expected}, got {status!r}.")
        runs = run_list(opened, status=status, limit=limit)
        if as_json:
            print_json({"runs": [one.model_dump(mode="json") for one in runs]})
        else:
            columns = ("run", "status", "cycles", "at", "blessed")
            print_table("", columns, [run_row(one) for one in runs])


@loop_app.command()
def logs(
    run_id: RunId,
    job: Annotated[
        str | None, typer.Option("--job", help="Stage of a job whose output to show.")
    ] = None,
    cycle: Annotated[int | None, typer.Option("--cycle", min=0, help="Only this cycle.")] = None,
    tail: Annotated[int, typer.Option("--tail", min=0, help="Last events or lines.")] = 100,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Show what comes, until nobody works on it.")
    ] = False,
    workdir: Workdir = RUNS,
    store: StoreUrl = None,
) -> None:
    """Show the events of a run, or the output of one of its jobs."""
    with typed_exits(go_on="the run continues"), open_store(workdir, store) as opened:
        from cadenza.loop.reports import tail_events, tail_log

        if job is None:
            for one in tail_events(opened, run_id, cycle=cycle, last=tail, follow=follow):
                text = event_line(one.cycle, one.stage, one.kind, json.loads(one.payload))
                print_text(plain(f"{utc(one.ts)} {text}"))
            return
        for text in tail_log(
            opened, run_id, job, workdir=workdir, cycle=cycle, last=tail, follow=follow
        ):
            for line in text.splitlines():
                print_text(plain(line))


@loop_app.command()
def compare(
    run_ids: Annotated[list[str], typer.Argument(metavar="RUN_ID...", help="Two runs or more.")],
    workdir: Workdir = RUNS,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show runs side by side: settings that differ, decisions, blessed policies, hours, cost."""
    with typed_exits(as_json=as_json), open_store(workdir, store) as opened:
        from cadenza.loop.reports import compare_runs

        found = compare_runs(opened, run_ids, workdir=workdir)
        if as_json:
            print_json({"runs": [one.model_dump(mode="json") for one in found]})
        else:
            print_table("", ("", *run_ids), comparison_rows(found))


@loop_app.command()
def prune(
    run_id: Annotated[
        str | None, typer.Argument(metavar="RUN_ID", help="One run; default: all.")
    ] = None,
    older_than: Annotated[
        str | None, typer.Option("--older-than", help="Age, 14d, 36h or 90m.")
    ] = None,
    keep_cycles: Annotated[
        int | None, typer.Option("--keep-cycles", min=0, help="Newest ended cycles to leave whole.")
    ] = None,
    max_size: Annotated[
        str | None, typer.Option("--max-size", help="Size of these runs together, 50GB.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run/--yes", help="Only say what would go, or remove it.")
    ] = True,
    workdir: Workdir = RUNS,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Remove what ended cycles left and no run needs; results and logs stay."""
    with typed_exits(as_json=as_json):
        from cadenza.loop import retention

        rules = retention.parse_rules(older_than, keep_cycles, max_size)
        with open_store(workdir, store) as opened:
            going = retention.prune(opened, workdir, rules, run_id=run_id, dry_run=dry_run)
        if as_json:
            print_json({"dry_run": dry_run, "runs": going})
            return
        for name, one in going.items():
            paths = one["paths"]
            print_text(f"run {name}: {one['bytes'] / 1e6:.1f} MB in {len(paths)} folders")
            for path in paths[:_SHOWN]:
                print_text(plain(f"  {path}"))
            if len(paths) > _SHOWN:
                print_text(f"  and {len(paths) - _SHOWN} more; all of them: --json")
        print_text("nothing was removed; do it with --yes" if dry_run else "removed")


@loop_app.command()
def service(
    run_id: Annotated[str | None, typer.Argument(metavar="RUN_ID", help="Run to continue.")] = None,
    config: Config = None,
    workdir: Workdir = RUNS,
    store: StoreUrl = None,
) -> None:
    """Print a systemd user unit that works on a run, an earlier one or one of a configuration."""
    with typed_exits():
        from cadenza.core.shipped_configs import find_config
        from cadenza.loop.reports import service_of_config, service_of_run

        if (run_id is None) == (config is None):
            raise ConfigurationError("service: expected RUN_ID or --config FILE; name one of them.")
        if config is not None:
            print_text(service_of_config(find_config(config, "loop"), final=_FINAL))
            return
        with open_store(workdir, store) as opened:
            print_text(service_of_run(opened, str(run_id), workdir, store, final=_FINAL))


def _stopped(outcome: "StopOutcome") -> str:
    if outcome.controller is not None:
        who = readable(outcome.controller)
        return (
            f"run {outcome.run_id}: {who} was asked to stop it; it ends its job and keeps the run "
            "at its current step"
        )
    jobs = f", {', '.join(outcome.jobs)} asked to end" if outcome.jobs else ""
    return f"run {outcome.run_id}: no controller was running; it is now stopped{jobs}"
