"""`cadenza train` and `cadenza imitate`: run one ego training."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cadenza.cli.configuration import Settings, read_training_config
from cadenza.cli.output import AsJson, ExitCode, Quiet, print_json, print_text, typed_exits
from cadenza.core.progress import progress_bar

if TYPE_CHECKING:
    from cadenza.aht.learning_signal_check import SlopeReport
    from cadenza.aht.safety_telemetry import AuditVerdict
    from cadenza.aht.types import TrainingResult


def train(
    config: Annotated[
        Path, typer.Argument(help="YAML file, the name of a shipped one, or pettingzoo:module:env.")
    ],
    settings: Settings = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue from the newest checkpoint of this run.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Delete an earlier run of the same identity.")
    ] = False,
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
    """Train an ego policy beside one partner or several."""
    with typed_exits(as_json=as_json):
        from cadenza.aht.learning_signal_check import (
            check_positive_learning_slope,
            plot_slope_curve,
        )
        from cadenza.aht.safety_telemetry import audit_run_log
        from cadenza.benchmark.training import run_training

        training = read_training_config(config, settings or [])
        with progress_bar("training", quiet=quiet or as_json) as report:
            result = run_training(
                training,
                resume=resume,
                overwrite=overwrite,
                progress=lambda done, total, last: report(
                    done, total, "" if last is None else f"return {last:.1f}"
                ),
            )
        slope = check_positive_learning_slope(result.curve)
        picture = plot_slope_curve(result.curve, report=slope, out_dir=plot)[0] if plot else None
        verdict = None
        if result.outcome is not None and (check_safety or training.safety.enabled):
            verdict = audit_run_log(result.outcome.log_path)
        summary = _summary(result, slope, picture, verdict)
        if as_json:
            print_json(summary)
        else:
            print_text(_as_text(summary))
    if check and not slope.passed:
        raise typer.Exit(ExitCode.LEARNING_CHECK)
    if check_safety and verdict is not None and not verdict.passed:
        raise typer.Exit(verdict.exit_code)


def _summary(
    result: "TrainingResult",
    slope: "SlopeReport",
    picture: Path | None,
    verdict: "AuditVerdict | None",
) -> dict[str, Any]:
    """Return what happened, as JSON values."""
    from cadenza.core.checkpoints import LOCAL_URI_SCHEME

    curve, outcome = result.curve, result.outcome
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
        "evaluation": None if evaluation is None else dict(evaluation.results),
        "plot": None if picture is None else str(picture),
    }


def _as_text(summary: dict[str, Any]) -> str:
    """Return the summary as lines for people."""
    learning, evaluation = summary["learning"], summary["evaluation"]
    mean = summary["mean_reward_last_10"]
    lines = [
        f"run {summary['run_id']}: {summary['status'].replace('_', ' ')}, "
        f"{summary['frames']} frames, {summary['n_episodes']} episodes"
        + ("" if summary["resumed_from"] is None else f", resumed at {summary['resumed_from']}"),
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
