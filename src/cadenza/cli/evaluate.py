"""`cadenza eval run` and `cadenza eval verify`."""

import shlex
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from cadenza.cli.configuration import Settings, explained
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
from cadenza.core.errors import ConfigurationError, IntegrityError
from cadenza.core.progress import progress_bar

if TYPE_CHECKING:
    from cadenza.benchmark.evaluation_run import EvaluationOutcome
    from cadenza.benchmark.ray_executor import RayCluster
    from cadenza.evaluation.best_responses import BestResponses
    from cadenza.evaluation.prereg import LockedRegistration
    from cadenza.evaluation.results import CellSummary, EpisodeResult, IntervalRecord

#: Columns of the table of `eval run`; rates in percent with their 95 % intervals.
_COLUMNS = ("policy", "condition", "partner", "episodes", "success", "contact", "mean return")

#: Differences in the table of what links cost, with their titles and units. Those that a task does
#: not define are left out, and the return stands in for success.
_LINK_DIFFERENCES = {
    "success": ("success", "%"),
    "contact": ("contact", "%"),
    "episode_return": ("return", ""),
    "steps": ("steps", ""),
}

#: Options of commands that play evaluations.
Workers: TypeAlias = Annotated[
    int | None, typer.Option("--workers", "-j", min=1, help="Processes; one per core by default.")
]
Executor: TypeAlias = Annotated[
    str, typer.Option("--executor", help="local, or ray: actors of a cluster.")
]
Resources: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--resource", help="What a Ray actor takes, e.g. CPU=2, GPU=0.5 or sim=1."),
]
BestResponseFile: TypeAlias = Annotated[
    Path | None,
    typer.Option("--best-responses", help="YAML of what best responses to the partners score."),
]
AllowDirty: TypeAlias = Annotated[
    bool, typer.Option("--allow-dirty", help="Accept results of uncommitted or other sources.")
]


