"""The `cadenza` command: the application and its list of commands."""

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.main import get_command

from cadenza import __version__
from cadenza.cli import (
    compare,
    dash,
    doctor,
    evaluate,
    job,
    listings,
    prereg,
    quickstart,
    report,
    safety,
    spike,
    stream,
    suite,
    sweep,
    train,
    zoo,
)
from cadenza.cli.loop import loop_app
from cadenza.cli.output import ExitCode, print_text, report_error, typed_exits

app: typer.Typer = typer.Typer(
    name="cadenza",
    help="Train, guard and evaluate robot policies for partners that they have never met.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
contracts_app: typer.Typer = typer.Typer(
    help="Show what each number of a task means.", no_args_is_help=True
)
configs_app: typer.Typer = typer.Typer(
    help="Show and copy shipped configurations.", no_args_is_help=True
)
eval_app: typer.Typer = typer.Typer(
    help="Evaluate policies and verify results.", no_args_is_help=True
)
job_app: typer.Typer = typer.Typer(
    help="Run one step of an improvement loop.", no_args_is_help=True
)
prereg_app: typer.Typer = typer.Typer(
    help="Register an evaluation before it runs.", no_args_is_help=True
)
partners_app: typer.Typer = typer.Typer(
    help="List and train partners of an ego.", no_args_is_help=True
)
safety_app: typer.Typer = typer.Typer(
    help="Attack the safety filter, show reports and maps.", no_args_is_help=True
)
spike_app: typer.Typer = typer.Typer(
    help="Play and judge staged spikes: what heterogeneity costs.", no_args_is_help=True
)
stream_app: typer.Typer = typer.Typer(help="Watch streams of episodes.", no_args_is_help=True)
suite_app: typer.Typer = typer.Typer(
    help="Play a declared set of tasks, egos and held-out partners.", no_args_is_help=True
)
zoo_app: typer.Typer = typer.Typer(
    help="Train and compare populations of partners.", no_args_is_help=True
)
tasks_app: typer.Typer = typer.Typer(help="Show and examine an ego's tasks.", no_args_is_help=True)

app.command("quickstart")(quickstart.quickstart)
app.command("train")(train.train)
app.command("sweep")(sweep.sweep)
app.command("imitate")(train.imitate)
app.command("doctor")(doctor.doctor)
app.command("report")(report.report)
app.command("dash")(dash.dash)
contracts_app.command("list")(listings.contracts)
contracts_app.command("show")(listings.show_contract)
configs_app.command("list")(listings.configs)
configs_app.command("show")(listings.show_config)
configs_app.command("copy")(listings.copy_config)
eval_app.command("run")(evaluate.run)
eval_app.command("verify")(evaluate.verify)
eval_app.command("sign")(evaluate.sign)
eval_app.command("leaderboard")(report.leaderboard)
eval_app.command("diff")(compare.compare)
eval_app.command("compare")(compare.compare)
job_app.command("collect")(job.collect)
job_app.command("train")(job.train)
job_app.command("evaluate")(job.evaluate)
job_app.command("harvest")(job.harvest)
job_app.command("merge")(job.merge)
prereg_app.command("new")(prereg.new)
prereg_app.command("lint")(prereg.lint)
prereg_app.command("power")(prereg.power)
prereg_app.command("freeze")(prereg.freeze)
prereg_app.command("verify")(prereg.verify)
safety_app.command("verify")(safety.verify)
safety_app.command("tables")(safety.tables)
safety_app.command("show")(safety.show)
spike_app.command("list")(spike.list_axes)
spike_app.command("run")(spike.run)
spike_app.command("verify")(spike.verify)
spike_app.command("summarise")(spike.summarise)
spike_app.command("next-stage")(spike.next_stage)
suite_app.command("run")(suite.run)
suite_app.command("list")(suite.list_suites)
suite_app.command("show")(suite.show)
stream_app.command("top")(stream.top)
partners_app.command("list")(listings.partners)
partners_app.command("train-draft-zoo")(zoo.train_draft_zoo)
tasks_app.command("list")(listings.tasks)
tasks_app.command("show")(listings.show_task)
tasks_app.command("admit")(listings.admit)
tasks_app.command("film")(listings.film)
tasks_app.command("freeze")(listings.freeze)
zoo_app.command("train")(zoo.train)
zoo_app.command("select")(zoo.select)
zoo_app.command("list")(zoo.list_zoos)
zoo_app.command("show")(zoo.show)
zoo_app.command("best-response")(zoo.best_response)
zoo_app.command("matrix")(zoo.matrix)
zoo_app.command("film")(zoo.film)
app.add_typer(configs_app, name="configs")
app.add_typer(contracts_app, name="contracts")
app.add_typer(eval_app, name="eval")
app.add_typer(job_app, name="job")
app.add_typer(safety_app, name="safety")
app.add_typer(spike_app, name="spike")
app.add_typer(stream_app, name="stream")
app.add_typer(suite_app, name="suite")
app.add_typer(loop_app, name="loop")
app.add_typer(partners_app, name="partners")
app.add_typer(prereg_app, name="prereg")
app.add_typer(tasks_app, name="tasks")
app.add_typer(zoo_app, name="zoo")


def _print_version(wanted: bool) -> None:
    if wanted:
        with typed_exits():
            print_text(f"cadenza {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Train, guard and evaluate robot policies for partners that they have never met."""


def main() -> None:
    """Entry point of the console script."""
    _fill_standard_streams()
    try:
        sys.exit(build_command().main(prog_name="cadenza", standalone_mode=False))
    except typer.TyperException as error:  # a command line that cannot be read
        told, context = error.format_message().rstrip("."), getattr(error, "ctx", None)
        if told:  # nothing where Typer has printed the help of a group
            advice = f"; see `{context.command_path} --help`." if context else "."
            report_error("UsageError", told + advice, as_json="--json" in sys.argv)
        sys.exit(ExitCode.USAGE)
    except OSError as error:  # commands report their own; what is left is Typer printing its help
        sys.stderr.write(f"error: stdout: expected to print the help, got '{error.strerror}'\n")
        sys.exit(ExitCode.STORAGE)


def build_command() -> Any:
    """Return the command, with an example in every help and without ``<bool>`` behind flags."""
    lines = Path(__file__).with_name("examples.txt").read_text("utf-8").splitlines()
    root: Any = get_command(app)
    commands: list[tuple[str, Any]] = [("cadenza", root)]
    for path, command in commands:  # grows as groups are met
        example = next((line for line in lines if f"{line} ".startswith(f"{path} ")), None)
        command.epilog = example and f"Example: {example}"
        for option in command.get_params(typer.Context(command, **root.context_settings)):
            if getattr(option, "is_flag", False):
                option.metavar = ""
        commands += [
            (f"{path} {name}", one) for name, one in getattr(command, "commands", {}).items()
        ]
    return root


def _fill_standard_streams() -> None:
    """Open /dev/null where a standard stream is closed.

    The next file would get its number, and a library's message to stderr would land in it.
    """
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is this one
