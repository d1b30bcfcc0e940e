"""The picture of an episode, and the plane it is drawn in."""

import dataclasses
import io

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from cadenza.safety.verifier import picture
from cadenza.safety.verifier.config import VerifierConfig
from cadenza.safety.verifier.picture import draw_episode
from cadenza.safety.verifier.run import verify

CONFIG = VerifierConfig(
    steps=500, dims=(3,), plants=("zoh",), dts=(0.05,), delays=("none",), partners=(1,)
)


@pytest.fixture(scope="module")
def report():
    return verify(dataclasses.replace(CONFIG, stationary=False))


def test_picture_is_a_png_with_equal_bytes_for_equal_episodes(report):
    first = draw_episode(report.worst, report.config)
    assert draw_episode(report.worst, report.config) == first
    with Image.open(io.BytesIO(first)) as image:
        assert image.format == "PNG"
        assert image.size == (1440, 840)
        assert len(image.convert("RGB").getcolors(1 << 20)) > 50  # more than an empty frame


def test_title_counts_opponents_and_stops_after_a_few():
    names = ["orbit"] * 3 + ["chase", "lead", "lead", "alternate", "cut_across", "late_brake"]
    assert picture._opponents(names) == "3 x orbit, 2 x lead, chase, alternate and 2 more"
    assert picture._opponents(["chase"]) == "chase"


@pytest.fixture(scope="module")
def crowd():
    return verify(dataclasses.replace(CONFIG, partners=(16,), dims=(2,), several_steps=200)).worst


def test_of_many_partners_the_nearest_have_names_and_colours(crowd):
    colours = picture._colours(crowd)
    reached = crowd.nearest.min(axis=0)
    assert len(set(colours.values())) == len(colours) == 6
    assert max(reached[j] for j in colours) <= min(reached[j] for j in set(range(16)) - {*colours})


@pytest.fixture
def drawn(crowd):
    """The axes of a picture of sixteen partners, laid out."""
    figure = Figure(figsize=(12.0, 7.0), layout="constrained")
    canvas = FigureCanvasAgg(figure)
    grid = figure.add_gridspec(2, 2)
    paths, distances, actions = (
        figure.add_subplot(part) for part in (grid[:, 0], grid[0, 1], grid[1, 1])
    )
    step, partner = picture._closest(crowd, 0.4)
    sample = picture._nearest_sample(crowd, step, partner)
    picture._draw_paths(paths, crowd, CONFIG, step, partner)
    picture._draw_distances(distances, crowd, CONFIG, sample)
    picture._draw_actions(actions, crowd, partner)
    canvas.draw()
    return paths, distances, actions


def test_legends_lie_beside_the_data_and_inside_the_picture(drawn):
    for axes in drawn:
        legend = axes.get_legend().get_window_extent()
        assert not legend.overlaps(axes.get_window_extent())
        if axes.get_xlabel():
            assert not legend.overlaps(axes.xaxis.label.get_window_extent())
        assert axes.figure.bbox.containsx(legend.x0)
        assert axes.figure.bbox.containsy(legend.y0)


def test_line_and_discs_are_at_the_same_instant(drawn, crowd):
    paths, distances, _ = drawn
    (line,) = [x for x in distances.lines if x.get_label() == "moment of the discs"]
    assert f"t = {line.get_xdata()[0]:.3g} s" in paths.get_title()
    assert "the first moment about as near as any" in paths.get_title()


def test_plane_shows_the_closest_distance_in_its_true_size(report):
    episode = report.worst
    step, partner = picture._closest(episode, 0.4)
    sample = picture._nearest_sample(episode, step, partner)
    plane = picture._plane(episode, sample, partner)
    assert plane @ plane.T == pytest.approx(np.eye(2), abs=1e-12)
    offset = episode.ego_path[sample] - episode.partner_paths[sample, partner]
    assert np.linalg.norm(plane @ offset) == pytest.approx(np.linalg.norm(offset))


def test_plane_of_a_planar_scene_is_its_own():
    flat = verify(dataclasses.replace(CONFIG, dims=(2,), stationary=False)).worst
    assert np.array_equal(picture._plane(flat, 0, 0), np.eye(2))


def test_picture_shows_the_part_in_which_they_are_near():
    # An ego that drives through a standing partner 8 m ahead and on: neither end is of interest.
    config = dataclasses.replace(CONFIG, barrier="wae", compat="upstream", dims=(2,))
    episode = verify(config).worst
    assert episode.scenario.kind == "stationary"
    part = picture._telling_part(episode, 0.4)
    assert part.nearest.min() == episode.nearest.min()
    assert part.start_s > 1.0
    assert len(part.nearest) < len(episode.nearest) / 2
    assert part.nearest.max() < 3.0
    assert len(part.ego_path) == len(part.nearest) + 1 == len(part.distance)
    dt = episode.scenario.dt
    first = round(part.start_s / dt)
    assert np.array_equal(part.action, episode.action[first : first + len(part.action)])


def test_worst_episode_of_a_run_with_several_partners_only_is_theirs():
    config = dataclasses.replace(CONFIG, partners=(2, 3), several_steps=300)
    report = verify(config)
    assert report.worst.scenario.partners > 1
    assert report.worst.min_distance == min(r.counts.min_distance_m for r in report.results)
    assert len(draw_episode(report.worst, config)) > 1000


def test_worst_episode_is_one_with_a_single_partner_where_there_is_one():
    config = dataclasses.replace(CONFIG, partners=(1, 3), several_steps=2000, dims=(2,))
    report = verify(config)
    assert report.several().min_distance_m < report.single_adversarial().min_distance_m
    assert report.worst.scenario.partners == 1
    # A standing partner is approached to contact every time, which tells nothing.
    assert report.stationary().episodes > 0
    assert report.worst.scenario.kind == "adversarial"
