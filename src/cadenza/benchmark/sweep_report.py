"""What a sweep found, as a table, as one page and for programs."""

from pathlib import Path
from typing import Any, Final

from cadenza.benchmark.sweep import BEST_NAME, Sweep, Trial, shown, study_of
from cadenza.core.extras import load_extra
from cadenza.core.files import atomic_write_json, atomic_write_text
from cadenza.core.tables import Table
from cadenza.evaluation.report.figures.searches import (
    Axis,
    Point,
    history_figure,
    importance_figure,
    settings_figure,
)
from cadenza.evaluation.report.pages import StoryPage, render_page
from cadenza.evaluation.report.render import Tile
from cadenza.evaluation.report.svg import plural, score
from cadenza.evaluation.report.view import Section

REPORT_NAME: Final = "report.html"
RESULT_NAME: Final = "result.json"
#: Fewest complete trials from which settings are told apart.
_FEWEST: Final = 8


def write_sweep_report(sweep: Sweep) -> Path:
    """Write the page and its content for programs into the folder; return the page's path."""
    page = sweep.out / REPORT_NAME
    atomic_write_text(page, render_page(sweep_page(sweep)))
    atomic_write_json(sweep.out / RESULT_NAME, sweep_record(sweep))
    return page


def sweep_record(sweep: Sweep) -> dict[str, Any]:
    """Return what was found, as JSON values."""
    return {
        "objective": sweep.config.objective,
        "best": sweep.best.model_dump(mode="json"),
        "importance": importance(sweep),
        "trials": [trial.model_dump(mode="json") for trial in sweep.trials],
    }


def importance(sweep: Sweep) -> dict[str, float]:
    """Return the share of each setting by PED-ANOVA; nothing for one setting, or few trials."""
    values = {trial.value for trial in sweep.trials if trial.value is not None}
    complete = sum(trial.value is not None for trial in sweep.trials)
    if len(sweep.config.space) < 2 or complete < _FEWEST or len(values) < 2:
        return {}
    methods = load_extra("optuna.importance")
    found = methods.get_param_importances(
        study_of(sweep.config, sweep.trials), evaluator=methods.PedAnovaImportanceEvaluator()
    )
    return {key: float(share) for key, share in found.items()}


def trial_table(sweep: Sweep, *, most: int | None = None) -> Table:
    """Return the trials, the best first; ``most`` of them."""
    ranked = sorted(
        sweep.trials, key=lambda trial: (trial.value is None, -(trial.value or 0.0), trial.number)
    )
    rate = _is_rate(sweep)
    rows = tuple(
        (
            str(trial.number),
            score(trial.value, rate),
            *(shown(trial.parameters[key]) for key in sweep.config.space),
            _standing(trial, rate),
        )
        for trial in ranked[:most]
    )
    left = len(ranked) - len(rows)
    return Table(
        title=f"Trials, the best first: {_what(sweep)}",
        columns=("trial", "value", *sweep.config.space, "state"),
        rows=rows,
        caption=f"{plural(left, 'further trial')} in {RESULT_NAME}." if left else "",
        text_columns=(len(sweep.config.space) + 2,),
    )


def _standing(trial: Trial, rate: bool) -> str:
    """Return how a trial ended."""
    if trial.state == "pruned":
        frame, value = trial.evaluations[-1]
        return f"pruned at frame {frame}, {score(value, rate)}"
    if trial.state == "failed":
        return f"failed: {trial.reason}"
    if len(trial.values) > 1:
        return f"complete: {', '.join(score(value, rate) for value in trial.values)}"
    return "complete"


def _is_rate(sweep: Sweep) -> bool:
    return sweep.config.objective == "success_rate"


def _what(sweep: Sweep) -> str:
    """Return what the value of a trial is."""
    episodes = sweep.config.training.evaluation.episodes
    what = "share of episodes solved" if _is_rate(sweep) else "mean return"
    seeds = len(sweep.config.seeds)
    over = f", mean over {plural(seeds, 'training seed')}" if seeds > 1 else ""
    return f"{what} of {plural(episodes, 'validation episode')}{over}"


def sweep_page(sweep: Sweep) -> StoryPage:
    """Return the page of a sweep."""
    config, best, rate = sweep.config, sweep.best, _is_rate(sweep)
    partners = ", ".join(dict.fromkeys(partner.class_name for partner in config.judges))
    found = ", ".join(f"{key} {shown(value)}" for key, value in best.parameters.items())
    states = [trial.state for trial in sweep.trials]
    tiles = (
        Tile(value=score(best.value, rate), label="best value", detail=_what(sweep), css="m0"),
        Tile(
            value=str(len(states)),
            label="trials",
            detail=f"{states.count('complete')} complete, {states.count('pruned')} pruned, "
            f"{states.count('failed')} failed",
            css="plain",
        ),
    )
    sampler = "a tree-structured Parzen estimator" if config.sampler == "tpe" else "uniform draws"
    whose = (
        "declared for validation" if config.training.evaluation.validation else "of the training"
    )
    return StoryPage(
        kind="sweep",
        title=f"Sweep of {config.training.algo} on {config.task.slug}",
        task=config.task.slug,
        subtitle=config.task.summary,
        verdict=f"Trial {best.number} was the best of {plural(len(states), 'trial')}, "
        f"{score(best.value, rate)}: {found}.",
        tiles=tiles,
        measured=(
            f"Each trial trained for {config.training.total_frames} frames with the seed"
            f"{'s' if len(config.seeds) > 1 else ''} {', '.join(map(str, config.seeds))} and was "
            f"judged beside {partners} ({whose}), on validation seeds.",
            f"Settings were drawn by {sampler}, {config.batch} at a time.",
        ),
        cautions=(
            "The best of many noisy values is too high by nature. Train the settings again with "
            "fresh seeds before you believe the number.",
            "Judge the result beside partners that neither the training nor this sweep met.",
        ),
        sections=_sections(sweep),
        facts={
            "Searched": "; ".join(f"{key}: {values}" for key, values in config.space.items()),
            "Sampler, pruner": f"{config.sampler}, {config.pruner}",
            "Seed of the draws": str(config.seed),
            "Trials proposed together": str(config.batch),
            "Best settings": BEST_NAME,
        },
    )


def _sections(sweep: Sweep) -> tuple[Section, ...]:
    what, shares = _what(sweep), importance(sweep)
    complete = [trial for trial in sweep.trials if trial.value is not None]
    points = [
        Point(t.number, t.value, t.evaluations[-1][1] if t.state == "pruned" else None)
        for t in sweep.trials
    ]
    axes = [
        Axis(
            key,
            tuple(
                shown(t.parameters[key]) if values.choices else float(t.parameters[key])
                for t in complete
            ),
            tuple(shown(choice) for choice in values.choices),
            values.log,
        )
        for key, values in sweep.config.space.items()
    ]
    values = [trial.value for trial in complete if trial.value is not None]
    return (
        Section(
            identity="history",
            nav="History",
            title="How the search went",
            intro="Each trial is one training with settings of its own.",
            figures=(history_figure(points, what),),
        ),
        Section(
            identity="settings",
            nav="Settings",
            title="What the settings do",
            intro="What to search more closely, and what to leave alone.",
            figures=(
                *((importance_figure(shares),) if shares else ()),
                settings_figure(axes, values, what),
            ),
        ),
        Section(
            identity="trials",
            nav="Trials",
            title="All trials",
            intro="The same numbers are in result.json.",
            tables=(trial_table(sweep),),
        ),
    )
