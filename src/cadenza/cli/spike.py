"""`cadenza spike`: play the staged spikes of the six axes, and judge them."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
from cadenza.cli.prereg import Repository, read_registration
from cadenza.core.errors import ConfigurationError, PreregistrationError
from cadenza.core.progress import progress_bar

if TYPE_CHECKING:
    from cadenza.benchmark.spikes.gate import AxisStatus, Spike
    from cadenza.evaluation.report.view import Check

_Paths = Annotated[list[Path], typer.Argument(help="Folders that `spike run` has written.")]


def list_axes(as_json: AsJson = False) -> None:
    """List the axes with their tasks and conditions, and the link profiles."""
    with typed_exits(as_json=as_json):
        from cadenza.benchmark.spike_axes import AXES, stage_of
        from cadenza.comm.profiles import URLLC_3GPP_R17
        from cadenza.evaluation.prereg import CANONICAL_AXIS_ORDER

        axes = [
            {
                "axis": axis,
                "stage": stage_of(axis),
                "task": adapter.task,
                "homogeneous": adapter.homogeneous.name,
                "heterogeneous": adapter.heterogeneous.name,
                "varied": adapter.varied,
                "package": adapter.package,
            }
            for axis in CANONICAL_AXIS_ORDER
            for adapter in AXES[axis]
        ]
        links = [{"name": name, **asdict(link)} for name, link in URLLC_3GPP_R17.items()]
        if as_json:
            print_json({"axes": axes, "profiles": links})
            return
        shown = ("axis", "stage", "task", "varied")
        rows = [tuple(str(row[key]) for key in shown) for row in axes]
        print_table("Axes of spikes", ("axis", "stage", "task", "what differs"), rows)
        keys = ("name", "latency_mean_ms", "latency_std_ms", "drop_rate")
        figures = [tuple(f"{row[k]:g}" if k != "name" else row[k] for k in keys) for row in links]
        print_table("Link profiles", ("name", "mean, ms", "sd, ms", "lost"), figures)


def run(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for everything written.")],
    axis: Annotated[
        str | None, typer.Option("--axis", help="AS, OM, CR, CM, PF or SA; none for sub-stage 0.")
    ] = None,
    sub_stage: Annotated[
        str | None,
        typer.Option(
            "--sub-stage", help="0, 1a, 1b, 2 or 3; by default 1a and then the axis' own."
        ),
    ] = None,
    ego: Annotated[
        list[str] | None,
        typer.Option("--ego", help="Policy, SOURCE or NAME=SOURCE; may be given several times."),
    ] = None,
    task: Annotated[
        str | None, typer.Option("--task", help="Task of the axis; the usual one by default.")
    ] = None,
    seeds: Annotated[
        int | None, typer.Option("--seeds", min=2, help="Seeds 0, 1, ...; 10 by default.")
    ] = None,
    episodes: Annotated[
        int | None,
        typer.Option("--episodes", min=1, help="Per seed and condition; 20 by default."),
    ] = None,
    prereg: Annotated[
        Path | None, typer.Option("--prereg", help="Registration of the axis, locked by its tag.")
    ] = None,
    repository: Repository = Path(),
    artifacts: Annotated[
        Path, typer.Option("--artifacts", help="Folder that local:// policies are relative to.")
    ] = Path(),
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Write made-up episodes, marked; play nothing.")
    ] = False,
    workers: Workers = None,
    executor: Executor = "local",
    resources: Resources = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the spike in --out.")] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Delete the spike in --out.")
    ] = False,
    allow_dirty: AllowDirty = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Play one axis: the rig with an ego that never acts, then the stage; write what it shows.

    Sub-stage 0 plays no axis: it checks that robots, rates and links fit together.
    """
    with typed_exits(as_json=as_json):
        if sub_stage == "0":
            _report_checks(_smoke(out), out, as_json=as_json)
            return
        if axis is None:
            raise ConfigurationError("--axis: expected one of the six, got none; see `spike list`.")
        if resume and overwrite:
            raise ConfigurationError("expected --resume or --overwrite, got both.")
        from cadenza.benchmark.spikes.gate import write_outcome
        from cadenza.benchmark.spikes.runs import plan_spike, run_spike

        plan = plan_spike(
            axis,
            egos=ego or (),
            sub_stage=sub_stage,
            task=task,
            seeds=None if seeds is None else range(seeds),
            episodes_per_seed=episodes,
            artifacts_root=artifacts,
            registration=None if prereg is None else read_registration(prereg, repository),
        )
        with progress_bar(f"spike {axis}", quiet=quiet or as_json) as report:
            outcomes = run_spike(
                plan,
                out,
                mode="overwrite" if overwrite else "resume" if resume else "new",
                dry_run=dry_run,
                workers=workers,
                cluster=cluster_of(executor, resources or []),
                repro_command=plan.repro_command(),
                progress=report,
            )
        spikes, files = write_outcome(out, repo_path=repository, allow_dirty=allow_dirty)
        if as_json:
            print_json({**_summary(spikes), "files": {k: str(v) for k, v in files.items()}})
        else:
            print_text(files["summary"].read_text("utf-8"))
            print_text("\n".join(f"{name}: {path}" for name, path in files.items()))
    if any(outcome.failures for outcome in outcomes.values()):
        raise typer.Exit(ExitCode.INCOMPLETE)


