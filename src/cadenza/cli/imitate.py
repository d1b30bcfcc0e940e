"""`cadenza imitate`: train an ego that does what a scripted expert would do."""

from pathlib import Path
from typing import Annotated

import typer

from cadenza.cli.output import print_json, print_text, typed_exits


def imitate(
    task: Annotated[str, typer.Argument(help="Name of the task, e.g. crossing.")],
    expert: Annotated[
        str, typer.Option(help="Ego policy, scripted ego or partner to imitate, e.g. swerve.")
    ],
    partner: Annotated[
        list[str] | None,
        typer.Option(help="Partner class; repeat it to draw one of several every episode."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of the agent and its policy.")] = Path(
        "runs/imitate"
    ),
    steps: Annotated[int, typer.Option(min=1, help="Environment steps in total.")] = 50_000,
    envs: Annotated[int, typer.Option(min=1, help="Environments stepped together.")] = 25,
    seed: Annotated[int, typer.Option(min=0, help="Root of everything random.")] = 0,
    episodes: Annotated[int, typer.Option(min=1, help="Episodes beside each partner.")] = 50,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the folder.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")] = False,
) -> None:
    """Imitate an expert by dataset aggregation, and judge the pupil beside each partner."""
    with typed_exits(as_json=as_json):
        from cadenza.benchmark.imitation import imitate as run

        done = run(
            task,
            expert=expert,
            partners=partner or (),
            out=out,
            steps=steps,
            num_envs=envs,
            seed=seed,
            episodes=episodes,
            resume=resume,
            progress=not (quiet or as_json),
        )
        if as_json:
            print_json(
                {
                    "steps": done.agent.steps,
                    "updates": done.agent.updates,
                    "resumed_from": done.resumed_from,
                    "policy": str(done.policy),
                    "successes": {name: each.count for name, each in done.judged.items()},
                    "episodes": episodes,
                }
            )
            return
        lines = [f"{name}: {successes}" for name, successes in done.judged.items()]
        print_text("\n".join([*lines, f"policy: {done.policy}"]))
