"""`cadenza partners list` and `cadenza tasks list`."""

from typing import Annotated

import typer

from cadenza.cli.output import print_json, print_table, typed_exits

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")]


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
            (f"{task.task_id}@v{task.version}", task.title, str(task.episode_length))
            for task in known
        ]
        print_table("Tasks", ("name", "what it asks", "steps"), rows)
