import re
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from cadenza.core.proportions import wilson_interval
from cadenza.evaluation.report.analysis import analyse
from cadenza.evaluation.report.figures.episodes import (
    SeedSeries,
    distance_figure,
    learning_figure,
    seeds_figure,
    stress_figure,
    trajectory_figure,
)
from cadenza.evaluation.report.figures.methods import (
    difference_forest,
    heat_map,
    improvement_figure,
    profile_figure,
    score_figure,
)
from cadenza.evaluation.report.figures.outcomes import (
    difference_figure,
    outcome_figure,
)
from cadenza.evaluation.report.view import EvaluationPoint, LearningCurve, extent_of
from tests.unit.evaluation.report.sample_view import sample_view
from tests.unit.evaluation.report.svg_tree import parse_svg


def elements(svg, css: str) -> list:
    """Return the elements that have every class of ``css``."""
    wanted = set(css.split())
    found = parse_svg(svg).iter()
    return [e for e in found if wanted <= set(e.attrib.get("class", "").split())]


def words(svg) -> str:
    root = parse_svg(svg)
    return " ".join(e.text or "" for e in root.iter() if e.tag in {"text", "desc"})


def corners(path) -> np.ndarray:
    """Return the corners of a path, (N, 2)."""
    numbers = path.attrib["d"].strip("MZ").replace("L", " ").split()
    return np.array(numbers, dtype=float).reshape(-1, 2)


def centre(mark) -> tuple[float, float]:
    """Return where a circle, diamond or square stands."""
    if "cx" in mark.attrib:
        return float(mark.attrib["cx"]), float(mark.attrib["cy"])
    return tuple(corners(mark).mean(axis=0))


def box(rect) -> tuple[float, ...]:
    """Return left, top, width and height."""
    return tuple(float(rect.attrib[name]) for name in ("x", "y", "width", "height"))


def axis(svg, anchor: str, unit: str = ""):
    """Return what a place on an axis means, from the two outer of its printed ticks."""
    ticks = [e for e in elements(svg, "tick") if e.attrib["text-anchor"] == anchor]
    printed = [(e, e.text.replace("\u2212", "-").replace(",", "")) for e in ticks]
    pattern = re.compile(rf"[-+]?[0-9.]+k?{unit}")
    known = sorted(
        (
            float(text.removesuffix(unit).rstrip("k")) * (1000 if "k" in text else 1),
            place(e, anchor),
        )
        for e, text in printed
        if pattern.fullmatch(text)
    )
    (low, start), (high, end) = known[0], known[-1]
    return lambda place: low + (place - start) / (end - start) * (high - low)


def place(tick, anchor: str) -> float:
    """Return where the line of a tick is; its text stands four units lower on an upright axis."""
    return float(tick.attrib["x"]) if anchor == "middle" else float(tick.attrib["y"]) - 4.0


def read_lanes(svg) -> dict[tuple[str, str], tuple]:
    """Return value, bounds and seeds that a dot plot shows, by the label beside and the mark."""
    value = axis(svg, "middle")
    labels = [(float(e.attrib["y"]), e.text) for e in elements(svg, "label strong")]

    def row_at(y: float) -> str:
        return min((abs(y - at), label) for at, label in labels)[1]

    drawn: dict[tuple[str, str], tuple] = {}
    for mark in elements(svg, "mark"):
        x, y = centre(mark)
        css = mark.attrib["class"].split()[1]
        (line,) = [
            e
            for e in elements(svg, f"interval {css}")
            if row_at(float(e.attrib["y1"])) == row_at(y)
        ]
        ends = value(float(line.attrib["x1"])), value(float(line.attrib["x2"]))
        dots = [
            e for e in elements(svg, f"seed {css}") if row_at(float(e.attrib["cy"])) == row_at(y)
        ]
        seeds = [  # the area of a dot says how many it stands for
            (value(float(dot.attrib["cx"])), (float(dot.attrib["r"]) / 1.7) ** 2) for dot in dots
        ]
        drawn[row_at(y), css] = (value(x), *ends, seeds)
    return drawn


def cumulative(episodes) -> list[tuple[float, float]]:
    """Return the distances of episodes in order, each with the share of episodes up to it."""
    found = sorted(e.min_distance_m for e in episodes)
    shares = {distance: (i + 1) / len(found) for i, distance in enumerate(np.round(found, 3))}
    return list(shares.items())


@pytest.fixture(scope="module")
def view():
    return sample_view(seeds=3, episodes=4)


@pytest.fixture(scope="module")
def numbers(view):
    return analyse(view)


