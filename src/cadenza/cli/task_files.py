"""`cadenza tasks admit | freeze | film`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from cadenza.cli.exit_codes import ExitCode
from cadenza.cli.output import print_json, print_text, typed_exits

_Task = Annotated[str, typer.Argument(help="Its name, e.g. cocarry_mj.", show_default=False)]
_Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")]


def admit(
    task: _Task,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the record.")],
    episodes: Annotated[
        int | None, typer.Option("--episodes", min=2, help="At most this many a row.")
    ] = None,
    quiet: _Quiet = False,
) -> None:
    """Check that a task needs a partner, and an ego that feels it; write the table.

    Exit code 1 if a check fails.
    """
    with typed_exits():
        from cadenza.benchmark.admission import admit as play
        from cadenza.benchmark.admission import as_markdown
        from cadenza.core.files import atomic_write_json, atomic_write_text, make_folder
        from cadenza.core.progress import progress_bar

        make_folder(out)
        with progress_bar("admission", quiet=quiet) as report:
            record = play(task, episodes=episodes, progress=report)
        atomic_write_json(out / "admission.json", record)
        table = as_markdown(record)
        atomic_write_text(out / "admission.md", table)
        print_text(table)
    if not all(check["passed"] for check in record["checks"].values()):
        raise typer.Exit(ExitCode.CHECK_FAILED)


def freeze(
    task: _Task,
    out: Annotated[Path, typer.Option("--out", "-o", help="File for the manifest.")],
) -> None:
    """Measure the limits that a task's reference controller sets, and write its manifest."""
    with typed_exits():
        from cadenza.benchmark.admission import freeze_force_limit
        from cadenza.core.errors import ConfigurationError
        from cadenza.core.files import atomic_write_json

        if task != "cocarry_mj":
            raise ConfigurationError(f"freeze: expected cocarry_mj, got {task!r}.")
        manifest = freeze_force_limit()
        atomic_write_json(out, manifest)
        print_json(manifest)


def film(
    task: _Task,
    out: Annotated[Path, typer.Option("--out", "-o", help="File: .png, .gif or .mp4.")],
    ego: Annotated[str, typer.Option("--ego", help="Policy: a name or local:// address.")],
    partner: Annotated[str, typer.Option("--partner", help="Registered partner class.")],
    seed: Annotated[int, typer.Option("--seed", min=0, help="Episode.")] = 0,
    option: Annotated[
        list[str] | None, typer.Option("--option", help="Of the task, e.g. partner_delay=5.")
    ] = None,
) -> None:
    """Play one episode and write pictures of it."""
    with typed_exits():
        from cadenza.benchmark.films import FilmRequest
        from cadenza.benchmark.films import film as make

        options = dict(_option(text) for text in option or [])
        request = FilmRequest(task=task, ego=ego, partner=partner, seed=seed, options=options)
        result = make(request, out)
        print_text(f"{out}: {result['steps']} steps, success {result['info'].get('success')}")


def _option(text: str) -> tuple[str, Any]:
    """Return name and value of ``name=value``, the value read as YAML."""
    import yaml

    name, _, value = text.partition("=")
    return name, yaml.safe_load(value)