def run(
    config: Annotated[
        Path, typer.Argument(help="YAML file, or the name of a shipped one, e.g. crossing.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for cells and bundles.")],
    settings: Settings = None,
    workers: Workers = None,
    lanes: Annotated[
        int | None,
        typer.Option("--lanes", min=1, help="Episodes side by side in a process; 128 by default."),
    ] = None,
    executor: Executor = "local",
    resources: Resources = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the evaluation in the folder.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Delete the evaluation in the folder.")
    ] = False,
    prereg: Annotated[
        Path | None,
        typer.Option("--prereg", help="Registration that the evaluation must equal."),
    ] = None,
    best_responses: BestResponseFile = None,
    record: Annotated[
        bool,
        typer.Option(
            "--record",
            help="Play two starts beside every partner again for the report's player.",
        ),
    ] = False,
    repository: Repository = Path(),
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Play every policy with every partner under every condition; seal the results."""
    with typed_exits(as_json=as_json):
        from cadenza.benchmark.evaluation_run import (
            EvaluationConfig,
            load_evaluation_config,
            run_evaluation,
            summary_settings,
        )
        from cadenza.benchmark.lanes import DEFAULT_LANES
        from cadenza.benchmark.recordings import write_recordings
        from cadenza.benchmark.tasks import get_task
        from cadenza.core.shipped_configs import find_config
        from cadenza.evaluation.best_responses import load_best_responses

        registration = None if prereg is None else read_registration(prereg, repository)
        config = find_config(config, "eval")
        changes = settings or []
        evaluation = explained(
            config, EvaluationConfig, lambda: load_evaluation_config(config, changes)
        )
        if record and len(evaluation.policies) != 1:
            raise ConfigurationError(
                "--record: expected one policy, whose episodes are recorded, got "
                f"{len(evaluation.policies)}; evaluate it into a folder of its own."
            )
        task = get_task(evaluation.task, evaluation.task_version)
        best = best_responses and load_best_responses(best_responses).on(
            task.slug, [p.name for p in evaluation.partners or ()] or task.partners
        )
        with progress_bar("evaluating", quiet=quiet or as_json) as report:
            outcome = run_evaluation(
                evaluation,
                out=out,
                workers=workers,
                lanes=lanes or DEFAULT_LANES,
                cluster=cluster_of(executor, resources or []),
                resume=resume,
                overwrite=overwrite,
                repro_command=_repro_command(config, changes, registration),
                registration=registration,
                progress=report,
            )
        payload = _payload(outcome)
        if best is not None:
            condition = summary_settings(evaluation).headline_condition
            payload["proximity"] = _proximity(outcome, best, condition)
        if as_json:
            print_json(payload)
        else:
            _print_outcome(payload)
        if record and not outcome.failures:
            write_recordings(outcome, out=out, artifacts_root=evaluation.artifacts_root)
    if outcome.failures:
        raise typer.Exit(ExitCode.INCOMPLETE)


def cluster_of(executor: str, resources: Sequence[str]) -> "RayCluster | None":
    """Return the cluster that the flags name; None for this machine."""
    from cadenza.benchmark.ray_executor import RayCluster

    if executor not in ("local", "ray"):
        raise ConfigurationError(f"--executor: expected local or ray, got {executor!r}.")
    taken: dict[str, float] = {}
    for text in resources:
        name, _, amount = text.partition("=")
        try:
            taken[name] = float(amount)
        except ValueError:
            taken[name] = -1.0
        if executor == "local" or not name or not taken[name] >= 0.0:
            raise ConfigurationError(
                f"--resource: expected NAME=AMOUNT beside --executor ray, got {text!r}."
            )
    if executor == "local":
        return None
    cpus, gpus = taken.pop("CPU", 1.0), taken.pop("GPU", 0.0)
    return RayCluster(num_cpus=cpus, num_gpus=gpus, resources=taken)


def _repro_command(
    config: Path, settings: Sequence[str], registration: "LockedRegistration | None"
) -> str:
    """Return a command line that repeats the evaluation; no host paths, for it is hashed."""
    shown = shown_config(config, "eval")
    words = ["cadenza", "eval", "run", shown, *settings, "--out", f"runs/{config.stem}"]
    words += [] if registration is None else ["--prereg", registration.path]
    return shlex.join(words)


def shown_config(config: Path, kind: str) -> str:
    """Return how a command line names a configuration, without host paths."""
    from cadenza.core.shipped_configs import configs_folder, find_config, source_checkout

    config = find_config(config, kind)
    path, configs, checkout = config.resolve(), configs_folder(), source_checkout()
    if path.is_relative_to(configs):
        return f"configs/{path.relative_to(configs).as_posix()}"
    if checkout and path.is_relative_to(checkout):
        return path.relative_to(checkout).as_posix()
    return config.name


_Bundle = Annotated[Path, typer.Argument(help="Folder that holds bundle.json.")]
TagRepository = Annotated[
    Path | None,
    typer.Option("--repo-root", help="Git repository that holds the registration tag."),
]


def verify(
    bundle: _Bundle,
    allow_dirty: AllowDirty = False,
    repository: TagRepository = None,
    require_signature: Annotated[
        bool, typer.Option("--require-signature", help="Refuse without one by a trusted key.")
    ] = False,
    allowed_signers: Annotated[
        Path | None,
        typer.Option(
            "--allowed-signers",
            help="Keys that are trusted; by default the repository's file allowed_signers.",
        ),
    ] = None,
    replay: Annotated[
        int, typer.Option("--replay", min=0, help="Random episodes to play again and compare.")
    ] = 0,
    artifacts: Annotated[
        Path, typer.Option("--artifacts", help="Folder of the policies, for --replay.")
    ] = Path(),
    as_json: AsJson = False,
) -> None:
    """Check a result bundle: every byte, every figure, every partner, and who signed it."""
    with typed_exits(as_json=as_json):
        from cadenza.benchmark.signing import ALLOWED_SIGNERS_NAME
        from cadenza.benchmark.verify import (
            UNREADABLE,
            all_ok,
            render_check_table,
            verify_bundle_dir,
        )

        own = None if repository is None else repository / ALLOWED_SIGNERS_NAME
        if allowed_signers is None and own is not None and own.is_file():
            allowed_signers = own
        rows = verify_bundle_dir(
            bundle,
            repo_path=repository,
            allow_dirty=allow_dirty,
            allowed_signers=allowed_signers,
            require_signature=require_signature,
            replay=replay,
            artifacts_root=artifacts,
        )
        if rows[0].name == UNREADABLE:
            raise IntegrityError(rows[0].detail)
        if as_json:
            print_json({"ok": all_ok(rows), "checks": [asdict(row) for row in rows]})
        else:
            print_text(render_check_table(rows))
    if not all_ok(rows):
        raise typer.Exit(ExitCode.CHECK_FAILED)


def sign(
    bundle: _Bundle,
    key: Annotated[
        Path, typer.Option("--key", help="Ed25519 private key, as `ssh-keygen` writes it.")
    ],
    allow_dirty: AllowDirty = False,
    repository: TagRepository = None,
) -> None:
    """Verify a bundle and vouch for it: writes bundle.sig."""
    with typed_exits():
        from cadenza.benchmark.verify import sign_verified

        path = sign_verified(bundle, key, repo_path=repository, allow_dirty=allow_dirty)
        print_text(f"signed: {path}")


def _payload(outcome: "EvaluationOutcome") -> dict[str, Any]:
    """Return what was measured, as JSON values."""
    from cadenza.benchmark.safety_tables import link_costs

    return {
        "bundles": {policy: str(folder) for policy, folder in outcome.bundles.items()},
        "cells": len(outcome.plan.cells),
        "reused": outcome.reused,
        "redone": dict(outcome.redone),
        "failures": [asdict(failure) for failure in outcome.failures],
        "results": [
            {"policy": policy, **row}
            for policy, episodes in outcome.episodes.items()
            for row in _rows(episodes, has_success=outcome.has_success)
        ],
        "link_costs": [
            {"policy": policy, **asdict(cost)}
            for policy, episodes in outcome.episodes.items()
            for cost in link_costs(outcome.plan, episodes, has_success=outcome.has_success)
        ],
    }


def _proximity(
    outcome: "EvaluationOutcome", best: "BestResponses", condition: str | None
) -> list[dict[str, Any]]:
    """Return how close each policy comes to best responses under the headline condition."""
    from cadenza.benchmark.reporting import partner_views
    from cadenza.evaluation.best_responses import coverage, proximities

    families = {p.partner_id: p.family for p in partner_views(outcome.plan)}
    played = {
        p: [e for e in own if e.condition == condition] for p, own in outcome.episodes.items()
    }
    return [
        {
            "policy": policy,
            "partner": name,
            "coverage": "" if name in families else coverage(found, list(families)),
            **asdict(estimate),
        }
        for policy, found in proximities(played, best, families).items()
        for name, estimate in found.items()
    ]


def _rows(episodes: Sequence["EpisodeResult"], *, has_success: bool) -> list[dict[str, Any]]:
    """Return the figures of each (condition, partner), in order of first appearance.

    What the task does not define, success or contact, is None.
    """
    from cadenza.evaluation.summary import compute_summary

    summary = compute_summary(episodes)
    cells: dict[Any, CellSummary] = {(cell.condition, cell.partner): cell for cell in summary.cells}
    groups: dict[tuple[str | None, str | None], list[EpisodeResult]] = {}
    for episode in episodes:
        groups.setdefault((episode.condition, episode.partner), []).append(episode)
    return [
        {
            "condition": condition,
            "partner": partner,
            "n_episodes": len(group),
            **_rate("success", "successes", cell.success if has_success else None),
            **_rate("contact", "contacts", cell.contact),
            "mean_return": sum(episode.episode_return or 0.0 for episode in group) / len(group),
        }
        for (condition, partner), group in groups.items()
        for cell in [cells[condition, partner]]
    ]


def _rate(name: str, count: str, rate: "IntervalRecord | None") -> dict[str, Any]:
    """Return a rate with its 95 % bounds and how many episodes are behind it, None if undefined."""
    if rate is None or rate.value is None:
        return dict.fromkeys((count, f"{name}_rate", f"{name}_ci_low", f"{name}_ci_high"))
    return {
        count: round(rate.value * rate.n),
        f"{name}_rate": rate.value,
        f"{name}_ci_low": rate.low,
        f"{name}_ci_high": rate.high,
    }


def _shown(row: dict[str, Any], name: str) -> str:
    """Return a rate and its bounds in percent."""
    return _bounded(*(row[f"{name}_{end}"] for end in ("rate", "ci_low", "ci_high")), unit="%")


def _bounded(
    value: float | None, low: float | None, high: float | None, *, form: str = ".1f", unit: str = ""
) -> str:
    """Return a value with its bounds; with the unit ``"%"`` they are rates."""
    if value is None:
        return "-"
    factor = 100.0 if unit == "%" else 1.0
    text = f"{factor * value:{form}}{unit}"
    if low is None or high is None:
        return text
    return f"{text} [{factor * low:{form}}, {factor * high:{form}}]"


def _print_outcome(payload: dict[str, Any]) -> None:
    rows = [
        (
            row["policy"],
            row["condition"],
            row["partner"],
            str(row["n_episodes"]),
            _shown(row, "success"),
            _shown(row, "contact"),
            f"{row['mean_return']:.2f}",
        )
        for row in payload["results"]
    ]
    reused = payload["reused"]
    print_table(
        f"{payload['cells']} cells" + (f", {reused} from before" if reused else ""), _COLUMNS, rows
    )
    if close := payload.get("proximity"):
        shown = [
            (
                row["policy"],
                f"{row['partner'].removesuffix(' over partners')} {row['coverage']}".rstrip(),
                row["undefined_reason"]
                if row["value"] is None
                else _bounded(row["value"], row["low"], row["high"], form=".3f"),
            )
            for row in close
        ]
        columns = ("policy", "partner", "proximity, 95 %")
        print_table("best-response proximity, at most 1", columns, shown)
    if payload["link_costs"]:
        _print_link_costs(payload["link_costs"])
    for key, reason in payload["redone"].items():
        typer.echo(f"ran cell {key} again: {reason}", err=True)
    for failure in payload["failures"]:
        typer.echo(f"failed: {failure['label']}: {failure['message']}", err=True)
    for policy, folder in payload["bundles"].items():
        print_text(f"bundle of {policy}: {folder}")


def _print_link_costs(costs: Sequence[dict[str, Any]]) -> None:
    """Print each link's differences from its baseline, with their 95 % intervals."""
    baselines = dict.fromkeys(cost["baseline"] for cost in costs if cost["baseline"])
    shown = [key for key in _LINK_DIFFERENCES if any(cost[key] for cost in costs)]
    if "success" in shown:
        shown.remove("episode_return")
    titles = [_LINK_DIFFERENCES[key][0] for key in shown]
    rows = [
        (
            cost["policy"],
            cost["condition"],
            f"{cost['age_mean_s']:.3f}, {cost['age_peak_s']:.2f} s",
            f"{cost['lost']:.1%}",
            *(_difference(cost[key], _LINK_DIFFERENCES[key][1]) for key in shown),
            "-" if cost["uncertified"] is None else f"{cost['uncertified']:.1%}",
        )
        for cost in costs
    ]
    title = "what a link costs" + (f", against {', '.join(baselines)}" if baselines else "")
    columns = ("policy", "link", "age: mean, peak", "lost", *titles, "uncertified")
    print_table(title, columns, rows)


def _difference(estimate: dict[str, Any] | None, unit: str) -> str:
    """Return a paired difference and its bounds, rates in points of percent."""
    if estimate is None:
        return "-"
    ends = (estimate[name] for name in ("value", "low", "high"))
    return _bounded(*ends, form="+.1f", unit=unit)