def test_points_intervals_and_seeds_stand_at_their_numbers_beside_their_label(view, numbers):
    rows = (*numbers.partners, *numbers.groups)

    def of_cells(estimate: str, seeds: str, *conditions: str) -> dict:
        return {
            (row.label, css): (getattr(cell, estimate), getattr(cell, seeds))
            for row in rows
            for css, cell in zip(conditions, row.cells, strict=False)
        }

    unscored = replace(view, has_success=False)
    differs = difference_figure(numbers, "contact", better_high=False)
    paired = {(row.label, "diff"): (row.comparisons["contact"].difference, ()) for row in rows}
    for figure, factor, expected in (
        (outcome_figure(view, numbers), 100.0, of_cells("success", "seed_success", "on", "off")),
        (
            outcome_figure(unscored, numbers),
            1.0,
            of_cells("episode_return", "seed_return", "on", "off"),
        ),
        (differs, 100.0, paired),
    ):
        drawn = read_lanes(figure.svg)
        assert drawn.keys() == expected.keys()
        for lane, (estimate, seeds) in expected.items():
            *found, dots = drawn[lane]
            wanted = np.array([estimate.value, estimate.low, estimate.high]) * factor
            assert found == pytest.approx(wanted, abs=0.05)
            counts = sorted(Counter(np.round(seeds, 6).tolist()).items())
            np.testing.assert_allclose(
                dots, [(x * factor, n) for x, n in counts], atol=0.06, err_msg=str(lane)
            )


def test_lane_without_returns_stays_empty(view):
    silent = tuple(
        e.model_copy(update={"episode_return": None}) if e.condition == "filter_off" else e
        for e in view.episodes
    )
    quiet = replace(view, episodes=silent, has_success=False)
    figure = outcome_figure(quiet, analyse(quiet))
    assert len(elements(figure.svg, "mark on")) == 7
    assert elements(figure.svg, "mark off") == []


def test_distances_and_forces_are_added_up_where_they_were_measured(view, numbers):
    svg = distance_figure(view, numbers).svg
    x, share = axis(svg, "middle"), axis(svg, "end", "%")
    assert "contact below 0.40\u00a0m" in words(svg)
    (limit,), (zone,) = elements(svg, "limit"), elements(svg, "danger-zone")
    assert x(float(limit.attrib["x1"])) == pytest.approx(0.4, abs=0.003)
    end = float(zone.attrib["x"]) + float(zone.attrib["width"])
    assert end == pytest.approx(float(limit.attrib["x1"]), abs=0.02)
    for css, condition in (("on", "filter_on"), ("off", "filter_off")):
        episodes = [e for e in view.episodes if e.condition == condition]
        (curve,) = elements(svg, f"step {css}")
        steps = [(x(a), share(b) / 100) for a, b in corners(curve)[2:-1:2]]
        np.testing.assert_allclose(steps, cumulative(episodes), atol=0.004)
    assert (
        elements(distance_figure(replace(view, contact_distance_m=None), numbers).svg, "limit")
        == []
    )
    assert stress_figure(view, numbers) is None
    pressed = tuple(
        e.model_copy(update={"force_peak": float(k)}) for k, e in enumerate(view.episodes)
    )
    loaded = replace(view, episodes=pressed, stress_limit=300.0)
    svg = stress_figure(loaded, analyse(loaded)).svg
    (zone,), (limit,) = elements(svg, "danger-zone"), elements(svg, "limit")
    assert float(zone.attrib["x"]) == float(limit.attrib["x1"])  # too much lies to the right
    assert axis(svg, "middle")(float(limit.attrib["x1"])) == pytest.approx(300.0, abs=2.0)


