"""`cadenza spike`: play the staged spikes of the six axes, and judge them."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from cadenza.cli.evaluate import AllowDirty, Executor, Resources, Workers, cluster_of
from cadenza.cli.output import (
    AsJson,
    ExitCode,
    Quiet,
    print_json,
    print_table,
    print_text,
    typed_exits,
)
from cadenza.cli.prereg import Repository, read_registration, report_registrations, verified
from cadenza.core.errors import ConfigurationError
from cadenza.core.progress import progress_bar

_Paths = Annotated[list[Path], typer.Argument(help="Folders that `spike run` has written.")]


def list_axes(as_json: AsJson = False) -> None:
    """List the axes with their tasks and conditions, and the link profiles."""
    with typed_exits(as_json=as_json):
        from cadenza.benchmark.spike_axes import adapters, stage_of
        from cadenza.comm.profiles import URLLC_3GPP_R17

        axes = [(axis, stage_of(axis), one) for axis, every in adapters().items() for one in every]
        links = [{"name": name, **asdict(link)} for name, link in URLLC_3GPP_R17.items()]
        if as_json:
            shown = [
                {"axis": axis, "stage": stage, **one.model_dump(mode="json")}
                for axis, stage, one in axes
            ]
            print_json({"axes": shown, "profiles": links})
            return
        rows = [(axis, stage, one.task, one.varied) for axis, stage, one in axes]
        print_table("Axes of spikes", ("axis", "stage", "task", "what differs"), rows)
        keys = ("name", "latency_mean_ms", "latency_std_ms", "drop_rate")
        figures = [tuple(str(link[key]) for key in keys) for link in links]
        print_table("Link profiles", ("name", "mean, ms", "sd, ms", "lost"), figures)


def run(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for everything written.")],
    axis: Annotated[
        str, typer.Option("--axis", help="AS, OM, CR, CM, PF or SA; none for sub-stage 0.")
    ] = "",
    sub_stage: Annotated[
        str | None,
        typer.Option("--sub-stage", help="0, 1a, 1b, 2 or 3; default: 1a and the axis' own."),
    ] = None,
    ego: Annotated[
        list[str] | None, typer.Option("--ego", help="Policy, SOURCE or NAME=SOURCE; repeatable.")
    ] = None,
    task: Annotated[
        str | None, typer.Option("--task", help="Task of the axis; the usual one by default.")
    ] = None,
    seeds: Annotated[
        int, typer.Option("--seeds", min=0, help="Seeds 0, 1, ...; 0: those registered, or 10.")
    ] = 0,
    episodes: Annotated[
        int | None, typer.Option("--episodes", min=1, help="Per seed and condition; usually 20.")
    ] = None,
    prereg: Annotated[
        Path | None, typer.Option("--prereg", help="Registration of the axis, locked by its tag.")
    ] = None,
    repository: Repository = Path(),
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Write made-up episodes, marked; play nothing.")
    ] = False,
    workers: Workers = None,
    executor: Executor = "local",
    resources: Resources = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the spike in --out.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Empty --out first.")] = False,
    allow_dirty: AllowDirty = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Play one axis: the rig with an ego that never acts, then the stage; write what it shows.

    Sub-stage 0 plays no axis: it checks that robots, rates and links fit together.
    """
    with typed_exits(as_json=as_json):
        from cadenza.benchmark.output_folder import output_mode
        from cadenza.benchmark.spikes import gate, runs

        if sub_stage == "0":
            _try_rig(out, as_json=as_json)
            return
        with progress_bar(f"spike {axis}", quiet=quiet or as_json) as report:
            outcomes = runs.run_spike(
                axis,
                out,
                egos=ego or (),
                sub_stage=sub_stage,
                task=task,
                seeds=range(seeds),
                episodes_per_seed=episodes,
                registration=None if prereg is None else read_registration(prereg, repository),
                mode=output_mode(resume=resume, overwrite=overwrite),
                dry_run=dry_run,
                workers=workers,
                cluster=cluster_of(executor, resources or []),
                progress=report,
            )
        spikes, damaged = gate.read_spikes([out], repo_path=repository, allow_dirty=allow_dirty)
        files = gate.write_outcome(out, spikes, damaged, repo_path=repository)
        if as_json:
            print_json({**gate.summary(spikes, damaged), "files": [str(file) for file in files]})
        else:
            for tried in (spike.run for spike in spikes if spike.run.sub_stage == "1a"):
                print_text(f"stage 1a: the rig played {len(tried.episode_results)} episodes.")
            text = gate.summary_text(spikes, damaged).replace("\\", "")
            print_text("\n".join([text, *(f"written: {file}" for file in files)]))
    if damaged or any(outcome.failures for outcome in outcomes):
        raise typer.Exit(ExitCode.DAMAGED_DATA if damaged else ExitCode.INCOMPLETE)


