"""`cadenza train` and `cadenza imitate`: run one ego training, or one with several seeds."""

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cadenza.cli.configuration import Settings, Zoos, read_training_config
from cadenza.cli.evaluate import Executor, Resources, Workers, cluster_of, shown_config
from cadenza.cli.output import (
    AsJson,
    ExitCode,
    Quiet,
    print_json,
    print_table,
    print_text,
    typed_exits,
)
from cadenza.core.errors import ConfigurationError
from cadenza.core.progress import stage_bars

if TYPE_CHECKING:
    from cadenza.aht.learning_signal_check import SlopeReport
    from cadenza.aht.safety_telemetry import AuditVerdict
    from cadenza.aht.types import TrainingResult
    from cadenza.benchmark.training_seeds import JudgedSeeds, TrainedSeed


def train(
    config: Annotated[
        Path, typer.Argument(help="YAML file, the name of a shipped one, or pettingzoo:module:env.")
    ],
    settings: Settings = None,
    zoo: Zoos = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue from the newest checkpoint of this run.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Delete an earlier run of the same identity.")
    ] = False,
    seeds: Annotated[
        str | None,
        typer.Option("--seeds", help="Several seeds as one result: 5 (0 to 4), 0-4 or 3,7,9."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Folder of all seeds; runs/ALGORITHM by default."),
    ] = None,
    workers: Workers = None,
    executor: Executor = "local",
    resources: Resources = None,
    episodes: Annotated[
        int | None,
        typer.Option(min=0, help="Per evaluation seed (of 10) and partner, 0 for none; or 20."),
    ] = None,
    check: Annotated[
        bool,
        typer.Option("--check-learning", help="Exit with code 3 unless episode returns rise."),
    ] = False,
    check_safety: Annotated[
        bool,
        typer.Option(
            "--check-safety", help="Exit with code 3, 8 or 9 if the filter's record is implausible."
        ),
    ] = False,
    plot: Annotated[
        Path | None, typer.Option("--plot", help="Folder for the learning-curve picture.")
    ] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Train an ego policy beside one partner or several.

    With --zoo, every episode is played beside a public member of a zoo, drawn as the setting
    sampler says: uniform, rank, maximin or learnability.

    With --seeds, several trainings run side by side and are one result: what each has learned last
    is evaluated on the task and with the filter of the training, beside its partners and all others
    of the task, from the same starts. Every interval holds the luck of training.
    """
    with typed_exits(as_json=as_json):
        from cadenza.aht.learning_signal_check import check_positive_learning_slope
        from cadenza.aht.safety_telemetry import audit_run_log
        from cadenza.benchmark.training import run_training
        from cadenza.benchmark.training_seeds import EPISODES_PER_SEED, SeedRunner, parse_seeds

        changes, judged = settings or [], None
        training = read_training_config(config, changes, zoo or ())
        cluster, folder = cluster_of(executor, resources or []), out or Path("runs") / training.algo
        results: Sequence[TrainingResult | TrainedSeed]
        with stage_bars(quiet=quiet or as_json) as report:
            if seeds is None:
                if (out, workers, cluster, episodes) != (None, None, None, None):
                    raise ConfigurationError(
                        "train: expected --seeds beside --out, --workers, --executor and "
                        "--episodes, got none; say which to train, e.g. --seeds 5."
                    )
                one = run_training(
                    training,
                    resume=resume,
                    overwrite=overwrite,
                    progress=lambda done, total, last: report(
                        "training", done, total, "" if last is None else f"return {last:.1f}"
                    ),
                )
                results = [one]
            else:
                played = EPISODES_PER_SEED if episodes is None else episodes
                words = ["cadenza", "train", shown_config(config, "train"), *changes]
                words += [word for folder in zoo or () for word in ("--zoo", str(folder))]
                words += ["--seeds", seeds, "--episodes", str(played)]
                runner = SeedRunner(out=folder, workers=workers, cluster=cluster, progress=report)
                results, judged = runner.run(
                    training,
                    parse_seeds(seeds),
                    overrides=changes,
                    resume=resume,
                    overwrite=overwrite,
                    episodes_per_seed=played,
                    repro_command=shlex.join(words),
                )
        slopes = [check_positive_learning_slope(result.curve) for result in results]
        verdicts = [
            audit_run_log(result.outcome.log_path)
            if result.outcome is not None and (check_safety or training.safety.enabled)
            else None
            for result in results
        ]
        asked = [training.seed] if seeds is None else parse_seeds(seeds)
        summaries = [
            {"seed": seed, "total_frames": training.total_frames}
            | _summary(result, slope, plot, verdict)
            for seed, result, slope, verdict in zip(asked, results, slopes, verdicts, strict=True)
        ]
        if as_json:
            print_json(summaries[0] if seeds is None else _payload(summaries, judged))
        elif seeds is None:
            print_text(_as_text(summaries[0]))
        else:
            print_text("\n".join(map(_first_line, summaries)))
            _print_result(judged, folder / "policies")
    if check and not all(slope.passed for slope in slopes):
        raise typer.Exit(ExitCode.LEARNING_CHECK)
    implausible = [v for v in verdicts if v is not None and not v.passed]
    if check_safety and implausible:
        raise typer.Exit(implausible[0].exit_code)


def _payload(runs: list[dict[str, Any]], judged: "JudgedSeeds | None") -> dict[str, Any]:
    """Return the one result, where the trainings were judged, and each of them, as JSON values."""
    from cadenza.evaluation.report.render import render_json

    if judged is None:
        return {"runs": runs}
    bundles = {name: str(folder) for name, folder in judged.evaluation.bundles.items()}
    result = json.loads(render_json(judged.view))
    return {"result": result, "report": str(judged.report), "bundles": bundles, "runs": runs}


def _print_result(judged: "JudgedSeeds | None", policies: Path) -> None:
    """Print the one result; without a judgement, where the policies are."""
    if judged is None:
        if policies.is_dir():
            print_text(f"policies: {policies}")
        return
    from cadenza.evaluation.report.analysis import analyse
    from cadenza.evaluation.report.render import verdict
    from cadenza.evaluation.report.svg import plural
    from cadenza.evaluation.report.tables import success_table

    view, numbers = judged.view, analyse(judged.view)
    seeds = ", ".join(str(run.training_seed) for run in judged.runs)
    table = success_table(view, numbers)
    print_table(f"{view.title}, training seeds {seeds}: one result", table.columns, table.rows)
    print_text(verdict(view, numbers))
    (overall,) = (cell for cell in numbers.overall.cells if cell is not None)
    one = overall.success if view.has_success else overall.episode_return
    if one is not None:
        what = "success" if view.has_success else "mean return"
        bounds = "" if one.low is None else f" [{one.low:.3f}, {one.high:.3f}]"
        over = f"95 % interval over {plural(one.n_clusters, view.seed_kind)}"
        print_text(f"{what} with all partners: {one.value:.3f}{bounds}, {over} ({one.estimator})")
    for caution in numbers.cautions:
        print_text(f"note: {caution}")
    for policy, folder in judged.evaluation.bundles.items():
        print_text(f"bundle of {policy}: {folder}")
    print_text(f"report: {judged.report}")


def _summary(
    result: "TrainingResult | TrainedSeed",
    slope: "SlopeReport",
    plot: Path | None,
    verdict: "AuditVerdict | None",
) -> dict[str, Any]:
    """Return what happened, as JSON values; the learning curve's picture goes to ``plot``."""
    from cadenza.aht.learning_signal_check import plot_slope_curve
    from cadenza.core.checkpoints import LOCAL_URI_SCHEME

    curve, outcome = result.curve, result.outcome
    picture = plot_slope_curve(curve, report=slope, out_dir=plot)[0] if plot else None
    last_path = curve.checkpoint_paths[-1] if curve.checkpoint_paths else None
    last = curve.per_episode_ego_rewards[-10:]
    evaluation = curve.evaluations[-1] if curve.evaluations else None
    return {
        "run_id": curve.run_id,
        "status": outcome.status if outcome else "completed",
        "frames": outcome.frames if outcome else len(curve.per_step_ego_rewards),
        "resumed_from": outcome.resumed_from if outcome else None,
        "n_episodes": len(curve.per_episode_ego_rewards),
        "n_checkpoints": len(curve.checkpoint_paths),
        "mean_reward_last_10": sum(last) / len(last) if last else None,
        "checkpoint": str(last_path) if last_path else None,
        "policy": f"{LOCAL_URI_SCHEME}{last_path.parent.name}/{last_path.name}"
        if last_path  # how an evaluation's file names it, in its artifacts folder
        else None,
        **({"best": _best(result)} if curve.best else {}),
        "log": str(outcome.log_path) if outcome else None,
        "learning": {
            "status": slope.status.value,
            "slope_per_episode": slope.slope,
            "p_value": slope.p_value,
            "alpha": slope.alpha,
            "n_episodes": slope.n_episodes,
        },
        "safety_audit": None
        if verdict is None
        else {"passed": verdict.passed, "message": verdict.message},
        "training_evaluation": None if evaluation is None else dict(evaluation.results),
        "plot": None if picture is None else str(picture),
    }


def _best(result: "TrainingResult | TrainedSeed") -> dict[str, Any]:
    """Return which checkpoint is the best beside validation partners, and why."""
    best, outcome = result.curve.best, result.outcome
    assert best is not None  # noqa: S101 -- asked before
    policy = outcome.best_policy if outcome else None
    return {
        "frames": best.frame,
        "policy": str(policy) if policy else None,
        "checkpoints": len(result.curve.validations),
        "validation": dict(best.results),
    }


def _first_line(summary: dict[str, Any]) -> str:
    """Return what happened to one run."""
    resumed, frames, total = (summary[key] for key in ("resumed_from", "frames", "total_frames"))
    return (
        f"seed {summary['seed']}, run {summary['run_id']}: {summary['status'].replace('_', ' ')}, "
        f"{frames} frames"
        + (f" of {total} (whole steps of all environments)" if frames < total else "")
        + f", complete episodes: {summary['n_episodes']}"
        + ("" if resumed is None else f", resumed at {resumed}")
    )


def _as_text(summary: dict[str, Any]) -> str:
    """Return the summary as lines for people."""
    lines = [_first_line(summary)]
    learning, evaluation = summary["learning"], summary["training_evaluation"]
    mean = summary["mean_reward_last_10"]
    lines += [
        "last 10 episodes: " + ("none complete" if mean is None else f"mean return {mean:.2f}"),
        f"learning check: {learning['status']} (slope {learning['slope_per_episode']:+.5f} per "
        f"episode, one-sided p {learning['p_value']:.2g}, n {learning['n_episodes']})",
    ]
    if summary["safety_audit"] is not None:
        lines.append(f"safety audit: {summary['safety_audit']['message']}")
    if evaluation is not None:
        figures = ", ".join(f"{name} {value:.4g}" for name, value in evaluation.items())
        lines.append(f"held-out evaluation: {figures}")
    lines.append(f"checkpoint: {summary['checkpoint']}")
    if (best := summary.get("best")) is not None:
        figures = ", ".join(f"{name} {value:.4g}" for name, value in best["validation"].items())
        lines.append(
            f"best of {best['checkpoints']} checkpoints beside the validation partners: that of "
            f"{best['frames']} frames ({figures}); policy: {best['policy']}"
        )
    lines.append(f"policy, for an evaluation's file: {summary['policy']}")
    lines.append(f"log: {summary['log']}")
    if summary["plot"] is not None:
        lines.append(f"plot: {summary['plot']}")
    return "\n".join(lines)


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
    resume: Annotated[bool, typer.Option("--resume", help="Continue from the folder.")] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Imitate an expert by dataset aggregation, and evaluate the pupil beside each partner."""
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
                    "successes": [
                        {"partner": each.partner, "content_id": identity, "count": each.count}
                        for identity, each in done.judged.items()
                    ],
                    "episodes": episodes,
                }
            )
            return
        lines = [f"{each.partner}: {each}" for each in done.judged.values()]
        print_text("\n".join([*lines, f"policy: {done.policy}"]))