def test_learning_figure_draws_returns_and_evaluations_at_their_steps():
    curve = LearningCurve(
        steps=(10, 20, 30),
        returns=(0.0, 1.0, 2.0),
        window=2,
        evaluations=(
            EvaluationPoint(step=12, n_episodes=10, n_success=0, mean_return=0.2),
            EvaluationPoint(step=15, n_episodes=10, n_success=5, mean_return=0.5),
            EvaluationPoint(step=30, n_episodes=10, n_success=10, mean_return=2.0),
        ),
    )
    svg = learning_figure(curve).svg
    assert learning_figure(curve).caption.endswith(
        "without it, on starts that training never sees."
    )
    x, y, share = axis(svg, "middle"), axis(svg, "end"), axis(svg, "end", "%")
    episodes = [centre(e) for e in elements(svg, "episode")]
    expected = zip(curve.steps, curve.returns, strict=True)
    np.testing.assert_allclose([(x(a), y(b)) for a, b in episodes], list(expected), atol=0.02)
    mean = [(x(a), y(b)) for a, b in corners(elements(svg, "mean-line")[0])]
    np.testing.assert_allclose(mean, [(20, 0.5), (30, 1.5)], atol=0.02)
    marks = [centre(e) for e in elements(svg, "mark held-out")]
    np.testing.assert_allclose(
        [(x(a), y(b)) for a, b in marks[:3]], [(12, 0.2), (15, 0.5), (30, 2)], atol=0.02
    )
    np.testing.assert_allclose(
        [(x(a), share(b)) for a, b in marks[3:]], [(12, 0), (15, 50), (30, 100)], atol=0.3
    )
    for line, point in zip(elements(svg, "interval"), curve.evaluations, strict=True):
        assert x(float(line.attrib["x1"])) == pytest.approx(point.step, abs=0.02)
        ends = sorted(share(float(line.attrib[end])) / 100 for end in ("y1", "y2"))
        assert ends == pytest.approx(wilson_interval(point.n_success, 10), abs=0.003)
    assert "goes from 0.50 to 1.50; last held-out success 100.0\u00a0%" in words(svg)


def test_trajectories_show_every_run_where_it_went(view):
    chosen = tuple(r for r in view.rollouts if r.pick == "telling")
    figure, extent = trajectory_figure(view, "telling"), extent_of(chosen)
    contacts = sum(r.contact_index is not None for r in chosen)
    assert len(elements(figure.svg, "hit")) == contacts > 0
    assert "Late braker, without filter: contact at" in words(figure.svg)
    shares = [e.text for e in elements(figure.svg, "note") if (e.text or "").startswith("like")]
    assert shares == ["like 1 of 12 starts"] * 5
    floors = {box(e)[:2]: box(e)[2] for e in elements(figure.svg, "floor")}
    labels = [(float(e.attrib["x"]), e.text) for e in elements(figure.svg, "label strong")]
    runs = {(r.partner_id, r.condition_id): r for r in chosen}
    assert len(floors) == len(runs) == 10
    for (left, label), partner in zip(labels, view.partners, strict=True):
        assert label == partner.label
        tops = sorted(top for x, top in floors if x == left)
        for top, condition in zip(tops, view.conditions, strict=True):
            run, size = runs[partner.partner_id, condition.condition_id], floors[left, top]
            unit = (extent.x_high - extent.x_low) / size
            for role in ("ego", "partner"):
                paths = [corners(e) for e in elements(figure.svg, f"trail {role}")]
                middle = np.array([left, top]) + size / 2
                (path,) = [p for p in paths if (abs(p - middle) <= size / 2 + 0.02).all()]
                ends = (path[[0, -1]] - [left, top + size]) * [unit, -unit]
                wanted = np.array([run.frames[i][role] for i in (0, -1)])
                np.testing.assert_allclose(ends, wanted - [extent.x_low, extent.y_low], atol=0.05)
    first = tuple(r for r in view.rollouts if r.partner_id == view.partners[0].partner_id)
    one = trajectory_figure(replace(view, rollouts=first), "telling").svg
    assert [e.text for e in elements(one, "label strong")] == [view.partners[0].label]


def test_difference_figure_marks_zero_and_says_which_side_is_better(numbers):
    figure = difference_figure(numbers, "contact", better_high=False)
    (zero,) = elements(figure.svg, "reference")
    assert axis(figure.svg, "middle")(float(zero.attrib["x1"])) == pytest.approx(0.0, abs=0.05)
    assert "← filter better" in words(figure.svg)
    assert "filter worse →" in words(figure.svg)
    assert "with filter minus without" in words(figure.svg)


def test_distance_figure_of_equal_distances_is_drawn(view):
    same = tuple(e.model_copy(update={"min_distance_m": 0.4}) for e in view.episodes)
    same_view = replace(view, episodes=same)
    figure = distance_figure(same_view, analyse(same_view))
    assert "smallest 0.400\u00a0m, median 0.40\u00a0m" in words(figure.svg)


def test_learning_figure_thins_long_runs_but_keeps_both_ends():
    n = 5000
    curve = LearningCurve(steps=tuple(range(n)), returns=(1.0,) * n)
    dots = elements(learning_figure(curve).svg, "episode")
    assert len(dots) == 400
    assert [float(dots[i].attrib["cx"]) for i in (0, -1)] == [54.0, 826.0]


