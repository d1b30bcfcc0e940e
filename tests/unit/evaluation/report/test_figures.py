from dataclasses import replace

import numpy as np
import pytest

from cadenza.evaluation.report.analysis import analyse
from cadenza.evaluation.report.figures.distance import (
    distance_figure,
    histogram_edges,
    partner_distance_figure,
)
from cadenza.evaluation.report.figures.learning import learning_figure, moving_mean
from cadenza.evaluation.report.figures.outcomes import (
    difference_figure,
    intervention_figure,
    return_figure,
    success_figure,
)
from cadenza.evaluation.report.figures.trajectories import trajectory_figure
from cadenza.evaluation.report.view import EvaluationPoint, LearningCurve
from tests.unit.evaluation.report.sample_view import sample_view
from tests.unit.evaluation.report.svg_tree import parse_svg


def elements(svg, css: str) -> list:
    root = parse_svg(svg)
    return [e for e in root.iter() if css in e.attrib.get("class", "").split()]


def words(svg) -> str:
    root = parse_svg(svg)
    return " ".join(e.text or "" for e in root.iter() if e.tag in {"text", "desc"})


@pytest.fixture(scope="module")
def view():
    return sample_view(seeds=3, episodes=4)


@pytest.fixture(scope="module")
def numbers(view):
    return analyse(view)


def test_moving_mean_averages_what_is_there():
    assert moving_mean([1.0, 2.0, 3.0, 7.0], 3).tolist() == [1.0, 1.5, 2.0, 4.0]
    assert moving_mean([], 3).size == 0


def test_success_figure_has_one_mark_per_partner_and_condition(view, numbers):
    figure = success_figure(view, numbers)
    for svg in (figure.wide, figure.narrow):
        assert len(elements(svg, "mark")) == 2 * (5 + 2)  # five partners, two groups
    assert len(elements(figure.wide, "on")) > 0
    assert "never met, leaves no way" in words(figure.wide)
    assert "Goal-seeker (trained with)" in words(figure.narrow)


def test_success_marks_stand_at_their_rate(view, numbers):
    svg = success_figure(view, numbers).wide
    left, right = 222.0, 840.0 - 172.0  # the plot between label and number columns
    rates = [row.cells[0].success.value for row in (*numbers.partners, *numbers.groups)]
    marks = [float(e.attrib["cx"]) for e in elements(svg, "mark") if "on" in e.attrib["class"]]
    assert marks == pytest.approx([left + rate * (right - left) for rate in rates], abs=0.01)


def test_seed_dots_grow_with_the_seeds_they_stand_for(view, numbers):
    svg = success_figure(view, numbers).wide
    seeds = elements(svg, "seed")
    area = sum((float(e.attrib["r"]) / 1.7) ** 2 for e in seeds)
    assert area == pytest.approx(3 * 2 * (5 + 2), rel=0.02)  # three seeds per mark


def test_difference_figure_marks_zero_and_says_which_side_is_better(numbers):
    figure = difference_figure(numbers, "contact", better_high=False)
    assert len(elements(figure.wide, "reference")) == 1
    assert "← filter better" in words(figure.wide)
    assert "filter worse →" in words(figure.wide)
    assert "with filter minus without" in words(figure.wide)


def test_difference_figure_without_pairs_is_left_out(view):
    one = replace(
        view,
        conditions=view.conditions[:1],
        episodes=tuple(e for e in view.episodes if e.condition == "filter_on"),
        rollouts=(),
    )
    assert difference_figure(analyse(one), "success", better_high=True) is None


def test_return_figure_shows_means(view, numbers):
    figure = return_figure(view, numbers)
    assert "Mean episode return" in words(figure.wide)
    assert len(elements(figure.wide, "mark")) == 14


def test_return_figure_skips_cells_without_returns(view):
    silent = tuple(
        e.model_copy(update={"episode_return": None}) if e.condition == "filter_off" else e
        for e in view.episodes
    )
    figure = return_figure(view, analyse(replace(view, episodes=silent)))
    assert len(elements(figure.wide, "mark")) == 7


def test_distance_figure_of_equal_distances_is_drawn(view):
    same = tuple(e.model_copy(update={"min_distance_m": 0.4}) for e in view.episodes)
    same_view = replace(view, episodes=same)
    figure = distance_figure(same_view, analyse(same_view))
    assert "smallest 0.400\u00a0m, median 0.40\u00a0m" in words(figure.wide)


def test_distance_figure_of_one_played_condition_is_drawn(view):
    half = tuple(e for e in view.episodes if e.condition == "filter_on")
    half_view = replace(view, episodes=half)
    figure = distance_figure(half_view, analyse(half_view))
    assert len(elements(figure.wide, "step")) == 3  # two outlines, one cumulative curve


def test_intervention_figure_has_one_lane_per_row(numbers):
    assert len(elements(intervention_figure(numbers).wide, "mark")) == 7


def test_intervention_figure_without_filter_is_left_out(view):
    bare = replace(
        view,
        conditions=view.conditions[1:],
        episodes=tuple(e for e in view.episodes if e.condition == "filter_off"),
        rollouts=(),
    )
    assert intervention_figure(analyse(bare)) is None


