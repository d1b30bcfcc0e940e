"""Figures and tables of an ego beside a population: gap, adaptation, best responses."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from cadenza.core.tables import Table
from cadenza.evaluation.best_responses import BestResponses
from cadenza.evaluation.encounters import Encounters
from cadenza.evaluation.generalization import ALL_UNSEEN
from cadenza.evaluation.report.analysis import Numbers
from cadenza.evaluation.report.figures.methods import method_legend
from cadenza.evaluation.report.figures.outcomes import DotRow, Lane, difference_axis, dot_figure
from cadenza.evaluation.report.svg import (
    LEFT,
    MISSING,
    RIGHT,
    SHARES,
    Drawing,
    Figure,
    LegendEntry,
    Scale,
    draw_baseline,
    draw_grid,
    make_figure,
    nice_ticks,
    number,
    plural,
    score_change,
    score_text,
    widened,
)
from cadenza.evaluation.report.view import ReportView
from cadenza.evaluation.statistics.estimate import Estimate

#: Height of curves, drawing units, and how far marks of several egos stand apart.
_HEIGHT: Final = 230.0
_APART: Final = 5.0


def gap_figure(view: ReportView, numbers: Numbers) -> Figure | None:
    """Return what each method loses beside unseen families; None where nobody was seen or not."""
    labels = list(dict.fromkeys(name for row in numbers.methods.rows for name in row.gaps))
    rows: list[DotRow] = []
    for label in labels:
        lanes: list[Lane | None] = []
        for row in numbers.methods.rows:
            found = row.gaps.get(label)
            if found is None or found.value is None:
                lanes.append(None)
                continue
            text = score_change(found, view.has_success)
            lanes.append(Lane(css=row.css, estimate=found, seeds=(), text=text, tip=text))
        grouped = label == ALL_UNSEEN
        note = "together" if grouped else "unseen family"
        rows.append(DotRow(label=label, note=note, lanes=tuple(lanes), group=grouped))
    if not rows:
        return None
    unit = " (percentage points)" if view.has_success else ""
    axis = difference_axis(
        rows,
        f"Seen partners minus unseen ones{unit}",
        rates=view.has_success,
        sides=("better beside seen", "better beside unseen"),
        better_high=False,
    )
    return dot_figure(
        rows,
        replace(axis, guide=None),
        identity="fig-gap",
        title="Generalization gap",
        caption="Of every start the mean score beside the seen partners minus that beside the "
        f"unseen ones; 95 % intervals over {view.seed_kind}s. A family may also be harder for "
        "everyone: compare with best responses.",
        legend=method_legend(numbers),
    )


class Curve(NamedTuple):
    """A line through estimates: class, places, estimates, and whether it is dashed."""

    css: str
    label: str
    places: Sequence[float]
    found: Sequence[Estimate]
    is_dashed: bool = False


def curves(
    lines: Sequence[Curve],
    *,
    rate: bool,
    label: str,
    ticks: Sequence[float],
    is_banded: bool = False,
) -> Drawing:
    """Return lines with their intervals, as bands or as bars side by side."""
    ends = [x for line in lines for e in line.found for x in (e.value, e.low, e.high)]
    low, high = (0.0, 1.0) if rate else widened([x for x in ends if x is not None])
    drawing = Drawing(height=_HEIGHT + 70)
    inset = 0.0 if is_banded else 0.5
    x = Scale(low=ticks[0] - inset, high=ticks[-1] + inset, start=LEFT, end=RIGHT)
    y = Scale(low=low, high=high, start=16.0 + _HEIGHT, end=16.0)
    draw_grid(drawing, x, y, SHARES if rate else ())
    draw_baseline(drawing, x, y.start, label, ticks)
    for index, line in enumerate(lines):
        shift = 0.0 if is_banded else _APART * (index - (len(lines) - 1) / 2)
        points = [(x(p) + shift, e) for p, e in zip(line.places, line.found, strict=True)]
        known = [(px, e.low, e.high) for px, e in points if e.low is not None]
        if is_banded:
            upper = [(px, y(top)) for px, _, top in known if top is not None]
            lower = [(px, y(bottom)) for px, bottom, _ in known]
            drawing.polygon([*upper, *lower[::-1]], f"area {line.css}")
        dashed = " reset" if line.is_dashed else ""
        at = [(px, y(e.value)) for px, e in points if e.value is not None]
        drawing.polyline(at, f"step {line.css}{dashed}")
        if is_banded:
            continue
        for px, bottom, top in known:
            if top is not None:
                drawing.line(px, y(bottom), px, y(top), f"interval thin {line.css}")
        for px, e in points:
            if e.value is not None:
                tip = f"{line.label}: {score_text(e, rate)}"
                drawing.circle(px, y(e.value), 3.4, f"mark {line.css}", tip)
    return drawing


def encounter_figures(met: Encounters, labels: Mapping[str, str]) -> list[Figure]:
    """Return scores by encounter and by time; ``labels`` are egos' classes of marks."""
    rate = met.metric == "success"
    egos = [ego for ego in met.egos if ego in labels]
    by_encounter: list[Curve] = []
    for ego in egos:
        css = labels[ego]
        for memory, name in (("kept", "memory kept"), ("reset", "reset")):
            found = met.by_encounter(ego, "kept" if memory == "kept" else "reset")
            alone = not met.by_encounter(ego, "kept")
            told = f"{ego}, no memory" if alone else f"{ego}, {name}"
            places = [float(k) for k in range(1, len(found) + 1)]
            if found:
                by_encounter.append(Curve(css, told, places, found, memory == "reset"))
    what = "share solved" if rate else "mean return"
    legend = tuple(LegendEntry(css=labels[ego], label=ego) for ego in egos)
    count = len(by_encounter[0].places)
    first = make_figure(
        curves(
            by_encounter,
            rate=rate,
            label="Encounter with the same partner",
            ticks=[float(k) for k in range(1, count + 1)],
        ),
        identity="fig-encounters",
        title="Does it adapt? Score by encounter with the same partner",
        caption=f"Solid: the {what} with the memory kept from one encounter to the next; dashed: "
        "with it reset, or an ego without one. 95 % intervals over seeds. A solid line that leaves "
        "the dashed one of its color upwards adapts.",
        description="; ".join(f"{c.label}: {_ends(c.found)}" for c in by_encounter),
        legend=legend,
    )
    times = [0.0, *map(float, met.times)]
    start = Estimate(value=0.0, confidence=0.95, estimator="", n=0, n_clusters=0)
    by_time = [Curve(labels[ego], ego, times, [start, *met.by_time(ego)]) for ego in egos]
    second = make_figure(
        curves(
            by_time,
            rate=rate,
            label="Control steps since the episode began",
            ticks=[0.0, *nice_ticks(0.0, float(met.times[-1]), 8)[1:]],
            is_banded=True,
        ),
        identity="fig-within",
        title="Within an episode",
        caption=f"{'Share solved' if rate else 'Mean return'} so far in first encounters, beside "
        "all partners, with 95 % bands over seeds.",
        description="; ".join(f"{c.label}: {_ends(c.found)}" for c in by_time),
        legend=legend,
    )
    return [first, second]