def three_methods():
    """Return a view of three methods: one solves all, one the sample's episodes, one none."""
    view = sample_view(seeds=4, episodes=5, rollouts=False)
    own = [e for e in view.episodes if e.condition == "filter_on"]
    outcomes = {"all": lambda _: True, "some": lambda e: e.success, "none": lambda _: False}
    return replace(
        view,
        conditions=tuple(
            replace(view.conditions[0], condition_id=name, label=name) for name in outcomes
        ),
        episodes=tuple(
            e.model_copy(update={"condition": name, "success": solved(e)})
            for name, solved in outcomes.items()
            for e in own
        ),
    )


def test_methods_have_ranges_of_ranks_and_simultaneous_intervals():
    view = three_methods()
    methods = analyse(view).methods
    assert methods.paired
    assert [row.ranks for row in methods.rows] == [(1, 2), (1, 2), (3, 3)]  # four seeds
    assert {row.score.confidence for row in methods.rows} == {1 - 0.05 / 3}
    assert methods.improvement["all", "none"].value == 1.0
    assert (
        methods.improvement["none", "some"].value == 1 - methods.improvement["some", "none"].value
    )
    assert methods.rows[1].worst.names == ("chaser",)
    assert methods.rows[1].spread.episodes == 25


def test_figures_of_methods_draw_what_was_computed():
    view = three_methods()
    numbers = analyse(view)
    some = numbers.methods.rows[1]
    x = axis(score_figure(view, numbers).svg, "middle")
    (mark,) = elements(score_figure(view, numbers).svg, "mark m1")
    assert x(float(mark.attrib["cx"])) == pytest.approx(100 * some.score.value, abs=0.5)
    texts = elements(score_figure(view, numbers).svg, "value")
    for text in texts:  # in a wide fallback font a character of 13 px takes 6.9 px on average
        assert float(text.attrib["x"]) + 6.9 * len(text.text) <= 840.0
    assert any(text.text.startswith("IQM 100.0") for text in texts)
    lead = difference_forest(view, numbers)
    assert lead.title == "How far all is ahead"
    (gate,) = elements(lead.svg, "limit")
    assert axis(lead.svg, "middle")(float(gate.attrib["x1"])) == pytest.approx(20.0, abs=0.5)
    cells = elements(heat_map(view, numbers).svg, "cell heat")
    assert len(cells) == 3 * 6  # five partners and the worst
    assert [float(c.attrib["fill-opacity"]) for c in cells[::3]] == [0.6] * 6  # all solves all
    assert [float(c.attrib["fill-opacity"]) for c in cells[2::3]] == [0.0] * 6
    svg = profile_figure(view, numbers).svg
    share = axis(svg, "end", "%")
    (curve,) = elements(svg, "step m1")
    drawn = [share(y) / 100 for _, y in corners(curve)]
    np.testing.assert_allclose(drawn, some.profile.share, atol=0.005)
    assert "0.50" in words(improvement_figure(analyse(replace(view, episodes=tied(view)))).svg)


def tied(view):
    """Return the episodes of a view with every method as good as the first."""
    first = [e for e in view.episodes if e.condition == "all"]
    return tuple(
        e.model_copy(update={"condition": c.condition_id}) for c in view.conditions for e in first
    )


def test_seeds_figure_shades_the_range_of_the_seeds_and_draws_their_mean():
    series = [
        SeedSeries("seed 0", (0.0, 10.0, 20.0), (0.0, 1.0, 1.0)),
        SeedSeries("seed 1", (0.0, 20.0), (1.0, 0.0)),  # 0.5 at step 10
    ]
    figure = seeds_figure("Success", series, identity="f", rate=True)
    (band,), (line,) = elements(figure.svg, "area"), elements(figure.svg, "mean-line")
    heights = corners(line)[:, 1]  # means 0.5, 0.75 and 0.5
    assert heights[0] == heights[2] > heights[1]
    top, bottom = corners(band)[:3, 1], corners(band)[:2:-1, 1]
    scale = (heights[0] - heights[1]) / 0.25
    assert (bottom - top) / scale == pytest.approx([1.0, 0.5, 1.0])  # largest minus least
    assert "mean at the last common step 0.50" in words(figure.svg)
    assert [e.css for e in figure.legend] == ["seed", "mean"]


def test_seeds_figure_needs_more_than_the_first_step():
    assert seeds_figure("x", [SeedSeries("seed 0", (), ())], identity="f") is None
    assert seeds_figure("x", [SeedSeries("seed 0", (0.0,), (1.0,))], identity="f") is None