def test_histogram_edges_hold_the_contact_distance():
    edges = histogram_edges((0.1, 2.1), 0.4)
    assert np.isclose(edges, 0.4).any()
    assert edges[0] <= 0.1
    assert edges[-1] >= 2.1
    assert np.allclose(np.diff(edges), 0.05)


def test_histogram_edges_without_contact_start_at_the_axis():
    edges = histogram_edges((0.0, 4.0), None)
    assert edges[[0, -1]].tolist() == [0.0, 4.0]


def test_distance_figure_marks_the_contact_distance_in_both_panels(view, numbers):
    figure = distance_figure(view, numbers)
    assert "contact below 0.40\u00a0m" in words(figure.wide)
    assert len(elements(figure.wide, "danger-zone")) == 2
    limit = float(elements(figure.wide, "limit")[0].attrib["x1"])
    zone = elements(figure.wide, "danger-zone")[0]
    assert float(zone.attrib["x"]) + float(zone.attrib["width"]) == pytest.approx(limit, abs=0.02)


def test_cumulative_curve_ends_at_all_episodes(view, numbers):
    svg = distance_figure(view, numbers).wide
    histogram_and_curve = [e for e in elements(svg, "step") if "on" in e.attrib["class"]]
    top_of_panel = 22.0 + 150.0 + 26.0
    last = histogram_and_curve[1].attrib["d"].split("L")[-1]
    assert float(last.split()[1]) == pytest.approx(top_of_panel)


def test_distance_figures_without_distances_are_left_out(view):
    blind = tuple(e.model_copy(update={"min_distance_m": None}) for e in view.episodes)
    blind_view = replace(view, episodes=blind)
    assert distance_figure(blind_view, analyse(blind_view)) is None
    assert partner_distance_figure(blind_view, analyse(blind_view)) is None


def test_distance_figure_of_a_task_without_contact_has_no_limit(view, numbers):
    figure = distance_figure(replace(view, contact_distance_m=None), numbers)
    assert elements(figure.wide, "limit") == []


def test_partner_distances_have_one_panel_each(view, numbers):
    figure = partner_distance_figure(view, numbers)
    assert len(elements(figure.wide, "danger-zone")) == 5


def test_learning_figure_draws_evaluations_with_intervals():
    curve = LearningCurve(
        steps=(10, 20, 30),
        returns=(0.0, 1.0, 2.0),
        window=2,
        evaluations=(
            EvaluationPoint(step=15, n_episodes=10, n_success=5, mean_return=0.5),
            EvaluationPoint(step=30, n_episodes=10, n_success=10, mean_return=2.0),
        ),
    )
    svg = learning_figure(curve).wide
    assert len(elements(svg, "episode")) == 3
    assert len(elements(svg, "interval")) == 2
    assert len(elements(svg, "mark")) == 4  # two returns, two success rates
    # mean of the first two is 0.5, of the last two 1.5
    assert "goes from 0.50 to 1.50; last held-out success 100.0\u00a0%" in words(svg)


def test_learning_figure_draws_the_mean_only_over_full_windows():
    curve = LearningCurve(steps=(1, 2, 3, 4), returns=(9.0, 0.0, 0.0, 0.0), window=3)
    path = elements(learning_figure(curve).wide, "mean-line")[0].attrib["d"]
    assert path.count("L") == 1  # positions 2 and 3


def test_learning_figure_thins_long_runs_but_keeps_both_ends():
    n = 5000
    curve = LearningCurve(steps=tuple(range(n)), returns=(1.0,) * n)
    dots = elements(learning_figure(curve).wide, "episode")
    assert len(dots) == 400
    assert [float(dots[i].attrib["cx"]) for i in (0, -1)] == [54.0, 826.0]


def test_learning_caption_mentions_held_out_episodes_only_if_there_are_some():
    silent = learning_figure(LearningCurve(steps=(1,), returns=(1.0,), label="seed 0"))
    assert silent.caption == "Seed 0. Training returns include exploration."
    point = EvaluationPoint(step=1, n_episodes=1, n_success=1)
    spoken = learning_figure(LearningCurve(steps=(), returns=(), evaluations=(point,)))
    assert spoken.caption.startswith("Training returns include exploration; held-out")


def test_learning_figure_of_nothing_is_left_out():
    assert learning_figure(LearningCurve(steps=(), returns=())) is None


def test_learning_figure_of_evaluations_alone_is_drawn():
    curve = LearningCurve(
        steps=(), returns=(), evaluations=(EvaluationPoint(step=5, n_episodes=4, n_success=1),)
    )
    assert len(elements(learning_figure(curve).narrow, "mark")) == 1


def test_trajectories_show_every_run_and_contact(view):
    figure = trajectory_figure(view)
    contacts = sum(r.contact_index is not None for r in view.rollouts)
    assert contacts > 0
    for svg in (figure.wide, figure.narrow):
        assert len(elements(svg, "floor")) == 10
        assert len(elements(svg, "hit")) == contacts
        assert len(elements(svg, "trail")) == 20
    assert "Late braker, without filter: contact at" in words(figure.wide)


def test_trajectories_without_rollouts_are_left_out(view):
    assert trajectory_figure(replace(view, rollouts=())) is None