def _try_rig(out: Path, *, as_json: bool) -> None:
    """Run stage 0 and write its checks into ``out``, which must be new."""
    from cadenza.benchmark.output_folder import open_output_folder
    from cadenza.benchmark.spikes.rig import rig_checks
    from cadenza.benchmark.verify import all_ok, render_check_table
    from cadenza.core.files import atomic_write_json

    with open_output_folder(out, mode="new"):
        checks = rig_checks()
        payload = {"ok": all_ok(checks), "checks": [asdict(check) for check in checks]}
        atomic_write_json(out / "stage0.json", payload)
    if as_json:
        print_json(payload)
    else:
        print_text(render_check_table(checks))
    if not payload["ok"]:
        raise typer.Exit(ExitCode.CHECK_FAILED)


def verify(
    paths: Annotated[
        list[Path], typer.Argument(help="Registrations of axes; with --all their folder.")
    ],
    every: Annotated[
        bool, typer.Option("--all", help="AS.yaml, OM.yaml, ... of the folder, all six.")
    ] = False,
    repository: Repository = Path(),
    as_json: AsJson = False,
) -> None:
    """Compare registrations of axes with their git tags; each is told, whatever the others are."""
    with typed_exits(as_json=as_json):
        from cadenza.evaluation.prereg import CANONICAL_AXIS_ORDER

        if every:
            paths = [folder / f"{axis}.yaml" for folder in paths for axis in CANONICAL_AXIS_ORDER]
        rows: list[dict[str, Any]] = []
        for path in paths:
            if every and not path.is_file():
                rows.append({"file": str(path), "ok": False, "detail": "not registered"})
                continue
            rows.append(verified(path, repository))
            if rows[-1]["ok"] and rows[-1]["axis"] is None:
                rows[-1] |= {"ok": False, "detail": "registers no axis"}
        report_registrations(rows, as_json=as_json)


def summarise(
    paths: _Paths,
    repository: Repository = Path(),
    allow_dirty: AllowDirty = False,
    as_json: AsJson = False,
) -> None:
    """Print the stage table of every method, what it recommends, and the leaderboard."""
    with typed_exits(as_json=as_json):
        from cadenza.benchmark.spikes import gate

        spikes, damaged = gate.read_spikes(paths, repo_path=repository, allow_dirty=allow_dirty)
        if as_json:
            print_json(gate.summary(spikes, damaged))
        else:
            print_text(gate.summary_text(spikes, damaged).replace("\\", ""))
    if damaged:
        raise typer.Exit(ExitCode.DAMAGED_DATA)


def next_stage(
    paths: _Paths,
    prior: Annotated[str, typer.Option("--prior-stage", help="Stage that was played: 1b, 2 or 3.")],
    gate_pp: Annotated[
        float, typer.Option("--gate-pp", min=0.0, max=100.0, help="Gap to show, points.")
    ] = 20.0,
    ego: Annotated[
        str | None, typer.Option("--ego", help="The ego that is judged, where there are several.")
    ] = None,
    repository: Repository = Path(),
    allow_dirty: AllowDirty = False,
    as_json: AsJson = False,
) -> None:
    """Decide whether the next stage may begin: code 0 if an axis of the stage passes, else 5."""
    with typed_exits(as_json=as_json):
        from cadenza.benchmark.spikes import gate

        if prior not in ("1", "1b", "2", "3"):
            raise ConfigurationError(f"--prior-stage: expected 1b, 2 or 3, got {prior}.")
        spikes, damaged = gate.read_spikes(paths, repo_path=repository, allow_dirty=allow_dirty)
        methods = gate.by_method(spikes, damaged)
        chosen = ego or next(iter(methods))
        if chosen not in methods or not (ego or len(methods) == 1):
            raise ConfigurationError(f"--ego: expected one of {', '.join(methods)}, got {ego}.")
        every = gate.axis_statuses(methods[chosen], gate_pp=gate_pp)
        rows = [row for row in every if row.stage.startswith(prior)]
        passed = any(row.passes for row in rows)
        told = "PASS" if passed else "fail" if any(row.result for row in rows) else "not measured"
        if as_json:
            axes = [row.model_dump(mode="json") for row in rows]
            broken = [str(folder) for folder in damaged]
            print_json({"ego": chosen, "passes": passed, "axes": axes, "damaged": broken})
        else:
            print_table(
                f"{chosen}, gate {gate_pp:g} points", gate.COLUMNS, [r.cells() for r in rows]
            )
            lines = [f"{folder}: {reason}" for folder, reason in damaged.items()]
            print_text("\n".join([*lines, f"stage {prior}: {told}"]))
    if damaged or not passed:
        raise typer.Exit(ExitCode.DAMAGED_DATA if damaged else ExitCode.GATE_NOT_MET)