def _smoke(out: Path) -> "list[Check]":
    """Run stage 0 and write its checks into ``out``, which must be new."""
    from cadenza.benchmark.output_folder import open_output_folder
    from cadenza.benchmark.spikes.rig import rig_checks
    from cadenza.core.files import atomic_write_json

    with open_output_folder(out, mode="new"):
        checks = rig_checks()
        atomic_write_json(out / "stage0.json", {"checks": [asdict(check) for check in checks]})
    return checks


def _report_checks(checks: "Sequence[Check]", out: Path, *, as_json: bool) -> None:
    from cadenza.benchmark.verify import all_ok, render_check_table

    if as_json:
        print_json({"ok": all_ok(checks), "checks": [asdict(check) for check in checks]})
    else:
        print_text(render_check_table(checks) + f"written: {out}")
    if not all_ok(checks):
        raise typer.Exit(ExitCode.CHECK_FAILED)


def verify(
    paths: Annotated[list[Path], typer.Argument(help="Registrations of axes, or folders of them.")],
    every: Annotated[
        bool, typer.Option("--all", help="All six axes must be registered there.")
    ] = False,
    repository: Repository = Path(),
    as_json: AsJson = False,
) -> None:
    """Compare the registrations of axes with their git tags; each is told, whatever others are."""
    rows: list[dict[str, Any]] = []
    with typed_exits(as_json=as_json):
        from cadenza.evaluation.prereg import CANONICAL_AXIS_ORDER

        for path in paths:
            files = sorted(path.glob("*.yaml")) if path.is_dir() else [path]
            rows += [_verified(file, repository) for file in files]
        order = {axis: place for place, axis in enumerate(CANONICAL_AXIS_ORDER)}
        rows.sort(key=lambda row: order.get(row["axis"], len(order)))
        missing = [axis for axis in order if axis not in {row["axis"] for row in rows}]
        rows += [
            {"axis": axis, "file": None, "ok": False, "detail": "no registration"}
            for axis in (missing if every else [])
        ]
        if as_json:
            print_json({"ok": all(row["ok"] for row in rows), "registrations": rows})
        else:
            for row in rows:
                word = "PASS" if row["ok"] else "FAIL"
                print_text(f"{word}  axis={row['axis']}  {row['detail']}  {row['file'] or ''}")
    if not rows or not all(row["ok"] for row in rows):
        raise typer.Exit(ExitCode.PREREG_MISMATCH)


