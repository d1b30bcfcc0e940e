"""`cadenza partners list`, `tasks list | show` and `configs list | show | copy`."""

from itertools import takewhile
from pathlib import Path
from typing import Annotated

import typer

from cadenza.cli.output import print_json, print_table, print_text, typed_exits

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")]
_Name = Annotated[str, typer.Argument(help="Its name, e.g. train/crossing.", show_default=False)]


def partners(as_json: JsonOption = False) -> None:
    """List the registered partners and what each of them does."""
    with typed_exits(as_json=as_json):
        from cadenza.partners.registry import cards

        known = cards()
        if as_json:
            print_json(
                {
                    "partners": [
                        {
                            "name": name,
                            "summary": card.summary,
                            "tasks": list(card.tasks),
                            "leaves_way": card.leaves_way,
                        }
                        for name, card in known.items()
                    ]
                }
            )
            return
        rows = [
            (name, ", ".join(card.tasks) or "any", "yes" if card.leaves_way else "no", card.summary)
            for name, card in known.items()
        ]
        print_table("Partners", ("name", "tasks", "leaves a way", "what it does"), rows)


def tasks(as_json: JsonOption = False) -> None:
    """List the registered tasks."""
    with typed_exits(as_json=as_json):
        from cadenza.benchmark.tasks import list_tasks

        known = list_tasks()
        if as_json:
            print_json({"tasks": [task.model_dump(mode="json") for task in known]})
            return
        rows = [
            (
                f"{task.task_id}@v{task.version}",
                task.title,
                str(task.episode_length),
                task.extra or "none",
            )
            for task in known
        ]
        print_table("Tasks", ("name", "what it asks", "steps", "extra"), rows)


def show_task(
    task: Annotated[
        str | None, typer.Argument(help="Its name; all tasks without it.", show_default=False)
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Print a task's card in Markdown: robots, sizes, score, partners and options."""
    with typed_exits(as_json=as_json):
        from cadenza.benchmark.task_cards import task_card
        from cadenza.benchmark.tasks import get_task, list_tasks

        known = list_tasks() if task is None else [get_task(task)]
        if as_json:
            print_json({"tasks": [spec.model_dump(mode="json") for spec in known]})
            return
        title = [] if task else ["# Task cards"]
        print_text("\n\n".join([*title, *map(task_card, known)]))


def configs(as_json: JsonOption = False) -> None:
    """List the shipped configurations; a command takes its own without the folder."""
    with typed_exits(as_json=as_json):
        from cadenza.core.shipped_configs import shipped_config, shipped_configs

        known = shipped_configs()
        if as_json:
            print_json({"configs": known})
            return
        rows = [(name, _comment(shipped_config(name))) for name in known]
        print_table("Configurations", ("name", "what it is"), rows)


def show_config(name: _Name) -> None:
    """Print a shipped configuration."""
    with typed_exits():
        from cadenza.core.shipped_configs import shipped_config

        print_text(shipped_config(name).read_text("utf-8").rstrip("\n"))


def copy_config(
    name: _Name,
    target: Annotated[
        Path | None,
        typer.Argument(help="New file; configs/NAME.yaml without it.", show_default=False),
    ] = None,
) -> None:
    """Copy a shipped configuration to a file of your own; commands prefer it to the shipped one."""
    with typed_exits():
        from cadenza.core.files import atomic_write_bytes, make_folder
        from cadenza.core.shipped_configs import configs_folder, shipped_config

        source = shipped_config(name)
        path = target or "configs" / source.relative_to(configs_folder())
        if path.exists():
            raise FileExistsError(f"{path}: expected no such file yet, got one; name another.")
        make_folder(path.parent)
        atomic_write_bytes(path, source.read_bytes())
        print_text(f"copied to {path}")


def _comment(path: Path) -> str:
    """Return the comment that a file begins with."""
    lines = path.read_text("utf-8").splitlines()
    return " ".join(line.lstrip("# ") for line in takewhile(lambda line: line[:1] == "#", lines))
