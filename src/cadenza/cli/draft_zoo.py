"""`cadenza partners train-draft-zoo`: checkpoints for the two learned partners of the draft zoo."""

from pathlib import Path
from typing import Annotated

import typer

from cadenza.cli.output import print_json, print_table, print_text, typed_exits


def train_draft_zoo(
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Artifacts folder; else the one partners load from."),
    ] = None,
    frames: Annotated[
        int | None, typer.Option("--frames", min=1, help="Frames per partner, for trying out.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Train the two learned partners of the draft zoo on the push task; replaces earlier ones."""
    with typed_exits(as_json=as_json):
        from cadenza.benchmark.draft_zoo import train_draft_zoo
        from cadenza.partners.weights import artifacts_folder

        members = train_draft_zoo(
            out or artifacts_folder(),
            frames=frames,
            progress=None if as_json else lambda name: print_text(f"training {name} ..."),
        )
        columns = ("partner", "partner_id", "frames", "mean_return", "path")
        rows = [
            (m.spec.class_name, m.spec.partner_id, m.frames, m.mean_return, str(m.path))
            for m in members
        ]
        if as_json:
            print_json({"members": [dict(zip(columns, row, strict=True)) for row in rows]})
        else:
            text = [(*row[:2], str(row[2]), f"{row[3]:.1f}", row[4]) for row in rows]
            print_table("Draft zoo", columns, text)
