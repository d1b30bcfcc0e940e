"""`cadenza partners train-draft-zoo`: checkpoints for the two learned partners of the draft zoo."""

from pathlib import Path
from typing import Annotated

import typer

from cadenza.cli.output import print_json, print_table, print_text, typed_exits


def train_draft_zoo(
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="Artifacts folder; by default the one that partners are loaded from.",
            show_default=False,
        ),
    ] = None,
    frames: Annotated[
        int | None,
        typer.Option("--frames", min=1, help="Frames per partner, for trying out."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Train the two learned partners of the draft zoo on the push task; replaces earlier ones."""
    with typed_exits(as_json=as_json):
        from cadenza.benchmark import draft_zoo
        from cadenza.partners.weights import artifacts_folder

        def report(name: str) -> None:
            if not as_json:
                print_text(f"training {name} ...")

        members = draft_zoo.train_draft_zoo(
            out or artifacts_folder(), frames=frames, progress=report
        )
        if as_json:
            rows = [
                {
                    "partner": member.spec.class_name,
                    "partner_id": member.spec.partner_id,
                    "path": str(member.path),
                    "frames": member.frames,
                    "mean_return": member.mean_return,
                }
                for member in members
            ]
            print_json({"members": rows})
            return
        print_table(
            "Draft zoo",
            ("partner", "id", "frames", "mean return", "checkpoint"),
            [
                (
                    member.spec.class_name,
                    member.spec.partner_id,
                    str(member.frames),
                    f"{member.mean_return:.1f}",
                    str(member.path),
                )
                for member in members
            ],
        )