def encounter_table(met: Encounters, families: Mapping[str, str]) -> Table:
    """Return what the memory of earlier encounters is worth, over all partners and by family."""
    rate = met.metric == "success"
    names = list(dict.fromkeys(families[one.partner] for one in met.series))
    rows: list[tuple[str, ...]] = []
    for ego in met.egos:
        reset, kept = met.by_encounter(ego, "reset"), met.by_encounter(ego, "kept")
        gains = [met.gain(ego)]
        gains += [met.gain(ego, [p for p in families if families[p] == name]) for name in names]
        rows.append((
            ego,
            score_text(reset[0], rate),
            score_text(kept[-1], rate) if kept else "no memory",
            score_text(reset[-1], rate),
            *(score_change(gain, rate) for gain in gains),
        ))  # fmt: skip
    unit = ", points" if rate else ""
    count = len(met.series[0].reset[0])
    return Table(
        title="What the memory of earlier encounters is worth",
        columns=(
            "Ego", "First encounter", f"Encounter {count}, kept", f"Encounter {count}, reset",
            f"Kept minus reset{unit}", *(f"beside {name}" for name in names),
        ),
        rows=tuple(rows),
        caption="Kept minus reset: encounters 2 and on, paired by start, 95 % intervals over "
        "seeds; above 0 the ego uses what it learned of its partner.",
        text_columns=(0,),
    ).without_empty_columns(MISSING)  # fmt: skip


def response_figure(best: BestResponses) -> Figure | None:
    """Return the learning curves of best responses, each between random ego and its score."""
    lines = [(n, one) for n, one in best.partners.items() if len(one.curve) > 1 and one.is_apart]
    if not lines:
        return None
    last = max(one.steps[-1] for _, one in lines)
    shares = {name: [one.share(value) for value in one.curve] for name, one in lines}
    high = max(1.0, *(max(values) for values in shares.values()))
    low = min(0.0, *(min(values) for values in shares.values()))
    drawing = Drawing(height=_HEIGHT + 70)
    x = Scale(low=0.0, high=float(last), start=LEFT, end=RIGHT)
    y = Scale(low=low, high=high, start=16.0 + _HEIGHT, end=16.0)
    draw_grid(drawing, x, y)
    draw_baseline(drawing, x, y.start, "Environment steps")
    drawing.line(x.start, y(1.0), x.end, y(1.0), "reference")
    for name, one in lines:
        points = [(x(s), y(v)) for s, v in zip(one.steps, shares[name], strict=True)]
        drawing.polyline(points, "step m0 faint")
        for point, step, value in zip(points, one.steps, one.curve, strict=True):
            drawing.circle(*point, 2.2, "seed m0", f"{name}, {step} steps: {number(value)}")
    return make_figure(
        drawing,
        identity="fig-responses",
        title=f"How {plural(len(lines), 'best response')} learned",
        caption=f"{best.metric.capitalize()} at evaluations of the training, on other episodes "
        "than those of the score; 0 is a random ego beside the same partner, 1 the score "
        "that egos are measured against. A curve that still rises at the end asks for more steps.",
        description="; ".join(f"{name}: {values[-1]:.2f}" for name, values in shares.items()),
    )


def _ends(found: Sequence[Estimate]) -> str:
    known = [e.value for e in found if e.value is not None]
    return f"{known[0]:.3g} to {known[-1]:.3g}" if known else MISSING
