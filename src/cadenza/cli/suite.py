"""`cadenza suite run | list | show`: a declared set of tasks, egos and held-out partners."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cadenza.cli.configuration import explained
from cadenza.cli.evaluate import Workers, shown_config
from cadenza.cli.output import AsJson, Quiet, print_json, print_table, print_text, typed_exits
from cadenza.core.progress import stage_bars

if TYPE_CHECKING:
    from cadenza.benchmark.suite import SuiteConfig

_Named = Annotated[
    Path, typer.Argument(help="Name of a shipped suite, e.g. aht-small, or a file of your own.")
]
_Tasks = Annotated[
    list[str] | None,
    typer.Option("--task", "-t", help="Only this task of it; repeatable. Others are optional."),
]
_Egos = Annotated[
    list[str] | None,
    typer.Option("--ego", help="Only this ego beside the references; repeatable."),
]
_Seeds = Annotated[int | None, typer.Option("--seeds", min=1, help="Training seeds of each ego.")]
_Scale = Annotated[
    float, typer.Option("--scale", min=1e-6, max=1.0, help="All budgets times this, to try it.")
]


def run(
    suite: _Named,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder; runs/suite-NAME by default.")
    ] = None,
    task: _Tasks = None,
    ego: _Egos = None,
    seeds: _Seeds = None,
    scale: _Scale = 1.0,
    workers: Workers = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Delete the suite there.")] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Train populations and egos, judge all beside partners that none has met, write one report.

    Killed at any point, the same command goes on, and ends with the same bytes.
    """
    with typed_exits(as_json=as_json, go_on="finished work is kept, run the same command again"):
        from cadenza.benchmark.suite import SuiteRunner
        from cadenza.benchmark.suite_report import (
            family_table,
            suite_record,
            write_suite_report,
        )

        asked = _read(suite).reduced(tasks=task or (), egos=ego or (), seeds=seeds, scale=scale)
        folder = out or Path("runs") / f"suite-{suite.stem}"
        with stage_bars(quiet=quiet or as_json) as report:
            words = ["cadenza", "suite", "run", shown_config(suite, "suites")]
            words += [word for name in task or () for word in ("--task", name)]
            words += [word for name in ego or () for word in ("--ego", name)]
            words += [] if seeds is None else ["--seeds", str(seeds)]
            words += [] if scale == 1.0 else ["--scale", f"{scale:g}"]
            runner = SuiteRunner(
                out=folder, workers=workers, progress=report, command=shlex.join(words)
            )
            played = runner.run(asked, mode="overwrite" if overwrite else "resume")
        page = write_suite_report(folder, played)
        if as_json:
            print_json({**suite_record(played), "report": str(page), "out": str(folder)})
            return
        for each in played:
            table = family_table(each)
            title = f"{each.plan.name}: {table.title.lower()}"
            print_table(title, table.columns, table.rows, note=table.caption)
        print_text(f"report: {page}\nleaderboard: {folder / 'leaderboard.md'}")


def list_suites(as_json: AsJson = False) -> None:
    """List the shipped suites."""
    with typed_exits(as_json=as_json):
        from cadenza.benchmark.suite import load_suite
        from cadenza.core.shipped_configs import shipped_configs

        names = [n.partition("/")[2] for n in shipped_configs() if n.startswith("suites/")]
        found = {name: load_suite(Path(name)) for name in names}
        rows = [(n, s.title, ", ".join(s.tasks), ", ".join(s.egos)) for n, s in found.items()]
        if as_json:
            columns = ("name", "title", "tasks", "egos")
            print_json({"suites": [dict(zip(columns, row, strict=True)) for row in rows]})
        else:
            print_table("Suites", ("name", "what it is", "tasks", "egos"), rows)


def show(
    suite: _Named,
    task: _Tasks = None,
    ego: _Egos = None,
    seeds: _Seeds = None,
    scale: _Scale = 1.0,
    as_json: AsJson = False,
) -> None:
    """Show the steps of a suite, and what each of them takes."""
    with typed_exits(as_json=as_json):
        asked = _read(suite).reduced(tasks=task or (), egos=ego or (), seeds=seeds, scale=scale)
        steps: list[dict[str, Any]] = [
            {"task": name, **step._asdict()}
            for name in asked.tasks
            for step in asked.plan(name, Path(name)).steps()
        ]
        if as_json:
            print_json({"suite": asked.model_dump(mode="json"), "steps": steps})
            return
        rows = [(s["task"], s["folder"], f"{s['frames']:,}", s["what"]) for s in steps]
        whole = _read(suite)
        by_name = {
            "--task": [name for name, each in whole.tasks.items() if each.optional and not task],
            "--ego": [name for name, each in whole.egos.items() if each.optional and not ego],
        }
        note = " ".join(f"With {o}: {', '.join(names)}." for o, names in by_name.items() if names)
        print_table(asked.title, ("task", "step", "frames", "what"), rows, note=note)


def _read(path: Path) -> "SuiteConfig":
    from cadenza.benchmark.suite import SuiteConfig, load_suite

    return explained(path, SuiteConfig, lambda: load_suite(path))