def _verified(file: Path, repository: Path) -> dict[str, Any]:
    """Return one row: the axis that a file registers, and whether its tag locks it."""
    from cadenza.benchmark.spike_axes import find_adapter
    from cadenza.benchmark.spikes.runs import axis_spec
    from cadenza.cli.prereg import read_protocol

    axis: str | None = None
    try:
        axis = getattr(read_protocol(file), "axis", None)
        found = read_registration(file, repository)
        spec = axis_spec(found)
        find_adapter(spec.axis, pair=spec.condition_pair)
        ok, detail = True, f"tag={found.git_tag} blob_sha={found.blob_sha}"
    except (ConfigurationError, PreregistrationError) as error:
        ok, detail = False, " ".join(str(error).split())
    return {"axis": axis, "file": str(file), "ok": ok, "detail": detail}


def summarise(
    paths: _Paths,
    repository: Repository = Path(),
    allow_dirty: AllowDirty = False,
    as_json: AsJson = False,
) -> None:
    """Print the stage table of every method, what it recommends, and the leaderboard."""
    with typed_exits(as_json=as_json):
        from cadenza.benchmark.spikes.gate import read_spikes, summary_text

        spikes = read_spikes(paths, repo_path=repository, allow_dirty=allow_dirty)
        if as_json:
            print_json(_summary(spikes))
        else:
            print_text(summary_text(spikes))


def next_stage(
    paths: _Paths,
    prior: Annotated[str, typer.Option("--prior-stage", help="Stage that was played: 1, 2 or 3.")],
    gate_pp: Annotated[
        float, typer.Option("--gate-pp", min=0.0, max=100.0, help="Gap to show, points.")
    ] = 20.0,
    method: Annotated[
        str | None, typer.Option("--ego", help="The ego that is judged, where there are several.")
    ] = None,
    repository: Repository = Path(),
    allow_dirty: AllowDirty = False,
    as_json: AsJson = False,
) -> None:
    """Decide whether the next stage may begin: code 0 if an axis of the stage passes, else 5."""
    with typed_exits(as_json=as_json):
        from cadenza.benchmark.spikes.gate import axis_statuses, by_method, figures, read_spikes

        stages = {"1": "1b", "1b": "1b", "2": "2", "3": "3"}
        if prior not in stages:
            raise ConfigurationError(f"--prior-stage: expected 1, 2 or 3, got {prior!r}.")
        methods = by_method(read_spikes(paths, repo_path=repository, allow_dirty=allow_dirty))
        chosen = method or next(iter(methods))
        if chosen not in methods or (method is None and len(methods) > 1):
            raise ConfigurationError(
                f"--ego: expected one of {', '.join(methods)}, got {method}; name the judged one."
            )
        statuses = axis_statuses(methods[chosen], gate_pp=gate_pp)
        rows = [row for row in statuses if row.stage == stages[prior]]
        passed = any(row.passes for row in rows)
        if as_json:
            payload = [_axis(row) for row in rows]
            print_json({"ego": chosen, "gate_pp": gate_pp, "passes": passed, "axes": payload})
        else:
            for row in rows:
                _, _, gap, low, high, p, verdict = figures(row)
                numbers = f"gap_pp={gap} ci_low_pp={low} ci_high_pp={high} p_holm={p}"
                print_text(f"{row.axis}  {verdict}  {numbers}  ({row.status})")
            word = "passes" if passed else "does not pass"
            print_text(f"stage {prior} {word} the gate of {gate_pp:g} points")
    if not passed:
        raise typer.Exit(ExitCode.GATE_NOT_MET)


def _summary(spikes: "Sequence[Spike]") -> dict[str, Any]:
    """Return what the spikes show, as JSON values."""
    from cadenza.benchmark.spikes.gate import (
        axis_statuses,
        by_method,
        leaderboard,
        recommendation,
    )

    methods: dict[str, Any] = {}
    for method, own in by_method(spikes).items():
        rows = axis_statuses(own)
        methods[method] = {
            "axes": [_axis(row) for row in rows],
            "recommendation": recommendation(rows),
        }
    entries, refused = leaderboard(spikes)
    return {
        "methods": methods,
        "leaderboard": [entry.model_dump(mode="json") for entry in entries],
        "no_row": refused,
    }


def _axis(row: "AxisStatus") -> dict[str, Any]:
    result = None if row.result is None else row.result.model_dump(mode="json")
    return {**asdict(row), "result": result}
