"""What a sweep found, as a table, as one page and for programs."""

import math
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

from cadenza.benchmark.sweep import BEST_NAME, Sweep, Trial, shown, study_of
from cadenza.core.extras import load_extra
from cadenza.core.files import atomic_write_json, atomic_write_text
from cadenza.core.tables import Table
from cadenza.evaluation.report.pages import StoryPage, Tile, render_page
from cadenza.evaluation.report.svg import (
    LEFT,
    RIGHT,
    Drawing,
    Figure,
    LegendEntry,
    Scale,
    draw_baseline,
    draw_grid,
    make_figure,
    percent,
    plural,
    score,
    shorten,
    widened,
)
from cadenza.evaluation.report.view import Section

REPORT_NAME: Final = "report.html"
RESULT_NAME: Final = "result.json"
#: Fewest complete trials from which settings are told apart.
_FEWEST: Final = 8
#: Height of the history, drawing units; and of panels of settings, so many in a row, so far apart.
_HEIGHT: Final = 250.0
_PANEL: Final = 196.0
_COLUMNS: Final = 3
_GAP: Final = 46.0


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
    ends = ", ".join(f"{states.count(end)} {end}" for end in ("complete", "pruned", "failed"))
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
        tiles=(
            Tile(value=score(best.value, rate), label="best value", detail=_what(sweep), css="m0"),
            Tile(value=str(len(states)), label="trials", detail=ends, css="plain"),
        ),
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
    shares = importance(sweep)
    ranked = sorted(shares.items(), key=lambda item: -item[1])
    mattered = Table(
        title="Which settings mattered",
        columns=("Setting", "Share"),
        rows=tuple((key, percent(share, digits=0)) for key, share in ranked),
        caption="Share of what tells the better half of the trials from all of them (PED-ANOVA, "
        "Watanabe et al. 2023), within the ranges that were searched. Few trials give a hint, not "
        "a measurement.",
    )
    return (
        Section(
            identity="history",
            nav="History",
            title="How the search went",
            intro="Each trial is one training with settings of its own.",
            figures=(history_figure(sweep),),
        ),
        Section(
            identity="settings",
            nav="Settings",
            title="What the settings do",
            intro="What to search more closely, and what to leave alone.",
            figures=(settings_figure(sweep),),
            tables=(mattered,) if shares else (),
        ),
        Section(
            identity="trials",
            nav="Trials",
            title="All trials",
            intro="The same numbers are in result.json.",
            tables=(trial_table(sweep),),
        ),
    )


def history_figure(sweep: Sweep) -> Figure:
    """Return the value of every trial in order, and the best so far as a line."""
    marks = [(t, t.evaluations[-1][1]) for t in sweep.trials if t.state == "pruned"]
    marks += [(t, t.value) for t in sweep.trials if t.value is not None]
    low, high = widened([value for _, value in marks])
    drawing = Drawing(height=_HEIGHT)
    x = Scale(low=-0.5, high=len(sweep.trials) - 0.5, start=LEFT, end=RIGHT)
    y = Scale(low=low, high=high, start=_HEIGHT - 44, end=14.0)
    draw_grid(drawing, x, y)
    every = math.ceil(len(sweep.trials) / 10)
    draw_baseline(drawing, x, y.start, "trial", range(0, len(sweep.trials), every))
    complete = [(t.number, t.value) for t in sweep.trials if t.value is not None]
    best = list(accumulate((value for _, value in complete), max))
    ends = [*(number for number, _ in complete[1:]), len(sweep.trials) - 0.5]
    line = zip(complete, ends, best, strict=True)
    steps = [(x(at), y(value)) for (number, _), end, value in line for at in (number, end)]
    drawing.polyline(steps, "mean-line")
    for trial, value in marks:
        if trial.state == "pruned":
            tip = f"trial {trial.number}: pruned at {value:.4g}"
            drawing.diamond(x(trial.number), y(value), 4.4, "mark held-out", tip)
        else:
            tip = f"trial {trial.number}: {value:.4g}"
            drawing.circle(x(trial.number), y(value), 4.4, "mark m m0", tip)
    return make_figure(
        drawing,
        identity="fig-history",
        title="Every trial, and the best so far",
        caption=f"Value: {_what(sweep)}. A trial that failed has no mark.",
        description=f"{len(complete)} of {len(sweep.trials)} trials went to their end",
        legend=(
            LegendEntry(css="m m0", label="went to its end"),
            LegendEntry(css="held-out", label="pruned, at the value it had then"),
            LegendEntry(css="mean", label="best so far"),
        ),
    )


def settings_figure(sweep: Sweep) -> Figure:
    """Return one panel for each setting: its value in every complete trial against the result."""
    complete = [(t, t.value) for t in sweep.trials if t.value is not None]
    low, high = widened([value for _, value in complete])
    space = sweep.config.space
    drawing = Drawing(height=math.ceil(len(space) / _COLUMNS) * _PANEL)
    width = (RIGHT - LEFT + _GAP) / _COLUMNS
    for index, (key, searched) in enumerate(space.items()):
        row, column = divmod(index, _COLUMNS)
        left, bottom = LEFT + column * width, (row + 1) * _PANEL - 50
        y = Scale(low=low, high=high, start=bottom, end=row * _PANEL + 12)
        draw_grid(drawing, Scale(low=0.0, high=1.0, start=left, end=left + width - _GAP), y)
        settings = [trial.parameters[key] for trial, _ in complete]
        if searched.choices:
            places = [float(searched.choices.index(setting)) for setting in settings]
            labels = [(float(place), shown(x)) for place, x in enumerate(searched.choices)]
            ends = (-0.5, len(searched.choices) - 0.5)
        else:
            places = [math.log10(x) if searched.log else float(x) for x in settings]
            ends = widened(places, share=0.08)
            numbered = sorted(zip(places, settings, strict=True))
            outer = dict.fromkeys((numbered[0], numbered[-1]))
            labels = [(place, f"{setting:.3g}") for place, setting in outer]
        x = Scale(low=ends[0], high=ends[1], start=left, end=left + width - _GAP)
        for place, text in labels:
            drawing.text(x(place), bottom + 16, shorten(text, limit=11), "tick", "middle")
        for place, (trial, value) in zip(places, complete, strict=True):
            tip = f"trial {trial.number}: {value:.4g}"
            drawing.circle(x(place), y(value), 3.6, "mark m m0", tip)
        title = shorten(key, limit=34)
        drawing.text((x.start + x.end) / 2, bottom + 34, title, "axis-label", "middle")
    return make_figure(
        drawing,
        identity="fig-settings",
        title="Where each setting was good",
        caption=f"One mark for each trial that went to its end; up: {_what(sweep)}. The search "
        "draws more often where earlier trials were good, so marks are no even sample.",
        description=f"{len(complete)} trials, {len(space)} settings",
    )
